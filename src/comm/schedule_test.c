/* Schedules, carried out by a simulator for all ranks at once: every operation and algorithm, sizes 1 to 17, 31 to 33
 * and 64, every root, many counts, in place and not. Elements are symbols: an input is (rank, position), a reduction of
 * two a node that remembers both. Equal symbols on all ranks mean the same operands in the same order, hence the same
 * bits of any type. Sends end only when they are received, in random order, so that what could lock up does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/schedule.h"
#include <muster/status.h>

enum { SIZE_MAX_TESTED = 64, GUARD_COUNT = 8 };

typedef uint32_t symbol; /* elements of the simulated calls, MUSTER_INT32 by name */

static const char *doing = ""; /* for messages */
static char doing_text[256];

static uint64_t random_state = UINT64_C(0x9e3779b97f4a7c15);

static uint32_t random_below(uint32_t limit) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)((random_state * UINT64_C(0x2545f4914f6cdd1d)) >> 33) % limit;
}

/* ---- symbols ---- */

enum { NODES_MAX = 1 << 18, SLOTS = 1 << 19 };
#define NODE_FLAG UINT32_C(0x80000000)
#define POSITION_LIMIT (UINT32_C(1) << 24)
#define NOTHING UINT32_C(0x7fffffff)

struct node {
    symbol left, right;
    uint64_t ranks; /* whose inputs are in it */
    uint32_t position;
};

static struct node nodes[NODES_MAX];
static uint32_t slots[SLOTS]; /* node number + 1, 0: free */
static uint32_t node_count;

static symbol input_of(uint32_t rank, size_t position) {
    assert_true(position < POSITION_LIMIT);
    return rank * POSITION_LIMIT + (uint32_t)position;
}

static uint64_t ranks_of(symbol s) {
    return s & NODE_FLAG ? nodes[s & ~NODE_FLAG].ranks : UINT64_C(1) << (s / POSITION_LIMIT);
}

static uint32_t position_of(symbol s) {
    return s & NODE_FLAG ? nodes[s & ~NODE_FLAG].position : s % POSITION_LIMIT;
}

static symbol reduce_symbols(symbol left, symbol right) {
    if (left == NOTHING || right == NOTHING || (ranks_of(left) & ranks_of(right)) != 0 ||
        position_of(left) != position_of(right)) {
        fail_msg("%s: reduces what is not there, the same twice, or different positions", doing);
    }
    uint64_t hash = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t slot = (uint32_t)(hash >> 45);; slot = (slot + 1) % SLOTS) {
        if (slots[slot] == 0) {
            assert_true(node_count < NODES_MAX);
            nodes[node_count] = (struct node){left, right, ranks_of(left) | ranks_of(right), position_of(left)};
            slots[slot] = ++node_count;
        }
        uint32_t found = slots[slot] - 1;
        if (nodes[found].left == left && nodes[found].right == right) {
            return found | NODE_FLAG;
        }
    }
}

static void symbols_reset(void) {
    if (node_count > 0) {
        memset(slots, 0, sizeof slots);
        node_count = 0;
    }
}

/* ---- ranks ---- */

struct rank {
    struct comm_call call;
    symbol *memory; /* owned: guard, send, guard, receive, guard, scratch, guard */
    symbol *send, *receive, *scratch;
    size_t send_count, receive_count, scratch_count, memory_count;
    struct schedule_action *actions; /* owned */
    size_t action_count, action_room;
    size_t next;    /* first action of the step under way */
    size_t end;     /* first of the next step */
    bool *finished; /* owned: messages of the step under way */
    size_t left;    /* of them */
    size_t sent_count, received_count;
};

struct world {
    uint32_t size;
    enum schedule_algorithm algorithm;
    struct rank ranks[SIZE_MAX_TESTED];
    uint32_t step_count; /* with messages */
};

static struct world world;

static int keep_action(void *context, const struct schedule_action *action) {
    struct rank *rank = context;
    if (rank->action_count == rank->action_room) {
        rank->action_room = rank->action_room * 2 + 16;
        rank->actions = realloc(rank->actions, rank->action_room * sizeof *rank->actions);
        assert_non_null(rank->actions);
    }
    rank->actions[rank->action_count++] = *action;
    return 0;
}

static bool is_message(const struct schedule_action *action) {
    return action->kind <= SCHEDULE_DO_RECEIVE_REDUCE;
}

