/* all_reduce of much data among hosts with several ranks each; see hierarchy_impl.h.
 *
 * Rails: member m of every host and the members m of the other hosts. There are as many as the emptiest host has
 * members; where ranks outnumber the cores there is one, since more senders would have no cores to send with. The
 * buffer is cut into parts, a part into a share a rail. Of each part
 *
 *   1. the members of a host reduce it: member m gets the sum of share m, where it belongs in its receive buffer;
 *   2. rail m adds up share m among the hosts, in that place;
 *   3. the members of a host give each other their shares.
 *
 * Step 2 of one part goes on while steps 1 and 3 of others are done: up to PARTS_UNDER_WAY parts are between steps 1
 * and 3. So a part is still in the caches when it is sent, all members send, and the network has work all the time.
 * With one rail steps 1 and 3 are a reduce to the leader, and a broadcast.
 *
 * All members of a host take the same steps in the same order, and so do all members of a rail, so nobody waits for
 * what comes after its own step. */
#include <assert.h>

#include "comm/hierarchy/executor.h"
#include "comm/hierarchy/hierarchy_impl.h"
#include "comm/reduce/reduce.h"

enum {
    PARTS_UNDER_WAY = 2, /* more wait in the sockets, and have left the caches when their turn comes */
    PARTS_MIN = 3,
    RING_HOSTS_MAX = 8,
    SHARE_UNIT_BYTES = 64,
    /* It begins to pay: with several rails, from this fraction of a piece on; with one, from so many pieces. */
    PIECE_FRACTION_MIN = 8,
    PIECES_MIN = 2,
};

_Static_assert(PARTS_UNDER_WAY <= EXECUTOR_PIECES_MAX, "no part waits for another one's place");

/* The call, as all ranks know it. */
struct rails {
    uint32_t count;
    bool is_on_rail; /* this rank */
    struct choice_answer choice;
    size_t share;      /* elements of a whole one */
    size_t part_count; /* of parts */
};

/* Elements, from the beginning of the buffer. */
struct span {
    size_t begin, count;
};

static uint32_t count_rails(const struct hierarchy *hierarchy) {
    uint32_t least = hierarchy->config.is_crowded ? 1 : UINT32_MAX;
    for (uint32_t host = 0; host < hierarchy->host_count && least > 1; host++) {
        uint32_t members = hierarchy->layout.begin[host + 1] - hierarchy->layout.begin[host];
        least = members < least ? members : least;
    }
    return least;
}

static bool has_rule(const struct choice *choice) {
    bool has = false;
    for (size_t i = 0; choice && i < choice->rule_count && !has; i++) {
        has = choice->rules[i].operation == COMM_ALL_REDUCE && choice->rules[i].medium == CHOICE_MESSAGES;
    }
    return has;
}

void hierarchy_prepare_rails(struct hierarchy *hierarchy) {
    hierarchy->rail_count = count_rails(hierarchy);
    hierarchy->has_rule_of_all_reduce = has_rule(hierarchy->config.choice);
}

static size_t piece_bytes_of(const struct hierarchy *hierarchy, const struct choice_answer *choice) {
    return choice->piece_bytes > 0 ? (size_t)choice->piece_bytes
                                   : executor_piece_bytes(COMM_ALL_REDUCE, hierarchy->host_count);
}

static size_t round_up(size_t count, size_t unit) {
    return (count + unit - 1) / unit * unit;
}

/* While one part waits for a step, the next has work: so few steps gain nothing, and in a ring each connection has
 * steady work in one direction. A table of the user's is obeyed. */
static struct choice_answer choose(const struct hierarchy *hierarchy, size_t bytes) {
    struct choice_answer choice = choice_of_bytes(&hierarchy->leader_table, COMM_ALL_REDUCE, bytes);
    if (!hierarchy->has_rule_of_all_reduce && hierarchy->host_count <= RING_HOSTS_MAX) {
        choice.algorithm = SCHEDULE_RING;
    }
    return choice;
}

