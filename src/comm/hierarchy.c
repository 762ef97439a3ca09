/* Collectives of groups that span hosts; see hierarchy.h.
 *
 * Each operation is a sequence of parts: within the node, between the leaders, within the node. The words of this file:
 * a *member* is a rank of this host, in the node's numbering; *packed* is the order host by host, and by rank within a
 * host, in which the blocks of one host lie together. Where ranks are numbered host by host, packed order is rank order
 * and nothing is moved. */
#include "comm/hierarchy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/choice.h"
#include "comm/executor.h"
#include "comm/reduce.h"

#define SCRATCH_KEPT_BYTES_MAX ((size_t)64 << 20) /* more is given back after the call */

/* Ranks in packed order, and where each host's begin. */
struct layout {
    uint32_t *ranks; /* by packed place */
    uint32_t *begin; /* by host, host_count + 1 of them */
    bool is_identity;
};

struct hierarchy {
    struct hierarchy_config config; /* its arrays are our own */
    uint32_t host_count, host, member, member_count;
    struct layout layout;
    bool is_uniform;          /* as many ranks on each host */
    struct executor *leaders; /* numbered by host */
    struct executor *all;     /* numbered by rank; made when first needed */
    uint32_t *leader_peers;   /* by host: root rank of its leader */
    struct choice_table leader_table, all_table;
    size_t *counts;      /* size + host_count of them, for the parts of calls */
    uint8_t *scratch[2]; /* kept */
    size_t scratch_room[2];
    uint32_t algorithm;
    const struct executor *last; /* which ran last; NULL: none */

    /* of the call that runs */
    const struct comm_call *call;
    uint32_t number;
    uint64_t fingerprint;
    int64_t deadline_ns;
    size_t type_bytes;
    uint32_t lead; /* member that leads this host */
};

/* ---- making one ---- */

static void lay_out(struct hierarchy *hierarchy) {
    const struct hierarchy_config *config = &hierarchy->config;
    struct layout *layout = &hierarchy->layout;
    uint32_t place = 0;
    layout->is_identity = true;
    hierarchy->is_uniform = true;
    for (uint32_t host = 0; host < hierarchy->host_count; host++) {
        layout->begin[host] = place;
        for (uint32_t rank = 0; rank < config->size; rank++) {
            if (config->hosts[rank] != host) {
                continue;
            }
            if (rank == config->rank) {
                hierarchy->member = place - layout->begin[host];
            }
            layout->is_identity = layout->is_identity && rank == place;
            layout->ranks[place++] = rank;
        }
        assert(place > layout->begin[host]);
        hierarchy->leader_peers[host] = config->peers[layout->ranks[layout->begin[host]]];
        hierarchy->is_uniform = hierarchy->is_uniform && place - layout->begin[host] == layout->begin[1];
    }
    layout->begin[hierarchy->host_count] = place;
    assert(place == config->size);
    hierarchy->host = config->hosts[config->rank];
    hierarchy->member_count = layout->begin[hierarchy->host + 1] - layout->begin[hierarchy->host];
}

static void *copy_of(const void *array, size_t bytes) {
    void *copy = malloc(bytes);
    return copy ? memcpy(copy, array, bytes) : NULL;
}

static int allocate(struct hierarchy *hierarchy, const struct hierarchy_config *config) {
    uint32_t size = config->size;
    hierarchy->config = *config;
    hierarchy->config.peers = copy_of(config->peers, size * sizeof(uint32_t));
    hierarchy->config.hosts = copy_of(config->hosts, size * sizeof(uint32_t));
    for (uint32_t rank = 0; rank < size; rank++) {
        hierarchy->host_count =
            config->hosts[rank] + 1 > hierarchy->host_count ? config->hosts[rank] + 1 : hierarchy->host_count;
    }
    hierarchy->layout.ranks = malloc(size * sizeof(uint32_t));
    hierarchy->layout.begin = calloc(hierarchy->host_count + 1, sizeof(uint32_t));
    hierarchy->leader_peers = malloc(hierarchy->host_count * sizeof(uint32_t));
    hierarchy->counts = malloc((size + hierarchy->host_count) * sizeof(size_t));
    return hierarchy->config.peers && hierarchy->config.hosts && hierarchy->layout.ranks && hierarchy->layout.begin &&
                   hierarchy->leader_peers && hierarchy->counts
               ? 0
               : status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", (unsigned)size);
}

static int make_executor(const struct hierarchy *hierarchy, uint32_t rank, uint32_t size, const uint32_t *peers,
                         struct executor **out) {
    const struct executor_config config = {.p2p = hierarchy->config.p2p,
                                           .waiter = hierarchy->config.waiter,
                                           .group = hierarchy->config.group,
                                           .rank = rank,
                                           .size = size,
                                           .peers = peers};
    return executor_create(&config, out);
}