/* The memory of a place; its whole length lies within its buffer. */
static symbol *resolve(const struct rank *rank, struct schedule_place place, size_t count) {
    symbol *base = place.buffer == SCHEDULE_SEND      ? rank->send
                   : place.buffer == SCHEDULE_RECEIVE ? rank->receive
                                                      : rank->scratch;
    size_t room = place.buffer == SCHEDULE_SEND      ? rank->send_count
                  : place.buffer == SCHEDULE_RECEIVE ? rank->receive_count
                                                     : rank->scratch_count;
    if (count > 0 && (!base || place.offset + count > room)) {
        fail_msg("%s: place outside of buffer %d", doing, (int)place.buffer);
    }
    return base ? base + place.offset : NULL;
}

struct span {
    const symbol *begin;
    size_t count;
};

static bool overlaps(struct span a, struct span b) {
    return a.count > 0 && b.count > 0 && a.begin < b.begin + b.count && b.begin < a.begin + a.count;
}

static struct span read_by(const struct rank *rank, const struct schedule_action *action) {
    if (action->kind == SCHEDULE_DO_RECEIVE) {
        return (struct span){NULL, 0};
    }
    struct schedule_place place = action->kind == SCHEDULE_DO_SEND ? action->at : action->from;
    return (struct span){resolve(rank, place, action->count), action->count};
}

static struct span written_by(const struct rank *rank, const struct schedule_action *action) {
    if (action->kind == SCHEDULE_DO_SEND) {
        return (struct span){NULL, 0};
    }
    return (struct span){resolve(rank, action->at, action->count), action->count};
}

/* Nothing is written that another message of the step reads or writes; messages stand before local actions. */
static void check_step(const struct rank *rank, size_t first, size_t end) {
    bool is_local = false;
    for (size_t i = first; i < end; i++) {
        const struct schedule_action *action = &rank->actions[i];
        struct span written = written_by(rank, action), own = read_by(rank, action);
        if (is_local && is_message(action)) {
            fail_msg("%s: a message after a local action", doing);
        }
        is_local = !is_message(action);
        if (overlaps(written, own) && written.begin != own.begin) {
            fail_msg("%s: an action overlaps itself", doing);
        }
        for (size_t k = first; !is_local && k < end && is_message(&rank->actions[k]); k++) {
            if (k != i && (overlaps(written, read_by(rank, &rank->actions[k])) ||
                           overlaps(written, written_by(rank, &rank->actions[k])))) {
                fail_msg("%s: a race in step %u", doing, action->step);
            }
        }
    }
}

static void step_enter(struct rank *rank) {
    rank->end = rank->next;
    rank->left = 0;
    while (rank->end < rank->action_count && rank->actions[rank->end].step == rank->actions[rank->next].step) {
        rank->finished[rank->end] = false;
        rank->left += is_message(&rank->actions[rank->end]);
        rank->end++;
    }
}

static void check_actions(struct rank *rank) {
    for (rank->next = 0; rank->next < rank->action_count; rank->next = rank->end) {
        step_enter(rank);
        assert_true(rank->end == rank->action_count || rank->actions[rank->end].step > rank->actions[rank->next].step);
        if (rank->left > 0 && rank->actions[rank->next].step >= world.step_count) {
            world.step_count = rank->actions[rank->next].step + 1;
        }
        check_step(rank, rank->next, rank->end);
    }
    rank->next = 0;
    step_enter(rank);
}

static void run_local(struct rank *rank) {
    for (size_t i = rank->next; i < rank->end; i++) {
        const struct schedule_action *action = &rank->actions[i];
        if (is_message(action)) {
            continue;
        }
        symbol *at = resolve(rank, action->at, action->count);
        const symbol *from = resolve(rank, action->from, action->count);
        for (size_t k = 0; k < action->count; k++) {
            at[k] = action->kind == SCHEDULE_DO_COPY ? from[k] : reduce_symbols(at[k], from[k]);
        }
    }
}

/* The receive that answers the send: the first one from that rank that is not finished. */
static struct schedule_action *answer_to(struct rank *to, uint32_t from, size_t *index) {
    for (size_t i = to->next; i < to->end; i++) {
        struct schedule_action *action = &to->actions[i];
        if (is_message(action) && action->kind != SCHEDULE_DO_SEND && action->peer == from && !to->finished[i]) {
            *index = i;
            return action;
        }
    }
    return NULL;
}

