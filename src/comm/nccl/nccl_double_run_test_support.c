/* Carrying out operations: what goes onto a stream together, and collectives and messages on the stream's thread. See
 * nccl_double_test_support.h. */
#include <stdlib.h>
#include <string.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/nccl/nccl_double_parts_test_support.h"

/* ---- collectives ---- */

static bool all_published(struct ncclComm *comm, void *argument) {
    (void)argument;
    for (uint32_t i = 0; i < comm->size; i++) {
        if (atomic_load(&comm->world->members[i].published) < comm->collectives) {
            return false;
        }
    }
    return true;
}

static bool all_read(struct ncclComm *comm, void *argument) {
    (void)argument;
    for (uint32_t i = 0; i < comm->size; i++) {
        if (atomic_load(&comm->world->members[i].read) < comm->collectives) {
            return false;
        }
    }
    return true;
}

static bool others_published_next(struct ncclComm *comm, void *argument) {
    (void)argument;
    for (uint32_t i = 0; i < comm->size; i++) {
        if (i != comm->rank && atomic_load(&comm->world->members[i].published) <= comm->collectives) {
            return false;
        }
    }
    return true;
}

static struct ncclComm *_Atomic last_used;

void nccl_double_await_others(void) {
    (void)comm_await(atomic_load(&last_used), others_published_next, NULL);
}

static bool all_alike(const struct ncclComm *comm, const struct operation *own) {
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct operation *other = &comm->world->members[i].operation;
        if (other->kind != own->kind || other->type != own->type || other->op != own->op || other->root != own->root ||
            other->count != own->count) {
            return false;
        }
    }
    return true;
}

static const char *sent_by(const struct ncclComm *comm, uint32_t rank) {
    const struct member *member = &comm->world->members[rank];
    return comm->contents[rank] + (size_t)(member->operation.send - member->base);
}

static const double *scalar_of(const struct ncclComm *comm, unsigned op) {
    return op >= OPS_FIRST ? &comm->scales[op - OPS_FIRST].scalar : NULL;
}

/* The reduction of everybody's elements from element `first` on. */
static void reduce_into(const struct ncclComm *comm, const struct operation *o, size_t first, char *out) {
    size_t width = nccl_double_type_bytes(o->type), bytes = o->count * width;
    char *one = double_zeroed(bytes + 1);
    for (uint32_t i = 0; i < comm->size; i++) {
        char *to = i == 0 ? out : one;
        memcpy(to, sent_by(comm, i) + first * width, bytes);
        nccl_double_before(o->type, o->op, scalar_of(comm, o->op), comm->size, to, o->count);
        if (i > 0) {
            nccl_double_combine(o->type, o->op >= OPS_FIRST ? NCCL_SUM : o->op, out, one, o->count);
        }
    }
    nccl_double_after(o->type, o->op, comm->size, out, o->count);
    free(one);
}

/* Bytes that this rank receives. */
static size_t result_bytes(const struct ncclComm *comm, const struct operation *o) {
    size_t bytes = o->count * nccl_double_type_bytes(o->type);
    bool has_result = (o->kind != REDUCE && o->kind != GATHER) || (uint32_t)o->root == comm->rank;
    bool is_whole = o->kind == ALL_GATHER || o->kind == GATHER || o->kind == ALL_TO_ALL;
    return !has_result ? 0 : is_whole ? bytes * comm->size : bytes;
}

/* Bytes that it sends. */
static size_t input_bytes(const struct ncclComm *comm, const struct operation *o) {
    size_t bytes = o->count * nccl_double_type_bytes(o->type);
    bool has_input = (o->kind != BROADCAST && o->kind != SCATTER) || (uint32_t)o->root == comm->rank;
    bool is_whole = o->kind == REDUCE_SCATTER || o->kind == SCATTER || o->kind == ALL_TO_ALL;
    return !has_input || o->kind == RECEIVE ? 0 : is_whole ? bytes * comm->size : bytes;
}

static void result_make(const struct ncclComm *comm, const struct operation *o, char *out) {
    size_t bytes = o->count * nccl_double_type_bytes(o->type);
    switch (o->kind) {
    case BROADCAST:
        memcpy(out, sent_by(comm, (uint32_t)o->root), bytes);
        break;
    case ALL_GATHER:
    case GATHER:
        for (uint32_t i = 0; i < comm->size; i++) {
            memcpy(out + i * bytes, sent_by(comm, i), bytes);
        }
        break;
    case SCATTER:
        memcpy(out, sent_by(comm, (uint32_t)o->root) + comm->rank * bytes, bytes);
        break;
    case ALL_TO_ALL:
        for (uint32_t i = 0; i < comm->size; i++) {
            memcpy(out + i * bytes, sent_by(comm, i) + comm->rank * bytes, bytes);
        }
        break;
    default:
        reduce_into(comm, o, o->kind == REDUCE_SCATTER ? comm->rank * o->count : 0, out);
    }
}

