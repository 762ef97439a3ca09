/* Letters; see etcd3_mail.h. */
#include "rendezvous/etcd3_mail.h"

#include <assert.h>

#include "base/bytes.h"
#include "base/status.h"

#define MAGIC "MUSTER3\n"
enum { MAGIC_BYTES = 8, HEAD_BYTES = MAGIC_BYTES + 3 * 8 };
#define NUMBER_MAX ((uint64_t)1 << 62)

void etcd3_mail_init(struct etcd3_mail *mail, uint64_t epoch, bool from_agent) {
    *mail = (struct etcd3_mail){.epoch = epoch, .first = 1, .from_agent = from_agent};
    buf_init(&mail->frames, ETCD3_MAIL_BYTES_MAX - HEAD_BYTES);
}

void etcd3_mail_done(struct etcd3_mail *mail) {
    buf_done(&mail->frames);
}

int etcd3_mail_add(struct etcd3_mail *mail, const struct coordinator_message *message) {
    return coordinator_wire_put(&mail->frames, message);
}

int etcd3_mail_put(const struct etcd3_mail *mail, struct buf *out) {
    uint8_t head[HEAD_BYTES];
    struct bytes_writer w = {.data = head, .size = sizeof head};
    bytes_put(&w, MAGIC, MAGIC_BYTES);
    bytes_put_number(&w, mail->epoch, 8);
    bytes_put_number(&w, mail->taken, 8);
    bytes_put_number(&w, mail->first, 8);
    assert(!w.overrun && w.used == sizeof head);
    int rc = buf_append(out, head, sizeof head);
    return rc ? rc : buf_append(out, buf_bytes(&mail->frames), mail->frames.len);
}

int etcd3_letter_open(struct kv_slice value, struct etcd3_letter *out) {
    struct bytes_reader r = {.data = value.data, .size = value.len};
    const uint8_t *magic = bytes_get(&r, MAGIC_BYTES);
    bool is_letter = magic && memcmp(magic, MAGIC, MAGIC_BYTES) == 0;
    *out = (struct etcd3_letter){.epoch = bytes_get_number(&r, 8)};
    out->taken = bytes_get_number(&r, 8);
    out->first = bytes_get_number(&r, 8);
    if (!is_letter || r.overrun || out->first < 1 || out->first > NUMBER_MAX || out->taken > NUMBER_MAX ||
        value.len > ETCD3_MAIL_BYTES_MAX) {
        return status_fail(MUSTER_EPROTOCOL, "a value that no agent of this version has written");
    }
    out->frames = kv_slice_of(value.data + r.used, value.len - r.used);
    return MUSTER_OK;
}

/* The length of the frame in front; what is here was written by coordinator_wire_put(). */
static size_t drop_frame(struct etcd3_mail *mail) {
    struct coordinator_message message;
    size_t used = 0;
    if (mail->frames.len == 0 || coordinator_wire_get(buf_bytes(&mail->frames), mail->frames.len, mail->from_agent,
                                                      &message, &used) != COORDINATOR_COMPLETE) {
        return 0;
    }
    buf_consume(&mail->frames, used);
    mail->first++;
    return used;
}

int etcd3_mail_receive(struct etcd3_mail *mail, const struct etcd3_letter *letter) {
    assert(letter->epoch == mail->epoch);
    while (mail->first <= letter->taken) {
        if (drop_frame(mail) == 0) {
            return status_fail(MUSTER_EPROTOCOL, "message %llu is said to have been read, and was never written",
                               (unsigned long long)letter->taken);
        }
    }
    if (letter->first > mail->taken + 1) {
        return status_fail(MUSTER_EPROTOCOL, "messages %llu to %llu are missing", (unsigned long long)mail->taken + 1,
                           (unsigned long long)letter->first - 1);
    }
    return MUSTER_OK;
}

bool etcd3_mail_next(struct etcd3_mail *mail, struct etcd3_letter *letter, struct coordinator_message *out,
                     int *status) {
    *status = MUSTER_OK;
    while (letter->frames.len > 0) {
        size_t used = 0;
        enum coordinator_parse parsed =
            coordinator_wire_get(letter->frames.data, letter->frames.len, !mail->from_agent, out, &used);
        if (parsed != COORDINATOR_COMPLETE) {
            *status = parsed == COORDINATOR_MALFORMED ? MUSTER_EPROTOCOL
                                                      : status_fail(MUSTER_EPROTOCOL, "a message that is cut off");
            return false;
        }
        letter->frames = kv_slice_of(letter->frames.data + used, letter->frames.len - used);
        if (letter->first++ > mail->taken) {
            mail->taken++;
            return true;
        }
    }
    return false;
}
