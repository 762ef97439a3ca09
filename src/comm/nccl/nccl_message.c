/* Messages: by the inner engine, those in memory of the GPU on copies in pinned memory; see engine_nccl_impl.h.
 *
 * NCCL's own sends and receives have no tags, need to know sender and length, and lock up where both ranks send before
 * they receive. So they could not do what muster_send() and muster_receive() promise. */
#include <assert.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/nccl/engine_nccl_impl.h"

enum { LEAST_BYTES = 4096, PAUSE_US = 20, QUICK_LOOKS = 16 };

/* A copy of a message's buffer, in pinned memory; kept for later ones. */
struct nccl_copy {
    struct comm_message *message; /* NULL: idle */
    void *pinned, *device;
    size_t capacity;
    struct nccl_copy *next;
};

static const struct engine_messages *inner(const struct nccl_engine *n) {
    return n->host->table->messages;
}

/* ---- copies ---- */

/* Until the message stream has got past what it has been given; with the messages' mutex held. */
static int await_copy(struct nccl_engine *n, int64_t deadline_ns) {
    const struct cuda_library *cuda = n->device.cuda;
    unsigned result = cuda->event_record(n->message_event, n->message_stream);
    result = result ? result : cuda->event_query(n->message_event);
    for (int looks = 0; result == CUDA_NOT_READY; looks++) {
        const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
        int code = nccl_ask_waiter(n);
        if (code == 0 && clock_monotonic_ns() >= deadline_ns) {
            code = status_fail(MUSTER_ETIMEOUT, "the GPU did not get to the message's copy in time");
        }
        if (code) {
            n->is_stuck = true; /* it may still come to that */
            return code;
        }
        if (looks >= QUICK_LOOKS) {
            (void)nanosleep(&pause, NULL);
        }
        result = cuda->event_query(n->message_event);
    }
    return result == CUDA_OK ? 0 : nccl_fail_cuda(n, result, "copy a message");
}

/* Behind what the caller's stream has been given so far. */
static int copy(struct nccl_engine *n, const struct nccl_copy *c, bool to_host, size_t bytes, int64_t deadline_ns) {
    const struct cuda_library *cuda = n->device.cuda;
    unsigned long long device = device_address(c->device);
    struct CUstream_st *users = atomic_load_explicit(&n->users_stream, memory_order_relaxed);
    unsigned result = cuda->event_record(n->message_event, users);
    result = result ? result : cuda->stream_wait_event(n->message_stream, n->message_event, 0);
    if (result == CUDA_OK && bytes > 0) {
        result = to_host ? cuda->copy_to_host(c->pinned, device, bytes, n->message_stream)
                         : cuda->copy_to_device(device, c->pinned, bytes, n->message_stream);
    }
    return result == CUDA_OK ? await_copy(n, deadline_ns) : nccl_fail_cuda(n, result, "copy a message");
}

/* An idle one that is large enough, or a new one. */
static int take_copy(struct nccl_engine *n, size_t bytes, struct nccl_copy **out) {
    for (struct nccl_copy *c = n->copies; c; c = c->next) {
        if (!c->message && c->capacity >= bytes) {
            *out = c;
            return 0;
        }
    }
    struct nccl_copy *new = calloc(1, sizeof *new);
    if (!new) {
        return status_fail(MUSTER_ENOMEM, "no memory for a message");
    }
    new->capacity = bytes < LEAST_BYTES ? LEAST_BYTES : bytes;
    unsigned result = n->device.cuda->host_allocate(&new->pinned, new->capacity);
    if (result != CUDA_OK) {
        free(new);
        return nccl_fail_cuda(n, result, "pin memory for a message");
    }
    new->next = n->copies;
    n->copies = new;
    *out = new;
    return 0;
}

static struct nccl_copy *copy_of(const struct nccl_engine *n, const struct comm_message *message) {
    struct nccl_copy *c = n->copies;
    while (c && c->message != message) {
        c = c->next;
    }
    return c;
}

static void give_back(struct nccl_copy *c) {
    c->message->buffer = c->device;
    c->message = NULL;
}

/* With the mutex held, and the context entered. */
static int stage(struct nccl_engine *n, struct comm_message *message, int64_t deadline_ns) {
    struct nccl_copy *c = NULL;
    int code = take_copy(n, message->bytes, &c);
    if (code) {
        return code;
    }
    assert(c);
    c->device = message->buffer;
    code = message->is_send ? copy(n, c, true, message->bytes, deadline_ns) : 0;
    if (code == 0) {
        c->message = message;
        message->buffer = c->pinned;
    }
    return code;
}

/* What has come goes where it belongs. `code`: how it went. */
static int unstage(struct nccl_engine *n, struct comm_message *message, int code, int64_t deadline_ns) {
    struct nccl_copy *c = copy_of(n, message);
    if (!c) {
        return 0;
    }
    int copied = code == 0 && !message->is_send ? copy(n, c, false, message->bytes, deadline_ns) : 0;
    give_back(c);
    return copied;
}

/* ---- the table ---- */

