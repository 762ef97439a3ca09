/* The sockets of this node's workers, and what they say by PMI-1. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/guardian/guardian.h"
#include "agent/mpi/mpi_server_impl.h"
#include "base/status.h"
#include "base/str.h"

enum { VARIABLES_MAX = 8, VARIABLE_BYTES = 64 };

/* ---- barriers ---- */

static void barrier_name(uint64_t number, char out[MPI_EXCHANGE_NAME_MAX]) {
    (void)str_format(out, MPI_EXCHANGE_NAME_MAX, "barrier%llu", (unsigned long long)number);
}

static void workers_flush(struct mpi_server *s);

/* Every node has set its value, so it has read those of the barrier before. */
static void on_exchanged(void *ctx, int status, const struct kv_slice *values, size_t count) {
    struct mpi_server *s = ctx;
    char before[MPI_EXCHANGE_NAME_MAX];
    if (status) {
        mpi_server_fail(s, muster_detail());
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (i != s->setup.group_rank && pmi_server_merge(s->pmi, values[i].data, values[i].len)) {
            mpi_server_fail(s, muster_detail());
            return;
        }
    }
    if (s->barrier_count > 1) {
        barrier_name(s->barrier_count - 1, before);
        mpi_exchange_forget(s->exchange, before);
    }
    pmi_server_barrier_done(s->pmi);
    workers_flush(s);
}

static void barrier_enter(struct mpi_server *s) {
    char name[MPI_EXCHANGE_NAME_MAX];
    struct buf *fresh = pmi_server_fresh(s->pmi);
    s->barrier_count++;
    if (!s->exchange) {
        buf_clear(fresh);
        pmi_server_barrier_done(s->pmi);
        return;
    }
    barrier_name(s->barrier_count, name);
    if (mpi_exchange_start(s->exchange, name, NULL, s->setup.group_world_size,
                           kv_slice_of(buf_bytes(fresh), fresh->len), on_exchanged, s)) {
        mpi_server_fail(s, muster_detail());
    }
    buf_clear(fresh);
}

/* On one node the next may be due at once. */
static void barriers_enter(struct mpi_server *s) {
    while (s->barrier_due) {
        s->barrier_due = false;
        barrier_enter(s);
    }
}

/* ---- sockets ---- */

static void worker_close(struct mpi_worker *worker) {
    (void)uv_poll_stop(&worker->poll);
    (void)close(worker->fd);
    worker->fd = -1;
}

static void on_ready(uv_poll_t *poll, int status, int events);

/* Also decides what is waited for next: room for an answer, or words. */
static void worker_flush(struct mpi_worker *worker) {
    struct pmi_server *pmi = worker->server->pmi;
    struct buf *out = pmi_server_output(pmi, worker->local_rank);
    while (worker->fd >= 0 && out->len > 0) {
        ssize_t sent = send(worker->fd, buf_bytes(out), out->len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && errno != EAGAIN) {
            worker_close(worker);
            return;
        }
        if (sent < 0) {
            break;
        }
        buf_consume(out, (size_t)sent);
    }
    if (worker->fd < 0) {
        return;
    }
    if (out->len == 0 && pmi_server_is_closed(pmi, worker->local_rank)) {
        worker_close(worker);
        return;
    }
    bool listens = pmi_server_room(pmi, worker->local_rank) > 0;
    int events = (out->len > 0 ? UV_WRITABLE : 0) | (listens ? UV_READABLE : 0) | UV_DISCONNECT;
    (void)uv_poll_start(&worker->poll, events, on_ready);
}

static void workers_flush(struct mpi_server *s) {
    barriers_enter(s);
    for (uint32_t i = 0; i < s->setup.local_count; i++) {
        worker_flush(&s->workers[i]);
    }
}

/* False: its end. */
static bool worker_read(struct mpi_worker *worker) {
    char bytes[PMI_SERVER_LINE_MAX];
    size_t room = pmi_server_room(worker->server->pmi, worker->local_rank);
    ssize_t got = room > 0 ? recv(worker->fd, bytes, room, MSG_DONTWAIT) : 0;
    if (got > 0) {
        pmi_server_heard(worker->server->pmi, worker->local_rank, bytes, (size_t)got);
    }
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)) || room == 0;
}

static void on_ready(uv_poll_t *poll, int status, int events) {
    struct mpi_worker *worker = poll->data;
    struct mpi_server *s = worker->server;
    bool is_open = status == 0;
    if (is_open && (events & UV_READABLE)) {
        is_open = worker_read(worker);
    } else if (events & UV_DISCONNECT) {
        is_open = false;
    }
    if (!is_open) {
        worker_close(worker);
        return;
    }
    if (s->barrier_due) {
        workers_flush(s);
    } else {
        worker_flush(worker);
    }
}

