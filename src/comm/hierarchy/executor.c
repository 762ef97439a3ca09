/* Running schedules over messages; see executor.h.
 *
 * A call is cut into pieces, each a call of its own with its own schedule. A few pieces have a slot each; a slot posts
 * the messages of one step after the other. Everything is driven from one function, advance(), which p2p calls
 * whenever it has looked at the links. */
#include "comm/hierarchy/executor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/observe/trace.h"
#include "comm/reduce/reduce.h"

#define SCRATCH_KEPT_BYTES_MAX ((size_t)64 << 20) /* more is given back after the call */

/* Of the tag, below the number of the call. */
enum { PIECE_SHIFT = 16, STEPS_MAX = 1 << PIECE_SHIFT };

/* A piece of most operations; of an all_reduce, what each rank has of it, and the most. */
#define PIECE_BYTES ((size_t)1 << 20)
#define SHARE_BYTES ((size_t)512 << 10)
#define ALL_REDUCE_PIECE_BYTES_MAX ((size_t)2 << 20)

enum { TELL_MS = 100 /* of waiting in a call, before others are told which it is */ };

/* What is needed to take in an operand that comes in parts. */
struct operand {
    enum muster_type type;
    enum muster_reduction reduction;
    size_t type_bytes;
    uint8_t *at;
    const uint8_t *from;
    bool incoming_first;
};

struct slot {
    struct comm_call call;           /* the piece */
    size_t number;                   /* of the piece */
    uint64_t tag;                    /* of its step 0 */
    struct schedule_action *actions; /* owned, kept */
    size_t action_count, action_room;
    size_t scratch_count;         /* elements that they use */
    size_t next_action;           /* the first of the step under way */
    size_t next_local;            /* the first local action of that step */
    struct p2p_request *requests; /* owned, kept: of the step under way */
    struct operand *operands;     /* beside each */
    size_t request_count, request_room, first_open;
    uint8_t *scratch; /* owned, kept */
    size_t scratch_room;
    bool is_busy;
};

struct executor {
    struct executor_config config; /* peers: our own copy */
    struct slot slots[EXECUTOR_PIECES_MAX];

    /* of the call that runs */
    const struct comm_call *call;
    enum schedule_algorithm algorithm;
    uint32_t number; /* of the group's call, as far as tags tell it */
    int64_t deadline_ns;
    size_t piece_count, piece_elements, pieces_begun, pieces_done;
    size_t awaited_piece; /* executor_await() */
    int code;
    bool notes_arrival; /* of the first message, for the trace */
    int64_t arrived_ns;
    uint8_t *awaited; /* per rank, after a failure; made when first needed */
};

int executor_create(const struct executor_config *config, struct executor **out) {
    assert(config->rank < config->size);
    struct executor *executor = calloc(1, sizeof *executor);
    uint32_t *peers = malloc(config->size * sizeof *peers);
    uint8_t *awaited = calloc(config->size, 1);
    if (!executor || !peers || !awaited) {
        free(executor);
        free(peers);
        free(awaited);
        return status_fail(MUSTER_ENOMEM, "no memory for the messages of %u ranks", (unsigned)config->size);
    }
    executor->config = *config;
    memcpy(peers, config->peers, config->size * sizeof *peers);
    executor->config.peers = peers;
    executor->awaited = awaited;
    *out = executor;
    return 0;
}

void executor_free(struct executor *executor) {
    if (!executor) {
        return;
    }
    for (size_t i = 0; i < EXECUTOR_PIECES_MAX; i++) {
        free(executor->slots[i].actions);
        free(executor->slots[i].requests);
        free(executor->slots[i].operands);
        free(executor->slots[i].scratch);
    }
    free((void *)(uintptr_t)executor->config.peers);
    free(executor->awaited);
    free(executor);
}

void executor_set_peer(struct executor *executor, uint32_t rank, uint32_t peer) {
    assert(rank < executor->config.size);
    ((uint32_t *)(uintptr_t)executor->config.peers)[rank] = peer;
}

uint32_t executor_peer(const struct executor *executor, uint32_t rank) {
    assert(rank < executor->config.size);
    return executor->config.peers[rank];
}

/* ---- places ---- */