int hierarchy_create(const struct hierarchy_config *config, struct hierarchy **out) {
    struct hierarchy *hierarchy = calloc(1, sizeof *hierarchy);
    if (!hierarchy) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", (unsigned)config->size);
    }
    int code = allocate(hierarchy, config);
    if (code == 0) {
        lay_out(hierarchy);
        assert(hierarchy->member_count == 1 || config->node);
        code = make_executor(hierarchy, hierarchy->host, hierarchy->host_count, hierarchy->leader_peers,
                             &hierarchy->leaders);
    }
    if (code != 0) {
        hierarchy_free(hierarchy);
        return code;
    }
    choice_table_make(config->choice, CHOICE_MESSAGES, hierarchy->host_count, config->is_crowded,
                      &hierarchy->leader_table);
    choice_table_make(config->choice, CHOICE_MESSAGES, config->size, config->is_crowded, &hierarchy->all_table);
    *out = hierarchy;
    return 0;
}

void hierarchy_free(struct hierarchy *hierarchy) {
    if (!hierarchy) {
        return;
    }
    executor_free(hierarchy->leaders);
    executor_free(hierarchy->all);
    free((void *)(uintptr_t)hierarchy->config.peers);
    free((void *)(uintptr_t)hierarchy->config.hosts);
    free(hierarchy->layout.ranks);
    free(hierarchy->layout.begin);
    free(hierarchy->leader_peers);
    free(hierarchy->counts);
    free(hierarchy->scratch[0]);
    free(hierarchy->scratch[1]);
    free(hierarchy);
}

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

/* The counts per rank of a call, NULL where they are all alike. */
static const size_t *counts_of(const struct comm_call *call) {
    return call->operation == COMM_SCATTER ? call->send_counts : call->receive_counts;
}

static size_t count_of(const struct comm_call *call, uint32_t rank) {
    const size_t *counts = counts_of(call);
    return counts ? counts[rank] : call->count;
}

/* Elements of the blocks in packed places [0, place), which is where that place begins. */
static size_t packed_begin(const struct hierarchy *hierarchy, uint32_t place) {
    size_t sum = 0;
    if (!counts_of(hierarchy->call)) {
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
        size_t bytes = count_of(call, rank) * hierarchy->type_bytes;
        size_t ordered = begins[rank] * hierarchy->type_bytes;
        if (bytes > 0) { /* a rank that gives nothing may have no buffer */
            memcpy(to + (to_packed ? packed : ordered), from + (to_packed ? ordered : packed), bytes);
        }
        packed += bytes;
    }
}

/* ---- parts ---- */

static int node_part(struct hierarchy *hierarchy, const struct comm_call *part) {
    return hierarchy->member_count == 1 ? 0 : node_run(hierarchy->config.node, part, hierarchy->deadline_ns);
}

static int leaders_part(struct hierarchy *hierarchy, const struct comm_call *part) {
    if (!is_leader(hierarchy) || hierarchy->host_count == 1) {
        return 0;
    }
    struct choice_answer answer = choice_of(&hierarchy->leader_table, part, hierarchy->host_count);
    hierarchy->algorithm = answer.algorithm;
    hierarchy->last = hierarchy->leaders;
    return executor_run(hierarchy->leaders, part, (enum schedule_algorithm)answer.algorithm, answer.piece_bytes,
                        hierarchy->number, hierarchy->fingerprint, hierarchy->deadline_ns);
}

/* A call of the same kind as the one that runs. Averages are sums until the end. */
static struct comm_call part_of(const struct hierarchy *hierarchy, enum comm_operation operation, uint32_t root,
                                const void *send, void *receive, size_t count) {
    enum muster_reduction reduction = hierarchy->call->reduction;
    return (struct comm_call){.operation = operation,
                              .type = hierarchy->call->type,
                              .reduction = reduction == MUSTER_AVERAGE ? MUSTER_SUM : reduction,
                              .root = root,
                              .count = count,
                              .send = send,
                              .receive = receive};
}

static void finish(const struct hierarchy *hierarchy, void *data, size_t count) {
    reduce_finish(hierarchy->call->type, hierarchy->call->reduction, data, count, hierarchy->config.size);
}

static int node_simple(struct hierarchy *hierarchy, enum comm_operation operation, const void *send, void *receive,
                       size_t count) {
    struct comm_call part = part_of(hierarchy, operation, hierarchy->lead, send, receive, count);
    return node_part(hierarchy, &part);
}

