/* Load on a TCPStore server: many connections, DEPTH requests (1) in flight on each, one thread.
 *
 *     store_load PORT OPERATION CONNECTIONS SECONDS [DEPTH]
 *
 * OPERATION: get, set, add, check, compare_set, multi_get (10 keys). SET has no reply in the protocol, so each is
 * followed in the same segment by a PING whose answer ends it. Prints one line: operations, nanoseconds, and the 50th
 * and 99th percentile of the round trips. Speaks the wire protocol by itself, so that every server meets the same
 * client. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stamp.h"

#define CONNECTIONS_MAX 4096
#define MESSAGE_BYTES_MAX (64 * 1024)
#define DEPTH_MAX 64
#define SAMPLES_MAX 4000000
#define MULTI_KEYS 10
#define VALUE_BYTES 64

enum command { SET = 1, COMPARE_SET = 2, GET = 3, ADD = 4, CHECK = 5, MULTI_GET = 10, PING = 13 };

struct message {
    unsigned char bytes[MESSAGE_BYTES_MAX];
    size_t used;
};

struct connection {
    int fd;
    int64_t sent_ns;
    size_t pending_bytes; /* of the reply, still to come */
    struct message request;
};

static void put(struct message *message, const void *bytes, size_t count) {
    if (message->used + count > MESSAGE_BYTES_MAX) {
        abort(); /* our own requests are all short */
    }
    memcpy(message->bytes + message->used, bytes, count);
    message->used += count;
}

static void put_u8(struct message *message, uint8_t value) {
    put(message, &value, 1);
}

static void put_u64(struct message *message, uint64_t value) {
    put(message, &value, 8); /* host order: the protocol has no other, and its peers are little-endian */
}

static void put_text(struct message *message, const char *text, size_t length) {
    put_u64(message, length);
    put(message, text, length);
}

static size_t key_name(char out[64], int connection, int number) {
    return (size_t)snprintf(out, 64, "/load/%06d/%04d", connection, number);
}

static void put_key(struct message *message, int connection, int number) {
    char key[64];
    put_text(message, key, key_name(key, connection, number));
}

static void put_value(struct message *message) {
    char value[VALUE_BYTES];
    memset(value, 'v', sizeof value);
    put_text(message, value, sizeof value);
}

static void put_ping(struct message *message) {
    put_u8(message, PING);
    put(message, "ping", 4);
}

/* Appends the request that connection `number` repeats; returns the bytes of its reply, 0 for an unknown operation. */
static size_t request_append(struct message *out, const char *operation, int number) {
    if (strcmp(operation, "get") == 0) {
        put_u8(out, GET);
        put_key(out, number, 0);
        return 8 + VALUE_BYTES;
    }
    if (strcmp(operation, "set") == 0) {
        put_u8(out, SET);
        put_key(out, number, 0);
        put_value(out);
        put_ping(out);
        return 4;
    }
    if (strcmp(operation, "add") == 0) {
        put_u8(out, ADD);
        put_key(out, number, MULTI_KEYS);
        put_u64(out, 1);
        return 8;
    }
    if (strcmp(operation, "check") == 0) {
        put_u8(out, CHECK);
        put_u64(out, 1);
        put_key(out, number, 0);
        return 1;
    }
    if (strcmp(operation, "compare_set") == 0) {
        put_u8(out, COMPARE_SET);
        put_key(out, number, 0);
        put_value(out);
        put_value(out);
        return 8 + VALUE_BYTES;
    }
    if (strcmp(operation, "multi_get") == 0) {
        put_u8(out, MULTI_GET);
        put_u64(out, MULTI_KEYS);
        for (int i = 0; i < MULTI_KEYS; i++) {
            put_key(out, number, i);
        }
        return MULTI_KEYS * (8 + VALUE_BYTES);
    }
    return 0;
}

/* The same, `depth` times over; returns the bytes of all replies. */
static size_t request_build(struct message *out, const char *operation, int number, int depth) {
    size_t reply_bytes = 0;
    out->used = 0;
    for (int i = 0; i < depth; i++) {
        reply_bytes += request_append(out, operation, number);
    }
    return reply_bytes;
}

static bool send_all(int fd, const struct message *message) {
    for (size_t done = 0; done < message->used;) {
        ssize_t count = send(fd, message->bytes + done, message->used - done, MSG_NOSIGNAL);
        if (count <= 0) {
            return false;
        }
        done += (size_t)count;
    }
    return true;
}

