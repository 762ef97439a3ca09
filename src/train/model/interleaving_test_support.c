/* See interleaving_test_support.h. */
#include "train/model/interleaving_test_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = INTERLEAVING_RANKS_MAX,
    STATES_MAX = 1 << 23,
    MOVES = 3, /* of a rank: itself, what it sends, what arrives */
    NOTHING = 0,
};
enum move { MOVE_ON, MOVE_SEND, MOVE_ARRIVE };

/* One moment. All of it follows from the upper three, but the rest is what is judged. */
struct state {
    uint8_t at[RANKS];                         /* events behind it */
    uint8_t sent[RANKS];                       /* gathers to which it has given its part */
    uint8_t arrived[RANKS];                    /* gathers that have all of its column */
    uint8_t parts[RECORD_UNITS_MAX][RANKS][2]; /* versions of both halves, per rank that owns the part */
    uint8_t cells[RANKS]
                 [RECORD_SLOTS_MAX]; /* a rank's column in its host's slots: 2 * gather + 1, + 1 if it is whole */
};

struct visit {
    struct state state;
    uint32_t from;
    uint8_t rank, move;
};

/* Of the table of visits, by the hash of the state. */
struct place {
    uint32_t hash, visit; /* + 1; 0: empty */
};

struct world {
    const struct record *ranks;
    uint32_t count;
    uint32_t call_at[RANKS][RECORD_GROUPS][RECORD_EVENTS_MAX]; /* events of CALLs by number */
    uint32_t call_counts[RANKS][RECORD_GROUPS];
    uint32_t gather_at[RANKS][RECORD_EVENTS_MAX]; /* events of the gathers' CALLs, counted apart */
    uint32_t gather_counts[RANKS];
    uint8_t held[RANKS][RECORD_EVENTS_MAX + 1][RECORD_UNITS_MAX];       /* units of the store, after so many events */
    uint8_t held_slots[RANKS][RECORD_EVENTS_MAX + 1][RECORD_SLOTS_MAX]; /* slots likewise */
    struct visit *visits;
    size_t visit_count;
    struct place *table;
    size_t table_size;
    const char *fault;
    size_t fault_at; /* the visit that has it */
};

static bool share_host(const struct world *world, uint32_t a, uint32_t b) {
    return world->ranks[a].row == world->ranks[b].row;
}

static bool share_group(const struct world *world, uint32_t a, uint32_t b, enum record_group group) {
    return group == RECORD_ALL || (group == RECORD_ROW && share_host(world, a, b)) ||
           (group == RECORD_COLUMN && world->ranks[a].column == world->ranks[b].column);
}

static bool wrong(struct world *world, const char *fault) {
    world->fault = world->fault ? world->fault : fault;
    return true;
}

/* ---- the programs, looked at once ---- */

static void count_event(struct world *world, uint32_t rank, uint32_t at) {
    const struct record_event *event = &world->ranks[rank].events[at];
    memcpy(world->held[rank][at + 1], world->held[rank][at], RECORD_UNITS_MAX);
    memcpy(world->held_slots[rank][at + 1], world->held_slots[rank][at], RECORD_SLOTS_MAX);
    if (event->kind == RECORD_CALL) {
        world->call_at[rank][event->group][world->call_counts[rank][event->group]++] = at;
        if (event->call == RECORD_GATHER) {
            world->gather_at[rank][world->gather_counts[rank]++] = at;
        }
    } else if (event->kind == RECORD_HOLD || event->kind == RECORD_RELEASE) {
        uint8_t *held = event->slot == RECORD_STORE ? &world->held[rank][at + 1][event->unit]
                                                    : &world->held_slots[rank][at + 1][event->slot];
        *held = (uint8_t)(*held + (event->kind == RECORD_HOLD ? 1 : -1));
    }
}

static const struct record_event *gather_of(const struct world *world, uint32_t rank, uint32_t gather) {
    return &world->ranks[rank].events[world->gather_at[rank][gather]];
}

/* Gathers that the rank has called. */
static uint32_t called(const struct world *world, const struct state *state, uint32_t rank) {
    uint32_t count = 0;
    while (count < world->gather_counts[rank] && world->gather_at[rank][count] < state->at[rank]) {
        count++;
    }
    return count;
}

/* ---- what ranks do; each returns whether it was possible ---- */

