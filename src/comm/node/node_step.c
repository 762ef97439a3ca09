/* Steps of a node's calls: records, waiting for them, reuse of their room, and noticing different calls. The rules
 * stand in node_state.h. */
#include "comm/node/node_step.h"

#include <assert.h>
#include <sched.h>

#include <muster/status.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"

#define DOUBT_NS CLOCK_NS_PER_S /* for a death to become known: a hundred times what it takes */
enum { AWAY_LOOKS = 150 }; /* for a member that runs elsewhere, when yielding would only let others wait: about 3 us */
enum { QUICK_LOOKS = 64 }; /* before the waiter is asked, which costs a few calls by pointer */
/* Looks with the core given away in between, for a member that has it: it needs one or two, if nobody else wants the
 * core, and what it last said of its own may be wrong by now. */
enum { SHARED_LOOKS = 100 };
/* Of so many waits for a member on this core, one is slept through: whoever wakes is put on an idle core, if there is
 * one, while the kernel takes its time to move one of two that never sleep. */
enum { SHARED_WAITS_AWAKE = 64 };
/* Lines asked for before their step. Between processors far from each other, a root that publishes and does not wait
 * spends two thirds of its time without that on getting lines back; 2 to 4 do, 8 are too many to be under way. */
enum { LINES_AHEAD = 3 };

static void ring_others(struct node *node) {
    for (uint32_t member = 0; member < node->size; member++) {
        if (member != node->index) {
            comm_bell_ring(node->members[member].bell);
        }
    }
}

/* ---- mismatches ---- */

/* Compares what the member has begun with what this one has: 0, or MUSTER_EMISMATCH with the first call that differs.
 */
static int compare_calls(const struct node *node, uint32_t member) {
    const struct call_line *own = node->members[node->index].line, *other = node->members[member].line;
    uint64_t number = call_line_difference(own, other);
    char here[128], there[128];
    if (number == 0) {
        return 0;
    }
    uint64_t ours = call_line_fingerprint(own, number), theirs = call_line_fingerprint(other, number);
    return status_fail(MUSTER_EMISMATCH, "call %llu: member %u makes %s, member %u makes %s%s",
                       (unsigned long long)number, (unsigned)node->index,
                       comm_fingerprint_format(ours, here, sizeof here), (unsigned)member,
                       comm_fingerprint_format(theirs, there, sizeof there), comm_fingerprints_remark(ours, theirs));
}

/* The hashes differ, so some call did: one that may be too long ago to be named. */
static int report_difference(const struct node *node, uint32_t member) {
    int status = compare_calls(node, member);
    return status != 0 ? status
                       : status_fail(MUSTER_EMISMATCH,
                                     "call %llu: member %u made other calls than member %u, over %d calls ago",
                                     (unsigned long long)node->number, (unsigned)member, (unsigned)node->index,
                                     CALL_LINE_HISTORY);
}

/* ---- waiting ---- */

/* What is waited for, and what else may end that. */
struct awaited {
    struct node *node;
    uint32_t member;
    uint64_t step;
    uint64_t seen; /* the number of begun calls of the member that have been compared */
    int status;    /* of the comparison */
};

static bool differs(struct awaited *awaited) {
    uint64_t begun = call_line_begun(awaited->node->members[awaited->member].line);
    if (begun != awaited->seen) {
        awaited->seen = begun;
        awaited->status = compare_calls(awaited->node, awaited->member);
    }
    return awaited->status != 0;
}

static bool has_published(const struct awaited *awaited) {
    const struct node_line *line = &node_area(awaited->node, awaited->member)->lines[awaited->step % NODE_LINES];
    return atomic_load_explicit(&line->stamp, memory_order_acquire) == awaited->step;
}

static bool published_or_differs(void *argument) {
    struct awaited *awaited = argument;
    return has_published(awaited) || differs(awaited);
}

/* Where this member runs. The kernel may put two on one core though there is another, and leave them there for long. */
static void note_core(struct node *node) {
    uint32_t processor = (uint32_t)sched_getcpu() + 1;
    if (processor != node->processor) {
        node->processor = processor;
        atomic_store_explicit(&node->own->processor, processor, memory_order_relaxed);
    }
}