/* A share is as large as a piece between hosts usually is; smaller where the buffer would make no PARTS_MIN parts. */
static struct rails lay_rails(const struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    struct rails rails = {.count = hierarchy->rail_count};
    size_t unit = SHARE_UNIT_BYTES / call->type_bytes, of_rail = call->count / rails.count;
    rails.is_on_rail = hierarchy->member < rails.count;
    rails.choice = choose(hierarchy, of_rail * call->type_bytes);
    size_t most = piece_bytes_of(hierarchy, &rails.choice) / call->type_bytes, even = of_rail / PARTS_MIN + 1;
    rails.share = round_up(even < most ? even : most > 0 ? most : 1, unit);
    rails.part_count = (call->count + rails.share * rails.count - 1) / (rails.share * rails.count);
    return rails;
}

bool hierarchy_uses_rails(const struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    if (hierarchy->host_count == 1 || hierarchy->host_count == hierarchy->config.size) {
        return false;
    }
    size_t bytes = call->count * call->type_bytes;
    struct choice_answer choice = choose(hierarchy, bytes);
    size_t piece_bytes = piece_bytes_of(hierarchy, &choice);
    size_t least = hierarchy->rail_count > 1 ? piece_bytes / PIECE_FRACTION_MIN : piece_bytes * PIECES_MIN;
    return bytes > 0 && bytes >= least;
}

/* ---- where a part lies ---- */

static struct span part_span(const struct hierarchy *hierarchy, const struct rails *rails, size_t part) {
    size_t whole = rails->share * rails->count, begin = part * whole, left = hierarchy->call->count - begin;
    return (struct span){.begin = begin, .count = left < whole ? left : whole};
}

/* The last part has shorter shares, or none, at its end. */
static struct span share_span(const struct hierarchy *hierarchy, const struct rails *rails, size_t part,
                              uint32_t rail) {
    struct span span = part_span(hierarchy, rails, part);
    size_t before = rail < rails->count ? rails->share * rail : span.count;
    before = before < span.count ? before : span.count;
    size_t left = span.count - before;
    return (struct span){.begin = span.begin + before, .count = left < rails->share ? left : rails->share};
}

/* NULL stays NULL: a rank whose counts are 0 may have no buffers. */
static void *at(const struct hierarchy *hierarchy, const void *buffer, size_t element) {
    return buffer ? (uint8_t *)(uintptr_t)buffer + element * hierarchy->call->type_bytes : NULL;
}

/* ---- the three steps of a part ---- */

/* The counts of all members' shares. */
static const size_t *share_counts(struct hierarchy *hierarchy, const struct rails *rails, size_t part) {
    for (uint32_t member = 0; member < hierarchy->member_count; member++) {
        hierarchy->counts[member] = share_span(hierarchy, rails, part, member).count;
    }
    return hierarchy->counts;
}

static int reduce_in_host(struct hierarchy *hierarchy, const struct rails *rails, size_t part) {
    const struct comm_call *call = hierarchy->call;
    struct span span = part_span(hierarchy, rails, part);
    struct span own = share_span(hierarchy, rails, part, hierarchy->member);
    if (hierarchy->member_count == 1) {
        return 0;
    }
    struct comm_call step =
        hierarchy_part(hierarchy, rails->count == 1 ? COMM_REDUCE : COMM_REDUCE_SCATTER, 0,
                       at(hierarchy, call->send, span.begin), at(hierarchy, call->receive, own.begin), span.count);
    if (rails->count > 1) {
        step.count = 0;
        step.receive_counts = share_counts(hierarchy, rails, part);
    }
    return hierarchy_node_part(hierarchy, &step);
}

/* On its rail; it is waited for later. */
static int begin_between_hosts(struct hierarchy *hierarchy, const struct rails *rails, size_t part) {
    if (!rails->is_on_rail) {
        return 0;
    }
    const struct comm_call *call = hierarchy->call;
    struct span own = share_span(hierarchy, rails, part, hierarchy->member);
    const void *send = hierarchy->member_count == 1 ? call->send : call->receive;
    return executor_hand(hierarchy->leaders, at(hierarchy, send, own.begin), at(hierarchy, call->receive, own.begin),
                         own.count);
}

