/* Strangers on the store server's sockets: what they send, in which pieces, what they leave unread, when they hang up.
 *
 * Input: one byte says who (its low three bits) does what (the rest); to send takes a length and the bytes. A witness
 * that keeps to the protocol is served before and after, whatever the strangers do, and all they held is given back
 * when they are gone. Strangers may also speak to a guest on the same port, which echoes, drops, ends, and tells all
 * others. */
#include <assert.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "store/server/kv_engine_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STRANGERS = 8, TURNS_MAX = 2000, SOCKET_BYTES = 4096, HELLO_BYTES = 10 };
enum action { SEND = 0, SEND_LAST = 15, TURN = 16, READ = 17, READ_ALL = 18, NO_MORE, HANG_UP, HELLO, HOST_SET, RESET };
enum { GUEST_FIRST_BYTE = 0x20, GUEST_INPUT_MAX = 200, GUEST_NEWS_BYTES = 5000 };
enum { GUEST_ECHO = 0, GUEST_DROP = 1, GUEST_END = 2, GUEST_TELL = 3 };
#define STORE_BYTES_MAX ((size_t)1024 * 1024)

static const uint8_t hello[HELLO_BYTES] = "\0\xce\xf7\x85\x3c\x0dping";

struct scene {
    struct kv_engine *engine;
    int strangers[STRANGERS]; /* -1: not there */
    int witness;
    uint64_t opened, ended, replaced;
};

static void on_disconnect(void *ctx, uint64_t connection, enum kv_end end) {
    struct scene *scene = ctx;
    assert(connection > 0 && end <= KV_END_DROPPED);
    scene->ended++;
    /* The host may write when a client goes; there may be no room. */
    (void)kv_engine_set(scene->engine, kv_slice_text("gone"), kv_slice_text("somebody"));
}

/* Of a connection whose client speaks on another one nobody hears that it ends. */
static void replaced(void *ctx, struct kv_session *session) {
    struct kv_engine *engine = ctx;
    struct scene *scene = engine->ctx;
    scene->replaced++;
    kv_connection_replaced(engine, session);
}

static void on_return(void *ctx, uint64_t connection) {
    struct scene *scene = ctx;
    assert(connection > 0);
    (void)kv_engine_set(scene->engine, kv_slice_text("back"), kv_slice_text("somebody"));
}

/* A message of the guest's: a byte, and as many bytes, of which the first says what to do. */
static size_t serve_guest(void *ctx, struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    static const uint8_t news[GUEST_NEWS_BYTES];
    struct scene *scene = ctx;
    size_t size = 1 + (size_t)bytes[0];
    assert(len > 0 && len < GUEST_INPUT_MAX + KV_INPUT_BYTES);
    kv_guest_set(connection, scene);
    if (size > len) {
        return 0;
    }
    switch (size > 1 ? bytes[1] : GUEST_ECHO) {
    case GUEST_DROP:
        return SIZE_MAX;
    case GUEST_END:
        kv_guest_end(connection);
        break;
    case GUEST_TELL:
        for (struct kv_connection *at = scene->engine->connections; at; at = at->next) {
            if (at->seat) {
                kv_guest_send(at, news, sizeof news);
            }
        }
        break;
    default:
        kv_guest_send(connection, bytes, size);
    }
    return size;
}

static void guest_ended(void *ctx, struct kv_connection *connection) {
    struct scene *scene = ctx;
    assert(kv_guest_data(connection) == scene);
    kv_guest_send(connection, "late", 4); /* to nobody */
    scene->ended++;
}

static struct kv_engine *create(struct scene *scene) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&address};
    struct kv_server_options options = {.addresses = addresses,
                                        .address_count = 1,
                                        .bytes_max = STORE_BYTES_MAX,
                                        .on_disconnect = on_disconnect,
                                        .on_return = on_return,
                                        .ctx = scene,
                                        .guest = &(const struct kv_guest){.first_byte = GUEST_FIRST_BYTE,
                                                                          .input_max = GUEST_INPUT_MAX,
                                                                          .serve = serve_guest,
                                                                          .ended = guest_ended,
                                                                          .ctx = scene}};
    struct kv_engine *engine = NULL;
    int code = kv_engine_create(&options, &engine);
    assert(code == 0);
    engine->machine.replaced = replaced;
    return engine;
}

