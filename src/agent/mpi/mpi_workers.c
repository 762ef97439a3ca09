/* The sockets of this node's workers, and what they say by PMI-1. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/guardian/guardian.h"
#include "agent/mpi/mpi_server_impl.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"

/* Open MPI 4 asks PMIx only where it knows the starter. This is how it knows IBM's jsrun, which has started processes
 * directly and bound them, and tells everything by PMIx (its component schizo/jsm). Later ones ask in any case. */
#define OPEN_MPI_4 "JSM_JSRUN_PORT"

enum { OWN_VARIABLES_MAX = 10, VARIABLE_BYTES = 64 };

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
        mpi_server_fail(s, muster_detail(), false);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (i != s->setup.group_rank && pmi_server_merge(s->pmi, values[i].data, values[i].len)) {
            mpi_server_fail(s, muster_detail(), false);
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
        mpi_server_fail(s, muster_detail(), false);
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
    pmi_server_ended(worker->server->pmi, worker->local_rank);
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
    mpi_server_say(ctx, MPI_FRAME_BROKEN, local_rank, 0, why);
}

static void on_begun(void *ctx, uint32_t local_rank) {
    mpi_server_say(ctx, MPI_FRAME_BEGUN, local_rank, 0, "");
}

static void on_stage(void *ctx, uint32_t local_rank, enum mpi_stage stage) {
    struct mpi_server *s = ctx;
    mpi_stages_set(&s->stages, local_rank, stage);
    if (stage == MPI_STAGE_INSIDE) {
        on_begun(s, local_rank);
    }
}

static void on_left(void *ctx, uint32_t local_rank) {
    mpi_server_say(ctx, MPI_FRAME_LEFT, local_rank, 0, "");
}

/* ---- the beginning ---- */

static int pmi_begin(struct mpi_server *s) {
    struct pmi_server_options options = {.local_count = s->setup.local_count, .world_size = s->setup.world_size};
    const struct pmi_server_host host = {s, on_barrier, on_stage, on_left, on_abort, on_broken};
    char space[PMI_SERVER_SPACE_MAX];
    struct buf mapping;
    /* Libraries name shared memory of the host by it. */
    (void)str_format(space, sizeof space, "muster_%08x_%llu", s->nodes[0].token, (unsigned long long)s->setup.round);
    buf_init(&mapping, MPI_LAYOUT_TEXT_MAX);
    int code = random_fill(options.seed, sizeof options.seed) == 0 ? 0 : status_fail_errno(errno, "no random numbers");
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

/* What a worker is told in its environment. */
struct variables {
    size_t count;
    const char *items[MPI_WIRE_VARIABLES_MAX];
    char own[OWN_VARIABLES_MAX][VARIABLE_BYTES];
    char folder[2][MPI_WIRE_PATH_MAX + VARIABLE_BYTES];
};

static void add_own(struct variables *variables, const char *name, uint32_t value) {
    char *text = variables->own[variables->count];
    (void)str_format(text, VARIABLE_BYTES, "%s=%u", name, value);
    variables->items[variables->count++] = text;
}

static void add_pmix(const struct mpi_server *s, struct variables *out) {
    add_own(out, OPEN_MPI_4, 0);
    /* Its files of shared memory have the names of host and local rank. */
    if (s->nodes[s->setup.group_rank].shares_host) {
        (void)str_format(out->folder[0], sizeof out->folder[0], "OMPI_MCA_btl_vader_backing_directory=%s",
                         s->setup.folder);
        (void)str_format(out->folder[1], sizeof out->folder[1], "OMPI_MCA_btl_sm_backing_directory=%s",
                         s->setup.folder);
        out->items[out->count++] = out->folder[0];
        out->items[out->count++] = out->folder[1];
    }
}

static void add_pmi1(const struct mpi_server *s, uint32_t local_rank, struct variables *out) {
    add_own(out, "PMI_FD", GUARDIAN_GIVEN_FD);
    add_own(out, "PMI_RANK", s->setup.base_rank + local_rank);
    add_own(out, "PMI_SIZE", s->setup.world_size);
    add_own(out, "MPI_LOCALRANKID", local_rank);
    add_own(out, "MPI_LOCALNRANKS", s->setup.local_count);
    if (s->pmix) {
        add_own(out, "MPIR_CVAR_PMI_VERSION", 1); /* MPICH 5 does not choose where it finds PMI-1 and PMIx */
    }
}

/* `fd`: its end of the socket. */
static int worker_tell(struct mpi_server *s, uint32_t local_rank, int fd) {
    struct variables variables = {0};
    char **of_pmix = NULL;
    struct buf body;
    buf_init(&body, MPI_WIRE_VARIABLES_BYTES_MAX);
    if (s->setup.serves_pmi1) {
        add_pmi1(s, local_rank, &variables);
    }
    if (s->pmix) {
        add_pmix(s, &variables);
    }
    int code = s->pmix ? pmix_host_variables(s->pmix, local_rank, &of_pmix) : 0;
    for (size_t i = 0; of_pmix && of_pmix[i] && variables.count < MPI_WIRE_VARIABLES_MAX; i++) {
        variables.items[variables.count++] = of_pmix[i];
    }
    code = code ? code : mpi_wire_write_worker(local_rank, variables.items, variables.count, &body);
    code = code ? code : guardian_channel_send(&s->channel, MPI_FRAME_WORKER, buf_bytes(&body), body.len, &fd, 1);
    pmix_host_free_variables(of_pmix);
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

/* With --mpi=auto a job without Open MPI does without it. */
static int pmix_begin(struct mpi_server *s) {
    char space[64];
    const struct pmix_host_options options = {.nodes = s->nodes,
                                              .node_count = s->setup.group_world_size,
                                              .node = s->setup.group_rank,
                                              .world_size = s->setup.world_size,
                                              .space = space,
                                              .folder = s->setup.folder,
                                              .exchange = s->exchange,
                                              .stages = &s->stages,
                                              .on_abort = on_abort,
                                              .on_begun = on_begun,
                                              .on_left = on_left,
                                              .ctx = s};
    (void)str_format(space, sizeof space, "muster-%08x-%llu", s->nodes[0].token, (unsigned long long)s->setup.round);
    int code = pmix_host_create(&s->loop, &options, &s->pmix);
    if (code == 0 || s->setup.needs_pmix) {
        return code;
    }
    mpi_server_log(
        s, LOG_LEVEL_WARNING,
        "%s. Until then each rank of a program of Open MPI is a world of its own; --mpi=pmi1 says that there "
        "is none",
        muster_detail());
    return 0;
}

int mpi_workers_begin(struct mpi_server *s) {
    s->workers = calloc(s->setup.local_count, sizeof *s->workers);
    int code = s->workers ? pmi_begin(s) : status_fail(MUSTER_ENOMEM, "no memory for the workers' sockets");
    code = code || !s->setup.serves_pmix ? code : pmix_begin(s);
    for (uint32_t i = 0; i < s->setup.local_count && code == 0; i++) {
        code = worker_begin(s, i);
    }
    return code ? code : guardian_channel_send(&s->channel, MPI_FRAME_READY, NULL, 0, NULL, 0);
}