static bool call(struct world *world, struct state *state, uint32_t rank, const struct record_event *event) {
    if (event->call != RECORD_GATHER) {
        return true;
    }
    uint8_t *cell = &state->cells[rank][event->slot];
    for (uint32_t other = 0; other < world->count; other++) {
        if (share_host(world, rank, other) && world->held_slots[other][state->at[other]][event->slot] > 0) {
            return wrong(world, "a gather begins in a slot that a rank reads");
        }
    }
    if (*cell != NOTHING && *cell % 2 != 0) {
        return wrong(world, "a gather begins where another one is under way");
    }
    *cell = (uint8_t)(2 * called(world, state, rank) + 1);
    return true;
}

static bool comes_back(struct world *world, const struct state *state, uint32_t rank,
                       const struct record_event *event) {
    for (uint32_t other = 0; other < world->count && !event->gets_nothing; other++) {
        if (!share_group(world, rank, other, (enum record_group)event->group)) {
            continue;
        }
        uint32_t number = world->call_counts[other][event->group];
        uint32_t at = event->number < number ? world->call_at[other][event->group][event->number] : UINT32_MAX;
        if (at == UINT32_MAX || at >= state->at[other]) {
            return false;
        }
        const struct record_event *theirs = &world->ranks[other].events[at];
        if (theirs->call != event->call || theirs->unit != event->unit) {
            return wrong(world, "ranks make different calls under the same number");
        }
    }
    if (event->call != RECORD_GATHER) {
        return true;
    }
    uint32_t gather = 0;
    while (gather_of(world, rank, gather)->number != event->number) {
        gather++;
    }
    return state->sent[rank] > gather && state->arrived[rank] > gather;
}

static void look_at_store(struct world *world, const struct state *state, uint32_t rank,
                          const struct record_event *event) {
    for (uint32_t owner = 0; owner < world->count; owner++) {
        const uint8_t *halves = state->parts[event->unit][owner];
        if (share_host(world, rank, owner) && !world->ranks[owner].is_part_empty[event->unit] &&
            (halves[0] != event->version || halves[1] != event->version)) {
            (void)wrong(world, halves[0] != halves[1] ? "a rank reads a part that is being written"
                                                      : "a rank reads another version than this step's");
        }
    }
}

static bool is_column_empty(const struct world *world, uint32_t column, uint32_t unit) {
    bool is_empty = true;
    for (uint32_t owner = 0; owner < world->count; owner++) {
        is_empty = is_empty && (world->ranks[owner].column != column || world->ranks[owner].is_part_empty[unit]);
    }
    return is_empty;
}

static void look_at_slot(struct world *world, const struct state *state, uint32_t rank,
                         const struct record_event *event) {
    for (uint32_t owner = 0; owner < world->count; owner++) {
        if (!share_host(world, rank, owner) || is_column_empty(world, world->ranks[owner].column, event->unit)) {
            continue;
        }
        uint8_t cell = state->cells[owner][event->slot];
        if (cell == NOTHING || cell % 2 != 0) {
            (void)wrong(world, "a rank reads a slot whose bytes have not arrived");
            return;
        }
        const struct record_event *gather = gather_of(world, owner, cell / 2U - 1);
        if (gather->unit != event->unit) {
            (void)wrong(world, "a rank reads a slot that has another unit");
        } else if (gather->version != event->version) {
            (void)wrong(world, "a rank reads what was gathered before the optimizer wrote");
        }
    }
}

static void write_half(struct world *world, struct state *state, uint32_t rank, const struct record_event *event) {
    for (uint32_t other = 0; other < world->count; other++) {
        if (other != rank && share_host(world, rank, other) && world->held[other][state->at[other]][event->unit] > 0) {
            (void)wrong(world, "a rank writes a part that another one reads");
        }
    }
    state->parts[event->unit][rank][event->kind == RECORD_WRITE_LAST] = (uint8_t)(event->version + 1);
}

