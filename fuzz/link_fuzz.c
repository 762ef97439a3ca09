/* Everything that a peer, or a stranger, can send: the handshake, contacts, and whole streams of frames given to a real
 * process's end of a connection, whose own receives and sends are under way. The first byte says which. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/p2p/p2p_impl.h"

enum { RECEIVES = 4, RECEIVE_BYTES = 3000, SEND_BYTES = 200000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void consume(void *context, size_t offset, const void *bytes, size_t count) {
    uint8_t *sum = context;
    assert(offset <= RECEIVE_BYTES && count <= RECEIVE_BYTES - offset && offset % 8 == 0);
    for (size_t i = 0; i < count; i++) {
        sum[offset + i] ^= ((const uint8_t *)bytes)[i];
    }
}

static void post(struct p2p *p2p, struct p2p_request requests[RECEIVES + 1], uint8_t *memory) {
    for (uint32_t i = 0; i < RECEIVES; i++) {
        const struct p2p_envelope envelope = {
            .group = 1, .lane = i % 2, .peer = i == 3 ? P2P_ANY_PEER : 1, .tag = i / 2, .fingerprint = 3};
        int code = i < 2 ? p2p_receive(p2p, &requests[i], &envelope, memory + i * RECEIVE_BYTES, RECEIVE_BYTES, 0)
                         : p2p_receive_consume(p2p, &requests[i], &envelope, consume, memory + i * RECEIVE_BYTES,
                                               RECEIVE_BYTES, 0);
        assert(code == 0);
    }
    const struct p2p_envelope to = {.group = 1, .lane = 0, .peer = 1, .tag = 9, .fingerprint = 3};
    int code = p2p_send(p2p, &requests[RECEIVES], &to, memory, SEND_BYTES, 0);
    assert(code == 0);
}

/* One end of a socket pair becomes the connection to rank 1; the input comes out of the other. */
static void feed(struct p2p *p2p, const uint8_t *data, size_t size, bool is_watch) {
    int pair[2];
    int made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair);
    assert(made == 0);
    p2p_lock(p2p);
    struct p2p_link *link = link_entry(p2p, 1);
    int code = stream_open(p2p, link, link_tcp_create(pair[0]), 0, false, true);
    assert(code == 0);
    if (is_watch) {
        int more[2];
        made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, more);
        assert(made == 0);
        code = stream_open(p2p, link, link_tcp_create(more[0]), 0, true, true);
        assert(code == 0);
        (void)!send(more[1], data, size < 65536 ? size : 65536, MSG_NOSIGNAL);
        (void)close(more[1]);
    }
    p2p_unlock(p2p);
    struct p2p_request requests[RECEIVES + 1], *all[RECEIVES + 1];
    uint8_t *memory = calloc(1, SEND_BYTES);
    assert(memory);
    post(p2p, requests, memory);
    uint8_t drain[4096];
    for (size_t at = 0; at < size && !is_watch;) {
        ssize_t n = send(pair[1], data + at, size - at < 4096 ? size - at : 4096, MSG_NOSIGNAL);
        at += n > 0 ? (size_t)n : size;
        (void)p2p_progress(p2p);
        (void)!read(pair[1], drain, sizeof drain);
    }
    const struct p2p_group_info info = {.id = 1, .name = "fuzz"};
    (void)p2p_begin_call(p2p, &info, 0, 3);
    p2p_attend(p2p);
    for (int i = 0; i < 8; i++) {
        (void)p2p_progress(p2p);
    }
    (void)close(pair[1]);
    p2p_attend(p2p);
    for (size_t i = 0; i <= RECEIVES; i++) {
        all[i] = &requests[i];
    }
    p2p_withdraw(p2p, all, RECEIVES + 1);
    (void)p2p_collect(all, RECEIVES + 1, 0);
    free(memory);
}

static void connection(const uint8_t *data, size_t size, bool is_watch) {
    static struct comm_bell bell;
    const struct p2p_config config = {.rank = 0, .size = 3, .bell = &bell};
    struct p2p *p2p = NULL;
    int code = p2p_create(&config, &p2p);
    assert(code == 0);
    feed(p2p, data, size, is_watch);
    p2p_free(p2p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    uint8_t which = data[0] % 8;
    data++, size--;
    struct wire_hello hello;
    struct wire_answer answer;
    struct wire_contact contact;
    if (which == 0 && size >= WIRE_HELLO_BYTES) {
        (void)wire_hello_decode(data, &hello);
        (void)wire_answer_decode(data, &answer);
    } else if (which == 1) {
        (void)wire_contact_decode(data, size, &contact);
    } else {
        connection(data, size, which == 2);
    }
    return 0;
}
