/* Whose virtual ranks are where, and sums of what is small; see muster/virtual_ranks.h. Sums of gradients are in
 * ddp_virtual.c. */
#include <muster/virtual_ranks.h>

#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/status.h"
#include "comm/reduce/reduce.h"
#include "train/reduction/step_failure.h"
#include "train/reduction/virtual_tree.h"

_Static_assert(MUSTER_VIRTUAL_RANKS_MAX <= 1U << (VIRTUAL_LEVELS_MAX - 1), "the tree has too few levels");

int muster_virtual_ranks(const struct muster_group *group, size_t virtual_ranks, uint32_t *first, uint32_t *count) {
    if (!group || !first || !count) {
        return status_fail_null("muster_virtual_ranks", !group ? "group" : first ? "count" : "first");
    }
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
    struct virtual_interval own = virtual_interval_of((uint32_t)virtual_ranks, muster_group_rank(group), ranks);
    *first = own.first;
    *count = own.count;
    return MUSTER_OK;
}

/* Adds up `rows` of all virtual ranks, in place: the sum is in the first. */
static void add_up(uint8_t *rows, size_t row_bytes, uint32_t virtual_ranks, size_t count, enum muster_type type) {
    struct virtual_stack stack = {.count = 0};
    uint8_t *values[VIRTUAL_NODES_MAX] = {NULL};
    for (uint32_t v = 0; v < virtual_ranks; v++) {
        uint32_t top = stack.count;
        values[top] = rows + v * row_bytes;
        uint32_t additions = virtual_stack_push(&stack, (struct virtual_node){0, v});
        additions += v + 1 == virtual_ranks ? virtual_stack_close(&stack) : 0;
        for (; additions > 0; additions--, top--) {
            reduce_pair(type, MUSTER_OP_SUM, values[top - 1], values[top - 1], values[top], count);
        }
    }
}

/* A lack of this rank alone, for whom the others would wait. */
static int lacks_memory(struct muster_group *group, size_t virtual_ranks) {
    int status = status_fail(MUSTER_ENOMEM, "no memory to add up over %zu virtual ranks", virtual_ranks);
    step_failure_tell(group, status);
    return status;
}

static int gather(struct muster_group *group, uint32_t virtual_ranks, const void *values, uint8_t *rows, size_t count,
                  enum muster_type type) {
    uint32_t ranks = muster_group_size(group);
    size_t *counts = calloc(ranks, sizeof *counts);
    if (!counts) {
        return lacks_memory(group, virtual_ranks);
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        counts[rank] = virtual_interval_of(virtual_ranks, rank, ranks).count * count;
    }
    int status = muster_all_gather_v(group, values, rows, counts, type, NULL);
    free(counts);
    return status;
}

int muster_virtual_sum(struct muster_group *group, size_t virtual_ranks, const void *values, void *sum, size_t count,
                       enum muster_type type) {
    uint32_t first = 0, own_count = 0;
    size_t width = muster_type_bytes(type);
    if (count > 0 && (!values || !sum)) {
        return status_fail_null("muster_virtual_sum", values ? "sum" : "values");
    }
    int status = muster_virtual_ranks(group, virtual_ranks, &first, &own_count);
    if (status == MUSTER_OK &&
        (width == 0 || count > MUSTER_COLLECTIVE_BYTES_MAX / MUSTER_VIRTUAL_RANKS_MAX / sizeof(double))) {
        status = status_fail(MUSTER_EINVAL, "an unknown type, or %zu elements, which are too many", count);
    }
    if (status != MUSTER_OK || count == 0) {
        return status == MUSTER_OK ? status : status_prefix(status, "muster_virtual_sum");
    }
    uint8_t *rows = malloc(virtual_ranks * count * width);
    status =
        rows ? gather(group, (uint32_t)virtual_ranks, values, rows, count, type) : lacks_memory(group, virtual_ranks);
    if (status == MUSTER_OK) {
        add_up(rows, count * width, (uint32_t)virtual_ranks, count, type);
        memcpy(sum, rows, count * width);
    }
    free(rows);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_virtual_sum");
}
