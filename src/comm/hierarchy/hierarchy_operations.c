/* The operations of groups that span hosts; see hierarchy_impl.h.
 *
 * Each is a sequence of parts: within the node, between the leaders, within the node. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/hierarchy/executor.h"
#include "comm/hierarchy/hierarchy_impl.h"
#include "comm/reduce/reduce.h"

/* ---- small things ---- */

static bool is_leader(const struct hierarchy *hierarchy) {
    return hierarchy->member == hierarchy->lead;
}

/* Scratch of at least `bytes`; NULL with a detail. Its contents are not kept when it grows. */
static uint8_t *scratch(struct hierarchy *hierarchy, int which, size_t bytes) {
    if (bytes > hierarchy->scratch_room[which] || !hierarchy->scratch[which]) {
        free(hierarchy->scratch[which]);
        hierarchy->scratch_room[which] = 0;
        void *memory = NULL;
        if (posix_memalign(&memory, 64, bytes > 0 ? bytes : 1) != 0) {
            memory = NULL;
            (void)status_fail(MUSTER_ENOMEM, "no memory for %zu bytes between the parts of a collective", bytes);
        } else {
            hierarchy->scratch_room[which] = bytes;
        }
        hierarchy->scratch[which] = memory;
    }
    return hierarchy->scratch[which];
}

static size_t count_of(const struct comm_call *call, uint32_t rank) {
    const size_t *counts = comm_call_counts(call);
    return counts ? counts[rank] : call->count;
}

/* Elements of the blocks in packed places [0, place), which is where that place begins. */
static size_t packed_begin(const struct hierarchy *hierarchy, uint32_t place) {
    size_t sum = 0;
    if (!comm_call_counts(hierarchy->call)) {
        return place * hierarchy->call->count;
    }
    for (uint32_t i = 0; i < place; i++) {
        sum += count_of(hierarchy->call, hierarchy->layout.ranks[i]);
    }
    return sum;
}

static size_t host_begin(const struct hierarchy *hierarchy, uint32_t host) {
    return packed_begin(hierarchy, hierarchy->layout.begin[host]);
}

static size_t host_elements(const struct hierarchy *hierarchy, uint32_t host) {
    return host_begin(hierarchy, host + 1) - host_begin(hierarchy, host);
}

/* Copies blocks between the order of ranks and packed order. */
static void permute(const struct hierarchy *hierarchy, uint8_t *to, const uint8_t *from, bool to_packed) {
    size_t packed = 0;
    const struct comm_call *call = hierarchy->call;
    size_t *begins = hierarchy->counts; /* of blocks in rank order */
    size_t sum = 0;
    for (uint32_t rank = 0; rank < hierarchy->config.size; rank++) {
        begins[rank] = sum;
        sum += count_of(call, rank);
    }
    for (uint32_t place = 0; place < hierarchy->config.size; place++) {
        uint32_t rank = hierarchy->layout.ranks[place];
        size_t bytes = count_of(call, rank) * hierarchy->call->type_bytes;
        size_t ordered = begins[rank] * hierarchy->call->type_bytes;
        if (bytes > 0) { /* a rank that gives nothing may have no buffer */
            memcpy(to + (to_packed ? packed : ordered), from + (to_packed ? ordered : packed), bytes);
        }
        packed += bytes;
    }
}

/* ---- parts ---- */

static int leaders_part(struct hierarchy *hierarchy, const struct comm_call *part) {
    if (!is_leader(hierarchy) || hierarchy->host_count == 1) {
        return 0;
    }
    struct choice_answer answer = choice_of(&hierarchy->leader_table, part, hierarchy->host_count);
    hierarchy->algorithm = answer.algorithm;
    hierarchy->last = hierarchy->leaders;
    return executor_run(hierarchy->leaders, part, (enum schedule_algorithm)answer.algorithm, answer.piece_bytes,
                        hierarchy->number, hierarchy->deadline_ns);
}

static void finish(const struct hierarchy *hierarchy, void *data, size_t count) {
    reduce_finish(hierarchy->call->type, hierarchy->call->reduction, data, count, hierarchy->config.size);
}

static int node_simple(struct hierarchy *hierarchy, enum comm_operation operation, const void *send, void *receive,
                       size_t count) {
    struct comm_call part = hierarchy_part(hierarchy, operation, hierarchy->lead, send, receive, count);
    return hierarchy_node_part(hierarchy, &part);
}

