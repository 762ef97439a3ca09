/* Binomial trees. Ranks are counted from the root ("relative"); rank q > 0 hangs below q with its lowest bit cleared,
 * and the ranks from q up to schedule_binomial_end(q) below q. P is the size, n the bytes of the whole buffer in reduce
 * and broadcast, of a block in gather and scatter. All take ceil(log2 P) steps; step numbers are those of the bits, so
 * that both ends of a message agree. Source: the textbook's trees, e.g. Chan, Heimlich, Purkayastha and van de Geijn,
 * "Collective communication: theory, practice, and experience", 2007, section 4. Pure. */
#include <assert.h>

#include "comm/schedule/schedule_impl.h"

static uint32_t relative_of(const struct schedule *schedule) {
    return schedule_before(schedule, schedule->rank, schedule->call->root);
}

static uint32_t rank_of(const struct schedule *schedule, uint32_t relative) {
    return schedule_after(schedule, relative, schedule->call->root);
}

/* The smallest power of 2 that is >= size. */
static uint64_t power_above(uint32_t size) {
    uint64_t power = 1;
    while (power < size) {
        power *= 2;
    }
    return power;
}

/* The bit that hangs `relative` below another; the root has one above all. */
static uint64_t link_bit(const struct schedule *schedule, uint32_t relative) {
    return relative == 0 ? power_above(schedule->size) : relative & (~relative + 1);
}

uint32_t schedule_binomial_end(const struct schedule *schedule, uint32_t relative) {
    uint64_t end = relative + link_bit(schedule, relative);
    return end < schedule->size ? (uint32_t)end : schedule->size;
}

/* n log2 P bytes from the root. The largest subtree is served first. */
void schedule_binomial_broadcast(struct schedule *schedule) {
    uint32_t relative = relative_of(schedule);
    uint64_t own = link_bit(schedule, relative);
    struct schedule_place buffer = schedule_at(SCHEDULE_RECEIVE, 0);
    for (uint64_t bit = power_above(schedule->size) / 2; bit > 0; bit /= 2, schedule->step++) {
        if (bit == own) {
            schedule_receive(schedule, rank_of(schedule, relative - (uint32_t)bit), buffer, schedule->call->count);
        } else if (bit < own && relative + bit < schedule->size) {
            schedule_send(schedule, rank_of(schedule, relative + (uint32_t)bit), buffer, schedule->call->count);
        }
    }
}

/* n log2 P bytes to the root; scratch n on ranks in the middle. Order: each rank's operand, then what comes from below
 * it, nearest first: relative ranks stay in order. */
void schedule_binomial_reduce(struct schedule *schedule) {
    uint32_t relative = relative_of(schedule);
    uint64_t own = link_bit(schedule, relative);
    size_t count = schedule->call->count;
    struct schedule_place sum = schedule_at(relative == 0 ? SCHEDULE_RECEIVE : SCHEDULE_SCRATCH, 0);
    struct schedule_place so_far = schedule_at(SCHEDULE_SEND, 0);
    for (uint64_t bit = 1; bit <= own && bit < schedule->size; bit *= 2, schedule->step++) {
        if (bit == own) {
            schedule_send(schedule, rank_of(schedule, relative - (uint32_t)bit), so_far, count);
        } else if (relative + bit < schedule->size) {
            schedule_receive_reduce(schedule, rank_of(schedule, relative + (uint32_t)bit), sum, so_far, count, false);
            so_far = sum;
        }
    }
}

/* ---- gather and scatter: a rank in the middle holds the blocks of all ranks below it ---- */

static size_t elements_before(const struct schedule *schedule, uint32_t relative) {
    const struct blocks *blocks = &schedule->blocks;
    uint32_t root = schedule->call->root;
    size_t from_root = blocks_begin(blocks, root);
    uint64_t end = (uint64_t)root + relative;
    if (end <= schedule->size) {
        return blocks_begin(blocks, (uint32_t)end) - from_root;
    }
    return blocks->total - from_root + blocks_begin(blocks, (uint32_t)(end - schedule->size));
}

struct tree {
    struct schedule *schedule;
    bool is_gather;
    uint32_t relative;
    enum schedule_buffer own_buffer; /* of the block at offset 0 on ranks without others below them */
};

/* Where the blocks from relative rank `from` lie here: the root has them in the order of ranks, others in scratch, in
 * relative order from their own. */
