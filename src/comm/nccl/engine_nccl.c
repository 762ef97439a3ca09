/* The table of the engine: what becomes of a call; see engine_nccl.h. */
#include "comm/nccl/engine_nccl.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/nccl/engine_nccl_impl.h"

enum {
    QUICK_LOOKS = 32, /* at a call under way, before this thread sleeps */
    PAUSE_US = 20,
    IDLE_MS = 2000, /* after an abort, for the GPU to have done with copies */
};

/* ---- whose call it is ---- */

enum { ON_HOST = 1, ON_DEVICE = 2 };

static unsigned place_bit(const void *buffer, size_t count) {
    return count == 0 ? 0 : device_place_of(buffer) == DEVICE_PLACE_DEVICE ? ON_DEVICE : ON_HOST;
}

static bool has_data(const struct comm_call *call) {
    return call->operation != COMM_BARRIER && call->operation != COMM_MONITORED_BARRIER;
}

/* Where this rank's buffers are: both bits, one of them, or none. */
static unsigned own_places(const struct nccl_engine *n, const struct comm_call *call) {
    if (!has_data(call)) {
        return ON_HOST;
    }
    return place_bit(call->send, nccl_plan_send_count(call, n->rank, n->size)) |
           place_bit(call->receive, nccl_plan_receive_count(call, n->rank, n->size));
}

static int refuse_mixture(int code, const struct comm_call *call, const char *whose) {
    return status_fail(code,
                       "%s: %s are in memory of the host and in memory of the GPU; all of a call's must "
                       "be in one of them",
                       comm_call_name(call), whose);
}

static int check(const struct engine *engine, const struct comm_call *call) {
    const struct nccl_engine *n = (const struct nccl_engine *)(const void *)engine;
    return own_places(n, call) == (ON_HOST | ON_DEVICE) ? refuse_mixture(MUSTER_EINVAL, call, "its buffers") : 0;
}

/* A rank that gives and gets nothing cannot tell; so all tell each other. By the way they find out whether they make
 * the same call: the part has its fingerprint. */
static int agree_on_places(struct nccl_engine *n, const struct comm_call *call, uint64_t number, int64_t deadline_ns,
                           unsigned *places) {
    uint8_t own = (uint8_t)*places, all = 0;
    struct comm_call part = {.operation = COMM_ALL_REDUCE,
                             .type = MUSTER_UINT8,
                             .reduction = MUSTER_OP_BIT_OR,
                             .count = 1,
                             .send = &own,
                             .receive = &all};
    int code = nccl_run_inner(n, &part, call, number, deadline_ns);
    *places = all;
    return code;
}

/* ---- the table ---- */

/* The call under way has ended. */
static void set_idle(struct nccl_engine *n) {
    n->phase = NCCL_IDLE;
    pthread_mutex_lock(&n->mutex);
    n->is_busy = false;
    pthread_mutex_unlock(&n->mutex);
}

/* Ends what the communicator does, after a failure, whose sentence stays: then nothing of the call touches a buffer. */
static void give_up(struct nccl_engine *n) {
    const struct cuda_library *cuda = n->device.cuda;
    int64_t until_ns = clock_monotonic_ns() + IDLE_MS * CLOCK_NS_PER_MS;
    n->is_stuck = !nccl_spend(n) || n->is_stuck;
    unsigned state = CUDA_NOT_READY;
    while (!n->is_stuck && (state = cuda->stream_query(n->stream)) == CUDA_NOT_READY &&
           clock_monotonic_ns() < until_ns) {
        const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
        (void)nanosleep(&pause, NULL);
    }
    n->is_stuck = n->is_stuck || state == CUDA_NOT_READY;
    set_idle(n);
}

static int failed(struct nccl_engine *n, int code) {
    char detail[MUSTER_DETAIL_MAX];
    const struct muster_failure record = status_failure();
    (void)str_copy(detail, sizeof detail, muster_detail());
    give_up(n);
    return status_restore(code, detail, &record);
}

static int begin(struct nccl_engine *n) {
    pthread_mutex_lock(&n->mutex);
    n->is_busy = n->comm != NULL;
    bool is_busy = n->is_busy;
    pthread_mutex_unlock(&n->mutex);
    return is_busy ? 0 : status_fail(MUSTER_EABORTED, "its communicator was aborted");
}

