/* How long one client can hold the store's thread: the longest turn of the server, and its memory at the peak.
 *
 *     store_turn_bench watch [WATCHERS] [BYTES]    so many clients watch one key; somebody writes it once
 *     store_turn_bench mget [KEYS] [BYTES]         one client asks for so many keys at once; nobody else is there
 *
 * An agent's loop runs such turns between its timers, so the longest one is what every keep-alive waits for. The
 * clients are child processes, so that the memory and the time are the server's alone. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "store/server/kv_engine.h"
#include "store/wire/codec.h"

static const char handshake[] = "\0\xce\xf7\x85\x3c";

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int connect_to(uint16_t port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        fail("connect to the store");
    }
    return fd;
}

static void send_all(int fd, const void *bytes, size_t len) {
    const char *at = bytes;
    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        if (sent <= 0) {
            fail("send");
        }
        at += sent;
        len -= (size_t)sent;
    }
}

static void receive_all(int fd, size_t len) {
    static char drop[65536];
    while (len > 0) {
        ssize_t got = recv(fd, drop, len < sizeof drop ? len : sizeof drop, 0);
        if (got <= 0) {
            fail("receive");
        }
        len -= (size_t)got;
    }
}

static void send_buf(int fd, struct buf *out) {
    send_all(fd, buf_bytes(out), out->len);
    buf_clear(out);
}

static void check(int code) {
    if (code) {
        (void)fprintf(stderr, "%s\n", muster_detail());
        exit(1);
    }
}

/* `count` connections wait for the value; then another one writes it, and all are read to the end. */
static void watch(uint16_t port, size_t count, size_t bytes) {
    struct buf out;
    int *fds = calloc(count, sizeof *fds);
    char *value = calloc(1, bytes + 1);
    if (!fds || !value) {
        fail("memory");
    }
    buf_init(&out, CODEC_MESSAGE_BYTES_MAX);
    for (size_t i = 0; i < count; i++) {
        fds[i] = connect_to(port);
        check(buf_append(&out, handshake, 5));
        check(codec_put_u8(&out, CODEC_PING));
        check(codec_put_u32(&out, 1));
        check(codec_put_u8(&out, CODEC_WATCH));
        check(codec_put_bytes(&out, kv_slice_text("key")));
        check(codec_put_bytes(&out, kv_slice_text("")));
        send_buf(fds[i], &out);
        receive_all(fds[i], 4);
    }
    int writer = connect_to(port);
    check(buf_append(&out, handshake, 5));
    check(codec_put_u8(&out, CODEC_SET));
    check(codec_put_bytes(&out, kv_slice_text("key")));
    check(codec_put_bytes(&out, kv_slice_of(value, bytes)));
    send_buf(writer, &out);
    for (size_t i = 0; i < count; i++) {
        receive_all(fds[i], bytes + 8);
    }
}

static void mget(uint16_t port, size_t count, size_t bytes) {
    struct buf out, keys;
    char *value = calloc(1, bytes + 1), key[32];
    buf_init(&out, CODEC_MESSAGE_BYTES_MAX);
    buf_init(&keys, CODEC_MESSAGE_BYTES_MAX);
    int fd = connect_to(port);
    check(buf_append(&out, handshake, 5));
    check(codec_put_u8(&keys, CODEC_MULTI_GET));
    check(codec_put_i64(&keys, (int64_t)count));
    for (size_t i = 0; i < count; i++) {
        int len = snprintf(key, sizeof key, "k%zu", i);
        check(codec_put_u8(&out, CODEC_SET));
        check(codec_put_bytes(&out, kv_slice_of(key, (size_t)len)));
        check(codec_put_bytes(&out, kv_slice_of(value, bytes)));
        check(codec_put_bytes(&keys, kv_slice_of(key, (size_t)len)));
        if (out.len > (1 << 20)) {
            send_buf(fd, &out);
        }
    }
    check(buf_append(&out, buf_bytes(&keys), keys.len));
    send_buf(fd, &out);
    receive_all(fd, count * (bytes + 8));
}

int main(int argc, char **argv) {
    bool is_watch = argc > 1 && strcmp(argv[1], "watch") == 0;
    if (argc < 2 || (!is_watch && strcmp(argv[1], "mget") != 0)) {
        (void)fprintf(stderr, "usage: store_turn_bench watch|mget [COUNT] [BYTES]\n");
        return 2;
    }
    size_t count = argc > 2 ? strtoul(argv[2], NULL, 10) : is_watch ? 1000 : CODEC_KEYS_MAX;
    size_t bytes = argc > 3 ? strtoul(argv[3], NULL, 10) : is_watch ? 1024 * 1024 : 2000;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&address};
    struct kv_engine *engine = NULL;
    check(kv_engine_create(&(struct kv_server_options){.addresses = addresses, .address_count = 1}, &engine));
    int ends[2];
    if (pipe(ends) < 0) {
        fail("pipe");
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(ends[0]);
        (is_watch ? watch : mget)(kv_engine_port(engine), count, bytes);
        _exit(0);
    }
    (void)close(ends[1]);
    struct pollfd fds[2] = {{.fd = kv_engine_fd(engine), .events = POLLIN}, {.fd = ends[0], .events = POLLIN}};
    int64_t longest = 0;
    while (fds[1].revents == 0) {
        if (poll(fds, 2, -1) > 0 && fds[0].revents) {
            int64_t before = clock_monotonic_ns();
            kv_engine_turn(engine);
            int64_t took = clock_monotonic_ns() - before;
            longest = took > longest ? took : longest;
        }
    }
    struct rusage usage;
    int status = 1;
    (void)getrusage(RUSAGE_SELF, &usage);
    (void)waitpid(pid, &status, 0);
    (void)printf("%s %zu x %zu bytes: longest turn %.1f ms, memory at the peak %ld MiB\n", argv[1], count, bytes,
                 (double)longest / 1e6, usage.ru_maxrss / 1024);
    kv_engine_free(engine);
    return status == 0 ? 0 : 1;
}
