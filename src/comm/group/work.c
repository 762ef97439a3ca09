/* Calls that return a handle: a queue per group, and the thread that runs it, one call after the other. The thread
 * appears with the first such call, touches what collectives touch, and sleeps while the queue is empty.
 *
 * While the queue is not empty, blocking calls queue too, so that calls run in the order in which they were made. */
#include <muster/group.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/system/thread.h"
#include "comm/group/mark.h"
#include "comm/group/work_impl.h"

enum { POOLED_MAX = 64 };

struct work_queue {
    pthread_mutex_t mutex;
    pthread_cond_t filled; /* for the thread */
    pthread_cond_t done;   /* for those who wait; any of them */
    struct muster_work *head, *tail;
    struct muster_work *pool;
    size_t pooled_count;
    size_t waiter_count;
    pthread_t thread;
    bool is_stopping;
};

static void release_handle(struct muster_work *work);

/* ---- the thread ---- */

static void run_work(struct muster_work *work) {
    work->status = work->batch ? batch_run(work->group, work->batch, work->timeout_ns)
                               : group_run(work->group, &work->call, work->timeout_ns, work->queued_ns);
    engine_forget(work->group->engine, &work->call);
    if (work->status) {
        work->detail = strdup(muster_detail());
        work->failure = status_failure();
    }
}

/* To whoever has given the handle away. */
static void tell_then(struct muster_work *work) {
    const char *detail = work->detail ? work->detail : work->status ? "no memory for the detail" : "";
    if (work->status) {
        (void)status_restore(work->status, detail, &work->failure);
    }
    work->then(work->then_context, work->status, detail);
    release_handle(work);
}

static void *run_queue(void *argument) {
    struct muster_group *group = argument;
    struct work_queue *queue = group->queue;
    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        while (!queue->head && !queue->is_stopping) {
            pthread_cond_wait(&queue->filled, &queue->mutex);
        }
        struct muster_work *work = queue->head;
        if (!work) {
            break;
        }
        queue->head = work->next;
        queue->tail = queue->head ? queue->tail : NULL;
        pthread_mutex_unlock(&queue->mutex);
        run_work(work);
        pthread_mutex_lock(&queue->mutex);
        /* Before the call counts as done: whoever sees it done may run the next one in its own thread. */
        atomic_fetch_sub_explicit(&group->queued_count, 1, memory_order_release);
        atomic_store_explicit(&work->is_done, true, memory_order_release);
        if (queue->waiter_count > 0) {
            pthread_cond_broadcast(&queue->done);
        }
        if (work->then) {
            pthread_mutex_unlock(&queue->mutex);
            tell_then(work);
            pthread_mutex_lock(&queue->mutex);
        } else {
            comm_bell_ring(context_bell(group->context)); /* for those who wait for messages, too (work_many.c) */
        }
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

static int start_thread(struct muster_group *group) {
    int error_number = thread_start(&group->queue->thread, NULL, run_queue, group);
    if (error_number) {
        return status_fail_errno(error_number, "start the progress thread of group '%s'", group->name);
    }
    (void)pthread_setname_np(group->queue->thread, "muster-progress");
    return 0;
}

static int need_queue(struct muster_group *group) {
    if (group->queue) {
        return 0;
    }
    struct work_queue *queue = calloc(1, sizeof *queue);
    if (!queue) {
        return status_fail(MUSTER_ENOMEM, "no memory for a queue");
    }
    (void)pthread_mutex_init(&queue->mutex, NULL);
    (void)pthread_cond_init(&queue->filled, NULL);
    (void)pthread_cond_init(&queue->done, NULL);
    group->queue = queue;
    int code = start_thread(group);
    if (code) {
        group->queue = NULL;
        free(queue);
    }
    return code;
}

/* ---- handles ---- */

static struct muster_work *take_handle(struct work_queue *queue) {
    pthread_mutex_lock(&queue->mutex);
    struct muster_work *work = queue->pool;
    if (work) {
        queue->pool = work->next;
        queue->pooled_count--;
    }
    pthread_mutex_unlock(&queue->mutex);
    work = work ? work : malloc(sizeof *work);
    if (work) {
        memset(work, 0, sizeof *work);
    }
    return work;
}

static void release_handle(struct muster_work *work) {
    struct work_queue *queue = work->group->queue;
    free(work->counts);
    free(work->detail);
    batch_free(work->batch);
    if (!queue) { /* of a ddp whose group has been freed */
        free(work);
        return;
    }
    pthread_mutex_lock(&queue->mutex);
    if (queue->pooled_count < POOLED_MAX) {
        work->next = queue->pool;
        queue->pool = work;
        queue->pooled_count++;
        work = NULL;
    }
    pthread_mutex_unlock(&queue->mutex);
    free(work);
}

static void enqueue(struct muster_group *group, struct muster_work *work) {
    struct work_queue *queue = group->queue;
    pthread_mutex_lock(&queue->mutex);
    atomic_fetch_add_explicit(&group->queued_count, 1, memory_order_relaxed);
    *(queue->tail ? &queue->tail->next : &queue->head) = work;
    queue->tail = work;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->mutex);
}