/* Carries out one send if its receive is there. */
static bool deliver(uint32_t number, size_t at) {
    struct rank *from = &world.ranks[number], *to = &world.ranks[from->actions[at].peer];
    const struct schedule_action *send = &from->actions[at];
    size_t index = 0;
    for (size_t i = from->next; i < at; i++) { /* in order between two ranks */
        if (from->actions[i].kind == SCHEDULE_DO_SEND && from->actions[i].peer == send->peer && !from->finished[i]) {
            return false;
        }
    }
    const struct schedule_action *receive = answer_to(to, number, &index);
    if (!receive) {
        return false;
    }
    if (receive->step != send->step || receive->count != send->count || send->peer == number) {
        fail_msg("%s: %u sends %zu to %u in step %u, which expects %zu in step %u", doing, number, send->count,
                 send->peer, send->step, receive->count, receive->step);
    }
    const symbol *data = resolve(from, send->at, send->count);
    symbol *place = resolve(to, receive->at, receive->count);
    for (size_t k = 0; k < send->count; k++) {
        symbol value = data[k];
        if (receive->kind == SCHEDULE_DO_RECEIVE_REDUCE) {
            symbol own = resolve(to, receive->from, receive->count)[k];
            value = receive->incoming_first ? reduce_symbols(value, own) : reduce_symbols(own, value);
        }
        place[k] = value;
    }
    from->finished[at] = to->finished[index] = true;
    from->left--, to->left--;
    from->sent_count += send->count, to->received_count += send->count;
    return true;
}

static bool rank_turn(uint32_t number) {
    struct rank *rank = &world.ranks[number];
    bool moved = false;
    size_t messages = rank->end - rank->next;
    size_t offset = messages > 0 ? random_below((uint32_t)messages) : 0;
    for (size_t i = 0; i < messages; i++) {
        size_t at = rank->next + (i + offset) % messages;
        if (rank->actions[at].kind == SCHEDULE_DO_SEND && !rank->finished[at]) {
            moved = deliver(number, at) || moved;
        }
    }
    while (rank->left == 0 && rank->next < rank->action_count) {
        run_local(rank);
        rank->next = rank->end;
        moved = true;
        if (rank->next < rank->action_count) {
            step_enter(rank);
        }
    }
    return moved;
}

static void world_run(void) {
    bool moved = true, finished = false;
    while (moved && !finished) {
        moved = false;
        finished = true;
        uint32_t offset = random_below(world.size);
        for (uint32_t i = 0; i < world.size; i++) {
            moved = rank_turn((i + offset) % world.size) || moved;
        }
        for (uint32_t i = 0; i < world.size; i++) {
            finished = finished && world.ranks[i].next == world.ranks[i].action_count;
        }
    }
    if (!finished) {
        fail_msg("%s: locked up", doing);
    }
}

/* ---- calls ---- */

struct shape { /* of one case */
    enum comm_operation operation;
    uint32_t root;
    size_t count;
    bool has_counts, in_place;
};

/* counts_of[a][b]: what a has for b in all_to_all, the block of b elsewhere. */
static size_t counts_sent[SIZE_MAX_TESTED][SIZE_MAX_TESTED], counts_received[SIZE_MAX_TESTED][SIZE_MAX_TESTED];

static size_t sum_of(const size_t *counts, uint32_t end) {
    size_t sum = 0;
    for (uint32_t i = 0; i < end; i++) {
        sum += counts[i];
    }
    return sum;
}

static void counts_make(const struct shape *shape) {
    for (uint32_t a = 0; a < world.size; a++) {
        for (uint32_t b = 0; b < world.size; b++) {
            size_t uneven = shape->operation == COMM_ALL_TO_ALL ? (a * 3 + b * 5 + a * b) % 4 : (b * 7 + 3) % 5;
            uneven = shape->count == 0 ? (size_t)(b == world.size / 2) * 3 : uneven * shape->count;
            counts_sent[a][b] = shape->has_counts ? uneven : shape->count;
            counts_received[b][a] = counts_sent[a][b];
        }
    }
    if (shape->operation != COMM_ALL_TO_ALL) {
        memcpy(counts_received, counts_sent, sizeof counts_sent);
    }
}

