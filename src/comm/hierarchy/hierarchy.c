/* Collectives of groups that span hosts: their life, and who leads in a call; see hierarchy.h. What each operation does
 * is in hierarchy_operations.c. */
#include "comm/hierarchy/hierarchy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/hierarchy/executor.h"
#include "comm/hierarchy/hierarchy_impl.h"
#include "comm/schedule/choice.h"

#define SCRATCH_KEPT_BYTES_MAX ((size_t)64 << 20) /* more is given back after the call */

/* ---- making one ---- */

/* Where each host's ranks begin in packed order, from how many it has. */
static void count_hosts(struct hierarchy *hierarchy) {
    const struct hierarchy_config *config = &hierarchy->config;
    uint32_t *begin = hierarchy->layout.begin;
    for (uint32_t rank = 0; rank < config->size; rank++) {
        begin[config->hosts[rank] + 1]++;
    }
    hierarchy->is_uniform = true;
    for (uint32_t host = 0; host < hierarchy->host_count; host++) {
        assert(begin[host + 1] > 0);
        hierarchy->is_uniform = hierarchy->is_uniform && begin[host + 1] * hierarchy->host_count == config->size;
    }
    for (uint32_t host = 0; host < hierarchy->host_count; host++) {
        begin[host + 1] += begin[host];
    }
    assert(begin[hierarchy->host_count] == config->size);
}

static void lay_out(struct hierarchy *hierarchy) {
    uint32_t *next = hierarchy->leader_peers; /* until their own values are known: a place a host */
    const struct hierarchy_config *config = &hierarchy->config;
    struct layout *layout = &hierarchy->layout;
    count_hosts(hierarchy);
    memcpy(next, layout->begin, hierarchy->host_count * sizeof *next);
    layout->is_identity = true;
    for (uint32_t rank = 0; rank < config->size; rank++) {
        uint32_t host = config->hosts[rank], place = next[host]++;
        if (rank == config->rank) {
            hierarchy->member = place - layout->begin[host];
        }
        layout->is_identity = layout->is_identity && rank == place;
        layout->ranks[place] = rank;
    }
    for (uint32_t host = 0; host < hierarchy->host_count; host++) {
        hierarchy->leader_peers[host] = config->peers[layout->ranks[layout->begin[host]]];
    }
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

int hierarchy_create(const struct hierarchy_config *config, struct hierarchy **out) {
    struct hierarchy *hierarchy = calloc(1, sizeof *hierarchy);
    if (!hierarchy) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", (unsigned)config->size);
    }
    int code = allocate(hierarchy, config);
    if (code == 0) {
        lay_out(hierarchy);
        assert(hierarchy->member_count == 1 || config->node);
        code = hierarchy_make_executor(hierarchy, hierarchy->host, hierarchy->host_count, hierarchy->leader_peers,
                                       &hierarchy->leaders);
    }
    if (code != 0) {
        hierarchy_free(hierarchy);
        return code;
    }
    choice_table_make(config->choice, CHOICE_MESSAGES, hierarchy->host_count, config->is_crowded,
                      &hierarchy->leader_table);
    choice_table_make(config->choice, CHOICE_MESSAGES, config->size, config->is_crowded, &hierarchy->all_table);
    hierarchy_prepare_rails(hierarchy);
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

int hierarchy_run(struct hierarchy *hierarchy, const struct comm_call *call, uint64_t number, int64_t deadline_ns) {
    hierarchy->call = call;
    hierarchy->number = number;
    hierarchy->deadline_ns = deadline_ns;
    hierarchy->last = NULL;
    choose_leaders(hierarchy, call);
    int code = hierarchy_operate(hierarchy);
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
    /* Who led there in that call: the root, where it is. */
    return host != hierarchy->host && executor_peer(hierarchy->leaders, host) == hierarchy->config.peers[rank] &&
           executor_awaits(hierarchy->leaders, host);
}

uint32_t hierarchy_algorithm(const struct hierarchy *hierarchy) {
    return hierarchy->last ? hierarchy->algorithm : CHOICE_NO_ALGORITHM;
}

int64_t hierarchy_arrived_ns(const struct hierarchy *hierarchy) {
    return hierarchy->last ? executor_arrived_ns(hierarchy->last) : 0;
}
