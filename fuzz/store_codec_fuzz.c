/* TCPStore bytes from strangers: the codec in any segmentation, the commands behind it, and a client's reading of
 * replies.
 *
 * Input: chunks of two bytes (which of four sessions, and how many bytes) and the bytes, which that session then
 * "receives". A session byte from 0xf0 on means a reply instead: the next byte names the command it answers. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "store/server/kv_machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SESSIONS = 4, REPLY_MARK = 0xf0 };
#define STORE_BYTES_MAX ((size_t)256 * 1024)

struct stranger {
    struct kv_session session; /* first */
    struct buf in;
    struct codec_scan scan;
    bool is_dropped;
};

static void deliver(void *ctx, struct kv_session *session, struct kv_slice head, struct kv_entry *entry) {
    size_t *total = ctx;
    assert(session->pending == KV_PENDING_NONE); /* it is served before it waits again */
    *total += head.len + (entry ? kv_entry_value(entry).len : 0);
}

static void replaced(void *ctx, struct kv_session *session) {
    (void)ctx;
    assert(session->pending == KV_PENDING_NONE && !session->caller);
    ((struct stranger *)session)->is_dropped = true;
}

/* The same bytes walked from the start must come to the same end as the walk that went on. */
static void check_scan(const struct stranger *stranger, enum codec_result result) {
    struct codec_scan fresh;
    codec_scan_request(&fresh);
    enum codec_result again = codec_scan_step(&fresh, buf_bytes(&stranger->in), stranger->in.len);
    assert(again == result);
    assert(result != CODEC_COMPLETE || (fresh.at == stranger->scan.at && fresh.at <= stranger->in.len));
    assert(result != CODEC_MORE || fresh.need > stranger->in.len);
}

/* What the client receives. */
static void send_output(struct kv_output *output, struct buf *out) {
    struct kv_slice piece;
    while (kv_output_peek(output, &piece, 1) > 0) {
        (void)buf_append(out, piece.data, piece.len);
        kv_output_consume(output, piece.len);
    }
}

/* A reply must be one that a client understands. */
static void check_reply(enum codec_command command, const struct codec_request *request, const struct buf *reply) {
    struct codec_scan scan;
    struct codec_reply decoded;
    size_t count = command == CODEC_MULTI_GET ? request->list.item_count : 0;
    if (reply->len == 0) { /* none, or a wait */
        return;
    }
    codec_scan_reply(&scan, command, count);
    enum codec_result result = codec_scan_step(&scan, buf_bytes(reply), reply->len);
    assert(result == CODEC_COMPLETE && scan.at == reply->len);
    codec_reply_decode(command, buf_bytes(reply), reply->len, &decoded);
}

static void serve(struct kv_machine *machine, struct stranger *stranger) {
    while (!stranger->is_dropped) {
        enum codec_result result = codec_scan_step(&stranger->scan, buf_bytes(&stranger->in), stranger->in.len);
        check_scan(stranger, result);
        if (result == CODEC_MORE) {
            return;
        }
        if (result == CODEC_MALFORMED) {
            stranger->is_dropped = true;
            break;
        }
        struct codec_request request;
        struct kv_output reply;
        size_t len = stranger->scan.at;
        codec_request_decode(buf_bytes(&stranger->in), len, &request);
        kv_output_init(&reply, &machine->table, CODEC_MESSAGE_BYTES_MAX);
        if (request.command != CODEC_VALIDATE && kv_machine_step(machine, &stranger->session, &request, &reply)) {
            stranger->is_dropped = true;
        } else {
            struct buf sent;
            buf_init(&sent, CODEC_MESSAGE_BYTES_MAX);
            send_output(&reply, &sent);
            check_reply(request.command, &request, &sent);
            buf_done(&sent);
        }
        kv_output_done(&reply);
        assert(machine->budget.used_bytes <= machine->budget.max_bytes);
        buf_consume(&stranger->in, len);
        codec_scan_request(&stranger->scan);
        if (stranger->in.len == 0) {
            return;
        }
    }
    kv_machine_end(machine, &stranger->session, stranger->in.len % 2 == 0);
}

static void read_as_reply(uint8_t command, const uint8_t *bytes, size_t len) {
    struct codec_scan scan, fresh;
    struct codec_reply reply;
    if (strcmp(codec_command_name(command), "?") == 0) {
        return;
    }
    codec_scan_reply(&scan, command, 2);
    for (size_t have = 0; have <= len; have++) {
        enum codec_result result = codec_scan_step(&scan, bytes, have);
        codec_scan_reply(&fresh, command, 2);
        enum codec_result again = codec_scan_step(&fresh, bytes, have);
        assert(again == result);
        if (result == CODEC_COMPLETE) {
            struct kv_slice item;
            codec_reply_decode(command, bytes, scan.at, &reply);
            while (codec_list_next(&reply.list, &item)) {
                assert(item.data >= bytes && item.data + item.len <= bytes + scan.at);
            }
        }
        if (result != CODEC_MORE) {
            return;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint64_t seed[4] = {1, 2, 3, 4};
    struct kv_machine machine;
    struct stranger strangers[SESSIONS];
    size_t delivered = 0;
    kv_machine_init(&machine, seed, STORE_BYTES_MAX);
    machine.deliver = deliver;
    machine.deliver_ctx = &delivered;
    machine.replaced = replaced;
    for (size_t i = 0; i < SESSIONS; i++) {
        strangers[i] = (struct stranger){.session.id = i + 1};
        buf_init(&strangers[i].in, size + 1);
        codec_scan_request(&strangers[i].scan);
    }
    while (size >= 2) {
        uint8_t who = data[0];
        size_t len = data[1] < size - 2 ? data[1] : size - 2;
        if (who >= REPLY_MARK) {
            read_as_reply(data[1], data + 2, size - 2);
            break;
        }
        struct stranger *stranger = &strangers[who % SESSIONS];
        if (!stranger->is_dropped && buf_append(&stranger->in, data + 2, len) == 0) {
            serve(&machine, stranger);
        }
        data += 2 + len;
        size -= 2 + len;
    }
    for (size_t i = 0; i < SESSIONS; i++) {
        kv_machine_end(&machine, &strangers[i].session, false);
        buf_done(&strangers[i].in);
    }
    kv_machine_done(&machine);
    assert(machine.budget.used_bytes == 0);
    return 0;
}