static struct schedule_place place_of(const struct tree *tree, uint32_t from) {
    const struct schedule *schedule = tree->schedule;
    if (tree->relative == 0) {
        return schedule_at(tree->is_gather ? SCHEDULE_RECEIVE : SCHEDULE_SEND,
                           blocks_begin(&schedule->blocks, rank_of(schedule, from)));
    }
    if (schedule_binomial_end(schedule, tree->relative) == tree->relative + 1) {
        return schedule_at(tree->own_buffer, 0);
    }
    return schedule_at(SCHEDULE_SCRATCH, elements_before(schedule, from) - elements_before(schedule, tree->relative));
}

/* One message with the blocks of [from, end), two where they are not neighbours in the order of ranks: the root could
 * not take or give them as one. */
static void pass(const struct tree *tree, bool is_send, uint32_t peer, uint32_t from, uint32_t end) {
    struct schedule *schedule = tree->schedule;
    uint32_t corner = schedule->size - schedule->call->root; /* the relative rank of rank 0 */
    while (from < end) {
        uint32_t part = from < corner && corner < end ? corner : end;
        size_t count = elements_before(schedule, part) - elements_before(schedule, from);
        if (is_send) {
            schedule_send(schedule, rank_of(schedule, peer), place_of(tree, from), count);
        } else {
            schedule_receive(schedule, rank_of(schedule, peer), place_of(tree, from), count);
        }
        from = part;
    }
}

static bool is_middle(const struct tree *tree) {
    return tree->relative == 0 || schedule_binomial_end(tree->schedule, tree->relative) > tree->relative + 1;
}

/* (P-1)n bytes to the root; scratch up to nP/2 in the middle. */
void schedule_binomial_gather(struct schedule *schedule) {
    struct tree tree = {schedule, true, relative_of(schedule), SCHEDULE_SEND};
    uint32_t relative = tree.relative;
    uint64_t own = link_bit(schedule, relative);
    uint32_t end = schedule_binomial_end(schedule, relative);
    for (uint64_t bit = 1; bit <= own && bit < schedule->size; bit *= 2, schedule->step++) {
        if (bit == own) {
            pass(&tree, true, relative - (uint32_t)bit, relative, end);
        } else if (relative + bit < end) {
            uint32_t child = relative + (uint32_t)bit;
            pass(&tree, false, child, child, schedule_binomial_end(schedule, child));
        }
        if (bit == 1 && is_middle(&tree)) {
            schedule_keep(schedule, place_of(&tree, relative), schedule_at(SCHEDULE_SEND, 0),
                          blocks_at(&schedule->blocks, schedule->rank).count);
        }
    }
}

/* (P-1)n bytes from the root; scratch up to nP/2 in the middle. */
void schedule_binomial_scatter(struct schedule *schedule) {
    struct tree tree = {schedule, false, relative_of(schedule), SCHEDULE_RECEIVE};
    uint32_t relative = tree.relative, end = schedule_binomial_end(schedule, relative);
    uint64_t own = link_bit(schedule, relative);
    for (uint64_t bit = power_above(schedule->size) / 2; bit > 0; bit /= 2, schedule->step++) {
        if (bit == own) {
            pass(&tree, false, relative - (uint32_t)bit, relative, end);
        } else if (bit < own && relative + bit < end) {
            uint32_t child = relative + (uint32_t)bit;
            pass(&tree, true, child, child, schedule_binomial_end(schedule, child));
        }
    }
    if (is_middle(&tree)) {
        schedule_keep(schedule, schedule_at(SCHEDULE_RECEIVE, 0), place_of(&tree, relative),
                      blocks_at(&schedule->blocks, schedule->rank).count);
    }
}

void schedule_binomial_spread(struct schedule *schedule, const struct blocks *blocks) {
    uint32_t relative = relative_of(schedule);
    uint64_t own = link_bit(schedule, relative);
    for (uint64_t bit = power_above(schedule->size) / 2; bit > 0; bit /= 2, schedule->step++) {
        bool receives = bit == own, sends = bit < own && relative + bit < schedule->size;
        uint32_t first = receives ? relative : relative + (uint32_t)(sends ? bit : 0);
        size_t begin = blocks_begin(blocks, first);
        size_t count = blocks_begin(blocks, schedule_binomial_end(schedule, first)) - begin;
        if (receives) {
            schedule_receive(schedule, rank_of(schedule, relative - (uint32_t)bit),
                             schedule_at(SCHEDULE_RECEIVE, begin), count);
        } else if (sends) {
            schedule_send(schedule, rank_of(schedule, first), schedule_at(SCHEDULE_RECEIVE, begin), count);
        }
    }
}
