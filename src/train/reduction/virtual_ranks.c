/* Whose virtual ranks are where, and sums of what is small; see muster/virtual_ranks.h. Sums of gradients are in
 * ddp_virtual.c. */
#include <muster/virtual_ranks.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/status.h"
#include "comm/reduce/reduce.h"
#include "train/reduction/step_failure.h"
#include "train/reduction/virtual_tree.h"

_Static_assert(MUSTER_VIRTUAL_RANKS_MAX <= 1U << (VIRTUAL_LEVELS_MAX - 1), "the tree has too few levels");

static int check(const struct muster_group *group, size_t virtual_ranks) {
    uint32_t ranks = muster_group_size(group);
    if (virtual_ranks == 0 || virtual_ranks > MUSTER_VIRTUAL_RANKS_MAX) {
        return status_fail(MUSTER_EINVAL, "%zu virtual ranks: 1 to %zu are possible", virtual_ranks,
                           MUSTER_VIRTUAL_RANKS_MAX);
    }
    if (ranks > virtual_ranks) {
        return status_fail(MUSTER_EINVAL,
                           "%u ranks, but only %zu virtual ranks: a rank needs one at least, so start fewer ranks",
                           ranks, virtual_ranks);
    }
    return MUSTER_OK;
}

int muster_virtual_ranks(const struct muster_group *group, size_t virtual_ranks, uint32_t *first, uint32_t *count) {
    if (!group || !first || !count) {
        return status_fail_null("muster_virtual_ranks", !group ? "group" : first ? "count" : "first");
    }
    int status = check(group, virtual_ranks);
    if (status != MUSTER_OK) {
        return status;
    }
    uint32_t ranks = muster_group_size(group);
    struct virtual_interval own = virtual_interval_of((uint32_t)virtual_ranks, muster_group_rank(group), ranks);
    *first = own.first;
    *count = own.count;
    return MUSTER_OK;
}

int muster_virtual_turns(const struct muster_group *group, size_t virtual_ranks, uint32_t *first, uint32_t *stride,
                         uint32_t *count) {
    if (!group || !first || !stride || !count) {
        return status_fail_null("muster_virtual_turns", !group   ? "group"
                                                        : !first ? "first"
                                                        : stride ? "count"
                                                                 : "stride");
    }
    int status = check(group, virtual_ranks);
    if (status == MUSTER_OK) {
        *first = muster_group_rank(group);
        *stride = muster_group_size(group);
        *count = virtual_turns_of((uint32_t)virtual_ranks, *first, *stride);
    }
    return status;
}

/* ---- sums ---- */

/* Who has which virtual ranks, and so in which order their values come. */
struct dealing {
    size_t virtual_ranks;
    uint32_t ranks;
    bool in_turn;
};

static uint32_t count_of(const struct dealing *dealing, uint32_t rank) {
    return dealing->in_turn ? virtual_turns_of((uint32_t)dealing->virtual_ranks, rank, dealing->ranks)
                            : virtual_interval_of((uint32_t)dealing->virtual_ranks, rank, dealing->ranks).count;
}

/* How many values come before those of virtual rank `v`. */
static size_t place_of(const struct dealing *dealing, uint32_t v) {
    if (!dealing->in_turn) {
        return v;
    }
    size_t rank = v % dealing->ranks, longer = dealing->virtual_ranks % dealing->ranks;
    return rank * (dealing->virtual_ranks / dealing->ranks) + (rank < longer ? rank : longer) + v / dealing->ranks;
}

/* Adds up `rows` of all virtual ranks, in place. Returns where the sum is. */
static const uint8_t *add_up(const struct dealing *dealing, uint8_t *rows, size_t row_bytes, size_t count,
                             enum muster_type type) {
    uint32_t virtual_ranks = (uint32_t)dealing->virtual_ranks;
    struct virtual_stack stack = {.count = 0};
    uint8_t *values[VIRTUAL_NODES_MAX] = {NULL};
    for (uint32_t v = 0; v < virtual_ranks; v++) {
        uint32_t top = stack.count;
        values[top] = rows + place_of(dealing, v) * row_bytes;
        uint32_t additions = virtual_stack_push(&stack, (struct virtual_node){0, v});
        additions += v + 1 == virtual_ranks ? virtual_stack_close(&stack) : 0;
        for (; additions > 0; additions--, top--) {
            reduce_pair(type, MUSTER_OP_SUM, values[top - 1], values[top - 1], values[top], count);
        }
    }
    return values[0];
}

/* A lack of this rank alone, for whom the others would wait. */
static int lacks_memory(struct muster_group *group, size_t virtual_ranks) {
    int status = status_fail(MUSTER_ENOMEM, "no memory to add up over %zu virtual ranks", virtual_ranks);
    step_failure_tell(group, status);
    return status;
}

static int gather(struct muster_group *group, const struct dealing *dealing, const void *values, uint8_t *rows,
                  size_t count, enum muster_type type) {
    size_t *counts = calloc(dealing->ranks, sizeof *counts);
    if (!counts) {
        return lacks_memory(group, dealing->virtual_ranks);
    }
    for (uint32_t rank = 0; rank < dealing->ranks; rank++) {
        counts[rank] = count_of(dealing, rank) * count;
    }
    int status = muster_all_gather_v(group, values, rows, counts, type, NULL);
    free(counts);
    return status;
}

static int sum_up(struct muster_group *group, const struct dealing *dealing, const void *values, void *sum,
                  size_t count, enum muster_type type) {
    size_t width = muster_type_bytes(type);
    uint8_t *rows = malloc(dealing->virtual_ranks * count * width);
    int status = rows ? gather(group, dealing, values, rows, count, type) : lacks_memory(group, dealing->virtual_ranks);
    if (status == MUSTER_OK) {
        memcpy(sum, add_up(dealing, rows, count * width, count, type), count * width);
    }
    free(rows);
    return status;
}

static int checked_sum(struct muster_group *group, const struct dealing *given, const void *values, void *sum,
                       size_t count, enum muster_type type) {
    struct dealing dealing = *given;
    int status = check(group, dealing.virtual_ranks);
    if (status == MUSTER_OK && (muster_type_bytes(type) == 0 ||
                                count > MUSTER_COLLECTIVE_BYTES_MAX / MUSTER_VIRTUAL_RANKS_MAX / sizeof(double))) {
        status = status_fail(MUSTER_EINVAL, "an unknown type, or %zu elements, which are too many", count);
    }
    dealing.ranks = muster_group_size(group);
    return status || count == 0 ? status : sum_up(group, &dealing, values, sum, count, type);
}

int muster_virtual_sum(struct muster_group *group, size_t virtual_ranks, const void *values, void *sum, size_t count,
                       enum muster_type type) {
    const struct dealing dealing = {.virtual_ranks = virtual_ranks};
    if (!group || (count > 0 && (!values || !sum))) {
        return status_fail_null("muster_virtual_sum", !group ? "group" : values ? "sum" : "values");
    }
    int status = checked_sum(group, &dealing, values, sum, count, type);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_virtual_sum");
}

int muster_virtual_turns_sum(struct muster_group *group, size_t virtual_ranks, const void *values, void *sum,
                             size_t count, enum muster_type type) {
    const struct dealing dealing = {.virtual_ranks = virtual_ranks, .in_turn = true};
    if (!group || (count > 0 && (!values || !sum))) {
        return status_fail_null("muster_virtual_turns_sum", !group ? "group" : values ? "sum" : "values");
    }
    int status = checked_sum(group, &dealing, values, sum, count, type);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_virtual_turns_sum");
}