static bool run_collective(struct ncclComm *comm, const struct operation *o) {
    struct member *own = &comm->world->members[comm->rank];
    comm->collectives++;
    atomic_store(&last_used, comm);
    own->operation = *o;
    atomic_store(&own->published, comm->collectives);
    world_announce(comm->world);
    if (!comm_await(comm, all_published, NULL) || (!all_alike(comm, o) && !comm_await(comm, comm_never, NULL))) {
        return false;
    }
    size_t bytes = result_bytes(comm, o);
    char *result = double_zeroed(bytes + 1);
    if (bytes > 0) {
        result_make(comm, o, result);
    }
    atomic_store(&own->read, comm->collectives);
    world_announce(comm->world);
    bool is_done = comm_await(comm, all_read, NULL);
    if (is_done && bytes > 0) {
        memcpy(cuda_double_contents(o->receive, bytes), result, bytes);
    }
    free(result);
    return is_done;
}

/* ---- messages ---- */

struct message {
    const struct operation *operation;
    uint64_t number; /* of the pair, from 1 */
    bool is_posted, is_done;
};

struct exchange {
    struct message *messages;
    size_t count;
};

static void message_send(struct ncclComm *comm, struct message *message) {
    const struct operation *o = message->operation;
    struct channel *channel = &comm->world->channels[comm->rank][o->root];
    if (!message->is_posted && atomic_load(&channel->posted) == message->number - 1 &&
        message->number - atomic_load(&channel->taken) <= ENTRIES) {
        channel->entries[message->number % ENTRIES].address = o->send;
        channel->entries[message->number % ENTRIES].bytes = o->count * nccl_double_type_bytes(o->type);
        atomic_store(&channel->posted, message->number);
        world_announce(comm->world);
        message->is_posted = true;
    }
    message->is_done = message->is_posted && atomic_load(&channel->taken) >= message->number;
}

static void message_receive(struct ncclComm *comm, struct message *message) {
    const struct operation *o = message->operation;
    struct channel *channel = &comm->world->channels[o->root][comm->rank];
    const struct member *from = &comm->world->members[o->root];
    size_t bytes = o->count * nccl_double_type_bytes(o->type);
    if (atomic_load(&channel->posted) < message->number || atomic_load(&channel->taken) != message->number - 1) {
        return;
    }
    uint64_t address = channel->entries[message->number % ENTRIES].address;
    if (channel->entries[message->number % ENTRIES].bytes != bytes) {
        comm_fail(comm, NCCL_INVALID_USAGE); /* NCCL does not say what happens then */
        return;
    }
    memmove(cuda_double_contents(o->receive, bytes), comm->contents[o->root] + (size_t)(address - from->base), bytes);
    atomic_store(&channel->taken, message->number);
    world_announce(comm->world);
    message->is_done = true;
}

static bool all_exchanged(struct ncclComm *comm, void *argument) {
    struct exchange *exchange = argument;
    bool is_done = true;
    for (size_t i = 0; i < exchange->count; i++) {
        struct message *message = &exchange->messages[i];
        if (!message->is_done) {
            (message->operation->kind == SEND ? message_send : message_receive)(comm, message);
        }
        is_done = is_done && message->is_done;
    }
    return is_done;
}

/* ---- batches: what goes onto a stream together ---- */

struct batch {
    struct ncclComm *comm;
    struct CUstream_st *stream;
    struct fault fault;
    size_t count;
    struct operation *operations;
    struct batch *next; /* of the group that is open in this thread */
};

static void batch_free(struct batch *batch) {
    comm_release(batch->comm);
    free(batch->operations);
    free(batch);
}

static bool run_messages(const struct batch *batch) {
    struct ncclComm *comm = batch->comm;
    struct exchange exchange = {.messages = double_zeroed((batch->count + 1) * sizeof(struct message))};
    for (size_t i = 0; i < batch->count; i++) {
        const struct operation *o = &batch->operations[i];
        if (o->kind >= SEND) {
            uint64_t *numbers = o->kind == SEND ? comm->sent : comm->received;
            exchange.messages[exchange.count++] = (struct message){o, ++numbers[o->root], false, false};
        }
    }
    bool is_done = comm_await(comm, all_exchanged, &exchange);
    free(exchange.messages);
    return is_done;
}

