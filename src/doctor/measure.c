/* The two sides of a measurement; see measure.h. After the nonce, one who asks sends commands of nine bytes (what, and
 * how many bytes): PING is answered with the wall clock; FORWARD is followed by the bytes and answered with one;
 * BACKWARD is answered with the bytes; BOTH does both at once. Numbers are in the byte order of both machines' kind
 * (little). */
#include "doctor/measure.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "net/socket.h"

enum { PING = 'p', FORWARD = 'f', BACKWARD = 'b', BOTH = '2', COMMAND_BYTES = 9, PING_COUNT = 64 };
enum {
    CHUNK_BYTES = 256 * 1024,
    FIRST_BYTES = 64 * 1024,
    GROWTH = 8,
    LONG_ENOUGH_MS = 40,
    TOO_LONG_MS = 250,
    REPEAT_COUNT = 3
};

/* ---- bytes within a deadline ---- */

static int wait_for(int fd, short events, int64_t deadline_ns) {
    struct pollfd waiting = {.fd = fd, .events = events};
    int64_t left_ms = clock_remaining_ms(deadline_ns);
    int ready = left_ms > 0 ? poll(&waiting, 1, (int)left_ms) : 0;
    if (ready == 0) {
        return status_fail(MUSTER_ETIMEOUT, "it took more than %d s", (int)(MEASURE_PAIR_MS / 1000));
    }
    return ready < 0 && errno != EINTR ? status_fail_errno(errno, "wait") : 0;
}

