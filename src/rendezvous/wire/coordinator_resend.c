/* Messages that are kept until the other side confirms them; see coordinator_resend.h. */
#include "rendezvous/wire/coordinator_resend.h"

#include <assert.h>

#include "base/bytes.h"
#include "base/status.h"

enum { LENGTH_BYTES = 4 };

void coordinator_resend_init(struct coordinator_resend *r) {
    *r = (struct coordinator_resend){.sent_count = 0};
    buf_init(&r->unconfirmed, COORDINATOR_RESEND_BYTES_MAX);
}

void coordinator_resend_done(struct coordinator_resend *r) {
    buf_done(&r->unconfirmed);
}

bool coordinator_resend_counts(enum coordinator_kind kind) {
    switch (kind) {
    case COORDINATOR_JOIN:
    case COORDINATOR_FAILED:
    case COORDINATOR_LEAVE:
    case COORDINATOR_DONE:
    case COORDINATOR_CLOSE:
    case COORDINATOR_PREEMPT:
    case COORDINATOR_ACCEPT:
    case COORDINATOR_ENGINE:
    case COORDINATOR_WORLD:
    case COORDINATOR_CHANGE:
    case COORDINATOR_ALL_DONE:
    case COORDINATOR_CLOSED:
    case COORDINATOR_STOP:
    case COORDINATOR_SPARE:
    case COORDINATOR_LET_IN:
    case COORDINATOR_PROPOSE:
    case COORDINATOR_HOST_DONE:
        return true;
    default:
        return false;
    }
}

int coordinator_resend_sent(struct coordinator_resend *r, const uint8_t *frame, size_t len) {
    int code = buf_append(&r->unconfirmed, frame, len);
    if (code) {
        return status_prefix(code, "%zu bytes that the other side has not confirmed", r->unconfirmed.len);
    }
    r->sent_count++;
    return MUSTER_OK;
}

const uint8_t *coordinator_resend_next(const struct coordinator_resend *r, size_t *at, size_t *len) {
    if (*at >= r->unconfirmed.len) {
        return NULL;
    }
    const uint8_t *frame = buf_bytes(&r->unconfirmed) + *at;
    struct bytes_reader length = {.data = frame, .size = r->unconfirmed.len - *at};
    *len = LENGTH_BYTES + (size_t)bytes_get_number(&length, LENGTH_BYTES);
    assert(!length.overrun && *len <= r->unconfirmed.len - *at);
    *at += *len;
    return frame;
}

bool coordinator_resend_confirm(struct coordinator_resend *r, uint64_t count) {
    size_t at = 0, len;
    if (count < r->confirmed_count || count > r->sent_count) {
        return false;
    }
    for (; r->confirmed_count < count; r->confirmed_count++) {
        (void)coordinator_resend_next(r, &at, &len);
    }
    buf_consume(&r->unconfirmed, at);
    if (r->unconfirmed.len == 0) {
        buf_done(&r->unconfirmed);
        buf_init(&r->unconfirmed, COORDINATOR_RESEND_BYTES_MAX);
    }
    return true;
}