static uint8_t *place_of(const struct slot *slot, const struct schedule_place *place, size_t type_bytes) {
    uint8_t *base = place->buffer == SCHEDULE_SEND      ? (uint8_t *)(uintptr_t)slot->call.send
                    : place->buffer == SCHEDULE_RECEIVE ? slot->call.receive
                                                        : slot->scratch;
    return base ? base + place->offset * type_bytes : NULL;
}

static void take_operand(void *context, size_t offset, const void *data, size_t bytes) {
    const struct operand *operand = context;
    uint8_t *at = operand->at + offset;
    const uint8_t *from = operand->from + offset;
    size_t count = bytes / operand->type_bytes;
    if (operand->incoming_first) {
        reduce_pair(operand->type, operand->reduction, at, data, from, count);
    } else {
        reduce_pair(operand->type, operand->reduction, at, from, data, count);
    }
}

/* ---- one step ---- */

static int post(struct executor *executor, struct slot *slot, const struct schedule_action *action) {
    size_t type_bytes = slot->call.type_bytes;
    struct p2p_request *request = &slot->requests[slot->request_count];
    struct operand *operand = &slot->operands[slot->request_count];
    const struct p2p_envelope envelope = {.group = executor->config.group.id,
                                          .lane = P2P_COLLECTIVES,
                                          .peer = executor->config.peers[action->peer],
                                          .tag = slot->tag + action->step,
                                          .fingerprint = executor->call->fingerprint};
    uint8_t *at = place_of(slot, &action->at, type_bytes);
    size_t bytes = action->count * type_bytes;
    struct p2p *p2p = executor->config.p2p;
    int code;
    if (action->kind == SCHEDULE_DO_SEND) {
        code = p2p_send(p2p, request, &envelope, at, bytes, executor->deadline_ns);
    } else if (action->kind == SCHEDULE_DO_RECEIVE || bytes == 0) {
        code = p2p_receive(p2p, request, &envelope, at, bytes, executor->deadline_ns);
    } else {
        *operand = (struct operand){.type = slot->call.type,
                                    .reduction = slot->call.reduction,
                                    .type_bytes = type_bytes,
                                    .at = at,
                                    .from = place_of(slot, &action->from, type_bytes),
                                    .incoming_first = action->incoming_first};
        code = p2p_receive_consume(p2p, request, &envelope, take_operand, operand, bytes, executor->deadline_ns);
    }
    slot->request_count += code == 0;
    return code;
}

static bool is_message(const struct schedule_action *action) {
    return action->kind <= SCHEDULE_DO_RECEIVE_REDUCE;
}

/* Posts the messages of the step that begins at next_action: receives first, so that what comes finds its place. */
static int begin_step(struct executor *executor, struct slot *slot) {
    const struct schedule_action *first = &slot->actions[slot->next_action];
    const struct schedule_action *end = slot->actions + slot->action_count;
    slot->request_count = slot->first_open = 0;
    for (int sends = 0; sends < 2; sends++) {
        const struct schedule_action *action = first;
        for (; action < end && action->step == first->step && is_message(action); action++) {
            int code = (action->kind == SCHEDULE_DO_SEND) == sends ? post(executor, slot, action) : 0;
            if (code != 0) {
                return code;
            }
        }
        slot->next_local = (size_t)(action - slot->actions);
    }
    return 0;
}

/* true: the messages of the step are done (or one has failed: then executor->code is set). */
static bool step_is_done(struct executor *executor, struct slot *slot) {
    for (; slot->first_open < slot->request_count; slot->first_open++) {
        struct p2p_request *request = &slot->requests[slot->first_open];
        if (!atomic_load_explicit(&request->done, memory_order_acquire)) {
            return false;
        }
        if (request->status != 0) {
            executor->code = p2p_request_done(request);
            return true;
        }
        if (__builtin_expect(executor->notes_arrival, 0) && !request->is_send) {
            executor->notes_arrival = false;
            executor->arrived_ns = clock_monotonic_ns();
        }
    }
    return true;
}

