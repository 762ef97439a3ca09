/* See pmix_host.h. */
#include "agent/mpi/pmix_host.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "agent/mpi/pmix_host_impl.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"

/* The library's callbacks have no context: a process has one server. Set before the library starts. */
static struct pmix_host *the_host;

/* ---- on the library's thread ---- */

static int on_library_abort(const struct pmix_process *process, void *object, int status, const char *text,
                            struct pmix_process *processes, size_t count, pmix_done_fn *done, void *ctx) {
    (void)object;
    (void)processes;
    (void)count;
    struct pmix_event *event = pmix_event_new(PMIX_EVENT_ABORT, text, text ? strlen(text) : 0);
    if (!event) {
        return PMIX_FAILED;
    }
    event->rank = process->rank;
    event->status = status;
    event->aborted = done;
    event->ctx = ctx;
    pmix_queue_put(the_host, event);
    return PMIX_OK;
}

/* Its place among this node's workers. False: it is none of them. */
static bool is_worker(const struct pmix_process *process, uint32_t *out_local_rank) {
    const struct mpi_node *own = &the_host->options.nodes[the_host->options.node];
    *out_local_rank = process->rank - own->base;
    return process->rank >= own->base && *out_local_rank < own->count &&
           strncmp(process->space, the_host->space, sizeof process->space) == 0;
}

static void tell(enum pmix_event_kind kind, uint32_t rank) {
    struct pmix_event *event = pmix_event_new(kind, NULL, 0);
    if (event) { /* without memory, what the agent sees when the worker ends must do */
        event->rank = rank;
        pmix_queue_put(the_host, event);
    }
}

static int note_stage(const struct pmix_process *process, enum mpi_stage stage) {
    uint32_t local_rank;
    if (is_worker(process, &local_rank)) {
        mpi_stages_set(the_host->options.stages, local_rank, stage);
        if (stage == MPI_STAGE_INSIDE) {
            tell(PMIX_EVENT_BEGUN, local_rank);
        }
    }
    return PMIX_DONE_ALREADY;
}

/* Its first question is answered after this. */
static int on_library_connected(const struct pmix_process *process, void *object, pmix_done_fn *done, void *ctx) {
    (void)object;
    (void)done;
    (void)ctx;
    return note_stage(process, MPI_STAGE_INSIDE);
}

static int on_library_finalized(const struct pmix_process *process, void *object, pmix_done_fn *done, void *ctx) {
    (void)object;
    (void)done;
    (void)ctx;
    return note_stage(process, MPI_STAGE_FINALIZED);
}

/* NOLINTNEXTLINE(readability-function-size): the library says how many parameters there are */
static void on_library_lost(size_t id, int status, const struct pmix_process *source, struct pmix_info *infos,
                            size_t count, struct pmix_info *results, size_t result_count, pmix_handled_fn *done,
                            void *ctx) {
    uint32_t local_rank;
    (void)id;
    (void)status;
    (void)infos;
    (void)count;
    (void)results;
    (void)result_count;
    if (is_worker(source, &local_rank)) {
        tell(PMIX_EVENT_LEFT, local_rank);
    }
    if (done) {
        done(PMIX_HANDLED, NULL, 0, NULL, NULL, ctx);
    }
}

/* All ranks of the job, or those that are listed. */
static int on_library_fence(const struct pmix_process *processes, size_t count, const struct pmix_info *infos,
                            size_t info_count, char *data, size_t size, pmix_data_fn *done, void *ctx) {
    (void)infos;
    (void)info_count;
    bool is_all = count == 1 && processes[0].rank == PMIX_RANK_ALL;
    struct pmix_event *event = pmix_event_new(PMIX_EVENT_FENCE, data, size);
    if (event && !is_all) {
        event->ranks = calloc(count, sizeof *event->ranks);
        event->rank_count = event->ranks ? count : 0;
    }
    if (!event || (!is_all && !event->ranks)) {
        pmix_event_free(event);
        return PMIX_FAILED;
    }
    for (size_t i = 0; i < event->rank_count; i++) {
        event->ranks[i] = processes[i].rank;
    }
    event->done = done;
    event->ctx = ctx;
    pmix_queue_put(the_host, event);
    return PMIX_OK;
}