static void rank_make(uint32_t number, const struct shape *shape) {
    struct rank *rank = &world.ranks[number];
    bool is_root = number == shape->root, aliased = shape->in_place;
    size_t blocks = sum_of(counts_sent[number], world.size), own = counts_sent[number][number], own_begin = 0;
    rank->send_count = rank->receive_count = shape->count;
    switch (shape->operation) {
    case COMM_REDUCE:
        rank->receive_count = is_root ? shape->count : 0;
        aliased = aliased && is_root;
        break;
    case COMM_BROADCAST:
        rank->send_count = 0;
        break;
    case COMM_ALL_GATHER:
    case COMM_GATHER:
        rank->send_count = own;
        rank->receive_count = shape->operation == COMM_GATHER && !is_root ? 0 : blocks;
        aliased = aliased && rank->receive_count > 0;
        own_begin = sum_of(counts_sent[number], number);
        break;
    case COMM_SCATTER:
    case COMM_REDUCE_SCATTER:
        rank->send_count = shape->operation == COMM_SCATTER && !is_root ? 0 : blocks;
        rank->receive_count = own;
        aliased = aliased && rank->send_count > 0;
        own_begin = sum_of(counts_sent[number], number);
        break;
    case COMM_ALL_TO_ALL:
        rank->send_count = blocks;
        rank->receive_count = sum_of(counts_received[number], world.size);
        break;
    case COMM_ALL_REDUCE:
        break;
    default:
        rank->send_count = rank->receive_count = 0;
    }
    rank->memory_count = rank->send_count + rank->receive_count + 4 * GUARD_COUNT;
    rank->memory = malloc((rank->memory_count) * sizeof *rank->memory);
    assert_non_null(rank->memory);
    for (size_t i = 0; i < rank->memory_count; i++) {
        rank->memory[i] = NOTHING;
    }
    rank->send = rank->memory + GUARD_COUNT;
    rank->receive = rank->send + rank->send_count + GUARD_COUNT;
    if (aliased && rank->send_count > rank->receive_count) {
        rank->receive = rank->send + own_begin;
    } else if (aliased) {
        rank->send = rank->receive + own_begin;
    }
    for (size_t i = 0; i < rank->send_count; i++) {
        rank->send[i] = input_of(number, i);
    }
    for (size_t i = 0; shape->operation == COMM_BROADCAST && is_root && i < shape->count; i++) {
        rank->receive[i] = input_of(number, i);
    }
    rank->call = (struct comm_call){.operation = shape->operation,
                                    .type = MUSTER_INT32,
                                    .root = shape->root,
                                    .count = shape->has_counts ? 0 : shape->count,
                                    .send = rank->send_count > 0 ? rank->send : NULL,
                                    .receive = rank->receive_count > 0 ? rank->receive : NULL};
    if (shape->has_counts && (shape->operation == COMM_SCATTER || shape->operation == COMM_ALL_TO_ALL)) {
        rank->call.send_counts = counts_sent[number];
    }
    if (shape->has_counts && shape->operation != COMM_SCATTER) {
        rank->call.receive_counts = counts_received[number];
    }
    rank->scratch_count = schedule_scratch_count(&rank->call, world.algorithm, number, world.size);
    rank->scratch = malloc((rank->scratch_count + 1) * sizeof *rank->scratch);
    assert_non_null(rank->scratch);
    for (size_t i = 0; i < rank->scratch_count; i++) {
        rank->scratch[i] = NOTHING;
    }
    assert_int_equal(schedule_generate(&rank->call, world.algorithm, number, world.size, keep_action, rank), 0);
    rank->finished = calloc(rank->action_count + 1, sizeof *rank->finished);
    assert_non_null(rank->finished);
}

static void world_free(void) {
    for (uint32_t i = 0; i < world.size; i++) {
        free(world.ranks[i].memory);
        free(world.ranks[i].scratch);
        free(world.ranks[i].actions);
        free(world.ranks[i].finished);
    }
    memset(&world, 0, sizeof world);
}

/* ---- what must come out ---- */

static uint64_t everybody(void) {
    return world.size == 64 ? ~UINT64_C(0) : (UINT64_C(1) << world.size) - 1;
}

static void check_sums(uint32_t number, size_t first_position, const symbol *model) {
    const struct rank *rank = &world.ranks[number];
    for (size_t i = 0; i < rank->receive_count; i++) {
        symbol got = rank->receive[i];
        if (got == NOTHING || ranks_of(got) != everybody() || position_of(got) != first_position + i ||
            (model && got != model[i])) {
            fail_msg("%s: rank %u, element %zu: not everybody's, or in another order than elsewhere", doing, number, i);
        }
    }
}

