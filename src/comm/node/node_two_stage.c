/* Reductions of private buffers in two stages: each member reduces its share of a piece from everybody's records, and
 * passes the result on in a record of its own. Per member about 5 times the buffer is moved, however many they are; by
 * one stage (node_staged.c), in which everybody reads everything, P + 3 times. In exchange there are two steps to a
 * piece. */
#include "comm/node/node_two_stage.h"

#include <muster/status.h>

#include "comm/node/node_step.h"
#include "comm/reduce/reduce.h"

/* A piece, in elements: member m's share begins at m * share, if the piece reaches that far. */
struct stage {
    size_t at, count, share;
};

static size_t share_bytes_max(const struct node *node) {
    return node->ring_bytes / 2 / node->size / NODE_CACHE_LINE * NODE_CACHE_LINE;
}

static struct stage next_stage(const struct plan *plan, size_t at) {
    const struct node *node = plan->node;
    size_t unit = NODE_CACHE_LINE / plan->width, most = share_bytes_max(node) / plan->width;
    size_t left = plan->call->count - at;
    size_t share = ((left + node->size - 1) / node->size + unit - 1) / unit * unit;
    share = share < most ? share : most;
    size_t count = left < share * node->size ? left : share * node->size;
    return (struct stage){.at = at, .count = count, .share = share};
}

static size_t share_count(const struct stage *stage, uint32_t member) {
    size_t begin = stage->share * member;
    size_t left = stage->count > begin ? stage->count - begin : 0;
    return left < stage->share ? left : stage->share;
}

static size_t share_begin(const struct stage *stage, uint32_t member) {
    return stage->at + stage->share * member;
}

/* In a record: a share for each other member. */
static unsigned char *part_of(const struct plan *plan, const struct stage *stage, uint32_t writer, uint32_t reader,
                              uint64_t step) {
    unsigned char *record = node_record(plan->node, writer, step);
    return record + (reader - (reader > writer)) * stage->share * plan->width;
}

static int give_inputs(const struct plan *plan, const struct stage *stage) {
    struct node *node = plan->node;
    int status = node_open(node, stage->share * plan->width * (node->size - 1), true);
    if (status != 0) {
        return status;
    }
    for (uint32_t member = 0; member < node->size; member++) {
        if (member != node->index) {
            plan_copy(part_of(plan, stage, node->index, member, node->step),
                      plan_send(plan, share_begin(stage, member)), share_count(stage, member) * plan->width);
        }
    }
    node_publish(node);
    return 0;
}

/* The result goes to where it is passed on from and, if this member needs it, to its buffer at the same time. */
static int reduce_share(const struct plan *plan, const struct stage *stage) {
    struct node *node = plan->node;
    const struct comm_call *call = plan->call;
    uint64_t inputs = node->step;
    int status = node_await_all(node, inputs);
    status = status != 0 ? status : node_open(node, stage->share * plan->width, true);
    if (status != 0) {
        return status;
    }
    size_t begin = share_begin(stage, node->index), count = share_count(stage, node->index);
    for (uint32_t member = 0; member < node->size; member++) {
        node->records[member] = part_of(plan, stage, member, node->index, inputs);
    }
    node->records[node->index] = plan_send(plan, begin);
    void *outs[2] = {node_record(node, node->index, node->step), NULL};
    size_t out_count = 1;
    if (call->operation == COMM_ALL_REDUCE) {
        outs[out_count++] = plan_receive(plan, begin);
    } else if (plan_is_root(plan)) {
        outs[0] = plan_receive(plan, begin);
    }
    if (count > 0) {
        reduce_many(call->type, call->reduction, outs, out_count, node->records, node->size, count);
    }
    node_publish(node);
    return 0;
}

static int take_results(const struct plan *plan, const struct stage *stage) {
    struct node *node = plan->node;
    if (plan->call->operation == COMM_REDUCE && !plan_is_root(plan)) {
        return 0;
    }
    for (uint32_t i = 1; i < node->size; i++) {
        uint32_t member = (node->index + i) % node->size;
        int status = node_await(node, member, node->step);
        if (status != 0) {
            return status;
        }
        plan_deliver(plan, plan_receive(plan, share_begin(stage, member)), node_record(node, member, node->step),
                     share_count(stage, member) * plan->width);
    }
    return 0;
}

int node_two_stage_run(const struct plan *plan, size_t at) {
    struct node *node = plan->node;
    while (at < plan->call->count) {
        struct stage stage = next_stage(plan, at);
        int status = give_inputs(plan, &stage);
        status = status != 0 ? status : reduce_share(plan, &stage);
        status = status != 0 ? status : take_results(plan, &stage);
        if (status != 0) {
            return status;
        }
        node_consume(node, node->step);
        at += stage.count;
    }
    return 0;
}