/* The local actions of the step whose messages are done. */
static void end_step(struct slot *slot) {
    size_t type_bytes = slot->call.type_bytes;
    size_t i = slot->next_local;
    uint32_t step = slot->actions[slot->next_action].step;
    for (; i < slot->action_count && slot->actions[i].step == step; i++) {
        const struct schedule_action *action = &slot->actions[i];
        uint8_t *at = place_of(slot, &action->at, type_bytes);
        const uint8_t *from = place_of(slot, &action->from, type_bytes);
        assert(!is_message(action));
        if (action->kind == SCHEDULE_DO_COPY) {
            memmove(at, from, action->count * type_bytes);
        } else {
            reduce_pair(slot->call.type, slot->call.reduction, at, at, from, action->count);
        }
    }
    slot->next_action = i;
}

/* ---- pieces ---- */

static int keep_action(void *context, const struct schedule_action *action) {
    struct slot *slot = context;
    if (slot->action_count == slot->action_room) {
        size_t room = slot->action_room > 0 ? 2 * slot->action_room : 32;
        struct schedule_action *grown = realloc(slot->actions, room * sizeof *grown);
        if (!grown) {
            return status_fail(MUSTER_ENOMEM, "no memory for a schedule of %zu actions", room);
        }
        slot->actions = grown;
        slot->action_room = room;
    }
    assert(action->step < STEPS_MAX);
    slot->actions[slot->action_count++] = *action;
    size_t scratch_count = schedule_action_scratch(action);
    slot->scratch_count = scratch_count > slot->scratch_count ? scratch_count : slot->scratch_count;
    return 0;
}

/* Room for the requests of the step that has most. */
static int make_requests(struct slot *slot) {
    size_t most = 0, count = 0;
    for (size_t i = 0; i < slot->action_count; i++) {
        count = i > 0 && slot->actions[i].step == slot->actions[i - 1].step ? count + 1 : 1;
        most = count > most ? count : most;
    }
    if (most <= slot->request_room) {
        return 0;
    }
    free(slot->requests);
    free(slot->operands);
    slot->requests = calloc(most, sizeof *slot->requests);
    slot->operands = calloc(most, sizeof *slot->operands);
    slot->request_room = slot->requests && slot->operands ? most : 0;
    return slot->request_room > 0 ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %zu messages", most);
}

static int make_scratch(struct slot *slot) {
    size_t bytes = slot->scratch_count * slot->call.type_bytes;
    if (bytes <= slot->scratch_room) {
        return 0;
    }
    free(slot->scratch);
    slot->scratch_room = 0;
    if (posix_memalign((void **)&slot->scratch, 64, bytes) != 0) {
        slot->scratch = NULL;
        return status_fail(MUSTER_ENOMEM, "no memory for %zu bytes between the steps of a collective", bytes);
    }
    slot->scratch_room = bytes;
    return 0;
}

static const void *shifted(const void *buffer, size_t bytes) {
    return buffer ? (const uint8_t *)buffer + bytes : NULL;
}

/* The next piece, which is slot->call. */
static int begin_piece(struct executor *executor, struct slot *slot) {
    slot->number = executor->pieces_begun;
    slot->tag = P2P_TAG(executor->number, (uint64_t)slot->number << PIECE_SHIFT);
    slot->action_count = slot->next_action = slot->next_local = slot->request_count = slot->first_open = 0;
    slot->scratch_count = 0;
    slot->is_busy = true;
    executor->pieces_begun++;
    int code = schedule_generate(&slot->call, executor->algorithm, executor->config.rank, executor->config.size,
                                 keep_action, slot);
    code = code != 0 ? code : make_requests(slot);
    code = code != 0 ? code : make_scratch(slot);
    if (code == 0 && slot->action_count > 0) {
        code = begin_step(executor, slot);
    }
    return code;
}

/* The next piece of a call whose buffers are all there. */
static int cut_piece(struct executor *executor, struct slot *slot) {
    size_t first = executor->pieces_begun * executor->piece_elements;
    size_t shift = first * executor->call->type_bytes;
    slot->call = *executor->call;
    if (executor->piece_count > 1) {
        size_t rest = executor->call->count - first;
        slot->call.count = rest < executor->piece_elements ? rest : executor->piece_elements;
        slot->call.send = shifted(slot->call.send, shift);
        slot->call.receive = (void *)(uintptr_t)shifted(slot->call.receive, shift);
    }
    return begin_piece(executor, slot);
}

