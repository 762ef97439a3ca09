/* See mpi_server.h. The process ends without cleaning up its memory: all of it goes with it. */
#include "agent/mpi/mpi_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/guardian/guardian.h"
#include "agent/mpi/mpi_folder.h"
#include "agent/mpi/mpi_server_impl.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/descriptors.h"
#include "base/system/random.h"
#include "net/event_loop.h"

/* ---- the nodes ---- */

static void serve(struct mpi_server *s) {
    int code = mpi_layout_settle(s->nodes, s->setup.group_world_size, s->setup.world_size);
    code = code ? code : mpi_workers_begin(s);
    if (code) {
        mpi_server_fail(s, muster_detail(), true);
    }
}

static void on_nodes(void *ctx, int status, const struct kv_slice *values, size_t count) {
    struct mpi_server *s = ctx;
    if (status) {
        mpi_server_fail(s, muster_detail(), false);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (!mpi_node_read(values[i].data, values[i].len, &s->nodes[i])) {
            mpi_server_fail(s, "what another node says of its ranks cannot be read", false);
            return;
        }
    }
    serve(s);
}

static int nodes_meet(struct mpi_server *s) {
    const struct mpi_setup *setup = &s->setup;
    char record[MPI_LAYOUT_RECORD_MAX];
    struct mpi_node own = {.base = setup->base_rank, .count = setup->local_count};
    (void)str_copy(own.host, sizeof own.host, setup->host);
    if (random_fill(&own.token, sizeof own.token) != 0) {
        return status_fail_errno(errno, "no random numbers");
    }
    mpi_node_write(&own, record);
    s->nodes = calloc(setup->group_world_size, sizeof *s->nodes);
    if (!s->nodes) {
        return status_fail(MUSTER_ENOMEM, "no memory for %u nodes", setup->group_world_size);
    }
    if (setup->group_world_size == 1) {
        (void)mpi_node_read(record, strlen(record), &s->nodes[0]);
        serve(s);
        return 0;
    }
    const struct mpi_exchange_options options = {.master_addr = setup->master_addr,
                                                 .master_port = setup->master_port,
                                                 .round = setup->round,
                                                 .node = setup->group_rank,
                                                 .node_count = setup->group_world_size};
    int code = mpi_exchange_create(&s->loop, &options, &s->exchange);
    return code ? code
                : mpi_exchange_start(s->exchange, "nodes", NULL, setup->group_world_size, kv_slice_text(record),
                                     on_nodes, s);
}

/* ---- a life ---- */

/* The agent has sent it before this process was there. */
static bool setup_read(struct mpi_server *s) {
    struct guardian_frame frame;
    const uint8_t *body;
    while (!guardian_channel_next(&s->channel, &frame, &body)) {
        struct pollfd wait = {.fd = s->channel.fd, .events = POLLIN};
        if ((poll(&wait, 1, -1) < 0 && errno != EINTR) || guardian_channel_receive(&s->channel) != MUSTER_OK) {
            return false;
        }
    }
    if (frame.kind != MPI_FRAME_SETUP || frame.length != sizeof s->setup) {
        return false;
    }
    memcpy(&s->setup, body, sizeof s->setup);
    int fd = guardian_channel_take_fd(&s->channel);
    bool is_shared = fd >= 0 && mpi_stages_open(fd, s->setup.local_count, &s->stages) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return is_shared && s->setup.local_count > 0 && s->setup.group_world_size > 0 &&
           s->setup.group_world_size <= MPI_LAYOUT_NODES_MAX && s->setup.group_rank < s->setup.group_world_size;
}

static void on_signal(uv_signal_t *handle, int number) {
    struct mpi_server *s = handle->data;
    (void)number;
    uv_stop(&s->loop);
}

static bool begin(struct mpi_server *s) {
    (void)prctl(PR_SET_NAME, "muster-mpi");
    (void)signal(SIGPIPE, SIG_IGN);
    (void)fcntl(GUARDIAN_GIVEN_FD, F_SETFD, FD_CLOEXEC);
    descriptors_raise(); /* one for each worker */
    guardian_channel_init(&s->channel, GUARDIAN_GIVEN_FD, MPI_SERVER_QUEUE_BYTES_MAX);
    if (!setup_read(s) || event_loop_init(&s->loop) != MUSTER_OK) {
        return false;
    }
    s->agent.data = s->signal.data = s;
    if (uv_poll_init(&s->loop, &s->agent, s->channel.fd) != 0 || uv_signal_init(&s->loop, &s->signal) != 0 ||
        uv_signal_start(&s->signal, on_signal, SIGTERM) != 0) {
        return false;
    }
    mpi_server_listen(s);
    return true;
}

static _Noreturn void run(void) {
    struct mpi_server *s = calloc(1, sizeof *s);
    if (!s || !begin(s)) {
        _exit(EXIT_FAILURE);
    }
    if (nodes_meet(s)) {
        mpi_server_fail(s, muster_detail(), false);
    }
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    if (s->pmix) {
        pmix_host_end(s->pmix);
    }
    mpi_folder_remove(s->setup.folder);
    _exit(EXIT_SUCCESS);
}

void mpi_server_main(int argc, char **argv) {
    struct stat seen;
    if (argc == 2 && strcmp(argv[1], MPI_SERVER_WORD) == 0 && fstat(GUARDIAN_GIVEN_FD, &seen) == 0 &&
        S_ISSOCK(seen.st_mode)) {
        run();
    }
}