/* Gather to, or scatter from, this host's leader: with a count per member if there are counts per rank. */
static int node_blocks(struct hierarchy *hierarchy, enum comm_operation operation, const void *send, void *receive) {
    struct comm_call part =
        hierarchy_part(hierarchy, operation, hierarchy->lead, send, receive, hierarchy->call->count);
    if (comm_call_counts(hierarchy->call)) {
        const uint32_t *ranks = hierarchy->layout.ranks + hierarchy->layout.begin[hierarchy->host];
        for (uint32_t member = 0; member < hierarchy->member_count; member++) {
            hierarchy->counts[member] = count_of(hierarchy->call, ranks[member]);
        }
        part.count = 0;
        *(operation == COMM_SCATTER ? &part.send_counts : &part.receive_counts) = hierarchy->counts;
    }
    return hierarchy_node_part(hierarchy, &part);
}

/* Among the leaders, a block per host. */
static int leaders_blocks(struct hierarchy *hierarchy, enum comm_operation operation, uint32_t root_host,
                          const void *send, void *receive) {
    struct comm_call part = hierarchy_part(hierarchy, operation, root_host, send, receive, 0);
    if (hierarchy->is_uniform && !comm_call_counts(hierarchy->call)) {
        part.count = hierarchy->call->count * hierarchy->member_count;
    } else {
        size_t *counts = hierarchy->counts + hierarchy->config.size;
        for (uint32_t host = 0; host < hierarchy->host_count; host++) {
            counts[host] = host_elements(hierarchy, host);
        }
        *(operation == COMM_SCATTER ? &part.send_counts : &part.receive_counts) = counts;
    }
    return leaders_part(hierarchy, &part);
}

/* This host's blocks come to `own`, at its leader; a rank that is alone there leaves its block where it is. */
static int gather_host(struct hierarchy *hierarchy, uint8_t *own, const void **out_send) {
    bool is_alone = hierarchy->member_count == 1;
    *out_send = is_alone ? hierarchy->call->send : own;
    return is_alone ? 0 : node_blocks(hierarchy, COMM_GATHER, hierarchy->call->send, own);
}

/* ---- operations ---- */

static int run_barrier(struct hierarchy *hierarchy) {
    int code = node_simple(hierarchy, COMM_BARRIER, NULL, NULL, 0);
    struct comm_call part = hierarchy_part(hierarchy, COMM_BARRIER, 0, NULL, NULL, 0);
    code = code != 0 ? code : leaders_part(hierarchy, &part);
    return code != 0 ? code : node_simple(hierarchy, COMM_BARRIER, NULL, NULL, 0);
}

static int run_all_reduce(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    if (hierarchy_uses_rails(hierarchy)) {
        return hierarchy_rail_all_reduce(hierarchy);
    }
    int code = node_simple(hierarchy, COMM_REDUCE, call->send, call->receive, call->count);
    const void *send = hierarchy->member_count == 1 ? call->send : call->receive;
    struct comm_call part = hierarchy_part(hierarchy, COMM_ALL_REDUCE, 0, send, call->receive, call->count);
    code = code != 0 ? code : leaders_part(hierarchy, &part);
    if (code == 0 && is_leader(hierarchy)) {
        finish(hierarchy, call->receive, call->count);
    }
    return code != 0 ? code : node_simple(hierarchy, COMM_BROADCAST, call->receive, call->receive, call->count);
}

static int run_reduce(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    bool is_root = call->root == hierarchy->config.rank;
    void *sum = NULL; /* of this host */
    if (is_root) {
        sum = call->receive;
    } else if (is_leader(hierarchy) && hierarchy->member_count > 1) {
        sum = scratch(hierarchy, 0, call->count * hierarchy->call->type_bytes);
        if (!sum) {
            return MUSTER_ENOMEM;
        }
    }
    int code = node_simple(hierarchy, COMM_REDUCE, call->send, sum, call->count);
    struct comm_call part =
        hierarchy_part(hierarchy, COMM_REDUCE, hierarchy->config.hosts[call->root],
                       hierarchy->member_count == 1 ? call->send : sum, is_root ? call->receive : NULL, call->count);
    code = code != 0 ? code : leaders_part(hierarchy, &part);
    if (code == 0 && is_root) {
        finish(hierarchy, call->receive, call->count);
    }
    return code;
}