/* Up to `to_send` bytes out of `chunk` and `to_take` bytes into it, as the socket goes: either may be 0. */
static int pump(int fd, void *chunk, uint64_t to_send, uint64_t to_take, int64_t deadline_ns) {
    while (to_send > 0 || to_take > 0) {
        int code = wait_for(fd, (short)((to_send > 0 ? POLLOUT : 0) | (to_take > 0 ? POLLIN : 0)), deadline_ns);
        if (code != 0) {
            return code;
        }
        size_t out = to_send < CHUNK_BYTES ? (size_t)to_send : CHUNK_BYTES;
        size_t in = to_take < CHUNK_BYTES ? (size_t)to_take : CHUNK_BYTES;
        ssize_t sent = out > 0 ? send(fd, chunk, out, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
        bool has_failed = sent < 0 && errno != EAGAIN && errno != EINTR;
        ssize_t got = in > 0 && !has_failed ? recv(fd, chunk, in, MSG_DONTWAIT) : 0;
        if (has_failed || (got < 0 && errno != EAGAIN && errno != EINTR)) {
            return status_fail_errno(errno, "the connection");
        }
        if (in > 0 && got == 0) {
            return status_fail(MUSTER_ECONNECT, "the other side has hung up");
        }
        to_send -= sent > 0 ? (uint64_t)sent : 0;
        to_take -= got > 0 ? (uint64_t)got : 0;
    }
    return 0;
}

static int command(int fd, uint8_t what, uint64_t bytes, int64_t deadline_ns) {
    uint8_t words[COMMAND_BYTES] = {what};
    memcpy(words + 1, &bytes, sizeof bytes);
    return pump(fd, words, sizeof words, 0, deadline_ns);
}

/* ---- who asks ---- */

static int compare_reals(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Round trips; the quickest one says most about the clock, which the other side read in the middle of it. */
static int ask_latency(int fd, int64_t deadline_ns, struct doctor_pair *out) {
    double trips_us[PING_COUNT];
    double quickest_us = -1;
    for (int i = 0; i < PING_COUNT; i++) {
        int64_t theirs_us = 0, begin_us = clock_realtime_us(), begin_ns = clock_monotonic_ns();
        int code = command(fd, PING, 0, deadline_ns);
        code = code ? code : pump(fd, &theirs_us, 0, sizeof theirs_us, deadline_ns);
        if (code != 0) {
            return code;
        }
        trips_us[i] = (double)(clock_monotonic_ns() - begin_ns) / 1000;
        if (quickest_us < 0 || trips_us[i] < quickest_us) {
            quickest_us = trips_us[i];
            out->ahead_us = (double)(theirs_us - begin_us) - trips_us[i] / 2;
        }
    }
    qsort(trips_us, PING_COUNT, sizeof *trips_us, compare_reals);
    out->latency_us = trips_us[PING_COUNT / 2];
    return 0;
}

/* One transfer; how long it took. */
static int ask_transfer(int fd, uint8_t what, uint64_t bytes, void *chunk, int64_t deadline_ns, int64_t *out_ns) {
    int64_t begin_ns = clock_monotonic_ns();
    int code = command(fd, what, bytes, deadline_ns);
    code = code ? code : pump(fd, chunk, what == BACKWARD ? 0 : bytes, what == FORWARD ? 1 : bytes, deadline_ns);
    *out_ns = clock_monotonic_ns() - begin_ns;
    return code;
}

/* Larger and larger transfers, until one takes long enough to tell; the best of a few of these, since others may have
 * been in the way of the rest. */
static int ask_bandwidth(int fd, uint8_t what, void *chunk, int64_t deadline_ns, double *out_mbps) {
    uint64_t bytes = FIRST_BYTES;
    double best_mbps = 0;
    for (int good_count = 0; good_count < REPEAT_COUNT;) {
        int64_t took_ns;
        int code = ask_transfer(fd, what, bytes, chunk, deadline_ns, &took_ns);
        if (code != 0) {
            return code;
        }
        if (took_ns < LONG_ENOUGH_MS * CLOCK_NS_PER_MS && bytes < MEASURE_BYTES_MAX) {
            bytes = bytes * GROWTH < MEASURE_BYTES_MAX ? bytes * GROWTH : MEASURE_BYTES_MAX;
            continue; /* what fits into buffers on the way says nothing */
        }
        double mbps = (double)(what == BOTH ? 2 * bytes : bytes) / 1e6 / ((double)(took_ns > 0 ? took_ns : 1) / 1e9);
        best_mbps = mbps > best_mbps ? mbps : best_mbps;
        good_count += took_ns >= TOO_LONG_MS * CLOCK_NS_PER_MS ? REPEAT_COUNT : 1;
    }
    *out_mbps = best_mbps;
    return 0;
}

static int connect_to(const struct doctor_node *node, int *out_fd) {
    struct net_addresses addresses;
    int code = net_resolve_numeric(node->addr, node->port, &addresses);
    code = code ? code : net_socket_connect((const struct sockaddr *)&addresses.list[0].sockaddr, out_fd);
    if (code != 0) {
        return code;
    }
    struct pollfd waiting = {.fd = *out_fd, .events = POLLOUT};
    int error_number = poll(&waiting, 1, (int)MEASURE_CONNECT_MS) == 1 ? net_socket_connect_result(*out_fd) : ETIMEDOUT;
    if (error_number != 0) {
        (void)close(*out_fd);
        return status_fail_errno(error_number, "connect to %s port %u", node->addr, node->port);
    }
    return 0;
}

static int ask_all(int fd, uint64_t nonce, void *chunk, struct doctor_pair *out) {
    int64_t deadline_ns = clock_deadline_ns(clock_monotonic_ns(), MEASURE_PAIR_MS);
    int code = pump(fd, &nonce, sizeof nonce, 0, deadline_ns);
    code = code ? code : ask_latency(fd, deadline_ns, out);
    code = code ? code : ask_bandwidth(fd, FORWARD, chunk, deadline_ns, &out->forward_mbps);
    code = code ? code : ask_bandwidth(fd, BACKWARD, chunk, deadline_ns, &out->backward_mbps);
    return code ? code : ask_bandwidth(fd, BOTH, chunk, deadline_ns, &out->both_mbps);
}

void measure_ask(const struct doctor_node *node, struct doctor_pair *out) {
    int fd = -1;
    void *chunk = calloc(1, CHUNK_BYTES);
    int code = chunk ? connect_to(node, &fd) : status_fail(MUSTER_ENOMEM, "no memory to measure with");
    if (code == 0) {
        code = ask_all(fd, node->nonce, chunk, out);
        (void)close(fd);
    }
    free(chunk);
    out->is_measured = code == 0;
    (void)str_format(out->reason, sizeof out->reason, "%s", code ? muster_detail() : "");
}

/* ---- who answers ---- */

static int answer_one(int fd, const uint8_t words[COMMAND_BYTES], void *chunk, int64_t deadline_ns) {
    uint64_t bytes;
    int64_t now_us = clock_realtime_us();
    memcpy(&bytes, words + 1, sizeof bytes);
    if (bytes > MEASURE_BYTES_MAX) {
        return status_fail(MUSTER_EPROTOCOL, "more than is measured with");
    }
    switch (words[0]) {
    case PING:
        return pump(fd, &now_us, sizeof now_us, 0, deadline_ns);
    case FORWARD: {
        int code = pump(fd, chunk, 0, bytes, deadline_ns);
        return code ? code : pump(fd, chunk, 1, 0, deadline_ns);
    }
    case BACKWARD:
        return pump(fd, chunk, bytes, 0, deadline_ns);
    case BOTH:
        return pump(fd, chunk, bytes, bytes, deadline_ns);
    default:
        return status_fail(MUSTER_EPROTOCOL, "an unknown command");
    }
}

/* Until the other side hangs up, which is how it ends. */
static int answer_all(int fd, void *chunk, int64_t deadline_ns) {
    uint8_t words[COMMAND_BYTES];
    int code = 0;
    while (code == 0) {
        code = pump(fd, words, 0, sizeof words, deadline_ns);
        if (code == MUSTER_ECONNECT) {
            return 0;
        }
        code = code ? code : answer_one(fd, words, chunk, deadline_ns);
    }
    return code;
}

/* The next connection that brings the nonce. */
static int accept_partner(int listen_fd, uint64_t nonce, int64_t deadline_ns, int *out_fd) {
    for (;;) {
        int code = wait_for(listen_fd, POLLIN, deadline_ns);
        if (code != 0) {
            return code;
        }
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        uint64_t said = 0;
        if (fd >= 0 && pump(fd, &said, 0, sizeof said, deadline_ns) == 0 && said == nonce) {
            *out_fd = fd;
            return 0;
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
}

int measure_answer(int listen_fd, uint64_t nonce) {
    int fd = -1;
    void *chunk = calloc(1, CHUNK_BYTES);
    int64_t now_ns = clock_monotonic_ns();
    int code = chunk ? accept_partner(listen_fd, nonce, clock_deadline_ns(now_ns, MEASURE_ACCEPT_MS), &fd)
                     : status_fail(MUSTER_ENOMEM, "no memory to measure with");
    if (code == 0) {
        code = answer_all(fd, chunk, clock_deadline_ns(clock_monotonic_ns(), MEASURE_PAIR_MS));
        (void)close(fd);
    }
    free(chunk);
    return code;
}
