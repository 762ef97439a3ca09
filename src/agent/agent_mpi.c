/* The MPI server of an attempt (--mpi; mpi/mpi_server.h): a process that the guardian holds, which tells the workers'
 * MPI libraries who they are. Workers are started when it has said what each of them is to find in its environment, and
 * has given the descriptor of each. It ends with the attempt: the guardian sees to that.
 *
 * A server that dies after that is only reported: what the workers' libraries make of it is their failure. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent_mpi_impl.h"
#include "agent/mpi/mpi_folder.h"
#include "agent/mpi/mpi_server.h"
#include "agent/report/signal_name.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "net/host_name.h"

enum {
    READY_MS = 300 * 1000, /* the servers of all nodes must have come by then */
    QUEUE_BYTES_MAX = 1 << 20,
    HANDLE_COUNT = 3,
};

/* ---- its end ---- */

static void on_closed(uv_handle_t *handle) {
    struct agent_mpi *mpi = handle->data;
    if (--mpi->handles_open == 0) {
        free(mpi);
    }
}

static void fds_close(struct agent_mpi *mpi) {
    for (uint32_t i = 0; mpi->fds && i < mpi->agent->config->nproc; i++) {
        if (mpi->fds[i] > 0) {
            (void)close(mpi->fds[i]);
            mpi->fds[i] = 0;
        }
    }
}

/* The handles first: they watch the channel's socket. */
static void mpi_close(struct agent_mpi *mpi) {
    struct agent *a = mpi->agent;
    a->mpi = NULL;
    uv_close((uv_handle_t *)&mpi->poll, on_closed);
    uv_close((uv_handle_t *)&mpi->timer, on_closed);
    uv_close((uv_handle_t *)&mpi->left_timer, on_closed);
    mpi_stages_done(&mpi->stages);
    guardian_channel_done(&mpi->channel);
    mpi_folder_remove(mpi->folder); /* a server that was killed has left it */
    for (uint32_t i = 0; mpi->variables && i < a->config->nproc; i++) {
        launch_strings_done(&mpi->variables[i]);
    }
    fds_close(mpi);
    free(mpi->variables);
    free(mpi->fds);
}

static void give_up(struct agent *a, const char *why) {
    if (agent_mpi_cancel(a)) {
        char text[MPI_WIRE_TEXT_MAX + 64];
        (void)str_format(text, sizeof text, "--mpi: %s", why);
        a->mpi_answers->refuse(a, text);
    }
}

/* ---- what it says ---- */

static void on_worker(struct agent_mpi *mpi, const uint8_t *body, size_t length) {
    struct mpi_worker_said said;
    int fd = guardian_channel_take_fd(&mpi->channel);
    bool is_right = mpi_wire_read_worker(body, length, &said) && said.local_rank < mpi->agent->config->nproc &&
                    fd > 0 && mpi->fds[said.local_rank] == 0;
    for (size_t i = 0; is_right && i < said.count; i++) {
        is_right = launch_strings_append(&mpi->variables[said.local_rank], said.variables[i]) == MUSTER_OK;
    }
    if (is_right) {
        mpi->fds[said.local_rank] = fd;
    } else if (fd >= 0) {
        (void)close(fd);
    }
}

/* Each worker has its own end of its socket; this process keeps none. */
static void on_ready(struct agent_mpi *mpi) {
    struct agent *a = mpi->agent;
    if (!agent_mpi_cancel(a)) {
        return;
    }
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        if (mpi->fds[i] == 0) {
            a->mpi_answers->refuse(a, "--mpi: no memory for what the workers are to know");
            return;
        }
    }
    if (a->machine.state == AGENT_STATE_RUNNING) {
        a->mpi_answers->start(a);
    } else {
        a->mpi_answers->skip(a);
    }
    fds_close(mpi);
}

/* A store that cannot be reached is the rendezvous's matter, which ends this attempt. */
static void on_failed(struct agent *a, const struct mpi_said *said) {
    if (said->number != 0) {
        give_up(a, said->text);
    } else {
        log_error("--mpi: %s", said->text);
    }
}

static void on_said(struct agent *a, uint32_t kind, const uint8_t *body, size_t length) {
    struct mpi_said said;
    if (length != sizeof said) {
        return;
    }
    memcpy(&said, body, sizeof said);
    said.text[sizeof said.text - 1] = '\0';
    if (kind == MPI_FRAME_FAILED) {
        on_failed(a, &said);
    } else if (kind == MPI_FRAME_LOG) {
        log_write((enum log_level)said.number, __FILE__, __LINE__, "--mpi: %s", said.text);
    } else {
        agent_mpi_on_rank(a, (enum mpi_frame)kind, &said);
    }
}