static void check_block(uint32_t number, size_t at, uint32_t from, size_t position, size_t count) {
    const struct rank *rank = &world.ranks[number];
    for (size_t i = 0; i < count; i++) {
        if (rank->receive[at + i] != input_of(from, position + i)) {
            fail_msg("%s: rank %u, element %zu is %x", doing, number, at + i, rank->receive[at + i]);
        }
    }
}

static void check_result(uint32_t number, const struct shape *shape) {
    const struct rank *rank = &world.ranks[number];
    switch (shape->operation) {
    case COMM_ALL_REDUCE:
    case COMM_REDUCE:
        check_sums(number, 0, shape->operation == COMM_REDUCE ? NULL : world.ranks[0].receive);
        break;
    case COMM_REDUCE_SCATTER:
        check_sums(number, sum_of(counts_sent[number], number), NULL);
        break;
    case COMM_BROADCAST:
        check_block(number, 0, shape->root, 0, shape->count);
        break;
    case COMM_SCATTER:
        check_block(number, 0, shape->root, sum_of(counts_sent[number], number), rank->receive_count);
        break;
    case COMM_ALL_GATHER:
    case COMM_GATHER:
        for (uint32_t from = 0, at = 0; rank->receive_count > 0 && from < world.size; from++) {
            check_block(number, at, from, 0, counts_sent[number][from]);
            at += (uint32_t)counts_sent[number][from];
        }
        break;
    default:
        for (uint32_t from = 0, at = 0; rank->receive_count > 0 && from < world.size; from++) {
            check_block(number, at, from, sum_of(counts_sent[from], number), counts_received[number][from]);
            at += (uint32_t)counts_received[number][from];
        }
    }
}

/* Nothing but the results and scratch has been written. */
static void check_rest(uint32_t number, const struct shape *shape) {
    const struct rank *rank = &world.ranks[number];
    for (size_t i = 0; i < rank->memory_count; i++) {
        const symbol *at = rank->memory + i;
        bool in_receive = at >= rank->receive && at < rank->receive + rank->receive_count;
        bool in_send = at >= rank->send && at < rank->send + rank->send_count;
        symbol expected = in_send ? input_of(number, (size_t)(at - rank->send)) : NOTHING;
        if (!in_receive && *at != expected) {
            fail_msg("%s: rank %u writes outside of its result (%d)", doing, number, shape->in_place);
        }
    }
}

static uint32_t log2_above(uint32_t size) {
    uint32_t bits = 0;
    while (UINT64_C(1) << bits < size) {
        bits++;
    }
    return bits;
}

/* The steps that the comments at the implementations promise. */
static uint32_t steps_promised(const struct shape *shape) {
    uint32_t size = world.size, up = log2_above(size), is_power = (size & (size - 1)) == 0;
    uint32_t halvings = is_power ? up : up - 1, fold = is_power ? 0 : 2;
    uint32_t moves_aside = shape->operation == COMM_ALL_TO_ALL && shape->in_place && shape->count > 0 ? 1 : 0;
    bool sums = shape->operation == COMM_ALL_REDUCE || shape->operation == COMM_REDUCE;
    switch (world.algorithm) {
    case SCHEDULE_FLAT:
        return shape->operation == COMM_ALL_REDUCE ? size : sums ? size - 1 : 1 + moves_aside;
    case SCHEDULE_RECURSIVE_DOUBLING: /* all_gather has its copies in step 0 */
        return shape->operation == COMM_ALL_GATHER ? 1 + halvings + (fold > 0) : halvings + fold;
    case SCHEDULE_RABENSEIFNER:
        return 2 * halvings + fold;
    case SCHEDULE_RECURSIVE_HALVING:
        return halvings + fold;
    case SCHEDULE_RING:
        return shape->operation == COMM_ALL_REDUCE  ? 2 * (size - 1)
               : shape->operation == COMM_REDUCE    ? size
               : shape->operation == COMM_BROADCAST ? up + size - 1
                                                    : size - 1;
    case SCHEDULE_PAIRWISE:
        return size - 1 + moves_aside;
    case SCHEDULE_BRUCK:
        return up + 1;
    default:
        return up;
    }
}

