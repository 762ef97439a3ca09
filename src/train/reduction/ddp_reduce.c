/* A bucket's way through the group: started when its turn has come, waited for at the end of the step. */
#include "train/reduction/ddp_impl.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/group/mark.h"
#include "comm/observe/trace.h"

void ddp_reduce_reset(struct muster_ddp *ddp) {
    ddp->next_bucket = 0;
    ddp->ready_count = 0;
    for (uint32_t i = 0; i < ddp->layout->bucket_count; i++) {
        struct ddp_bucket *bucket = &ddp->layout->buckets[i];
        bucket->missing = bucket->shape.item_count;
    }
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        ddp->parameters[i].is_ready = false;
    }
}

static int bucket_failed(struct muster_ddp *ddp, const struct ddp_bucket *bucket, int status) {
    const char *first = ddp->parameters[bucket->shape.first].name, *last = ddp->parameters[bucket->shape.last].name;
    if (bucket->shape.item_count == 1) {
        (void)status_prefix(status, "bucket %u of %u (gradient of %s)", bucket->view.index + 1,
                            bucket->view.bucket_count, first);
    } else {
        (void)status_prefix(status, "bucket %u of %u (%u gradients, from %s to %s)", bucket->view.index + 1,
                            bucket->view.bucket_count, bucket->shape.item_count, first, last);
    }
    return step_failure_set(&ddp->failure, ddp->group, status);
}

/* Gives the bucket to the group, or to the hook. work: NULL lets an average block. */
static int bucket_start(struct muster_ddp *ddp, struct ddp_bucket *bucket, struct muster_work **work) {
    bucket->started_ns = clock_monotonic_ns();
    bucket->ended_ns = 0;
    uint32_t size = muster_group_size(ddp->group);
    bucket->view.divisor = ddp->options.divide_by_active ? ddp->active_count : size;
    ddp->numbers.reduced_bytes += bucket->shape.bytes;
    /* With uneven inputs each step has been agreed on, and a rank without data has accumulated nothing. */
    group_mark_accumulated(ddp->group, ddp->options.uneven_inputs ? 0 : ddp->accumulated);
    int status = MUSTER_OK;
    if (ddp->options.virtual_ranks > 0) {
        status = ddp_virtual_start(ddp, bucket, work);
    } else if (ddp->options.hook) {
        status = ddp->hook.start(ddp->hook.context, ddp->group, &bucket->view, &bucket->work);
    } else if (size > 1) {
        status = muster_all_reduce(ddp->group, bucket->view.gradients, bucket->view.gradients, bucket->view.count,
                                   bucket->view.type, bucket->view.divisor == size ? MUSTER_OP_AVERAGE : MUSTER_OP_SUM,
                                   work);
    }
    group_mark_accumulated(ddp->group, 0);
    return status;
}

/* What is left to do when the group is done with the bucket. */
static int bucket_complete(struct muster_ddp *ddp, struct ddp_bucket *bucket) {
    if (ddp->options.virtual_ranks > 0) {
        return ddp_virtual_complete(ddp, bucket);
    }
    if (ddp->options.hook) {
        return ddp->hook.finish ? ddp->hook.finish(ddp->hook.context, ddp->group, &bucket->view) : MUSTER_OK;
    }
    return bucket->view.divisor == muster_group_size(ddp->group)
               ? MUSTER_OK
               : ddp_memory_divide(ddp, bucket->view.type, bucket->view.gradients, bucket->view.count,
                                   bucket->view.divisor);
}

/* Notes when buckets were done, as well as can be seen from this thread: whenever it comes by. */
static void note_ends(struct muster_ddp *ddp) {
    for (uint32_t i = 0; i < ddp->next_bucket; i++) {
        struct ddp_bucket *bucket = &ddp->layout->buckets[i];
        if (bucket->ended_ns == 0 && (!bucket->work || muster_work_done(bucket->work))) {
            bucket->ended_ns = clock_monotonic_ns();
        }
    }
}

static void bucket_mark(const struct ddp_bucket *bucket) {
    char name[32];
    (void)snprintf(name, sizeof name, "bucket %u", bucket->view.index + 1);
    trace_async(name, "ddp", bucket->started_ns, bucket->ended_ns, "bytes", (int64_t)bucket->shape.bytes);
}

int ddp_reduce_advance(struct muster_ddp *ddp) {
    struct ddp_layout *layout = ddp->layout;
    if (trace_enabled()) {
        note_ends(ddp);
    }
    while (ddp->next_bucket + 1 < layout->bucket_count && layout->buckets[ddp->next_bucket].missing == 0) {
        struct ddp_bucket *bucket = &layout->buckets[ddp->next_bucket++];
        int status = bucket_start(ddp, bucket, &bucket->work);
        if (status != MUSTER_OK) {
            return bucket_failed(ddp, bucket, status);
        }
    }
    return MUSTER_OK;
}

static int bucket_wait(struct muster_ddp *ddp, struct ddp_bucket *bucket) {
    int status = muster_work_wait(&bucket->work);
    bucket->ended_ns = bucket->ended_ns > 0 ? bucket->ended_ns : clock_monotonic_ns();
    return status == MUSTER_OK ? status : bucket_failed(ddp, bucket, status);
}

static int bucket_end(struct muster_ddp *ddp, struct ddp_bucket *bucket) {
    int status = bucket_wait(ddp, bucket);
    if (status != MUSTER_OK) {
        return status;
    }
    if (ddp->failure.code == MUSTER_OK) {
        status = bucket_complete(ddp, bucket);
    }
    if (status != MUSTER_OK) {
        return bucket_failed(ddp, bucket, status);
    }
    if (trace_enabled()) {
        bucket_mark(bucket);
    }
    return MUSTER_OK;
}

int ddp_reduce_finish(struct muster_ddp *ddp) {
    if (trace_enabled()) {
        note_ends(ddp);
    }
    /* All are waited for, whatever happens: their memory must not be in use any more. With virtual ranks they need
     * calls to be completed, which would only say that the group has failed, not why. */
    for (uint32_t i = 0; ddp->options.virtual_ranks > 0 && i < ddp->next_bucket; i++) {
        (void)bucket_wait(ddp, &ddp->layout->buckets[i]);
    }
    for (uint32_t i = 0; i < ddp->next_bucket; i++) {
        (void)bucket_end(ddp, &ddp->layout->buckets[i]);
    }
    /* The rest runs in this thread, which has nothing else to do: a hand-over to the progress thread would cost more
     * than many a reduction. For a model of one bucket that thread is never started. */
    while (ddp->failure.code == MUSTER_OK && ddp->next_bucket < ddp->layout->bucket_count) {
        struct ddp_bucket *bucket = &ddp->layout->buckets[ddp->next_bucket++];
        int status = bucket_start(ddp, bucket, NULL);
        if (status != MUSTER_OK) {
            (void)bucket_failed(ddp, bucket, status);
        }
        (void)bucket_end(ddp, bucket);
    }
    return step_failure_status(&ddp->failure);
}

void ddp_reduce_drain(struct muster_ddp *ddp) {
    for (uint32_t i = 0; ddp->layout && i < ddp->layout->bucket_count; i++) {
        (void)muster_work_wait(&ddp->layout->buckets[i].work);
    }
}
