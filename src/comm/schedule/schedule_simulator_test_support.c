/* A simulator of schedules; see schedule_simulator_test_support.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "comm/schedule/schedule_simulator_test_support.h"

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

struct node {
    symbol left, right;
    uint64_t ranks; /* whose inputs are in it */
    uint32_t position;
};

static struct node nodes[NODES_MAX];
static uint32_t slots[SLOTS]; /* node number + 1, 0: free */
static uint32_t node_count;

symbol symbol_input(uint32_t rank, size_t position) {
    assert_true(position < POSITION_LIMIT);
    return rank * POSITION_LIMIT + (uint32_t)position;
}

uint64_t symbol_ranks(symbol s) {
    return s & NODE_FLAG ? nodes[s & ~NODE_FLAG].ranks : UINT64_C(1) << (s / POSITION_LIMIT);
}

uint32_t symbol_position(symbol s) {
    return s & NODE_FLAG ? nodes[s & ~NODE_FLAG].position : s % POSITION_LIMIT;
}

bool symbol_is_ordered(symbol s) {
    if (!(s & NODE_FLAG)) {
        return true;
    }
    const struct node *node = &nodes[s & ~NODE_FLAG];
    uint64_t left = symbol_ranks(node->left), right = symbol_ranks(node->right);
    bool is_apart = left < (right & -right); /* all of the left are below the lowest of the right */
    return is_apart && symbol_is_ordered(node->left) && symbol_is_ordered(node->right);
}

static symbol reduce_symbols(symbol left, symbol right) {
    if (left == SYMBOL_NOTHING || right == SYMBOL_NOTHING || (symbol_ranks(left) & symbol_ranks(right)) != 0 ||
        symbol_position(left) != symbol_position(right)) {
        fail_msg("%s: reduces what is not there, the same twice, or different positions", world.doing);
    }
    uint64_t hash = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t slot = (uint32_t)(hash >> 45);; slot = (slot + 1) % SLOTS) {
        if (slots[slot] == 0) {
            assert_true(node_count < NODES_MAX);
            nodes[node_count] =
                (struct node){left, right, symbol_ranks(left) | symbol_ranks(right), symbol_position(left)};
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

struct world world;

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
        fail_msg("%s: place outside of buffer %d", world.doing, (int)place.buffer);
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
            fail_msg("%s: a message after a local action", world.doing);
        }
        is_local = !is_message(action);
        if (overlaps(written, own) && written.begin != own.begin) {
            fail_msg("%s: an action overlaps itself", world.doing);
        }
        for (size_t k = first; !is_local && k < end && is_message(&rank->actions[k]); k++) {
            if (k != i && (overlaps(written, read_by(rank, &rank->actions[k])) ||
                           overlaps(written, written_by(rank, &rank->actions[k])))) {
                fail_msg("%s: a race in step %u", world.doing, action->step);
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
        fail_msg("%s: %u sends %zu to %u in step %u, which expects %zu in step %u", world.doing, number, send->count,
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

void world_run(void) {
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
        fail_msg("%s: locked up", world.doing);
    }
}

/* ---- life ---- */

void world_begin(uint32_t size, enum schedule_algorithm algorithm, const char *doing) {
    memset(&world, 0, sizeof world); /* whatever a case that failed has left */
    symbols_reset();
    world.size = size;
    world.algorithm = algorithm;
    world.doing = doing;
}

void world_schedule(struct rank *rank, uint32_t number) {
    assert_int_equal(schedule_generate(&rank->call, world.algorithm, number, world.size, keep_action, rank), 0);
    rank->scratch_count = 0;
    for (size_t i = 0; i < rank->action_count; i++) {
        size_t count = schedule_action_scratch(&rank->actions[i]);
        rank->scratch_count = count > rank->scratch_count ? count : rank->scratch_count;
    }
    rank->scratch = malloc((rank->scratch_count + 1) * sizeof *rank->scratch);
    assert_non_null(rank->scratch);
    for (size_t i = 0; i < rank->scratch_count; i++) {
        rank->scratch[i] = SYMBOL_NOTHING;
    }
    rank->finished = calloc(rank->action_count + 1, sizeof *rank->finished);
    assert_non_null(rank->finished);
    check_actions(rank);
}

void world_free(void) {
    for (uint32_t i = 0; i < world.size; i++) {
        free(world.ranks[i].memory);
        free(world.ranks[i].scratch);
        free(world.ranks[i].actions);
        free(world.ranks[i].finished);
    }
    memset(&world, 0, sizeof world);
}