static int start_on_device(struct nccl_engine *n) {
    struct CUctx_st *previous = NULL;
    int code = begin(n);
    if (code) {
        return code;
    }
    code = device_enter(&n->device, &previous);
    if (code) {
        set_idle(n);
        return code;
    }
    code = nccl_plan_is_possible(&n->call) ? nccl_call_issue(n) : nccl_call_copy_out(n);
    code = code < 0 ? failed(n, code) : code;
    device_leave(&n->device, previous);
    return code;
}

static int start(struct engine *engine, const struct comm_call *call, uint64_t number, int64_t deadline_ns) {
    struct nccl_engine *n = nccl_of(engine);
    unsigned places = own_places(n, call);
    bool is_idle = places == 0;
    if (nccl_plan_may_be_idle(call, n->size) || (n->compares_calls && has_data(call))) {
        int code = agree_on_places(n, call, number, deadline_ns, &places);
        if (code) {
            return code;
        }
    }
    if (places == (ON_HOST | ON_DEVICE)) {
        return refuse_mixture(MUSTER_EMISMATCH, call, "the buffers of its ranks");
    }
    n->was_on_device = places == ON_DEVICE;
    n->phase = NCCL_IDLE;
    if (!n->was_on_device) {
        return n->host->table->start(n->host, call, number, deadline_ns);
    }
    if (is_idle) {
        return ENGINE_DONE;
    }
    n->call = *call;
    n->number = number;
    n->deadline_ns = deadline_ns;
    return start_on_device(n);
}

/* NCCL's own view of a call that is on its way. */
static int look_at_nccl(struct nccl_engine *n) {
    unsigned state = NCCL_OK;
    unsigned result = n->comm ? n->nccl->comm_async_error(n->comm, &state) : (unsigned)NCCL_OK;
    if (result != NCCL_OK || (state != NCCL_OK && state != NCCL_IN_PROGRESS)) {
        return nccl_fail(n->nccl, result ? result : state, n->comm, "carry out the call");
    }
    return n->phase == NCCL_ISSUING && state == NCCL_OK ? nccl_call_mark(n, NCCL_RUNNING) : ENGINE_UNDER_WAY;
}

static int look_at_stream(struct nccl_engine *n) {
    unsigned result = n->device.cuda->event_query(n->after);
    if (result == CUDA_NOT_READY) {
        return look_at_nccl(n);
    }
    if (result != CUDA_OK) {
        return nccl_fail_cuda(n, result, "carry out the call");
    }
    return n->phase == NCCL_COPYING_OUT ? nccl_call_run_copies(n) : ENGINE_DONE;
}

static int look_at_call(struct nccl_engine *n, int64_t patience_ns) {
    if (n->phase == NCCL_ON_HOST) {
        int code = n->host->table->test(n->host, patience_ns);
        return code == ENGINE_DONE ? nccl_call_copy_in(n) : code;
    }
    return n->phase == NCCL_ISSUING ? look_at_nccl(n) : look_at_stream(n);
}

/* Has a neighbour begun this call with another fingerprint? NCCL would wait for ever, or give results that mean
 * nothing. */
static bool is_mismatched(const struct nccl_engine *n) {
    return call_line_is_mismatched(n->own_line, n->lines, n->line_count, n->number);
}

static int look(struct nccl_engine *n, int64_t patience_ns) {
    int code = look_at_call(n, patience_ns);
    return code >= 0 && is_mismatched(n) ? status_fail(MUSTER_EMISMATCH, "another rank has made another call") : code;
}

static int look_for_a_while(struct nccl_engine *n, int64_t patience_ns) {
    int64_t until_ns = clock_monotonic_ns() + patience_ns;
    int code = look(n, patience_ns);
    for (int looks = 1; code == ENGINE_UNDER_WAY && clock_monotonic_ns() < until_ns; looks++) {
        const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
        if (looks < QUICK_LOOKS) {
            (void)sched_yield();
        } else {
            (void)nanosleep(&pause, NULL);
        }
        code = look(n, patience_ns);
    }
    return code;
}