static bool go_on(struct world *world, struct state *state, uint32_t rank) {
    const struct record *record = &world->ranks[rank];
    if (state->at[rank] == record->count) {
        return false;
    }
    const struct record_event *event = &record->events[state->at[rank]];
    bool is_possible = true;
    if (event->kind == RECORD_CALL) {
        is_possible = call(world, state, rank, event);
    } else if (event->kind == RECORD_RETURN) {
        is_possible = comes_back(world, state, rank, event);
    } else if (event->kind == RECORD_HOLD && event->slot == RECORD_STORE) {
        look_at_store(world, state, rank, event);
    } else if (event->kind == RECORD_HOLD) {
        look_at_slot(world, state, rank, event);
    } else if (event->kind == RECORD_WRITE_FIRST || event->kind == RECORD_WRITE_LAST) {
        write_half(world, state, rank, event);
    }
    state->at[rank] += is_possible;
    return is_possible;
}

static bool send_part(struct world *world, struct state *state, uint32_t rank) {
    uint32_t gather = state->sent[rank];
    if (gather >= called(world, state, rank)) {
        return false;
    }
    const struct record_event *event = gather_of(world, rank, gather);
    const uint8_t *halves = state->parts[event->unit][rank];
    if (!world->ranks[rank].is_part_empty[event->unit] &&
        (halves[0] != event->version || halves[1] != event->version)) {
        (void)wrong(world, "a gather takes another version than this step's");
    }
    state->sent[rank]++;
    return true;
}

static bool arrive(struct world *world, struct state *state, uint32_t rank) {
    uint32_t gather = state->arrived[rank];
    if (gather >= called(world, state, rank)) {
        return false;
    }
    for (uint32_t other = 0; other < world->count; other++) {
        if (share_group(world, rank, other, RECORD_COLUMN) && state->sent[other] <= gather) {
            return false;
        }
    }
    uint8_t *cell = &state->cells[rank][gather_of(world, rank, gather)->slot];
    if (*cell != 2 * gather + 1) {
        return wrong(world, "a gather lands where another one has begun");
    }
    *cell = (uint8_t)(2 * gather + 2);
    state->arrived[rank]++;
    return true;
}

/* Coming to a call and leaving it change nothing that is judged, and take nothing away from others: whoever can do it
 * does it at once. So there are fewer orders to try, and no fault less. Gathers are no such calls. */
static void settle(struct world *world, struct state *state) {
    bool moved = true;
    while (moved && !world->fault) {
        moved = false;
        for (uint32_t rank = 0; rank < world->count; rank++) {
            const struct record *record = &world->ranks[rank];
            const struct record_event *event = &record->events[state->at[rank]];
            bool is_quiet =
                state->at[rank] < record->count &&
                (event->kind == RECORD_RETURN || (event->kind == RECORD_CALL && event->call != RECORD_GATHER));
            moved = (is_quiet && go_on(world, state, rank)) || moved;
        }
    }
}

static bool make_move(struct world *world, struct state *state, uint32_t rank, enum move move) {
    bool moved = move == MOVE_ON     ? go_on(world, state, rank)
                 : move == MOVE_SEND ? send_part(world, state, rank)
                                     : arrive(world, state, rank);
    if (moved) {
        settle(world, state);
    }
    return moved;
}

/* ---- the search ---- */

static uint32_t hash(const struct state *state) {
    _Static_assert(offsetof(struct state, parts) == sizeof(uint64_t) + sizeof(uint32_t), "the rest follows from these");
    uint64_t first, sum;
    uint32_t second;
    memcpy(&first, state, sizeof first);
    memcpy(&second, (const uint8_t *)state + sizeof first, sizeof second);
    sum = (first ^ UINT64_C(14695981039346656037)) * UINT64_C(0x9e3779b97f4a7c15);
    sum = (sum ^ sum >> 32 ^ second) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(sum >> 32);
}

/* Where the table has the state, or an empty place for it. States are far apart in memory: only one of the same hash is
 * looked at. */
static struct place *find(const struct world *world, const struct state *state, uint32_t hashed) {
    size_t at = hashed & (world->table_size - 1);
    const struct place *place = &world->table[at];
    while (place->visit > 0 &&
           (place->hash != hashed || memcmp(&world->visits[place->visit - 1].state, state, sizeof *state) != 0)) {
        at = (at + 1) & (world->table_size - 1);
        place = &world->table[at];
    }
    return &world->table[at];
}