/* Serves until nothing is left to do. A server that is busy for ever is a finding. */
static void serve(struct scene *scene) {
    struct pollfd poll_fd = {.fd = kv_engine_fd(scene->engine), .events = POLLIN};
    for (unsigned turns = 0; poll(&poll_fd, 1, 0) > 0; turns++) {
        assert(turns < TURNS_MAX);
        kv_engine_turn(scene->engine);
        assert(scene->engine->machine.budget.used_bytes <= STORE_BYTES_MAX);
    }
}

/* Small socket buffers, so that one who does not read is soon felt. */
static int connect_one(struct scene *scene) {
    int fds[2], bytes = SOCKET_BYTES;
    int code = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds);
    assert(code == 0);
    (void)setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    scene->opened++;
    kv_connection_open(scene->engine, fds[0]);
    return fds[1];
}

static void ask_witness(struct scene *scene) {
    uint8_t answer[4];
    ssize_t sent = send(scene->witness, "\x0dhere", 5, MSG_NOSIGNAL);
    assert(sent == 5);
    serve(scene);
    ssize_t got = recv(scene->witness, answer, sizeof answer, 0);
    assert(got == sizeof answer && memcmp(answer, "here", sizeof answer) == 0);
}

static void open_witness(struct scene *scene) {
    scene->witness = connect_one(scene);
    ssize_t sent = send(scene->witness, hello, 5, MSG_NOSIGNAL);
    assert(sent == 5);
    ask_witness(scene);
}

static void read_some(int fd, bool all) {
    static uint8_t bytes[64 * 1024];
    while (recv(fd, bytes, all ? sizeof bytes : 100, 0) > 0 && all) {
    }
}

static void hang_up(int *fd) {
    (void)close(*fd);
    *fd = -1;
}

static void reset(struct scene *scene) {
    kv_engine_reset(scene->engine);
    assert(scene->engine->connection_count == 0 && scene->engine->machine.budget.used_bytes == 0);
    (void)close(scene->witness);
    open_witness(scene);
}

static void act(struct scene *scene, enum action action, int *fd) {
    switch (action) {
    case TURN:
        kv_engine_turn(scene->engine);
        break;
    case READ:
    case READ_ALL:
        read_some(*fd, action == READ_ALL);
        break;
    case NO_MORE:
        (void)shutdown(*fd, SHUT_WR);
        break;
    case HANG_UP:
        hang_up(fd);
        break;
    case HELLO:
        (void)send(*fd, hello, HELLO_BYTES, MSG_NOSIGNAL);
        break;
    case HOST_SET:
        (void)kv_engine_set(scene->engine, kv_slice_text("a"), kv_slice_text("by the host"));
        break;
    case RESET:
        reset(scene);
        break;
    default:
        serve(scene);
    }
}

static void play(struct scene *scene, const uint8_t *data, size_t size) {
    while (size > 0) {
        int *fd = &scene->strangers[data[0] % STRANGERS];
        enum action action = data[0] / STRANGERS;
        data++;
        size--;
        if (*fd < 0) {
            *fd = connect_one(scene);
        }
        if (action > SEND_LAST || size == 0) {
            act(scene, action, fd);
            continue;
        }
        size_t len = data[0] < size - 1 ? data[0] : size - 1;
        (void)send(*fd, data + 1, len, MSG_NOSIGNAL);
        data += 1 + len;
        size -= 1 + len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct scene scene;
    if (!scene.engine) {
        scene.engine = create(&scene);
    }
    scene.opened = scene.ended = scene.replaced = 0;
    memset(scene.strangers, -1, sizeof scene.strangers);
    open_witness(&scene);
    play(&scene, data, size);
    ask_witness(&scene);
    for (size_t i = 0; i < STRANGERS; i++) {
        if (scene.strangers[i] >= 0) {
            hang_up(&scene.strangers[i]);
        }
    }
    ask_witness(&scene);
    assert(scene.engine->connection_count == 1 && scene.ended + scene.replaced == scene.opened - 1);
    kv_engine_reset(scene.engine);
    assert(scene.engine->machine.budget.used_bytes == 0 && scene.ended + scene.replaced == scene.opened);
    (void)close(scene.witness);
    return 0;
}