static int test(struct engine *engine, int64_t patience_ns) {
    struct nccl_engine *n = nccl_of(engine);
    struct CUctx_st *previous = NULL;
    if (!n->was_on_device) {
        return n->host->table->test(n->host, patience_ns);
    }
    int code = device_enter(&n->device, &previous);
    if (code == 0) {
        code = look_for_a_while(n, patience_ns);
        code = code < 0 ? failed(n, code) : code;
        device_leave(&n->device, previous);
    }
    if (code != ENGINE_UNDER_WAY) {
        set_idle(n);
    }
    return code;
}

static void abort_call(struct engine *engine) {
    struct nccl_engine *n = nccl_of(engine);
    struct CUctx_st *previous = NULL;
    if (!n->was_on_device || n->phase == NCCL_ON_HOST) {
        n->host->table->abort(n->host);
    }
    if (n->was_on_device && device_enter(&n->device, &previous) == 0) {
        give_up(n);
        device_leave(&n->device, previous);
    }
}

static bool is_foreign(const struct engine *engine, const void *buffer) {
    (void)engine;
    return device_place_of(buffer) == DEVICE_PLACE_DEVICE;
}

static void set_stream(struct engine *engine, void *stream) {
    atomic_store_explicit(&nccl_of(engine)->users_stream, stream, memory_order_relaxed);
}

static int note(struct engine *engine, struct comm_call *call) {
    struct nccl_engine *n = nccl_of(engine);
    struct pooled_event *event = NULL;
    if (!has_data(call) || !(is_foreign(engine, call->send) || is_foreign(engine, call->receive))) {
        return 0;
    }
    int code = event_pool_record(&n->noted, &n->device, (struct CUstream_st *)call->stream, &event);
    call->noted = event;
    return code;
}

static void forget(struct engine *engine, struct comm_call *call) {
    event_pool_return(&nccl_of(engine)->noted, call->noted);
    call->noted = NULL;
}

static const struct device *device(const struct engine *engine) {
    return &((const struct nccl_engine *)(const void *)engine)->device;
}

static int allocate(struct engine *engine, size_t bytes, void **out) {
    struct engine *host = nccl_of(engine)->host;
    return host->table->allocate(host, bytes, out);
}

static void release(struct engine *engine, void *memory) {
    struct engine *host = nccl_of(engine)->host;
    host->table->release(host, memory);
}

static bool awaits(const struct engine *engine, uint32_t rank) {
    const struct nccl_engine *n = (const struct nccl_engine *)(const void *)engine;
    return !n->was_on_device && engine_awaits(n->host, rank);
}

static uint64_t steps(const struct engine *engine, uint32_t local) {
    const struct nccl_engine *n = (const struct nccl_engine *)(const void *)engine;
    return n->was_on_device ? 0 : engine_steps(n->host, local);
}

static const char *algorithm(const struct engine *engine) {
    const struct nccl_engine *n = (const struct nccl_engine *)(const void *)engine;
    return !n->was_on_device ? engine_algorithm(n->host) : nccl_plan_is_possible(&n->call) ? "nccl" : "copies";
}

static int64_t arrived_ns(const struct engine *engine) {
    const struct nccl_engine *n = (const struct nccl_engine *)(const void *)engine;
    return n->was_on_device ? 0 : engine_arrived_ns(n->host);
}

/* ---- life ---- */

static void close_device(struct nccl_engine *n) {
    const struct cuda_library *cuda = n->device.cuda;
    nccl_messages_end(n);
    nccl_memory_free(n);
    event_pool_done(&n->noted, &n->device);
    if (n->before) {
        (void)cuda->event_destroy(n->before);
    }
    if (n->after) {
        (void)cuda->event_destroy(n->after);
    }
    if (n->message_event) {
        (void)cuda->event_destroy(n->message_event);
    }
    if (n->message_stream) {
        (void)cuda->stream_destroy(n->message_stream);
    }
    if (n->stream) {
        (void)cuda->stream_destroy(n->stream);
    }
}

/* All but the inner engine. */
static void dispose(struct nccl_engine *n) {
    struct CUctx_st *previous = NULL;
    if (n->device.context && device_enter(&n->device, &previous) == 0) {
        nccl_memory_forget_all(n);
        bool is_well = !n->failure || !failure_is_set(n->failure);
        n->is_stuck = !nccl_comm_end(n, &n->comm, is_well ? NCCL_END_IN_ORDER : NCCL_END_AT_ONCE) || n->is_stuck;
        n->is_stuck = !nccl_comm_end(n, &n->spent, NCCL_END_AT_ONCE) || n->is_stuck;
        if (!n->is_stuck) {
            close_device(n);
        }
        device_leave(&n->device, previous);
    }
    if (!n->is_stuck) {
        device_close(&n->device);
    }
    pthread_mutex_destroy(&n->mutex);
    pthread_mutex_destroy(&n->message_mutex);
    free(n->left_out);
    free(n->lines);
    free(n->steps);
    free(n);
}