/* Elements that the busiest rank sends or receives, as the comments promise for equal counts; parts are rounded up. */
static size_t most_promised(const struct shape *shape) {
    size_t size = world.size, n = shape->count, part = (n + size - 1) / size, up = log2_above(world.size);
    size_t power = (size_t)1 << (up - ((size & (size - 1)) != 0)), halvings = up - ((size & (size - 1)) != 0);
    size_t fold = size == power ? 0 : 1, folded_blocks = fold ? size + 2 * (power - 1) : size - 1;
    switch (world.algorithm) {
    case SCHEDULE_FLAT:
    case SCHEDULE_PAIRWISE:
        return (size - 1) * n;
    case SCHEDULE_BINOMIAL:
        return shape->operation == COMM_BROADCAST || shape->operation == COMM_REDUCE ? n * up : (size - 1) * n;
    case SCHEDULE_RECURSIVE_DOUBLING:
        return shape->operation == COMM_ALL_GATHER ? folded_blocks * n : n * (halvings + fold);
    case SCHEDULE_RECURSIVE_HALVING:
        return folded_blocks * n;
    case SCHEDULE_RABENSEIFNER:
        return 2 * (power - 1) * ((n + power - 1) / power) + fold * n;
    case SCHEDULE_RING:
        return shape->operation == COMM_ALL_REDUCE  ? 2 * (size - 1) * part
               : shape->operation == COMM_REDUCE    ? 2 * (size - 1) * part
               : shape->operation == COMM_BROADCAST ? 2 * (size - 1) * part
                                                    : (size - 1) * n;
    case SCHEDULE_BRUCK:
        return up * (size / 2) * n;
    default:
        return 0;
    }
}

static void check_cost(const struct shape *shape) {
    if (world.size > 1) {
        assert_int_equal(world.step_count, steps_promised(shape));
    }
    for (uint32_t i = 0; world.size > 1 && !shape->has_counts && i < world.size; i++) {
        if (world.ranks[i].sent_count > most_promised(shape) || world.ranks[i].received_count > most_promised(shape)) {
            fail_msg("%s: rank %u sends %zu and receives %zu elements, promised are %zu", doing, i,
                     world.ranks[i].sent_count, world.ranks[i].received_count, most_promised(shape));
        }
    }
}

static void run_case(uint32_t size, enum schedule_algorithm algorithm, const struct shape *shape) {
    (void)snprintf(doing_text, sizeof doing_text, "%s, %s, size %u, root %u, count %zu%s%s",
                   comm_operation_name(shape->operation), schedule_algorithm_name(algorithm), size, shape->root,
                   shape->count, shape->has_counts ? ", counts per rank" : "", shape->in_place ? ", in place" : "");
    doing = doing_text;
    memset(&world, 0, sizeof world); /* whatever a case that failed has left */
    symbols_reset();
    world.size = size;
    world.algorithm = algorithm;
    counts_make(shape);
    for (uint32_t i = 0; i < size; i++) {
        rank_make(i, shape);
        check_actions(&world.ranks[i]);
    }
    world_run();
    for (uint32_t i = 0; i < size; i++) {
        check_result(i, shape);
        check_rest(i, shape);
    }
    check_cost(shape);
    world_free();
}

/* ---- cases ---- */

static bool has_root(enum comm_operation operation) {
    return operation == COMM_REDUCE || operation == COMM_BROADCAST || operation == COMM_GATHER ||
           operation == COMM_SCATTER;
}

static bool may_have_counts(enum comm_operation operation) {
    return operation == COMM_ALL_GATHER || operation == COMM_GATHER || operation == COMM_SCATTER ||
           operation == COMM_REDUCE_SCATTER || operation == COMM_ALL_TO_ALL;
}

static void run_counts(uint32_t size, enum schedule_algorithm algorithm, struct shape shape) {
    const size_t counts[] = {0, 1, 2, size - 1, size, size + 1, 1000};
    bool is_large = size > 17;
    for (int variant = 0; variant < 4; variant++) {
        shape.has_counts = variant & 1;
        shape.in_place = variant & 2;
        if (!schedule_is_defined(shape.operation, shape.has_counts, algorithm) ||
            (shape.has_counts &&
             (!may_have_counts(shape.operation) || (shape.in_place && shape.operation == COMM_ALL_TO_ALL)))) {
            continue;
        }
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            shape.count = counts[i];
            /* What grows with the square of the size is tried with less. */
            bool is_heavy = may_have_counts(shape.operation) && (is_large ? i > 2 : i == 6 && size > 5);
            if (!is_heavy && !(is_large && i == 6)) {
                run_case(size, algorithm, &shape);
            }
        }
    }
}