/* False: its end. What it has said before is handled in either case. */
static bool channel_read(struct agent_mpi *mpi) {
    struct agent *a = mpi->agent;
    struct guardian_frame frame;
    bool is_open = guardian_channel_receive(&mpi->channel) == MUSTER_OK;
    for (const uint8_t *body; a->mpi == mpi && guardian_channel_next(&mpi->channel, &frame, &body);) {
        if (frame.kind == MPI_FRAME_WORKER) {
            on_worker(mpi, body, frame.length);
        } else if (frame.kind == MPI_FRAME_READY) {
            on_ready(mpi);
        } else {
            on_said(a, frame.kind, body, frame.length);
        }
    }
    return is_open;
}

static void on_heard(uv_poll_t *poll, int status, int events) {
    struct agent_mpi *mpi = poll->data;
    (void)events;
    if (status != 0 || !channel_read(mpi)) {
        (void)uv_poll_stop(poll); /* how it has ended, the guardian says */
    }
}

static void on_late(uv_timer_t *timer) {
    struct agent_mpi *mpi = timer->data;
    give_up(mpi->agent, "the MPI servers of all nodes have not met within five minutes");
}

/* ---- its start ---- */

static void fill_setup(const struct agent_mpi *mpi, struct mpi_setup *out) {
    const struct agent *a = mpi->agent;
    memset(out, 0, sizeof *out); /* padding travels too */
    out->round = a->world.round;
    out->group_rank = a->world.group_rank;
    out->group_world_size = a->world.group_world_size;
    out->base_rank = a->world.base_global_rank;
    out->local_count = a->config->nproc;
    out->world_size = a->world.global_world_size;
    out->master_port = a->world.master_port;
    out->serves_pmi1 = a->config->mpi != LAUNCH_MPI_PMIX;
    out->serves_pmix = mpi->serves_pmix;
    out->needs_pmix = a->config->mpi == LAUNCH_MPI_PMIX;
    (void)str_copy(out->master_addr, sizeof out->master_addr, a->master_addr_text);
    (void)str_copy(out->folder, sizeof out->folder, mpi->folder);
    net_host_name(out->host);
}

static int spawn(struct agent_mpi *mpi, int fd) {
    const char *const argv[] = {MPI_SERVER_PROGRAM, MPI_SERVER_WORD, NULL};
    const struct guardian_spawn how = {
        .argv = argv, .envp = (const char *const *)environ, .stdout_fd = -1, .stderr_fd = -1, .given_fd = fd};
    return guardian_companion(mpi->agent->guardian, AGENT_MPI_ID, &how);
}

/* The server reads what it is to be before it says anything. */
static int talk(struct agent_mpi *mpi) {
    struct mpi_setup setup;
    int pair[2], memory = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        return status_fail_errno(errno, "make a socket for the MPI server");
    }
    guardian_channel_init(&mpi->channel, pair[0], QUEUE_BYTES_MAX);
    fill_setup(mpi, &setup);
    int rc = mpi_stages_create(mpi->agent->config->nproc, &mpi->stages, &memory);
    rc = rc == MUSTER_OK ? guardian_channel_send(&mpi->channel, MPI_FRAME_SETUP, &setup, sizeof setup, &memory, 1) : rc;
    rc = rc == MUSTER_OK ? spawn(mpi, pair[1]) : rc;
    (void)close(pair[1]);
    if (memory >= 0) {
        (void)close(memory);
    }
    return rc;
}

static int watch(struct agent_mpi *mpi) {
    struct agent *a = mpi->agent;
    mpi->poll.data = mpi->timer.data = mpi->left_timer.data = mpi;
    if (uv_poll_init(&a->loop, &mpi->poll, mpi->channel.fd) != 0 ||
        uv_poll_start(&mpi->poll, UV_READABLE, on_heard) != 0) {
        return status_fail(MUSTER_ESYSTEM, "cannot watch the MPI server");
    }
    (void)uv_timer_init(&a->loop, &mpi->timer);
    (void)uv_timer_init(&a->loop, &mpi->left_timer);
    (void)uv_timer_start(&mpi->timer, on_late, READY_MS, 0);
    mpi->handles_open = HANDLE_COUNT;
    return MUSTER_OK;
}

/* A half-built one, without handles. */
static void mpi_free(struct agent_mpi *mpi) {
    mpi_stages_done(&mpi->stages);
    guardian_channel_done(&mpi->channel);
    mpi_folder_remove(mpi->folder);
    free(mpi->variables);
    free(mpi->fds);
    free(mpi);
}