static int end_between_hosts(struct hierarchy *hierarchy, const struct rails *rails, size_t part) {
    if (!rails->is_on_rail) {
        return 0;
    }
    const struct comm_call *call = hierarchy->call;
    int code = executor_await(hierarchy->leaders, part);
    struct span own = share_span(hierarchy, rails, part, hierarchy->member);
    if (code == 0 && own.count > 0) {
        reduce_finish(call->type, call->reduction, at(hierarchy, call->receive, own.begin), own.count,
                      hierarchy->config.size);
    }
    return code;
}

static int spread_in_host(struct hierarchy *hierarchy, const struct rails *rails, size_t part) {
    const struct comm_call *call = hierarchy->call;
    struct span span = part_span(hierarchy, rails, part);
    struct span own = share_span(hierarchy, rails, part, hierarchy->member);
    if (hierarchy->member_count == 1) {
        return 0;
    }
    void *receive = at(hierarchy, call->receive, span.begin);
    if (rails->count == 1) {
        struct comm_call step = hierarchy_part(hierarchy, COMM_BROADCAST, 0, receive, receive, span.count);
        return hierarchy_node_part(hierarchy, &step);
    }
    struct comm_call step =
        hierarchy_part(hierarchy, COMM_ALL_GATHER, 0, at(hierarchy, call->receive, own.begin), receive, 0);
    step.receive_counts = share_counts(hierarchy, rails, part);
    return hierarchy_node_part(hierarchy, &step);
}

/* ---- all parts ---- */

static int finish_part(struct hierarchy *hierarchy, const struct rails *rails, size_t part) {
    int code = end_between_hosts(hierarchy, rails, part);
    return code != 0 ? code : spread_in_host(hierarchy, rails, part);
}

static int run_parts(struct hierarchy *hierarchy, const struct rails *rails) {
    int code = 0;
    for (size_t part = 0; part < rails->part_count && code == 0; part++) {
        code = part < PARTS_UNDER_WAY ? 0 : finish_part(hierarchy, rails, part - PARTS_UNDER_WAY);
        code = code != 0 ? code : reduce_in_host(hierarchy, rails, part);
        code = code != 0 ? code : begin_between_hosts(hierarchy, rails, part);
    }
    size_t open = rails->part_count < PARTS_UNDER_WAY ? rails->part_count : PARTS_UNDER_WAY;
    for (size_t part = rails->part_count - open; part < rails->part_count && code == 0; part++) {
        code = finish_part(hierarchy, rails, part);
    }
    return code;
}

/* Whom this rank meets on its rail. */
static void choose_peers(struct hierarchy *hierarchy) {
    for (uint32_t host = 0; host < hierarchy->host_count; host++) {
        uint32_t rank = hierarchy->layout.ranks[hierarchy->layout.begin[host] + hierarchy->member];
        executor_set_peer(hierarchy->leaders, host, hierarchy->config.peers[rank]);
    }
}

int hierarchy_rail_all_reduce(struct hierarchy *hierarchy) {
    const struct rails rails = lay_rails(hierarchy);
    assert(rails.part_count > 0);
    if (!rails.is_on_rail) {
        return run_parts(hierarchy, &rails);
    }
    const struct comm_call between = hierarchy_part(hierarchy, COMM_ALL_REDUCE, 0, NULL, NULL, 0);
    choose_peers(hierarchy);
    hierarchy->algorithm = rails.choice.algorithm;
    hierarchy->last = hierarchy->leaders;
    int code = executor_open(hierarchy->leaders, &between, (enum schedule_algorithm)rails.choice.algorithm,
                             hierarchy->number, hierarchy->deadline_ns);
    return code != 0 ? code : executor_close(hierarchy->leaders, run_parts(hierarchy, &rails));
}