/* By the thread of the stream. */
static void batch_run(void *argument) {
    struct batch *batch = argument;
    struct ncclComm *comm = batch->comm;
    bool goes_on = !atomic_load(&comm->is_aborted) && !atomic_load(&comm->is_stopped);
    if (goes_on && batch->fault.kind != FAULT_NONE) {
        if (batch->fault.kind == FAULT_FAIL) {
            comm_fail(comm, batch->fault.value);
        }
        goes_on = comm_await(comm, comm_never, NULL);
    }
    for (size_t i = 0; goes_on && i < batch->count; i++) {
        if (batch->operations[i].kind < SEND) {
            goes_on = run_collective(comm, &batch->operations[i]);
        }
    }
    if (goes_on) {
        (void)run_messages(batch);
    }
    atomic_fetch_sub(&comm->pending, 1);
    pthread_mutex_lock(&comm->mutex);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->mutex);
    batch_free(batch);
}

static void batch_enqueue(struct ncclComm *comm, void *argument) {
    struct batch *batch = argument;
    (void)comm;
    cuda_double_enqueue(batch->stream, batch_run, batch);
}

static __thread struct batch *open_batches;
static __thread unsigned depth, group_error; /* of a call in the group: none of it goes onto a stream then */

static struct batch *batch_of(struct ncclComm *comm, struct CUstream_st *stream) {
    struct batch **at = &open_batches;
    while (*at && ((*at)->comm != comm || (*at)->stream != stream)) {
        at = &(*at)->next;
    }
    if (!*at) {
        struct batch *batch = *at = double_zeroed(sizeof **at);
        batch->comm = comm;
        batch->stream = stream;
        atomic_fetch_add(&comm->users, 1);
    }
    return *at;
}

static unsigned batches_launch(void) {
    unsigned result = NCCL_OK;
    for (struct batch *batch = open_batches, *next; batch; batch = next) {
        next = batch->next;
        struct ncclComm *comm = batch->comm;
        atomic_fetch_add(&comm->pending, 1);
        unsigned one = comm_do(comm, batch_enqueue, batch);
        result = one ? one : result;
    }
    open_batches = NULL;
    return result;
}

/* Is the memory there that the operation reads, and that which it writes? */
static bool has_memory(const struct ncclComm *comm, const struct operation *o) {
    size_t sent = input_bytes(comm, o), received = o->kind == SEND ? 0 : result_bytes(comm, o);
    return (sent == 0 || cuda_double_contents(o->send, sent)) &&
           (received == 0 || cuda_double_contents(o->receive, received));
}

static unsigned submit_checked(const char *function, struct ncclComm *comm, struct CUstream_st *stream,
                               struct operation o) {
    struct fault fault = fault_call(&double_faults, function);
    if (fault.kind == FAULT_ERROR) {
        return double_refuse(fault.value, "it was told to");
    }
    bool is_message = o.kind >= SEND;
    if (!comm || nccl_double_type_bytes(o.type) == 0 || o.root < 0 || (uint32_t)o.root >= comm->size ||
        (o.op > NCCL_AVG && (o.op < OPS_FIRST || !comm->scales[o.op - OPS_FIRST].is_used))) {
        return double_refuse(NCCL_INVALID_ARGUMENT, "no such type, reduction or rank");
    }
    if (comm->is_revoked) {
        return double_refuse(NCCL_INVALID_USAGE, "it has been revoked");
    }
    if (comm_state(comm) != NCCL_OK) {
        return double_refuse(NCCL_INVALID_ARGUMENT, "the last call has not got through yet");
    }
    if (!has_memory(comm, &o)) {
        return double_refuse(NCCL_INVALID_ARGUMENT, is_message ? "a message's buffer is no memory of the device"
                                                               : "a buffer is no memory of the device");
    }
    struct batch *batch = batch_of(comm, stream);
    struct operation *more = realloc(batch->operations, (batch->count + 1) * sizeof *more);
    if (!more) {
        double_die("no memory");
    }
    batch->operations = more;
    batch->operations[batch->count++] = o;
    batch->fault = fault.kind != FAULT_NONE ? fault : batch->fault;
    return NCCL_OK;
}

static unsigned launch_or_drop(void) {
    unsigned error = group_error;
    for (struct batch *batch = open_batches, *next; error && batch; batch = next) {
        next = batch->next;
        batch_free(batch);
    }
    open_batches = error ? NULL : open_batches;
    group_error = NCCL_OK;
    return error ? error : batches_launch();
}

unsigned double_submit(const char *function, struct ncclComm *comm, struct CUstream_st *stream, struct operation o) {
    unsigned result = submit_checked(function, comm, stream, o);
    group_error = group_error ? group_error : result;
    return depth == 0 ? launch_or_drop() : result;
}

void double_group_start(void) {
    depth++;
}

unsigned double_group_end(void) {
    if (depth == 0) {
        return double_refuse(NCCL_INVALID_USAGE, "no group is open");
    }
    return --depth == 0 ? launch_or_drop() : NCCL_OK;
}