/* Before the waiter looks for long: a member on this core comes only if it gets the core. Where ranks outnumber the
 * cores, the waiter gives it away anyway. */
static bool give_way(struct node *node, uint32_t member, bool (*ready)(void *argument), void *argument) {
    uint32_t looks = node->is_crowded ? 0 : SHARED_LOOKS;
    for (uint32_t look = 0; look < looks && node_shares_core(node, member); look++) {
        (void)sched_yield();
        if (ready(argument)) {
            return true;
        }
        note_core(node);
    }
    return false;
}

static int await(struct node *node, bool (*ready)(void *argument), struct awaited *awaited) {
    note_core(node);
    if (!node->is_crowded && node_shares_core(node, awaited->member) &&
        ++node->shared_waits % SHARED_WAITS_AWAKE == 0) {
        return comm_wait_asleep(node->waiter, ready, awaited, node->deadline_ns);
    }
    return give_way(node, awaited->member, ready, awaited) ? 0
                                                           : comm_wait(node->waiter, ready, awaited, node->deadline_ns);
}

int node_await_slowly(struct node *node, uint32_t member, uint64_t step) {
    assert(step > 0 && step <= node->step); /* one that nobody has opened would never come */
    struct awaited awaited = {.node = node, .member = member, .step = step};
    bool is_there = has_published(&awaited);
    note_core(node);
    uint32_t quick = node_shares_core(node, member) ? 0 : node->is_crowded ? AWAY_LOOKS : QUICK_LOOKS;
    for (uint32_t look = 0; look < quick && !is_there; look++) {
        comm_pause();
        is_there = has_published(&awaited);
    }
    if (!is_there) {
        int status = await(node, published_or_differs, &awaited);
        if (status != 0) {
            return status;
        }
        if (!has_published(&awaited)) {
            return awaited.status;
        }
    }
    const struct node_line *line = &node_area(node, member)->lines[step % NODE_LINES];
    return line->hash == node->hash ? 0 : report_difference(node, member);
}

int node_await_all(struct node *node, uint64_t step) {
    int status = 0;
    for (uint32_t member = 0; member < node->size && node->is_crowded && status == 0; member++) {
        if (member != node->index && node_shares_core(node, member)) {
            status = node_await(node, member, step);
        }
    }
    for (uint32_t i = 1; i < node->size && status == 0; i++) {
        status = node_await(node, (node->index + i) % node->size, step);
    }
    return status;
}

static bool has_staged(void *argument) {
    const struct awaited *awaited = argument;
    const struct node_offer *offer = node_offer_of(awaited->node, awaited->member, awaited->step);
    return atomic_load_explicit(&offer->staged, memory_order_acquire) == awaited->step;
}

void node_publish_payload(struct node *node) {
    struct node_offer *offer = node_offer_of(node, node->index, node->step);
    atomic_store_explicit(&offer->staged, node->step, memory_order_release);
    ring_others(node);
}

int node_await_payload(struct node *node, uint32_t member, uint64_t step) {
    int status = node_await(node, member, step);
    if (status != 0 || !node_offer_of(node, member, step)->is_direct) {
        return status;
    }
    struct awaited awaited = {.node = node, .member = member, .step = step};
    return await(node, has_staged, &awaited);
}

static bool never(void *argument) {
    (void)argument;
    return false;
}

int node_doubt(struct node *node, int status) {
    char detail[MUSTER_DETAIL_MAX];
    (void)str_copy(detail, sizeof detail, muster_detail());
    int64_t until_ns = clock_monotonic_ns() + DOUBT_NS;
    int said = comm_wait(node->waiter, never, NULL, until_ns < node->deadline_ns ? until_ns : node->deadline_ns);
    return said != MUSTER_ETIMEOUT ? said : status_fail(status, "%s", detail);
}

/* ---- reuse of room ---- */