static void run_operation(enum comm_operation operation) {
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, 64};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int algorithm = 1; algorithm < SCHEDULE_ALGORITHM_END; algorithm++) {
            uint32_t roots = has_root(operation) ? sizes[s] : 1, stride = sizes[s] > 17 ? 5 : 1;
            for (uint32_t root = 0; root < roots; root += stride) {
                run_counts(sizes[s], (enum schedule_algorithm)algorithm,
                           (struct shape){.operation = operation, .root = root});
            }
        }
    }
}

#define OPERATION_TEST(name, operation)                                                                                \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        run_operation(operation);                                                                                      \
    }
OPERATION_TEST(all_reduce, COMM_ALL_REDUCE)
OPERATION_TEST(reduce, COMM_REDUCE)
OPERATION_TEST(broadcast, COMM_BROADCAST)
OPERATION_TEST(all_gather, COMM_ALL_GATHER)
OPERATION_TEST(gather, COMM_GATHER)
OPERATION_TEST(scatter, COMM_SCATTER)
OPERATION_TEST(reduce_scatter, COMM_REDUCE_SCATTER)
OPERATION_TEST(all_to_all, COMM_ALL_TO_ALL)

/* Nobody leaves a barrier before everybody has come: what each has heard of travels with the messages. */
static void a_barrier_hears_of_everybody(void **state) {
    (void)state;
    for (uint32_t size = 1; size <= SIZE_MAX_TESTED; size++) {
        struct shape shape = {.operation = COMM_BARRIER};
        uint64_t heard[SIZE_MAX_TESTED], before[SIZE_MAX_TESTED];
        run_case(size, SCHEDULE_DISSEMINATION, &shape);
        world.size = size;
        world.algorithm = SCHEDULE_DISSEMINATION;
        for (uint32_t i = 0; i < size; i++) {
            rank_make(i, &shape);
            heard[i] = UINT64_C(1) << i;
        }
        for (uint32_t step = 0; step < log2_above(size); step++) {
            memcpy(before, heard, sizeof heard);
            for (uint32_t i = 0; i < size; i++) {
                for (size_t k = 0; k < world.ranks[i].action_count; k++) {
                    const struct schedule_action *action = &world.ranks[i].actions[k];
                    if (action->step == step && action->kind == SCHEDULE_DO_RECEIVE) {
                        heard[i] |= before[action->peer];
                    }
                }
            }
        }
        for (uint32_t i = 0; i < size; i++) {
            assert_true(heard[i] == everybody());
        }
        world_free();
    }
}

static int stop_at_three(void *context, const struct schedule_action *action) {
    (void)action;
    return ++*(int *)context == 3 ? 42 : 0;
}

static void a_sink_can_stop(void **state) {
    (void)state;
    struct comm_call call = {.operation = COMM_ALL_REDUCE, .type = MUSTER_INT8, .count = 100};
    int seen = 0;
    assert_int_equal(schedule_generate(&call, SCHEDULE_RING, 3, 1000, stop_at_three, &seen), 42);
    assert_int_equal(seen, 3);
}

static void what_is_not_there_is_refused(void **state) {
    (void)state;
    struct comm_call call = {.operation = COMM_BARRIER};
    int seen = 0;
    assert_int_equal(schedule_generate(&call, SCHEDULE_RING, 0, 2, stop_at_three, &seen), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "barrier has no ring algorithm");
    call.operation = COMM_SEND;
    assert_int_equal(schedule_generate(&call, SCHEDULE_FLAT, 0, 2, stop_at_three, &seen), MUSTER_EINVAL);
    assert_int_equal(seen, 0);
    assert_false(schedule_is_defined(COMM_ALL_TO_ALL, true, SCHEDULE_BRUCK));
    assert_true(schedule_is_defined(COMM_ALL_TO_ALL, false, SCHEDULE_BRUCK));
    assert_string_equal(schedule_algorithm_name((enum schedule_algorithm)99), "unknown algorithm");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce),
        cmocka_unit_test(reduce),
        cmocka_unit_test(broadcast),
        cmocka_unit_test(all_gather),
        cmocka_unit_test(gather),
        cmocka_unit_test(scatter),
        cmocka_unit_test(reduce_scatter),
        cmocka_unit_test(all_to_all),
        cmocka_unit_test(a_barrier_hears_of_everybody),
        cmocka_unit_test(a_sink_can_stop),
        cmocka_unit_test(what_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