static int on_library_direct_modex(const struct pmix_process *process, const struct pmix_info *infos, size_t info_count,
                                   pmix_data_fn *done, void *ctx) {
    (void)infos;
    (void)info_count;
    struct pmix_event *event = pmix_event_new(PMIX_EVENT_ASK, NULL, 0);
    if (!event) {
        return PMIX_FAILED;
    }
    event->rank = process->rank;
    event->done = done;
    event->ctx = ctx;
    pmix_queue_put(the_host, event);
    return PMIX_OK;
}

/* Files that the library removes at the end it looks after itself, if this call is there. */
static int on_library_job_control(const struct pmix_process *who, const struct pmix_process *targets,
                                  size_t target_count, const struct pmix_info *infos, size_t info_count,
                                  pmix_unused_fn *done, void *ctx) {
    (void)who;
    (void)targets;
    (void)target_count;
    (void)infos;
    (void)info_count;
    (void)done;
    (void)ctx;
    return PMIX_NOT_SUPPORTED;
}

/* ---- on the loop ---- */

static void handle_abort(struct pmix_host *host, struct pmix_event *event) {
    const struct mpi_node *own = &host->options.nodes[host->options.node];
    if (event->rank >= own->base && event->rank - own->base < own->count) {
        host->options.on_abort(host->options.ctx, event->rank - own->base, event->status, event->data);
    }
    event->aborted(PMIX_OK, event->ctx);
    pmix_event_free(event);
}

static void handle_stage(struct pmix_host *host, struct pmix_event *event) {
    const struct pmix_host_options *o = &host->options;
    (event->kind == PMIX_EVENT_BEGUN ? o->on_begun : o->on_left)(o->ctx, event->rank);
    pmix_event_free(event);
}

static void on_events(uv_async_t *async) {
    struct pmix_host *host = async->data;
    struct pmix_event *event = pmix_queue_take(host);
    while (event) {
        struct pmix_event *next = event->next;
        switch (event->kind) {
        case PMIX_EVENT_FENCE:
            pmix_relay_fence(host, event);
            break;
        case PMIX_EVENT_ASK:
            pmix_relay_ask(host, event);
            break;
        case PMIX_EVENT_FOUND:
            pmix_relay_found(event);
            break;
        case PMIX_EVENT_ABORT:
            handle_abort(host, event);
            break;
        case PMIX_EVENT_BEGUN:
        case PMIX_EVENT_LEFT:
            handle_stage(host, event);
            break;
        }
        event = next;
    }
}

/* ---- a life ---- */

/* What another server has said to the agent's own process is not for this one; how the library is set up stays. */
static void clean_environment(void) {
    static const char prefix[] = "PMIX_", kept[] = "PMIX_MCA_";
    for (size_t i = 0; environ[i];) {
        char name[128];
        bool is_other = str_has_prefix(environ[i], prefix) && !str_has_prefix(environ[i], kept);
        size_t length = strcspn(environ[i], "=");
        if (is_other && str_format(name, sizeof name, "%.*s", (int)length, environ[i])) {
            (void)unsetenv(name); /* the next one takes its place */
        } else {
            i++;
        }
    }
    (void)setenv("PMIX_MCA_gds", "hash", 0); /* the one way of keeping data that needs no files */
}

