/* Where everything lies in the buffers of a call. */
#include "comm/node/node_plan.h"

#include <muster/status.h>

#include "base/status.h"
#include "comm/node/node_step.h"

/* ---- a member's own block ---- */

void node_keep_own(const struct plan *plan) {
    uint32_t index = plan->node->index;
    size_t to = 0, from = 0;
    switch (plan->call->operation) {
    case COMM_ALL_GATHER:
        to = plan_begin(&plan->blocks, index);
        break;
    case COMM_GATHER:
        to = plan_begin(&plan->blocks, index);
        if (!plan_is_root(plan)) {
            return;
        }
        break;
    case COMM_SCATTER:
        from = plan_begin(&plan->blocks, index);
        if (!plan_is_root(plan)) {
            return;
        }
        break;
    case COMM_ALL_TO_ALL:
        to = plan_begin(&plan->comes, index);
        from = plan_begin(&plan->blocks, index);
        break;
    default:
        return;
    }
    plan_deliver(plan, plan_receive(plan, to), plan_send(plan, from), plan_count(&plan->blocks, index) * plan->width);
}

/* ---- counts per member ---- */

/* Where each block begins; NULL for equal ones. */
static struct layout layout_of(const size_t *counts, size_t count, uint32_t size, size_t *begins) {
    begins[0] = 0;
    for (uint32_t i = 0; counts && i < size; i++) {
        begins[i + 1] = begins[i] + counts[i];
    }
    return (struct layout){.counts = counts, .begins = begins, .count = count};
}

static size_t longest_of(const struct layout *layout, uint32_t size) {
    return layout->counts ? comm_counts_longest(layout->counts, size) : layout->count;
}

/* Equal on all members: of all_to_all with counts, no more is known than the longest block. */
static size_t bytes_of(const struct plan *plan) {
    size_t elements = plan->longest;
    if (plan->is_divided && plan->blocks.counts && plan->call->operation != COMM_ALL_TO_ALL) {
        elements = plan->blocks.begins[plan->node->size];
    } else if (plan->is_divided) {
        elements *= plan->node->size;
    }
    return elements * plan->width;
}

/* all_to_all with counts: nobody knows all of them, but all must take the same steps. So in a step of its own everybody
 * tells everybody how much is coming, which is compared with what is expected, and the longest of its blocks. */
static int exchange_counts(struct plan *plan) {
    struct node *node = plan->node;
    size_t bytes = ((size_t)node->size + 1) * sizeof(size_t);
    int status = node_open(node, bytes, true);
    if (status != 0) {
        return status;
    }
    size_t *record = node_record(node, node->index, node->step);
    memcpy(record, plan->blocks.counts, bytes - sizeof *record);
    record[node->size] = plan->longest;
    node_publish(node);
    for (uint32_t member = 0; member < node->size; member++) {
        if ((status = node_await(node, member, node->step)) != 0) {
            return status;
        }
        const size_t *theirs = node_record(node, member, node->step);
        if (theirs[node->index] != plan_count(&plan->comes, member)) {
            return status_fail(MUSTER_EMISMATCH, "rank %u expects %zu %s from rank %u, which sends %zu",
                               (unsigned)node->index, plan_count(&plan->comes, member),
                               muster_type_name(plan->call->type), (unsigned)member, theirs[node->index]);
        }
        node->froms[member] = 0;
        for (uint32_t i = 0; i < node->index; i++) {
            node->froms[member] += theirs[i];
        }
        plan->longest = theirs[node->size] > plan->longest ? theirs[node->size] : plan->longest;
    }
    plan->froms = node->froms;
    node_consume(node, node->step);
    return 0;
}

int plan_make(struct node *node, const struct comm_call *call, struct plan *plan) {
    *plan = (struct plan){.node = node, .call = call, .width = call->type_bytes};
    size_t count = call->count;
    if (call->operation == COMM_BARRIER || call->operation == COMM_MONITORED_BARRIER) {
        plan->width = 1;
        count = 0;
    }
    plan->is_divided = call->operation >= COMM_ALL_GATHER && call->operation <= COMM_ALL_TO_ALL;
    bool is_sent = call->operation == COMM_SCATTER || call->operation == COMM_ALL_TO_ALL;
    plan->blocks = layout_of(is_sent ? call->send_counts : call->receive_counts, count, node->size, node->offsets);
    plan->comes = plan->blocks;
    plan->longest = longest_of(&plan->blocks, node->size);
    if (call->operation == COMM_ALL_TO_ALL && call->send_counts) {
        plan->comes = layout_of(call->receive_counts, count, node->size, node->offsets + node->size + 1);
        int status = exchange_counts(plan);
        if (status != 0) {
            return status;
        }
    }
    plan->bytes = bytes_of(plan);
    plan->choice = choice_of_bytes(&node->when_private, call->operation, plan->bytes);
    plan->is_large = plan->bytes >= COMM_LARGE_BYTES_MIN;
    return 0;
}