static bool receive_all(int fd, size_t count) {
    unsigned char bytes[MESSAGE_BYTES_MAX];
    while (count > 0) {
        ssize_t got = recv(fd, bytes, count < sizeof bytes ? count : sizeof bytes, 0);
        if (got <= 0) {
            return false;
        }
        count -= (size_t)got;
    }
    return true;
}

/* Connects, shakes hands, and stores the keys that this connection will use. -1 with a message on stderr. */
static int connection_open(uint16_t port, int number) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        perror("store_load: connect");
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct message hello = {.used = 0};
    put(&hello, "\x00\xce\xf7\x85\x3c", 5);
    for (int i = 0; i < MULTI_KEYS; i++) {
        put_u8(&hello, SET);
        put_key(&hello, number, i);
        put_value(&hello);
    }
    put_ping(&hello);
    if (!send_all(fd, &hello) || !receive_all(fd, 4)) {
        fprintf(stderr, "store_load: the server hung up during the handshake\n");
        return -1;
    }
    return fd;
}

static int compare_i64(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static void report(int64_t *samples, size_t count, int64_t elapsed_ns, int depth) {
    size_t kept = count < SAMPLES_MAX ? count : SAMPLES_MAX;
    qsort(samples, kept, sizeof *samples, compare_i64);
    printf("operations=%zu ns=%" PRId64 " p50_ns=%" PRId64 " p99_ns=%" PRId64 "\n", count * (size_t)depth, elapsed_ns,
           kept ? samples[kept / 2] : 0, kept ? samples[kept * 99 / 100] : 0);
}

/* Takes what has arrived; true when the reply is whole. Exits when the server hangs up: a figure would be a lie. */
static bool reply_take(struct connection *connection) {
    unsigned char bytes[MESSAGE_BYTES_MAX];
    ssize_t got = recv(connection->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    if (got <= 0 || (size_t)got > connection->pending_bytes) {
        fprintf(stderr, "store_load: the server hung up or said too much\n");
        exit(1);
    }
    connection->pending_bytes -= (size_t)got;
    return connection->pending_bytes == 0;
}

static void request_send(struct connection *connection, size_t reply_bytes) {
    connection->pending_bytes = reply_bytes;
    connection->sent_ns = stamp_now_ns();
    if (!send_all(connection->fd, &connection->request)) {
        fprintf(stderr, "store_load: the server hung up\n");
        exit(1);
    }
}

static void load(struct connection *connections, int count, size_t reply_bytes, int64_t duration_ns, int depth) {
    int poller = epoll_create1(EPOLL_CLOEXEC);
    int64_t *samples = calloc(SAMPLES_MAX, sizeof *samples);
    if (poller < 0 || !samples) {
        perror("store_load");
        exit(1);
    }
    for (int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, connections[i].fd, &event);
        request_send(&connections[i], reply_bytes);
    }
    int64_t start_ns = stamp_now_ns();
    int64_t now_ns = start_ns;
    size_t done = 0;
    while (now_ns - start_ns < duration_ns) {
        struct epoll_event events[256];
        int ready = epoll_wait(poller, events, 256, 1000);
        now_ns = stamp_now_ns();
        for (int i = 0; i < ready; i++) {
            struct connection *connection = events[i].data.ptr;
            if (reply_take(connection)) {
                samples[done++ % SAMPLES_MAX] = now_ns - connection->sent_ns;
                request_send(connection, reply_bytes);
            }
        }
    }
    report(samples, done, now_ns - start_ns, depth);
    free(samples);
    close(poller);
}

int main(int argc, char **argv) {
    static struct connection connections[CONNECTIONS_MAX];
    int count = argc >= 5 ? (int)strtol(argv[3], NULL, 10) : 0;
    int depth = argc > 5 ? (int)strtol(argv[5], NULL, 10) : 1;
    if (count < 1 || count > CONNECTIONS_MAX || depth < 1 || depth > DEPTH_MAX) {
        fputs("usage: store_load PORT get|set|add|check|compare_set|multi_get CONNECTIONS SECONDS [DEPTH]\n", stderr);
        return 2;
    }
    size_t reply_bytes = 0;
    for (int i = 0; i < count; i++) {
        reply_bytes = request_build(&connections[i].request, argv[2], i, depth);
        connections[i].fd = connection_open((uint16_t)strtol(argv[1], NULL, 10), i);
        if (reply_bytes == 0 || connections[i].fd < 0) {
            fprintf(stderr, "store_load: cannot start operation '%s' on connection %d\n", argv[2], i);
            return 1;
        }
    }
    load(connections, count, reply_bytes, (int64_t)(strtod(argv[4], NULL) * 1e9), depth);
    return 0;
}