static int run_broadcast(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    struct comm_call part = hierarchy_part(hierarchy, COMM_BROADCAST, hierarchy->config.hosts[call->root],
                                           call->receive, call->receive, call->count);
    int code = leaders_part(hierarchy, &part);
    return code != 0 ? code : node_simple(hierarchy, COMM_BROADCAST, call->receive, call->receive, call->count);
}

static int run_all_gather(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    size_t total = packed_begin(hierarchy, hierarchy->config.size);
    uint8_t *packed = call->receive;
    if (!hierarchy->layout.is_identity && is_leader(hierarchy)) {
        packed = scratch(hierarchy, 0, total * hierarchy->call->type_bytes);
        if (!packed) {
            return MUSTER_ENOMEM;
        }
    }
    uint8_t *own = packed ? packed + host_begin(hierarchy, hierarchy->host) * hierarchy->call->type_bytes : NULL;
    const void *send = NULL;
    int code = gather_host(hierarchy, own, &send);
    code = code != 0 ? code : leaders_blocks(hierarchy, COMM_ALL_GATHER, 0, send, packed);
    if (code == 0 && is_leader(hierarchy) && packed != call->receive && total > 0) {
        permute(hierarchy, call->receive, packed, false);
    }
    return code != 0 ? code : node_simple(hierarchy, COMM_BROADCAST, call->receive, call->receive, total);
}

static int run_gather(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    bool is_root = call->root == hierarchy->config.rank;
    uint8_t *packed = NULL, *own = NULL;
    if (is_root) {
        packed = call->receive;
        if (!hierarchy->layout.is_identity) {
            packed = scratch(hierarchy, 0, packed_begin(hierarchy, hierarchy->config.size) * call->type_bytes);
            if (!packed) {
                return MUSTER_ENOMEM;
            }
        }
        own = packed ? packed + host_begin(hierarchy, hierarchy->host) * call->type_bytes : NULL;
    } else if (is_leader(hierarchy) && hierarchy->member_count > 1) {
        own = scratch(hierarchy, 0, host_elements(hierarchy, hierarchy->host) * call->type_bytes);
        if (!own) {
            return MUSTER_ENOMEM;
        }
    }
    const void *send = NULL;
    int code = gather_host(hierarchy, own, &send);
    code = code != 0 ? code : leaders_blocks(hierarchy, COMM_GATHER, hierarchy->config.hosts[call->root], send, packed);
    if (code == 0 && is_root && packed != call->receive) {
        permute(hierarchy, call->receive, packed, false);
    }
    return code;
}

static int run_scatter(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    bool is_root = call->root == hierarchy->config.rank;
    const uint8_t *packed = NULL;
    uint8_t *own = NULL; /* this host's blocks */
    if (is_root) {
        packed = call->send;
        if (!hierarchy->layout.is_identity) {
            uint8_t *memory =
                scratch(hierarchy, 0, packed_begin(hierarchy, hierarchy->config.size) * hierarchy->call->type_bytes);
            if (!memory) {
                return MUSTER_ENOMEM;
            }
            permute(hierarchy, memory, call->send, true);
            packed = memory;
        }
        own = packed
                  ? (uint8_t *)(uintptr_t)packed + host_begin(hierarchy, hierarchy->host) * hierarchy->call->type_bytes
                  : NULL;
    } else if (is_leader(hierarchy) && hierarchy->member_count > 1) {
        own = scratch(hierarchy, 0, host_elements(hierarchy, hierarchy->host) * hierarchy->call->type_bytes);
        if (!own) {
            return MUSTER_ENOMEM;
        }
    }
    void *to = hierarchy->member_count == 1 ? call->receive : own;
    int code = leaders_blocks(hierarchy, COMM_SCATTER, hierarchy->config.hosts[call->root], packed, to);
    return code != 0 || hierarchy->member_count == 1 ? code : node_blocks(hierarchy, COMM_SCATTER, own, call->receive);
}