/* Takes one slot as far as it goes. */
static void advance_slot(struct executor *executor, struct slot *slot) {
    while (executor->code == 0) {
        if (!slot->is_busy) {
            if (executor->pieces_begun == executor->piece_count) {
                return;
            }
            executor->code = cut_piece(executor, slot);
        } else if (slot->next_action == slot->action_count) {
            slot->is_busy = false;
            executor->pieces_done++;
        } else if (!step_is_done(executor, slot)) {
            return;
        } else if (executor->code == 0) {
            end_step(slot);
            if (slot->next_action < slot->action_count) {
                executor->code = begin_step(executor, slot);
            }
        }
    }
}

static void advance(struct executor *executor) {
    for (size_t i = 0; i < EXECUTOR_PIECES_MAX && (i == 0 || executor->piece_count > 1); i++) {
        advance_slot(executor, &executor->slots[i]);
    }
}

/* true: or failed. */
static bool all_is_done(void *argument) {
    struct executor *executor = argument;
    advance(executor);
    return executor->code != 0 || executor->pieces_done == executor->piece_count;
}

static bool piece_is_done(void *argument) {
    struct executor *executor = argument;
    const struct slot *slot = &executor->slots[executor->awaited_piece % EXECUTOR_PIECES_MAX];
    advance(executor);
    return executor->code != 0 || !slot->is_busy || slot->number != executor->awaited_piece;
}

/* ---- calls ---- */

size_t executor_piece_bytes(enum comm_operation operation, uint32_t size) {
    if (operation != COMM_ALL_REDUCE || SHARE_BYTES * size <= PIECE_BYTES) {
        return PIECE_BYTES;
    }
    return SHARE_BYTES * size < ALL_REDUCE_PIECE_BYTES_MAX ? SHARE_BYTES * size : ALL_REDUCE_PIECE_BYTES_MAX;
}

static void cut(struct executor *executor, size_t piece_bytes) {
    const struct comm_call *call = executor->call;
    size_t type_bytes = call->type_bytes;
    bool is_element_wise = call->operation == COMM_ALL_REDUCE || call->operation == COMM_REDUCE ||
                           call->operation == COMM_BROADCAST || comm_is_prefix(call->operation);
    executor->piece_count = 1;
    executor->piece_elements = call->count;
    if (is_element_wise && call->count * type_bytes > piece_bytes) {
        executor->piece_elements = piece_bytes >= type_bytes ? piece_bytes / type_bytes : 1;
        executor->piece_count = (call->count + executor->piece_elements - 1) / executor->piece_elements;
    }
}

/* After a failure: whom it waited for; and nothing refers to the buffers any more. */
static int give_up(struct executor *executor, int code) {
    memset(executor->awaited, 0, executor->config.size);
    for (size_t i = 0; i < EXECUTOR_PIECES_MAX; i++) {
        struct slot *slot = &executor->slots[i];
        for (size_t j = 0; slot->is_busy && j < slot->request_count; j++) {
            struct p2p_request *request = &slot->requests[j];
            if (!request->is_send && !atomic_load_explicit(&request->done, memory_order_acquire)) {
                for (uint32_t rank = 0; rank < executor->config.size; rank++) {
                    executor->awaited[rank] |= executor->config.peers[rank] == request->envelope.peer;
                }
            }
            p2p_withdraw(executor->config.p2p, &request, 1);
            free(request->detail);
            request->detail = NULL;
        }
        slot->is_busy = false;
    }
    return code;
}

static void finish_average(const struct executor *executor, const struct comm_call *call) {
    uint32_t rank = executor->config.rank;
    if (call->operation == COMM_ALL_REDUCE || (call->operation == COMM_REDUCE && call->root == rank) ||
        call->operation == COMM_REDUCE_SCATTER) {
        size_t count =
            call->operation == COMM_REDUCE_SCATTER && call->receive_counts ? call->receive_counts[rank] : call->count;
        reduce_finish(call->type, call->reduction, call->receive, count, executor->config.size);
    }
}

/* Those that have not sent what this rank waits for hear which call it is in: they may wait for it in another one, in
 * which they have nothing to send either. */
static void tell_call(const struct executor *executor) {
    uint32_t last = UINT32_MAX; /* several messages of one peer are beside each other */
    for (size_t i = 0; i < EXECUTOR_PIECES_MAX; i++) {
        const struct slot *slot = &executor->slots[i];
        for (size_t j = 0; slot->is_busy && j < slot->request_count; j++) {
            const struct p2p_request *request = &slot->requests[j];
            bool is_awaited = !request->is_send && !atomic_load_explicit(&request->done, memory_order_acquire);
            if (is_awaited && request->envelope.peer != last) {
                last = request->envelope.peer;
                p2p_tell_call(executor->config.p2p, executor->config.group.id, last);
            }
        }
    }
}