static int create(struct agent *a, struct agent_mpi **out) {
    struct agent_mpi *mpi = calloc(1, sizeof *mpi);
    if (!mpi) {
        return status_fail(MUSTER_ENOMEM, "no memory for the MPI server");
    }
    mpi->agent = a;
    mpi->channel.fd = -1;
    mpi->waits = true;
    mpi->serves_pmix = a->config->mpi == LAUNCH_MPI_PMIX || (a->config->mpi == LAUNCH_MPI_AUTO && !a->mpi_lacks_pmix);
    mpi->variables = calloc(a->config->nproc, sizeof *mpi->variables);
    mpi->fds = calloc(a->config->nproc, sizeof *mpi->fds);
    int rc = mpi->variables && mpi->fds ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for the MPI server");
    rc = rc == MUSTER_OK && mpi->serves_pmix ? mpi_folder_create(mpi->folder, sizeof mpi->folder) : rc;
    rc = rc == MUSTER_OK ? talk(mpi) : rc;
    rc = rc == MUSTER_OK ? watch(mpi) : rc;
    if (rc != MUSTER_OK) {
        mpi_free(mpi);
        return rc;
    }
    *out = mpi;
    return MUSTER_OK;
}

void agent_mpi_begin(struct agent *a, const struct agent_mpi_answers *answers) {
    a->mpi_answers = answers;
    int rc = a->mpi ? status_fail(MUSTER_EINVAL, "the MPI server of the attempt before has not ended") : MUSTER_OK;
    if (rc == MUSTER_OK && a->world.group_world_size > 1 && !a->world.use_agent_store) {
        rc = status_fail(MUSTER_EUNSUPPORTED, "ranks of several nodes meet in the agents' store, which "
                                              "TORCH_DISABLE_SHARE_RDZV_TCP_STORE turns off: unset it");
    }
    rc = rc == MUSTER_OK ? create(a, &a->mpi) : rc;
    if (rc != MUSTER_OK && rc != MUSTER_ECLOSED) { /* of a guardian that has died the loop tells next */
        char text[MPI_WIRE_TEXT_MAX];
        (void)str_format(text, sizeof text, "--mpi: %.900s", muster_detail());
        a->mpi_answers->refuse(a, text);
    }
}

bool agent_mpi_cancel(struct agent *a) {
    bool waits = a->mpi && a->mpi->waits;
    if (waits) {
        a->mpi->waits = false;
        (void)uv_timer_stop(&a->mpi->timer);
    }
    return waits;
}

/* ---- what the guardian says ---- */

void agent_mpi_spawned(struct agent *a, pid_t pid) {
    if (a->mpi) {
        a->mpi->pid = pid;
        log_debug("the MPI server has started: pid %d", (int)pid);
    }
}

void agent_mpi_not_started(struct agent *a, const char *why) {
    if (a->mpi) {
        give_up(a, why);
        mpi_close(a->mpi);
    }
}

/* PMIx's library is not ours; without it, programs of MPICH's family still run. */
static void ended_early(struct agent *a, bool served_pmix, const char *how) {
    if (served_pmix && a->config->mpi == LAUNCH_MPI_AUTO) {
        log_warning("--mpi: the MPI server %s before the workers could start; another one is started, without PMIx "
                    "(Open MPI needs it)",
                    how);
        a->mpi_lacks_pmix = true;
        agent_mpi_begin(a, a->mpi_answers);
        return;
    }
    char text[256];
    (void)str_format(text, sizeof text, "--mpi: the MPI server %s before the workers could start", how);
    a->mpi_answers->refuse(a, text);
}

void agent_mpi_ended(struct agent *a, int wait_status) {
    char how[64];
    struct agent_mpi *mpi = a->mpi;
    if (!mpi) {
        return;
    }
    (void)channel_read(mpi); /* why it could not serve, for instance */
    if (a->mpi != mpi) {
        return;
    }
    bool served_pmix = mpi->serves_pmix;
    const char *name = WIFSIGNALED(wait_status) ? signal_name(WTERMSIG(wait_status)) : NULL;
    (void)str_format(how, sizeof how, "has ended%s%s", name ? " by " : "", name ? name : "");
    bool was_awaited = agent_mpi_cancel(a);
    int pid = (int)mpi->pid;
    mpi_close(mpi);
    if (was_awaited && a->machine.state == AGENT_STATE_RUNNING) {
        ended_early(a, served_pmix, how);
    } else if (was_awaited) {
        a->mpi_answers->skip(a);
    } else if (a->machine.state == AGENT_STATE_RUNNING) {
        log_error("--mpi: the MPI server (pid %d) %s: what the workers' MPI asks of it from now on fails", pid, how);
    }
}

void agent_mpi_lost(struct agent *a) {
    if (a->mpi) {
        mpi_close(a->mpi);
    }
}

/* ---- for the workers ---- */

const struct launch_strings *agent_mpi_variables(const struct agent *a, uint32_t local_rank) {
    return a->mpi ? &a->mpi->variables[local_rank] : NULL;
}

int agent_mpi_fd(const struct agent *a, uint32_t local_rank) {
    return a->mpi ? a->mpi->fds[local_rank] : 0;
}

int agent_mpi_end_of(struct agent *a, uint32_t local_rank, int wait_status) {
    if (a->mpi) {
        (void)channel_read(a->mpi);
    }
    return agent_mpi_rank_end(a, local_rank, wait_status);
}