/* ---- what PMI-1's machine says ---- */

static void on_barrier(void *ctx) {
    struct mpi_server *s = ctx;
    s->barrier_due = true;
}

static void on_abort(void *ctx, uint32_t local_rank, int exit_code, const char *text) {
    mpi_server_say(ctx, MPI_FRAME_ABORT, local_rank, exit_code, text);
}

static void on_broken(void *ctx, uint32_t local_rank, const char *why) {
    struct mpi_server *s = ctx;
    mpi_server_log(s, LOG_LEVEL_ERROR, "rank %u does not speak PMI-1 as it should: %s", s->setup.base_rank + local_rank,
                   why);
}

/* ---- the beginning ---- */

static int pmi_begin(struct mpi_server *s) {
    struct pmi_server_options options = {.local_count = s->setup.local_count, .world_size = s->setup.world_size};
    const struct pmi_server_host host = {s, on_barrier, on_abort, on_broken};
    char space[PMI_SERVER_SPACE_MAX];
    struct buf mapping;
    /* Libraries name shared memory of the host by it. */
    (void)str_format(space, sizeof space, "muster_%08x_%llu", s->nodes[0].token, (unsigned long long)s->setup.round);
    buf_init(&mapping, MPI_LAYOUT_TEXT_MAX);
    int code = getrandom(options.seed, sizeof options.seed, 0) == (ssize_t)sizeof options.seed
                   ? 0
                   : status_fail_errno(errno, "no random numbers");
    code = code ? code : mpi_layout_mapping(s->nodes, s->setup.group_world_size, &mapping);
    code = code ? code : buf_append(&mapping, "", 1);
    if (code == 0) {
        options.space = space;
        options.mapping = (const char *)buf_bytes(&mapping);
        code = pmi_server_create(&options, &host, &s->pmi);
    }
    buf_done(&mapping);
    return code;
}

/* What a worker is told in its environment; and its end of the socket. */
static int worker_tell(struct mpi_server *s, uint32_t local_rank, int fd) {
    char text[VARIABLES_MAX][VARIABLE_BYTES];
    const char *variables[VARIABLES_MAX];
    size_t count = 0;
    (void)str_format(text[count++], VARIABLE_BYTES, "PMI_FD=%d", GUARDIAN_GIVEN_FD);
    (void)str_format(text[count++], VARIABLE_BYTES, "PMI_RANK=%u", s->setup.base_rank + local_rank);
    (void)str_format(text[count++], VARIABLE_BYTES, "PMI_SIZE=%u", s->setup.world_size);
    (void)str_format(text[count++], VARIABLE_BYTES, "MPI_LOCALRANKID=%u", local_rank);
    (void)str_format(text[count++], VARIABLE_BYTES, "MPI_LOCALNRANKS=%u", s->setup.local_count);
    for (size_t i = 0; i < count; i++) {
        variables[i] = text[i];
    }
    struct buf body;
    buf_init(&body, MPI_WIRE_VARIABLES_BYTES_MAX);
    int code = mpi_wire_write_worker(local_rank, variables, count, &body);
    code = code ? code : guardian_channel_send(&s->channel, MPI_FRAME_WORKER, buf_bytes(&body), body.len, &fd, 1);
    buf_done(&body);
    return code;
}

static int worker_begin(struct mpi_server *s, uint32_t local_rank) {
    struct mpi_worker *worker = &s->workers[local_rank];
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        return status_fail_errno(errno, "make a socket for local rank %u", local_rank);
    }
    int code = worker_tell(s, local_rank, pair[1]);
    (void)close(pair[1]);
    *worker = (struct mpi_worker){.server = s, .local_rank = local_rank, .fd = pair[0]};
    worker->poll.data = worker;
    if (code == 0 && uv_poll_init(&s->loop, &worker->poll, worker->fd) != 0) {
        code = status_fail(MUSTER_ESYSTEM, "cannot watch the socket of local rank %u", local_rank);
    }
    if (code) {
        (void)close(pair[0]);
        worker->fd = -1;
        return code;
    }
    worker_flush(worker);
    return 0;
}

int mpi_workers_begin(struct mpi_server *s) {
    s->workers = calloc(s->setup.local_count, sizeof *s->workers);
    int code = s->workers ? pmi_begin(s) : status_fail(MUSTER_ENOMEM, "no memory for the workers' sockets");
    for (uint32_t i = 0; i < s->setup.local_count && code == 0; i++) {
        code = worker_begin(s, i);
    }
    return code ? code : guardian_channel_send(&s->channel, MPI_FRAME_READY, NULL, 0, NULL, 0);
}
