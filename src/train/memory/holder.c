/* Asking the launcher, a connection a call; see holder.h. The list of a process without a launcher is in
 * holder_local.c. */
#include "train/memory/holder.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/held/held_socket.h"
#include "base/held/held_wire.h"
#include "base/status.h"
#include "base/str.h"
#include "train/memory/holder_local.h"

enum {
    AGAIN_MS = 5, /* between attempts on a launcher that has no place for another connection */
    LOOK_MS = 250,
};

struct holder {
    bool is_agent;
    char socket_name[sizeof((struct sockaddr_un *)0)->sun_path];
};

/* One attempt may end with this: the launcher has hung up, or has no time. */
enum { TRY_AGAIN = 1 };

static int unreachable(const char *socket_name, const char *why) {
    return status_fail(MUSTER_ECONNECT,
                       "the launcher of this process, which holds memory for it, cannot be reached at %s of %s: %s",
                       socket_name, HELD_SOCKET_VARIABLE, why);
}

/* 0 with a connected socket, TRY_AGAIN, or a failure. */
static int connect_once(const char *socket_name, int *out) {
    struct sockaddr_un address;
    socklen_t length;
    (void)held_address(socket_name, &address, &length);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return status_fail_errno(errno, "a socket to the launcher");
    }
    int status = MUSTER_OK;
    if (connect(fd, (struct sockaddr *)&address, length) != 0) {
        bool is_absent = errno == ECONNREFUSED;
        status = errno == EAGAIN || errno == EINTR
                     ? TRY_AGAIN
                     : unreachable(socket_name, is_absent ? "nobody listens there: it has ended, or "
                                                            "this process is in another network namespace"
                                                          : strerror(errno));
    } else if (!held_peer_is_ours(fd)) {
        status = unreachable(socket_name, "it is another user's, and serves its own user alone");
    }
    if (status != MUSTER_OK) {
        (void)close(fd);
        return status;
    }
    *out = fd;
    return MUSTER_OK;
}

/* Waits for `wait`, or so long. A wait counts as no longer than it was asked for: with a job that is stopped and goes
 * on, the launcher may have been away as well. */
static void wait_for(struct pollfd *wait, int ms, int *left_ms) {
    if (poll(wait, wait ? 1 : 0, ms) == 0) {
        *left_ms -= ms;
    }
}

static int receive_answer(int socket_fd, int *left_ms, enum held_verdict *out, struct held_received *received) {
    uint8_t bytes[HELD_ANSWER_BYTES + 1];
    struct pollfd wait = {.fd = socket_fd, .events = POLLIN};
    int error_number;
    while ((error_number = held_receive(socket_fd, bytes, sizeof bytes, received)) == EAGAIN) {
        if (*left_ms <= 0) {
            return status_fail(MUSTER_ETIMEOUT, "the launcher does not answer");
        }
        wait_for(&wait, LOOK_MS, left_ms);
    }
    if (error_number != 0) {
        return TRY_AGAIN;
    }
    if (!held_answer_decode(bytes, received->count, out)) {
        if (received->fd >= 0) {
            (void)close(received->fd);
        }
        return status_fail(MUSTER_EPROTOCOL, "what the launcher answers is not understood: it is of another version");
    }
    return MUSTER_OK;
}

static int try_once(const char *socket_name, const struct held_request *request, int fd, int *left_ms,
                    enum held_verdict *out, struct held_received *received) {
    uint8_t bytes[HELD_REQUEST_BYTES];
    int socket_fd;
    int status = connect_once(socket_name, &socket_fd);
    if (status != MUSTER_OK) {
        return status;
    }
    held_request_encode(request, bytes);
    int error_number = held_send(socket_fd, bytes, sizeof bytes, fd);
    if (error_number == 0) {
        status = receive_answer(socket_fd, left_ms, out, received);
    } else if (error_number == EPIPE || error_number == ECONNRESET) {
        status = TRY_AGAIN;
    } else {
        status = status_fail_errno(error_number, "ask the launcher");
    }
    (void)close(socket_fd);
    return status;
}

/* A request may be made twice: it says what is to be, not what is to change. */
static int ask(const char *socket_name, const struct held_request *request, int fd, enum held_verdict *out,
               struct held_received *received) {
    int left_ms = HOLDER_PATIENCE_MS;
    int status;
    while ((status = try_once(socket_name, request, fd, &left_ms, out, received)) == TRY_AGAIN) {
        if (left_ms <= 0) {
            return status_fail(MUSTER_ETIMEOUT, "the launcher does not take requests");
        }
        wait_for(NULL, AGAIN_MS, &left_ms);
    }
    return status;
}