/* Tells after a while, then less and less often: new messages may be awaited by then. */
static int wait_and_tell(struct executor *executor, bool (*ready)(void *argument)) {
    for (int64_t wait_ms = TELL_MS;; wait_ms *= 2) {
        int64_t until_ns = clock_deadline_ns(clock_monotonic_ns(), wait_ms);
        bool is_last = until_ns >= executor->deadline_ns || wait_ms > INT64_MAX / 4;
        int code = p2p_wait_until(executor->config.p2p, executor->config.waiter, ready, executor,
                                  is_last ? executor->deadline_ns : until_ns);
        if (code != MUSTER_ETIMEOUT || is_last) {
            return code;
        }
        tell_call(executor);
    }
}

static int begin_call(struct executor *executor, const struct comm_call *call, enum schedule_algorithm algorithm,
                      uint64_t number, int64_t deadline_ns) {
    executor->call = call;
    executor->algorithm = algorithm;
    executor->number = (uint32_t)number;
    executor->deadline_ns = deadline_ns;
    executor->piece_count = executor->pieces_begun = executor->pieces_done = 0;
    executor->code = 0;
    executor->notes_arrival = trace_enabled();
    executor->arrived_ns = 0;
    return p2p_begin_call(executor->config.p2p, &executor->config.group, number, call->fingerprint);
}

static void give_back_scratch(struct executor *executor) {
    for (size_t i = 0; i < EXECUTOR_PIECES_MAX; i++) {
        if (executor->slots[i].scratch_room > SCRATCH_KEPT_BYTES_MAX) {
            free(executor->slots[i].scratch);
            executor->slots[i].scratch = NULL;
            executor->slots[i].scratch_room = 0;
        }
    }
}

int executor_run(struct executor *executor, const struct comm_call *call, enum schedule_algorithm algorithm,
                 size_t piece_bytes, uint64_t number, int64_t deadline_ns) {
    int code = begin_call(executor, call, algorithm, number, deadline_ns);
    if (code != 0) {
        return code;
    }
    cut(executor, piece_bytes > 0 ? piece_bytes : executor_piece_bytes(call->operation, executor->config.size));
    code = wait_and_tell(executor, all_is_done);
    code = executor_close(executor, executor->code != 0 ? executor->code : code);
    if (code == 0 && call->reduction == MUSTER_OP_AVERAGE) {
        finish_average(executor, call);
    }
    return code;
}

/* ---- calls that are handed over piece by piece ---- */

int executor_open(struct executor *executor, const struct comm_call *call, enum schedule_algorithm algorithm,
                  uint64_t number, int64_t deadline_ns) {
    return begin_call(executor, call, algorithm, number, deadline_ns);
}

int executor_await(struct executor *executor, size_t piece) {
    assert(piece < executor->pieces_begun);
    executor->awaited_piece = piece;
    int code = wait_and_tell(executor, piece_is_done);
    return executor->code != 0 ? executor->code : code;
}

int executor_hand(struct executor *executor, const void *send, void *receive, size_t count) {
    struct slot *slot = &executor->slots[executor->pieces_begun % EXECUTOR_PIECES_MAX];
    int code = slot->is_busy ? executor_await(executor, slot->number) : 0;
    if (code != 0) {
        return code;
    }
    slot->call = *executor->call;
    slot->call.send = send;
    slot->call.receive = receive;
    slot->call.count = count;
    executor->piece_count++; /* it begins here, and nothing is left to be cut */
    executor->code = begin_piece(executor, slot);
    return executor->code;
}

int executor_close(struct executor *executor, int code) {
    assert(code != 0 || executor->pieces_done == executor->piece_count);
    if (code != 0) {
        return give_up(executor, code);
    }
    give_back_scratch(executor);
    return 0;
}

bool executor_awaits(const struct executor *executor, uint32_t rank) {
    return rank < executor->config.size && executor->awaited[rank];
}

int64_t executor_arrived_ns(const struct executor *executor) {
    return executor->arrived_ns;
}
