/* What a call consists of: what goes onto the engine's stream, and calls that the inner engine carries out on copies.
 * See engine_nccl_impl.h. */
#include <assert.h>

#include "base/status.h"
#include "comm/nccl/engine_nccl_impl.h"

/* ---- steps of a call ---- */

/* The engine's stream waits for what the caller's has been given so far, or had been when the call was made. */
int nccl_call_wait_for_caller(struct nccl_engine *n) {
    const struct cuda_library *cuda = n->device.cuda;
    const struct pooled_event *noted = n->call.noted;
    unsigned result = noted ? CUDA_OK : cuda->event_record(n->before, (struct CUstream_st *)n->call.stream);
    result = result ? result : cuda->stream_wait_event(n->stream, noted ? noted->event : n->before, 0);
    return result == CUDA_OK ? 0 : nccl_fail_cuda(n, result, "wait for the caller's stream");
}

/* All that is on the stream so far has been done when `after` has come. */
int nccl_call_mark(struct nccl_engine *n, enum nccl_phase phase) {
    unsigned result = n->device.cuda->event_record(n->after, n->stream);
    n->phase = phase;
    return result == CUDA_OK ? ENGINE_UNDER_WAY : nccl_fail_cuda(n, result, "mark the end of the call");
}

static int copy(struct nccl_engine *n, const void *from, void *to, size_t bytes) {
    unsigned result = n->device.cuda->copy_on_device(device_address(to), device_address(from), bytes, n->stream);
    return result == CUDA_OK ? 0 : nccl_fail_cuda(n, result, "copy on the GPU");
}

static size_t sent_bytes(const struct nccl_engine *n) {
    return nccl_plan_send_count(&n->call, n->rank, n->size) * n->call.type_bytes;
}

static int copy_input(struct nccl_engine *n) {
    size_t bytes = sent_bytes(n);
    int code = nccl_memory_scratch(n, bytes);
    void *scratch = (void *)(uintptr_t)n->scratch; /* NOLINT(performance-no-int-to-ptr) */
    code = code ? code : copy(n, n->call.send, scratch, bytes);
    n->call.send = scratch;
    return code;
}

static unsigned issue_step(struct nccl_engine *n, const struct nccl_step *s) {
    const struct nccl_library *nccl = n->nccl;
    switch (s->kind) {
    case NCCL_STEP_ALL_REDUCE:
        return nccl->all_reduce(s->send, s->receive, s->count, s->type, s->reduction, n->comm, n->stream);
    case NCCL_STEP_REDUCE:
        return nccl->reduce(s->send, s->receive, s->count, s->type, s->reduction, s->rank, n->comm, n->stream);
    case NCCL_STEP_BROADCAST:
        return nccl->broadcast(s->send, s->receive, s->count, s->type, s->rank, n->comm, n->stream);
    case NCCL_STEP_ALL_GATHER:
        return nccl->all_gather(s->send, s->receive, s->count, s->type, n->comm, n->stream);
    case NCCL_STEP_REDUCE_SCATTER:
        return nccl->reduce_scatter(s->send, s->receive, s->count, s->type, s->reduction, n->comm, n->stream);
    case NCCL_STEP_GATHER: /* the plan has been told whether NCCL has these */
        assert(nccl->gather);
        return nccl->gather(s->send, s->receive, s->count, s->type, s->rank, n->comm, n->stream);
    case NCCL_STEP_SCATTER:
        assert(nccl->scatter);
        return nccl->scatter(s->send, s->receive, s->count, s->type, s->rank, n->comm, n->stream);
    case NCCL_STEP_ALL_TO_ALL:
        assert(nccl->all_to_all);
        return nccl->all_to_all(s->send, s->receive, s->count, s->type, n->comm, n->stream);
    case NCCL_STEP_SEND:
        return nccl->send(s->send, s->count, s->type, s->rank, n->comm, n->stream);
    default:
        return nccl->receive(s->receive, s->count, s->type, s->rank, n->comm, n->stream);
    }
}

/* The steps from `first` on, as one. */
static unsigned issue_steps(struct nccl_engine *n, size_t first, size_t count) {
    unsigned result = n->nccl->group_start();
    if (result != NCCL_OK) {
        return result;
    }
    for (size_t i = first; i < count && result == NCCL_OK; i++) {
        result = issue_step(n, &n->steps[i]);
    }
    unsigned ended = n->nccl->group_end(); /* also after a failure: the group is this thread's */
    return result == NCCL_OK || result == NCCL_IN_PROGRESS ? ended : result;
}

int nccl_call_issue(struct nccl_engine *n) {
    int code = nccl_call_wait_for_caller(n);
    if (code == 0 && nccl_plan_needs_copy(&n->call)) {
        code = copy_input(n);
    }
    bool has_all = n->nccl->gather && n->nccl->scatter && n->nccl->all_to_all;
    size_t count = nccl_plan_make(&n->call, n->rank, n->size, has_all, n->steps), first = 0;
    for (; code == 0 && first < count && n->steps[first].kind == NCCL_STEP_COPY; first++) {
        code = copy(n, n->steps[first].send, n->steps[first].receive, n->steps[first].count);
    }
    if (code) {
        return code;
    }
    unsigned result = first < count ? issue_steps(n, first, count) : (unsigned)NCCL_OK;
    if (result == NCCL_IN_PROGRESS) { /* it is not on the stream yet: what is recorded now would come too early */
        n->phase = NCCL_ISSUING;
        return ENGINE_UNDER_WAY;
    }
    return result == NCCL_OK ? nccl_call_mark(n, NCCL_RUNNING) : nccl_fail(n->nccl, result, n->comm, "begin the call");
}

/* ---- calls that the inner engine carries out, on copies ---- */

static size_t received_bytes(const struct nccl_engine *n) {
    return nccl_plan_receive_count(&n->call, n->rank, n->size) * n->call.type_bytes;
}

/* Where the received copy begins: behind the sent one, aligned. */
static char *received_copy(const struct nccl_engine *n) {
    return (char *)n->pinned + (sent_bytes(n) + 63) / 64 * 64;
}

int nccl_call_copy_out(struct nccl_engine *n) {
    size_t bytes = sent_bytes(n);
    int code = nccl_call_wait_for_caller(n);
    code = code ? code : nccl_memory_pin(n, bytes + 64 + received_bytes(n));
    if (code) {
        return code;
    }
    unsigned result = n->device.cuda->copy_to_host(n->pinned, device_address(n->call.send), bytes, n->stream);
    return result == CUDA_OK ? nccl_call_mark(n, NCCL_COPYING_OUT) : nccl_fail_cuda(n, result, "copy to the host");
}

int nccl_call_copy_in(struct nccl_engine *n) {
    size_t bytes = received_bytes(n);
    if (bytes == 0) {
        return ENGINE_DONE;
    }
    unsigned result =
        n->device.cuda->copy_to_device(device_address(n->call.receive), received_copy(n), bytes, n->stream);
    return result == CUDA_OK ? nccl_call_mark(n, NCCL_COPYING_IN) : nccl_fail_cuda(n, result, "copy to the GPU");
}

int nccl_call_run_copies(struct nccl_engine *n) {
    struct comm_call staged = n->call;
    staged.send = n->pinned;
    staged.receive = received_bytes(n) > 0 ? received_copy(n) : NULL;
    n->phase = NCCL_ON_HOST;
    int code = n->host->table->start(n->host, &staged, n->number, n->deadline_ns);
    return code == ENGINE_DONE ? nccl_call_copy_in(n) : code;
}