/* Gather to, or scatter from, this host's leader: with a count per member if there are counts per rank. */
static int node_blocks(struct hierarchy *hierarchy, enum comm_operation operation, const void *send, void *receive) {
    struct comm_call part = part_of(hierarchy, operation, hierarchy->lead, send, receive, hierarchy->call->count);
    if (counts_of(hierarchy->call)) {
        const uint32_t *ranks = hierarchy->layout.ranks + hierarchy->layout.begin[hierarchy->host];
        for (uint32_t member = 0; member < hierarchy->member_count; member++) {
            hierarchy->counts[member] = count_of(hierarchy->call, ranks[member]);
        }
        part.count = 0;
        *(operation == COMM_SCATTER ? &part.send_counts : &part.receive_counts) = hierarchy->counts;
    }
    return node_part(hierarchy, &part);
}

/* Among the leaders, a block per host. */
static int leaders_blocks(struct hierarchy *hierarchy, enum comm_operation operation, uint32_t root_host,
                          const void *send, void *receive) {
    struct comm_call part = part_of(hierarchy, operation, root_host, send, receive, 0);
    if (hierarchy->is_uniform && !counts_of(hierarchy->call)) {
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

/* ---- operations ---- */

static int run_barrier(struct hierarchy *hierarchy) {
    int code = node_simple(hierarchy, COMM_BARRIER, NULL, NULL, 0);
    struct comm_call part = part_of(hierarchy, COMM_BARRIER, 0, NULL, NULL, 0);
    code = code != 0 ? code : leaders_part(hierarchy, &part);
    return code != 0 ? code : node_simple(hierarchy, COMM_BARRIER, NULL, NULL, 0);
}

static int run_all_reduce(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    int code = node_simple(hierarchy, COMM_REDUCE, call->send, call->receive, call->count);
    const void *send = hierarchy->member_count == 1 ? call->send : call->receive;
    struct comm_call part = part_of(hierarchy, COMM_ALL_REDUCE, 0, send, call->receive, call->count);
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
        sum = scratch(hierarchy, 0, call->count * hierarchy->type_bytes);
        if (!sum) {
            return MUSTER_ENOMEM;
        }
    }
    int code = node_simple(hierarchy, COMM_REDUCE, call->send, sum, call->count);
    struct comm_call part =
        part_of(hierarchy, COMM_REDUCE, hierarchy->config.hosts[call->root],
                hierarchy->member_count == 1 ? call->send : sum, is_root ? call->receive : NULL, call->count);
    code = code != 0 ? code : leaders_part(hierarchy, &part);
    if (code == 0 && is_root) {
        finish(hierarchy, call->receive, call->count);
    }
    return code;
}

static int run_broadcast(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    struct comm_call part = part_of(hierarchy, COMM_BROADCAST, hierarchy->config.hosts[call->root], call->receive,
                                    call->receive, call->count);
    int code = leaders_part(hierarchy, &part);
    return code != 0 ? code : node_simple(hierarchy, COMM_BROADCAST, call->receive, call->receive, call->count);
}

static int run_all_gather(struct hierarchy *hierarchy) {
    const struct comm_call *call = hierarchy->call;
    size_t total = packed_begin(hierarchy, hierarchy->config.size);
    uint8_t *packed = call->receive;
    if (!hierarchy->layout.is_identity && is_leader(hierarchy)) {
        packed = scratch(hierarchy, 0, total * hierarchy->type_bytes);
        if (!packed) {
            return MUSTER_ENOMEM;
        }
    }
    uint8_t *own = packed ? packed + host_begin(hierarchy, hierarchy->host) * hierarchy->type_bytes : NULL;
    const void *send = call->send;
    if (hierarchy->member_count > 1) {
        int code = node_blocks(hierarchy, COMM_GATHER, call->send, own);
        if (code != 0) {
            return code;
        }
        send = own;
    }
    int code = leaders_blocks(hierarchy, COMM_ALL_GATHER, 0, send, packed);
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
        size_t total = packed_begin(hierarchy, hierarchy->config.size);
        packed = hierarchy->layout.is_identity ? call->receive : scratch(hierarchy, 0, total * hierarchy->type_bytes);
        own = packed ? packed + host_begin(hierarchy, hierarchy->host) * hierarchy->type_bytes : NULL;
    } else if (is_leader(hierarchy)) {
        own = scratch(hierarchy, 0, host_elements(hierarchy, hierarchy->host) * hierarchy->type_bytes);
    }
    if (!own && is_leader(hierarchy) && !(is_root && hierarchy->layout.is_identity)) {
        return MUSTER_ENOMEM;
    }
    const void *send = call->send;
    if (hierarchy->member_count > 1) {
        int code = node_blocks(hierarchy, COMM_GATHER, call->send, own);
        if (code != 0) {
            return code;
        }
        send = own;
    }
    int code = leaders_blocks(hierarchy, COMM_GATHER, hierarchy->config.hosts[call->root], send, packed);
    if (code == 0 && is_root && packed != call->receive && packed) {
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
                scratch(hierarchy, 0, packed_begin(hierarchy, hierarchy->config.size) * hierarchy->type_bytes);
            if (!memory) {
                return MUSTER_ENOMEM;
            }
            permute(hierarchy, memory, call->send, true);
            packed = memory;
        }
        own = packed ? (uint8_t *)(uintptr_t)packed + host_begin(hierarchy, hierarchy->host) * hierarchy->type_bytes
                     : NULL;
    } else if (is_leader(hierarchy) && hierarchy->member_count > 1) {
        own = scratch(hierarchy, 0, host_elements(hierarchy, hierarchy->host) * hierarchy->type_bytes);
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
    size_t total = packed_begin(hierarchy, hierarchy->config.size), bytes = total * hierarchy->type_bytes;
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
              ? (uint8_t *)(uintptr_t)sum + host_begin(hierarchy, hierarchy->host) * hierarchy->type_bytes
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

static int run_all_to_all(struct hierarchy *hierarchy) {
    const struct hierarchy_config *config = &hierarchy->config;
    if (!hierarchy->all) {
        int code = make_executor(hierarchy, config->rank, config->size, config->peers, &hierarchy->all);
        if (code != 0) {
            return code;
        }
    }
    struct choice_answer answer = choice_of(&hierarchy->all_table, hierarchy->call, config->size);
    hierarchy->algorithm = answer.algorithm;
    hierarchy->last = hierarchy->all;
    return executor_run(hierarchy->all, hierarchy->call, (enum schedule_algorithm)answer.algorithm, answer.piece_bytes,
                        hierarchy->number, hierarchy->fingerprint, hierarchy->deadline_ns);
}

/* ---- calls ---- */

/* The root leads its host. */
static void choose_leaders(struct hierarchy *hierarchy, const struct comm_call *call) {
    const struct layout *layout = &hierarchy->layout;
    hierarchy->lead = 0;
    for (uint32_t host = 0; host < hierarchy->host_count; host++) {
        uint32_t leader = layout->ranks[layout->begin[host]];
        if (comm_has_root(call->operation) && hierarchy->config.hosts[call->root] == host) {
            leader = call->root;
        }
        if (host == hierarchy->host) {
            while (layout->ranks[layout->begin[host] + hierarchy->lead] != leader) {
                hierarchy->lead++;
            }
        }
        executor_set_peer(hierarchy->leaders, host, hierarchy->config.peers[leader]);
    }
}

static int run(struct hierarchy *hierarchy, const struct comm_call *call) {
    switch (call->operation) {
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
        return run_all_to_all(hierarchy);
    default:
        assert(!"a collective");
        return MUSTER_EINVAL;
    }
}

int hierarchy_run(struct hierarchy *hierarchy, const struct comm_call *call, uint32_t number, int64_t deadline_ns) {
    hierarchy->call = call;
    hierarchy->number = number;
    hierarchy->fingerprint = comm_call_fingerprint(call, hierarchy->config.size);
    hierarchy->deadline_ns = deadline_ns;
    hierarchy->type_bytes = muster_type_bytes(call->type);
    hierarchy->last = NULL;
    choose_leaders(hierarchy, call);
    int code = run(hierarchy, call);
    for (int i = 0; i < 2; i++) {
        if (hierarchy->scratch_room[i] > SCRATCH_KEPT_BYTES_MAX) {
            free(hierarchy->scratch[i]);
            hierarchy->scratch[i] = NULL;
            hierarchy->scratch_room[i] = 0;
        }
    }
    return code;
}

bool hierarchy_awaits(const struct hierarchy *hierarchy, uint32_t rank) {
    if (!hierarchy->last || rank >= hierarchy->config.size) {
        return false;
    }
    if (hierarchy->last == hierarchy->all) {
        return executor_awaits(hierarchy->all, rank);
    }
    uint32_t host = hierarchy->config.hosts[rank];
    return host != hierarchy->host && hierarchy->leader_peers[host] == hierarchy->config.peers[rank] &&
           executor_awaits(hierarchy->leaders, host);
}

uint32_t hierarchy_algorithm(const struct hierarchy *hierarchy) {
    return hierarchy->last ? hierarchy->algorithm : CHOICE_NO_ALGORITHM;
}

int64_t hierarchy_arrived_ns(const struct hierarchy *hierarchy) {
    return hierarchy->last ? executor_arrived_ns(hierarchy->last) : 0;
}
