/* What the operations of groups that span hosts are made of; see hierarchy_impl.h. */
#include "comm/hierarchy/hierarchy_impl.h"

struct comm_call hierarchy_part(const struct hierarchy *hierarchy, enum comm_operation operation, uint32_t root,
                                const void *send, void *receive, size_t count) {
    enum muster_reduction reduction = hierarchy->call->reduction;
    return (struct comm_call){.operation = operation,
                              .type = hierarchy->call->type,
                              .reduction = reduction == MUSTER_OP_AVERAGE ? MUSTER_OP_SUM : reduction,
                              .root = root,
                              .count = count,
                              .send = send,
                              .receive = receive,
                              .type_bytes = hierarchy->call->type_bytes,
                              .fingerprint = hierarchy->call->fingerprint};
}

int hierarchy_node_part(struct hierarchy *hierarchy, const struct comm_call *part) {
    return hierarchy->member_count == 1
               ? 0
               : node_run(hierarchy->config.node, part, hierarchy->number, hierarchy->deadline_ns);
}