static int run_reduce_scatter(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    size_t total = packed_begin(hierarchy, hierarchy->config.size), bytes = total * hierarchy->call->type_bytes;
    const uint8_t *sum = call->send; /* of this host: all blocks */
    uint8_t *own = NULL, *memory = NULL;
    if (is_leader(hierarchy) && (hierarchy->member_count > 1 || !hierarchy->layout.is_identity)) {
        memory = scratch(hierarchy, 0, bytes);
        if (!memory) {
            return MUSTER_ENOMEM;
        }
    }
    if (hierarchy->member_count > 1) {
        int code = node_simple(hierarchy, COMM_REDUCE, call->send, memory, total);
        if (code != 0) {
            return code;
        }
        sum = memory;
    }
    if (is_leader(hierarchy) && !hierarchy->layout.is_identity) {
        uint8_t *packed = sum == memory ? scratch(hierarchy, 1, bytes) : memory;
        if (!packed) {
            return MUSTER_ENOMEM;
        }
        if (bytes > 0) {
            permute(hierarchy, packed, sum, true);
        }
        sum = packed;
    }
    own = hierarchy->member_count == 1 ? call->receive
          : is_leader(hierarchy)
              ? (uint8_t *)(uintptr_t)sum + host_begin(hierarchy, hierarchy->host) * hierarchy->call->type_bytes
              : NULL;
    int code = leaders_blocks(hierarchy, COMM_REDUCE_SCATTER, 0, sum, own);
    if (code == 0 && is_leader(hierarchy)) {
        finish(hierarchy, own, host_elements(hierarchy, hierarchy->host));
    }
    if (code != 0 || hierarchy->member_count == 1) {
        return code;
    }
    /* The counts of a scatter are its sender's. */
    struct comm_call scatter = *call;
    scatter.operation = COMM_SCATTER;
    scatter.send_counts = call->receive_counts;
    hierarchy->call = &scatter;
    code = node_blocks(hierarchy, COMM_SCATTER, own, call->receive);
    hierarchy->call = call;
    return code;
}

/* From rank to rank, whatever host they are on. */
static int run_among_all(struct hierarchy *hierarchy) {
    const struct hierarchy_config *config = &hierarchy->config;
    if (!hierarchy->all) {
        int code = hierarchy_make_executor(hierarchy, config->rank, config->size, config->peers, &hierarchy->all);
        if (code != 0) {
            return code;
        }
    }
    struct choice_answer answer = choice_of(&hierarchy->all_table, hierarchy->call, config->size);
    hierarchy->algorithm = answer.algorithm;
    hierarchy->last = hierarchy->all;
    return executor_run(hierarchy->all, hierarchy->call, (enum schedule_algorithm)answer.algorithm, answer.piece_bytes,
                        hierarchy->number, hierarchy->deadline_ns);
}

int hierarchy_make_executor(const struct hierarchy *hierarchy, uint32_t rank, uint32_t size, const uint32_t *peers,
                            struct executor **out) {
    const struct executor_config config = {.p2p = hierarchy->config.p2p,
                                           .waiter = hierarchy->config.waiter,
                                           .group = {.id = hierarchy->config.group,
                                                     .name = hierarchy->config.name,
                                                     .members = hierarchy->config.peers,
                                                     .member_count = hierarchy->config.size},
                                           .rank = rank,
                                           .size = size,
                                           .peers = peers};
    return executor_create(&config, out);
}

int hierarchy_operate(struct hierarchy *hierarchy) {
    switch (hierarchy->call->operation) {
    case COMM_BARRIER:
    case COMM_MONITORED_BARRIER:
        return run_barrier(hierarchy);
    case COMM_ALL_REDUCE:
        return run_all_reduce(hierarchy);
    case COMM_REDUCE:
        return run_reduce(hierarchy);
    case COMM_BROADCAST:
        return run_broadcast(hierarchy);
    case COMM_ALL_GATHER:
        return run_all_gather(hierarchy);
    case COMM_GATHER:
        return run_gather(hierarchy);
    case COMM_SCATTER:
        return run_scatter(hierarchy);
    case COMM_REDUCE_SCATTER:
        return run_reduce_scatter(hierarchy);
    case COMM_ALL_TO_ALL:
    case COMM_SCAN:
    case COMM_EXSCAN:
        return run_among_all(hierarchy);
    default:
        assert(!"a collective");
        return MUSTER_EINVAL;
    }
}