/* Brought to 64 bits: it is less than 2^31 steps from our own. */
uint64_t node_consumed(const struct node *node, uint32_t member, uint32_t *out_hash) {
    uint64_t word = atomic_load_explicit(&node_area(node, member)->consumed, memory_order_acquire);
    *out_hash = (uint32_t)(word >> 32);
    return node->step + (uint64_t)(int64_t)(int32_t)((uint32_t)word - (uint32_t)node->step);
}

static bool consumed_or_differs(void *argument) {
    struct awaited *awaited = argument;
    uint32_t hash;
    return node_consumed(awaited->node, awaited->member, &hash) >= awaited->step || differs(awaited);
}

/* The member's hash can be compared where we still know ours of that step. */
static bool same_history(const struct node *node, uint64_t consumed, uint32_t hash) {
    return consumed == 0 || consumed > node->step || consumed + NODE_LINES <= node->step ||
           node->hashes[consumed % NODE_LINES] == hash;
}

static int await_consumed_of(struct node *node, uint32_t member, uint64_t step, uint64_t *out) {
    uint32_t hash;
    uint64_t consumed = node_consumed(node, member, &hash);
    uint32_t quick = node->waiter->spin_count < QUICK_LOOKS ? node->waiter->spin_count : QUICK_LOOKS;
    for (uint32_t look = 0; look < quick && consumed < step; look++) {
        comm_pause();
        consumed = node_consumed(node, member, &hash);
    }
    if (consumed < step) {
        struct awaited awaited = {.node = node, .member = member, .step = step};
        int status = await(node, consumed_or_differs, &awaited);
        consumed = node_consumed(node, member, &hash);
        if (status != 0) {
            return status;
        }
        if (consumed < step) {
            return awaited.status;
        }
    }
    *out = consumed;
    return same_history(node, consumed, hash) ? 0 : report_difference(node, member);
}

int node_await_consumed(struct node *node, uint64_t step) {
    uint64_t least = UINT64_MAX;
    for (uint32_t member = 0; member < node->size; member++) {
        if (member == node->index) {
            continue;
        }
        uint64_t consumed = 0;
        int status = await_consumed_of(node, member, step, &consumed);
        if (status != 0) {
            return status;
        }
        least = consumed < least ? consumed : least;
    }
    node->known = least > node->known ? least : node->known;
    return 0;
}

int node_open(struct node *node, size_t bytes, bool writes) {
    uint64_t step = ++node->step, slot = step % NODE_LINES;
    node->hashes[slot] = (uint32_t)(node->hash >> 32);
    node->inlined[slot] = bytes <= NODE_INLINE_BYTES;
    uint64_t oldest = step > NODE_LINES ? step - NODE_LINES : 0;
    node->tail = oldest > node->tail ? oldest : node->tail;
    if (bytes > NODE_INLINE_BYTES) {
        assert(bytes <= node->ring_bytes / 2);
        uint64_t size = (bytes + NODE_CACHE_LINE - 1) / NODE_CACHE_LINE * NODE_CACHE_LINE;
        uint64_t left = node->ring_bytes - (node->position & (node->ring_bytes - 1));
        node->position += size > left ? left : 0; /* records do not wrap around */
        node->starts[slot] = node->position;
        node->position += size;
        /* The room was last used one lap ago: by every step that began before the same place of that lap. */
        while (node->tail + 1 < step &&
               node->starts[(node->tail + 1) % NODE_LINES] + node->ring_bytes < node->position) {
            node->tail++;
        }
    } else {
        node->starts[slot] = node->position;
    }
    assert(node->tail < step); /* a record never needs its own room to be free */
    return !writes || node->tail <= node->known ? 0 : node_await_consumed(node, node->tail);
}

void node_publish(struct node *node) {
    struct node_line *line = &node->own->lines[node->step % NODE_LINES];
    line->hash = node->hash;
    atomic_store_explicit(&line->stamp, node->step, memory_order_release);
    comm_write_soon(&node->own->lines[(node->step + LINES_AHEAD) % NODE_LINES]);
    ring_others(node);
}

void node_consume(struct node *node, uint64_t step) {
    assert(step <= node->step); /* others would write over what this member is still to read */
    atomic_store_explicit(&node->own->consumed, (node->hash >> 32) << 32 | (uint32_t)step, memory_order_release);
    ring_others(node);
}