static int new_work(struct muster_group *group, int64_t timeout_ns, struct muster_work **out) {
    int code = need_queue(group);
    if (code) {
        return code;
    }
    struct muster_work *work = take_handle(group->queue);
    if (!work) {
        return status_fail(MUSTER_ENOMEM, "no memory for a work handle");
    }
    work->group = group;
    work->timeout_ns = timeout_ns;
    work->queued_ns = clock_monotonic_ns();
    *out = work;
    return 0;
}

static int submit(struct muster_group *group, const struct comm_call *call, int64_t timeout_ns,
                  struct muster_work **out) {
    struct muster_work *work = NULL;
    int code = new_work(group, timeout_ns, &work);
    if (code) {
        return code;
    }
    work->kind = WORK_COLLECTIVE;
    work->call = *call;
    code = comm_call_copy_counts(&work->call, group->size, &work->counts);
    code = code ? code : engine_note(group->engine, &work->call);
    if (code) {
        release_handle(work);
        return code;
    }
    enqueue(group, work);
    *out = work;
    return 0;
}

int work_submit_batch(struct muster_group *group, struct batch *batch, struct muster_work **out) {
    struct muster_work *work = NULL;
    int code = new_work(group, group->timeout_ns, &work);
    if (code) {
        batch_free(batch);
        return code;
    }
    work->kind = WORK_BATCH;
    work->batch = batch;
    enqueue(group, work);
    *out = work;
    return 0;
}

int work_submit(struct muster_group *group, const struct comm_call *call, struct muster_work **out) {
    return submit(group, call, group->timeout_ns, out);
}

int work_run(struct muster_group *group, const struct comm_call *call, int64_t timeout_ns) {
    struct muster_work *work = NULL;
    int code = submit(group, call, timeout_ns, &work);
    return code ? code : muster_work_wait(&work);
}

static void free_message(struct muster_work *work) {
    group_let_go(work->group);
    free(work);
}

int muster_work_wait(struct muster_work **work) {
    struct muster_work *handle = work ? *work : NULL;
    if (!handle) {
        return MUSTER_OK;
    }
    if (handle->kind == WORK_MESSAGE) {
        int code = message_work_wait(handle);
        free_message(handle);
        *work = NULL;
        return code;
    }
    struct work_queue *queue = handle->group->queue;
    if (!muster_work_done(handle)) {
        pthread_mutex_lock(&queue->mutex);
        queue->waiter_count++;
        while (!muster_work_done(handle)) {
            pthread_cond_wait(&queue->done, &queue->mutex);
        }
        queue->waiter_count--;
        pthread_mutex_unlock(&queue->mutex);
    }
    int code = handle->status
                   ? status_restore(handle->status, handle->detail ? handle->detail : "no memory for the detail",
                                    &handle->failure)
                   : MUSTER_OK;
    release_handle(handle);
    *work = NULL;
    return code;
}

int muster_work_then(struct muster_work **work, muster_work_then_fn *then, void *context) {
    struct muster_work *handle = work ? *work : NULL;
    if (!handle) {
        return MUSTER_OK;
    }
    if (!then) {
        return status_fail_null("muster_work_then", "then");
    }
    if (handle->kind == WORK_MESSAGE) {
        return status_fail(MUSTER_EINVAL, "muster_work_then: a send or a receive goes on only while it is waited for");
    }
    struct work_queue *queue = handle->group->queue;
    pthread_mutex_lock(&queue->mutex);
    bool was_done = atomic_load_explicit(&handle->is_done, memory_order_relaxed);
    handle->then = then;
    handle->then_context = context;
    pthread_mutex_unlock(&queue->mutex);
    if (was_done) {
        tell_then(handle);
    }
    *work = NULL;
    return MUSTER_OK;
}

static void ignore(void *context, int code, const char *detail) {
    (void)context, (void)code, (void)detail;
}

void muster_work_free(struct muster_work **work) {
    struct muster_work *handle = work ? *work : NULL;
    if (handle && handle->kind == WORK_MESSAGE) {
        message_work_let_go(handle);
        free_message(handle);
        *work = NULL;
        return;
    }
    struct status_kept kept;
    status_keep(&kept);
    (void)muster_work_then(work, ignore, NULL);
    status_put_back(&kept);
}

bool muster_work_done(const struct muster_work *work) {
    return !work                        ? true
           : work->kind == WORK_MESSAGE ? message_work_done(work)
                                        : atomic_load_explicit(&work->is_done, memory_order_acquire);
}

/* ---- the end ---- */

void work_queue_free(struct muster_group *group) {
    struct work_queue *queue = group->queue;
    if (!queue) {
        return;
    }
    if (atomic_load_explicit(&group->queued_count, memory_order_acquire) > 0) {
        group_abort(group, "it was freed with calls under way");
    }
    pthread_mutex_lock(&queue->mutex);
    queue->is_stopping = true;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->mutex);
    (void)pthread_join(queue->thread, NULL);
    while (queue->pool) {
        struct muster_work *work = queue->pool;
        queue->pool = work->next;
        free(work);
    }
    pthread_cond_destroy(&queue->done);
    pthread_cond_destroy(&queue->filled);
    pthread_mutex_destroy(&queue->mutex);
    free(queue);
    group->queue = NULL;
}
