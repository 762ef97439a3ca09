/* Muster's own engine: shared memory among the ranks of a host (comm/node), messages between hosts (comm/p2p), and a
 * hierarchy of both where a group has several hosts. */
#ifndef COMM_ENGINE_MUSTER_H
#define COMM_ENGINE_MUSTER_H

#include "comm/engine/engine.h"
#include "comm/hierarchy/hierarchy.h"
#include "comm/hierarchy/messages_muster.h"
#include "comm/node/node.h"

struct engine_muster_config {
    struct node_config node; /* the members of this host; as for node_create() */
    uint32_t host_count;     /* of the group */
    /* With several hosts; as for hierarchy_create(), but `node`, which is filled in. */
    struct hierarchy_config hierarchy;
    struct messages_muster_config messages;
};

/* Bytes of the part of the group's segment that node.segment is to be: zeroed, 64-byte aligned. */
size_t engine_muster_segment_bytes(uint32_t local_count);

/* MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int engine_muster_create(const struct engine_muster_config *config, struct engine **out);

#endif