static int library_start(struct pmix_host *host) {
    static const struct pmix_module module = {.client_connected = on_library_connected,
                                              .client_finalized = on_library_finalized,
                                              .abort = on_library_abort,
                                              .fence = on_library_fence,
                                              .direct_modex = on_library_direct_modex,
                                              .job_control = on_library_job_control};
    struct pmix_array infos = {0};
    char space[PMIX_NAMESPACE_BYTES];
    const struct pmix_library *l = &host->library;
    (void)str_format(space, sizeof space, "%.200s.servers", host->space);
    struct pmix_list list = pmix_list_new(l);
    pmix_list_text(&list, "pmix.srvr.tmpdir", host->folder);
    pmix_list_text(&list, "pmix.sys.tmpdir", host->folder);
    pmix_list_text(&list, "pmix.srv.nspace", space);
    pmix_list_rank(&list, "pmix.srv.rank", (uint32_t)host->options.node);
    pmix_list_text(&list, "pmix.hname", host->options.nodes[host->options.node].host);
    int status = pmix_list_array(&list, &infos);
    the_host = host;
    status = status ? status : l->init((struct pmix_module *)(uintptr_t)&module, infos.array, infos.size);
    int lost = PMIX_LOST_CONNECTION;
    status = status ? status : l->register_events(&lost, 1, NULL, 0, on_library_lost, NULL, NULL);
    return status < 0 && status != PMIX_DONE_ALREADY
               ? status_fail(MUSTER_ESYSTEM, "PMIx's server cannot start: %s", l->error_string(status))
               : 0;
}

int pmix_host_create(uv_loop_t *loop, const struct pmix_host_options *options, struct pmix_host **out) {
    struct pmix_host *host = calloc(1, sizeof *host);
    if (!host) {
        return status_fail(MUSTER_ENOMEM, "no memory for PMIx");
    }
    host->options = *options;
    host->async.data = host;
    pmix_queue_init(host);
    bool fits = str_copy(host->space, sizeof host->space, options->space) &&
                str_copy(host->folder, sizeof host->folder, options->folder);
    int code = fits ? pmix_library_open(&host->library) : status_fail(MUSTER_ELIMIT, "PMIx: a name is too long");
    if (code == 0 && uv_async_init(loop, &host->async, on_events) != 0) {
        code = status_fail(MUSTER_ESYSTEM, "PMIx: the loop takes no more");
    }
    if (code) {
        free(host);
        return code;
    }
    clean_environment();
    code = library_start(host);
    code = code ? code : pmix_job_register(host);
    code = code ? code : pmix_relay_listen(host);
    *out = code ? NULL : host; /* half-built ones stay: the library may call back */
    return code;
}

int pmix_host_variables(struct pmix_host *host, uint32_t local_rank, char ***out) {
    struct pmix_process process = {.rank = host->options.nodes[host->options.node].base + local_rank};
    memcpy(process.space, host->space, sizeof process.space);
    *out = NULL;
    int status = host->library.setup_fork(&process, out);
    return status ? status_fail(MUSTER_ESYSTEM, "PMIx: the environment of local rank %u: %s", local_rank,
                                host->library.error_string(status))
                  : 0;
}

void pmix_host_free_variables(char **variables) {
    for (size_t i = 0; variables && variables[i]; i++) {
        free(variables[i]);
    }
    free(variables);
}

static void on_deregistered(int status, void *ctx) {
    const int *done_fd = ctx;
    (void)status;
    (void)eventfd_write(*done_fd, 1);
}

/* A semaphore would wait by the wall clock, which may be set meanwhile. */
static void await_end(int fd) {
    enum { PATIENCE_MS = 1000 };
    int64_t deadline_ns = clock_deadline_ns(clock_monotonic_ns(), PATIENCE_MS);
    struct pollfd done = {.fd = fd, .events = POLLIN};
    while (poll(&done, 1, (int)clock_remaining_ms(deadline_ns)) < 0 && errno == EINTR) {
    }
}

void pmix_host_end(struct pmix_host *host) {
    static int done_fd;                /* outlives a library that answers late */
    done_fd = eventfd(0, EFD_CLOEXEC); /* without one, its whole time is waited */
    host->library.deregister_space(host->space, on_deregistered, &done_fd);
    await_end(done_fd);
    (void)host->library.finalize();
}