static int explain(const struct held_request *request, enum held_verdict verdict) {
    switch (verdict) {
    case HELD_DONE:
        return MUSTER_OK;
    case HELD_UNKNOWN:
        return status_fail(MUSTER_ENOENT, "the launcher holds no memory with the name '%s'", request->name);
    case HELD_FULL:
        return status_fail(
            MUSTER_ELIMIT,
            "the launcher cannot hold more memory ('%s'): it takes %d names, and has no more than its limit "
            "of open files (ulimit -Hn)",
            request->name, HELD_NAMES_MAX);
    case HELD_NO_MEMORY:
        return status_fail(MUSTER_EINVAL, "'%s' is no memory that a launcher can hold (a memfd)", request->name);
    case HELD_NOT_A_REQUEST:
        break;
    }
    return status_fail(MUSTER_EPROTOCOL, "the launcher does not understand the request: it is of another version");
}

/* *out_fd: as of a GET; NULL for other kinds. */
static int request_agent(const struct holder *holder, const struct held_request *request, int fd, int *out_fd) {
    enum held_verdict verdict;
    struct held_received received;
    int status = ask(holder->socket_name, request, fd, &verdict, &received);
    status = status == MUSTER_OK ? explain(request, verdict) : status;
    if (status != MUSTER_OK || !out_fd) {
        return status;
    }
    if (received.fd < 0) {
        return received.is_cut ? status_fail(MUSTER_ELIMIT, "no descriptor is free for memory that the launcher holds")
                               : status_fail(MUSTER_EPROTOCOL, "the launcher's answer has no descriptor");
    }
    *out_fd = received.fd;
    return MUSTER_OK;
}

static int make_request(enum held_kind kind, const char *name, struct held_request *out) {
    *out = (struct held_request){.kind = kind};
    if (!held_name_is_valid(name)) {
        return status_fail(MUSTER_EINVAL, "a name of memory has 1 to %d bytes", HELD_NAME_BYTES - 1);
    }
    (void)str_copy(out->name, sizeof out->name, name);
    return MUSTER_OK;
}

int holder_put(struct holder *holder, const char *name, int fd) {
    struct held_request request;
    uint64_t bytes;
    int status = make_request(HELD_PUT, name, &request);
    if (status == MUSTER_OK && !held_is_memory(fd, &bytes)) {
        status = explain(&request, HELD_NO_MEMORY);
    }
    if (status != MUSTER_OK) {
        return status;
    }
    return holder->is_agent ? request_agent(holder, &request, fd, NULL) : holder_local_put(name, fd);
}

int holder_get(struct holder *holder, const char *name, int *out_fd) {
    struct held_request request;
    int status = make_request(HELD_GET, name, &request);
    if (status != MUSTER_OK) {
        return status;
    }
    return holder->is_agent ? request_agent(holder, &request, -1, out_fd) : holder_local_get(name, out_fd);
}

int holder_drop(struct holder *holder, const char *name) {
    struct held_request request;
    int status = make_request(HELD_DROP, name, &request);
    if (status != MUSTER_OK) {
        return status;
    }
    if (holder->is_agent) {
        return request_agent(holder, &request, -1, NULL);
    }
    holder_local_drop(name);
    return MUSTER_OK;
}

bool holder_is_agent(const struct holder *holder) {
    return holder->is_agent;
}

static int look_for_agent(struct holder *holder, const char *socket_name) {
    struct sockaddr_un address;
    socklen_t length;
    if (!held_address(socket_name, &address, &length)) {
        return status_fail(MUSTER_EINVAL, "%s is longer than a name of a socket can be: %.32s...", HELD_SOCKET_VARIABLE,
                           socket_name);
    }
    holder->is_agent = true;
    (void)str_copy(holder->socket_name, sizeof holder->socket_name, socket_name);
    int fd;
    int status = connect_once(socket_name, &fd);
    if (status == MUSTER_OK) {
        (void)close(fd);
    }
    return status == TRY_AGAIN ? MUSTER_OK : status; /* it is there, and busy */
}

int holder_open(struct holder **out) {
    const char *socket_name = getenv(HELD_SOCKET_VARIABLE);
    struct holder *holder = calloc(1, sizeof *holder);
    if (!holder) {
        return status_fail(MUSTER_ENOMEM, "no memory for a holder");
    }
    int status = socket_name && socket_name[0] != '\0' ? look_for_agent(holder, socket_name) : MUSTER_OK;
    if (status != MUSTER_OK) {
        free(holder);
        return status;
    }
    *out = holder;
    return MUSTER_OK;
}

const char *holder_local_rank(void) {
    const char *local = getenv("LOCAL_RANK");
    return local ? local : "0";
}

uint32_t holder_local_size(void) {
    const char *size = getenv("LOCAL_WORLD_SIZE");
    unsigned long count = size ? strtoul(size, NULL, 10) : 1;
    return count > 0 && count < UINT32_MAX ? (uint32_t)count : 1;
}

bool holder_looks_after_others(const struct holder *holder) {
    return !holder_is_agent(holder) || strcmp(holder_local_rank(), "0") == 0;
}

void holder_close(struct holder *holder) {
    free(holder);
}