static void grow(struct world *world) {
    world->table_size = world->table_size > 0 ? 2 * world->table_size : 1024;
    world->visits = realloc(world->visits, world->table_size / 2 * sizeof *world->visits);
    free(world->table);
    world->table = calloc(world->table_size, sizeof *world->table);
    assert_true(world->visits && world->table && world->table_size <= STATES_MAX);
    for (size_t i = 0; i < world->visit_count; i++) {
        uint32_t hashed = hash(&world->visits[i].state);
        *find(world, &world->visits[i].state, hashed) = (struct place){hashed, (uint32_t)i + 1};
    }
}

/* A state with a fault is the last one, though it may look like another. */
static void visit(struct world *world, const struct state *state, size_t from, uint32_t rank, enum move move) {
    if (world->visit_count == world->table_size / 2) {
        grow(world);
    }
    uint32_t hashed = hash(state);
    struct place *place = find(world, state, hashed);
    if (place->visit == 0 || world->fault) {
        world->visits[world->visit_count++] =
            (struct visit){.state = *state, .from = (uint32_t)from, .rank = (uint8_t)rank, .move = (uint8_t)move};
        *place = (struct place){hashed, (uint32_t)world->visit_count};
    }
}

static bool is_at_end(const struct world *world, const struct state *state) {
    bool is_end = true;
    for (uint32_t rank = 0; rank < world->count; rank++) {
        is_end = is_end && state->at[rank] == world->ranks[rank].count;
    }
    return is_end;
}

/* Visits what can follow, up to the first fault. */
static void expand(struct world *world, size_t from) {
    bool moved = false;
    for (uint32_t i = 0; i < world->count * MOVES && !world->fault; i++) {
        struct state next = world->visits[from].state;
        uint32_t rank = i / MOVES;
        enum move move = (enum move)(i % MOVES);
        if (make_move(world, &next, rank, move)) {
            moved = true;
            visit(world, &next, from, rank, move);
            world->fault_at = world->visit_count - 1;
        }
    }
    if (!moved && !is_at_end(world, &world->visits[from].state)) {
        (void)wrong(world, "ranks wait for each other for ever");
        world->fault_at = from;
    }
}

static size_t trace_length(const struct world *world, size_t at) {
    size_t length = 0;
    for (; at > 0; at = world->visits[at].from) {
        length++;
    }
    return length;
}

static void print_move(const struct world *world, const struct visit *before, const struct visit *after) {
    static const char *const moves[] = {[MOVE_SEND] = "sends its part in", [MOVE_ARRIVE] = "has all of"};
    if (after->move != MOVE_ON) {
        uint32_t gather =
            after->move == MOVE_SEND ? before->state.sent[after->rank] : before->state.arrived[after->rank];
        const struct record_event *event = gather_of(world, after->rank, gather);
        printf("  rank %u %s the gather of unit %u into slot %u\n", after->rank, moves[after->move], event->unit,
               event->slot);
    }
    for (uint32_t rank = 0; rank < world->count; rank++) {
        for (uint32_t at = before->state.at[rank]; at < after->state.at[rank]; at++) {
            char text[160];
            record_describe(&world->ranks[rank].events[at], text, sizeof text);
            printf("  rank %u %s\n", rank, text);
        }
    }
}

static void print_trace(const struct world *world, size_t at) {
    if (at > 0) {
        print_trace(world, world->visits[at].from);
        print_move(world, &world->visits[world->visits[at].from], &world->visits[at]);
    }
}

static void search(struct world *world) {
    struct state first = {.at = {0}};
    settle(world, &first);
    visit(world, &first, 0, 0, MOVE_ON);
    for (size_t at = 0; at < world->visit_count && !world->fault; at++) {
        expand(world, at);
    }
}

struct interleaving interleave(const struct record *ranks, uint32_t count, bool prints_trace) {
    struct world *world = calloc(1, sizeof *world);
    assert_true(world && count <= RANKS);
    world->ranks = ranks;
    world->count = count;
    for (uint32_t rank = 0; rank < count; rank++) {
        for (uint32_t at = 0; at < ranks[rank].count; at++) {
            count_event(world, rank, at);
        }
    }
    search(world);
    struct interleaving found = {.state_count = world->visit_count, .fault = world->fault};
    if (found.fault) {
        found.length = trace_length(world, world->fault_at);
    }
    if (found.fault && prints_trace) {
        print_trace(world, world->fault_at);
        printf("  %s\n", found.fault);
    }
    free(world->visits);
    free(world->table);
    free(world);
    return found;
}