static void free_nccl(struct engine *engine) {
    struct engine *host = nccl_of(engine)->host;
    dispose(nccl_of(engine));
    engine_free(host);
}

static const struct engine_table nccl_table = {
    .name = "nccl",
    .connect = nccl_connect,
    .start = start,
    .test = test,
    .abort = abort_call,
    .allocate = allocate,
    .release = release,
    .is_foreign = is_foreign,
    .check = check,
    .note = note,
    .forget = forget,
    .set_stream = set_stream,
    .allocate_foreign = nccl_memory_allocate,
    .release_foreign = nccl_memory_release,
    .device = device,
    .derive = nccl_derive,
    .awaits = awaits,
    .steps = steps,
    .algorithm = algorithm,
    .arrived_ns = arrived_ns,
    .free = free_nccl,
};

static int open_device(struct nccl_engine *n, uint32_t local) {
    struct CUctx_st *previous = NULL;
    int code = device_open(local, &n->device);
    code = code ? code : device_enter(&n->device, &previous);
    if (code) {
        return code;
    }
    const struct cuda_library *cuda = n->device.cuda;
    unsigned result = cuda->stream_create(&n->stream, CUDA_STREAM_NON_BLOCKING);
    result = result ? result : cuda->event_create(&n->before, CUDA_EVENT_DISABLE_TIMING);
    result = result ? result : cuda->event_create(&n->after, CUDA_EVENT_DISABLE_TIMING);
    result = result ? result : cuda->stream_create(&n->message_stream, CUDA_STREAM_NON_BLOCKING);
    result = result ? result : cuda->event_create(&n->message_event, CUDA_EVENT_DISABLE_TIMING);
    code = result == CUDA_OK ? 0 : nccl_fail_cuda(n, result, "make a stream");
    device_leave(&n->device, previous);
    return code;
}

int engine_nccl_create(const struct engine_nccl_config *config, struct engine **out) {
    const struct nccl_library *nccl = cuda_library() ? nccl_library() : NULL;
    if (!nccl) {
        return MUSTER_EUNSUPPORTED;
    }
    struct nccl_engine *n = calloc(1, sizeof *n);
    struct nccl_step *room = calloc(nccl_plan_steps_max(config->size), sizeof *room);
    const struct call_line **lines = calloc(config->line_count + 1, sizeof *lines);
    int *left_out = calloc(config->left_out_count + 1, sizeof *left_out);
    if (!n || !room || !lines || !left_out) {
        free(left_out);
        free(lines);
        free(room);
        free(n);
        return status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", config->size);
    }
    *n = (struct nccl_engine){.base = {.table = &n->table},
                              .table = nccl_table,
                              .host = config->host,
                              .waiter = config->waiter,
                              .failure = config->failure,
                              .nccl = nccl,
                              .rank = config->rank,
                              .size = config->size,
                              .name = config->name,
                              .steps = room,
                              .lines = lines,
                              .line_count = config->line_count,
                              .own_line = config->own_line,
                              .compares_calls = config->compares_calls,
                              .splits = true,
                              .failed = config->failed ? nccl_of(config->failed) : NULL,
                              .left_out = left_out,
                              .left_out_count = config->left_out_count};
    if (config->line_count > 0) {
        memcpy(lines, config->lines, config->line_count * sizeof *lines);
    }
    if (config->left_out_count > 0) {
        memcpy(left_out, config->left_out, config->left_out_count * sizeof *left_out);
    }
    (void)pthread_mutex_init(&n->mutex, NULL);
    (void)pthread_mutex_init(&n->message_mutex, NULL);
    event_pool_init(&n->noted);
    nccl_messages_begin(n);
    int code = open_device(n, config->local);
    if (code) {
        dispose(n);
        return code;
    }
    *out = &n->base;
    return 0;
}