static int post(struct engine *engine, struct comm_message *message, int64_t deadline_ns) {
    struct nccl_engine *n = nccl_of(engine);
    struct CUctx_st *previous = NULL;
    if (message->bytes == 0 || device_place_of(message->buffer) == DEVICE_PLACE_HOST) {
        return inner(n)->post(n->host, message, deadline_ns);
    }
    int code = device_enter(&n->device, &previous);
    if (code) {
        return code;
    }
    pthread_mutex_lock(&n->message_mutex);
    code = stage(n, message, deadline_ns);
    pthread_mutex_unlock(&n->message_mutex);
    device_leave(&n->device, previous);
    code = code ? code : inner(n)->post(n->host, message, deadline_ns);
    if (code) {
        pthread_mutex_lock(&n->message_mutex);
        (void)unstage(n, message, code, deadline_ns);
        pthread_mutex_unlock(&n->message_mutex);
    }
    return code;
}

static int unstage_all(struct nccl_engine *n, struct comm_message *const *messages, size_t count, int code,
                       int64_t deadline_ns) {
    struct CUctx_st *previous = NULL;
    int copied = device_enter(&n->device, &previous);
    pthread_mutex_lock(&n->message_mutex);
    for (size_t i = 0; i < count; i++) {
        int one = unstage(n, messages[i], code ? code : copied, deadline_ns);
        copied = copied ? copied : one;
    }
    pthread_mutex_unlock(&n->message_mutex);
    device_leave(&n->device, previous);
    return copied;
}

static int wait_for(struct engine *engine, struct comm_message *const *messages, size_t count, int64_t deadline_ns) {
    struct nccl_engine *n = nccl_of(engine);
    int code = inner(n)->wait(n->host, messages, count, deadline_ns);
    bool is_staged = false;
    pthread_mutex_lock(&n->message_mutex);
    for (size_t i = 0; i < count && !is_staged; i++) {
        is_staged = copy_of(n, messages[i]) != NULL;
    }
    pthread_mutex_unlock(&n->message_mutex);
    int copied = is_staged ? unstage_all(n, messages, count, code, deadline_ns) : 0;
    return code ? code : copied;
}

static int let_go(struct engine *engine, struct comm_message *message) {
    struct nccl_engine *n = nccl_of(engine);
    int code = inner(n)->let_go(n->host, message);
    pthread_mutex_lock(&n->message_mutex);
    struct nccl_copy *c = copy_of(n, message);
    if (c) {
        give_back(c);
    }
    pthread_mutex_unlock(&n->message_mutex);
    return code;
}

static void let_go_all(struct engine *engine) {
    struct nccl_engine *n = nccl_of(engine);
    inner(n)->let_go_all(n->host);
}

static void progress(struct engine *engine) {
    struct nccl_engine *n = nccl_of(engine);
    inner(n)->progress(n->host);
}

static void peer_left(struct engine *engine, uint32_t rank) {
    struct nccl_engine *n = nccl_of(engine);
    inner(n)->peer_left(n->host, rank);
}

static bool send_now(struct engine *engine, const struct comm_message *message, int64_t *out_ns) {
    struct nccl_engine *n = nccl_of(engine);
    return device_place_of(message->buffer) == DEVICE_PLACE_HOST && inner(n)->send_now(n->host, message, out_ns);
}

static void *expect(struct engine *engine, const struct comm_message *message, int64_t *out_ns) {
    struct nccl_engine *n = nccl_of(engine);
    return device_place_of(message->buffer) == DEVICE_PLACE_HOST ? inner(n)->expect(n->host, message, out_ns) : NULL;
}

static size_t list_arrived(struct engine *engine, const struct comm_message *receive, struct comm_arrived *out,
                           size_t max) {
    struct nccl_engine *n = nccl_of(engine);
    return inner(n)->list_arrived(n->host, receive, out, max);
}

static bool take_now(struct engine *engine, struct comm_message *message, void *expected, int64_t *out_ns) {
    struct nccl_engine *n = nccl_of(engine);
    return inner(n)->take_now(n->host, message, expected, out_ns);
}

/* As far as the inner engine has them: a message's own part is that engine's, and so is whether it has ended. */
void nccl_messages_begin(struct nccl_engine *n) {
    const struct engine_messages *host = inner(n);
    if (!host) {
        return;
    }
    n->messages = (struct engine_messages){.post = post,
                                           .wait = wait_for,
                                           .let_go = let_go,
                                           .let_go_all = let_go_all,
                                           .forget = host->forget,
                                           .has_ended = host->has_ended,
                                           .progress = host->progress ? progress : NULL,
                                           .needs_progress = host->needs_progress,
                                           .peer_left = host->peer_left ? peer_left : NULL,
                                           .list_arrived = host->list_arrived ? list_arrived : NULL,
                                           .send_now = host->send_now ? send_now : NULL,
                                           .expect = host->expect ? expect : NULL,
                                           .take_now = host->take_now ? take_now : NULL};
    n->table.messages = &n->messages;
}

void nccl_messages_end(struct nccl_engine *n) {
    for (struct nccl_copy *c = n->copies, *next; c; c = next) {
        next = c->next;
        (void)n->device.cuda->host_free(c->pinned);
        free(c);
    }
    n->copies = NULL;
}
