/* The arithmetic of --numa-binding; see numa.h. Reading the machine is in numa_machine.c. */
#include "agent/launch/numa.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

/* What one local rank is placed by: its node, its place among the ranks of that node, and how many they are. */
struct place {
    int node;
    uint32_t index;
    uint32_t count;
};

static bool node_has_cpu(const struct numa_topology *t, int node) {
    for (size_t i = 0; i < t->cpu_count; i++) {
        if (t->cpus[i].node == node) {
            return true;
        }
    }
    return false;
}

/* The `wanted`-th different node in ascending order, or -1. With wanted = UINT32_MAX: never found, *count_out is set.
 */
static int nth_node(const struct numa_topology *t, uint32_t wanted, uint32_t *count_out) {
    int node = -1;
    uint32_t seen = 0;
    for (;;) {
        int next = -1;
        for (size_t i = 0; i < t->cpu_count; i++) {
            int candidate = t->cpus[i].node;
            if (candidate > node && (next < 0 || candidate < next)) {
                next = candidate;
            }
        }
        if (next < 0) {
            *count_out = seen;
            return -1;
        }
        if (seen == wanted) {
            return next;
        }
        node = next;
        seen++;
    }
}

static struct place place_by_device(const int *device_nodes, uint32_t local_rank, uint32_t nproc) {
    struct place p = {.node = device_nodes[local_rank] < 0 ? 0 : device_nodes[local_rank]};
    for (uint32_t i = 0; i < nproc; i++) {
        int node = device_nodes[i] < 0 ? 0 : device_nodes[i];
        p.index += node == p.node && i < local_rank;
        p.count += node == p.node;
    }
    return p;
}

/* Rank i of n goes to block i * nodes / n: equal blocks of neighbouring ranks. */
static struct place place_by_block(const struct numa_topology *t, uint32_t local_rank, uint32_t nproc) {
    uint32_t node_count = 0;
    (void)nth_node(t, UINT32_MAX, &node_count);
    uint32_t block = (uint32_t)((uint64_t)local_rank * node_count / nproc);
    struct place p = {.node = nth_node(t, block, &node_count)};
    for (uint32_t i = 0; i < nproc; i++) {
        bool same = (uint32_t)((uint64_t)i * node_count / nproc) == block;
        p.index += same && i < local_rank;
        p.count += same;
    }
    return p;
}

static void take_node(const struct numa_topology *t, int node, cpu_set_t *set) {
    for (size_t i = 0; i < t->cpu_count; i++) {
        if (t->cpus[i].node == node) {
            CPU_SET((size_t)t->cpus[i].cpu, set);
        }
    }
}

static void take_socket_of(const struct numa_topology *t, int node, cpu_set_t *set) {
    for (size_t i = 0; i < t->cpu_count; i++) {
        for (size_t k = 0; k < t->cpu_count; k++) {
            if (t->cpus[k].node == node && t->cpus[k].socket == t->cpus[i].socket) {
                CPU_SET((size_t)t->cpus[i].cpu, set);
                break;
            }
        }
    }
}

/* Is cpu number i of the table the lowest one of its core (within its node)? Cores are counted by these. */
static bool is_first_of_core(const struct numa_topology *t, size_t i) {
    for (size_t k = 0; k < i; k++) {
        if (t->cpus[k].core == t->cpus[i].core && t->cpus[k].socket == t->cpus[i].socket) {
            return false;
        }
    }
    return true;
}

static void take_core(const struct numa_topology *t, size_t i, cpu_set_t *set) {
    for (size_t k = 0; k < t->cpu_count; k++) {
        if (t->cpus[k].core == t->cpus[i].core && t->cpus[k].socket == t->cpus[i].socket) {
            CPU_SET((size_t)t->cpus[k].cpu, set);
        }
    }
}

/* Whole cores, in order of their lowest CPU; the first ranks of the node get one more when it does not divide. */
static int take_exclusive(const struct numa_topology *t, struct place p, cpu_set_t *set) {
    uint32_t cores = 0;
    assert(p.count > 0);
    for (size_t i = 0; i < t->cpu_count; i++) {
        cores += t->cpus[i].node == p.node && is_first_of_core(t, i);
    }
    if (cores < p.count) {
        return status_fail(
            MUSTER_EINVAL,
            "--numa-binding exclusive: NUMA node %d has %u usable core%s for %u workers: start fewer workers or "
            "use --numa-binding node",
            p.node, cores, str_plural(cores), p.count);
    }
    uint32_t share = cores / p.count;
    uint32_t extra = cores % p.count;
    uint32_t first = p.index * share + (p.index < extra ? p.index : extra);
    uint32_t end = first + share + (p.index < extra ? 1 : 0);
    uint32_t at = 0;
    for (size_t i = 0; i < t->cpu_count; i++) {
        if (t->cpus[i].node != p.node || !is_first_of_core(t, i)) {
            continue;
        }
        if (at >= first && at < end) {
            take_core(t, i, set);
        }
        at++;
    }
    return MUSTER_OK;
}

static size_t cache_size(const struct numa_topology *t, int node, int cache) {
    size_t n = 0;
    for (size_t i = 0; i < t->cpu_count; i++) {
        n += t->cpus[i].node == node && t->cpus[i].cache == cache;
    }
    return n;
}

/* Does group a come before group b? Larger first, then the one with the lower CPU (tables are sorted by CPU). */
static bool cache_before(const struct numa_topology *t, int node, size_t a, size_t b) {
    size_t size_a = cache_size(t, node, t->cpus[a].cache);
    size_t size_b = cache_size(t, node, t->cpus[b].cache);
    return size_a != size_b ? size_a > size_b : a < b;
}

static bool is_first_of_cache(const struct numa_topology *t, int node, size_t i) {
    if (t->cpus[i].node != node) {
        return false;
    }
    for (size_t k = 0; k < i; k++) {
        if (t->cpus[k].node == node && t->cpus[k].cache == t->cpus[i].cache) {
            return false;
        }
    }
    return true;
}

static void take_core_complex(const struct numa_topology *t, struct place p, cpu_set_t *set) {
    uint32_t groups = 0;
    for (size_t i = 0; i < t->cpu_count; i++) {
        groups += is_first_of_cache(t, p.node, i);
    }
    assert(groups > 0); /* numa_assign() has seen that the node has a CPU */
    uint32_t wanted = p.index % groups;
    for (size_t i = 0; i < t->cpu_count; i++) {
        if (!is_first_of_cache(t, p.node, i)) {
            continue;
        }
        uint32_t before = 0;
        for (size_t k = 0; k < t->cpu_count; k++) {
            before += is_first_of_cache(t, p.node, k) && cache_before(t, p.node, k, i);
        }
        if (before != wanted) {
            continue;
        }
        for (size_t k = 0; k < t->cpu_count; k++) {
            if (t->cpus[k].node == p.node && t->cpus[k].cache == t->cpus[i].cache) {
                CPU_SET((size_t)t->cpus[k].cpu, set);
            }
        }
    }
}

static int take(enum launch_numa mode, const struct numa_topology *t, struct place p, cpu_set_t *set) {
    switch (mode) {
    case LAUNCH_NUMA_NODE:
        take_node(t, p.node, set);
        return MUSTER_OK;
    case LAUNCH_NUMA_SOCKET:
        take_socket_of(t, p.node, set);
        return MUSTER_OK;
    case LAUNCH_NUMA_EXCLUSIVE:
        return take_exclusive(t, p, set);
    case LAUNCH_NUMA_CORE_COMPLEX:
        take_core_complex(t, p, set);
        return MUSTER_OK;
    case LAUNCH_NUMA_NONE:
        break;
    }
    return status_fail(MUSTER_EINVAL, "no NUMA binding was asked for");
}

int numa_assign(enum launch_numa mode, const struct numa_topology *topology, const int *device_nodes,
                size_t device_count, uint32_t nproc, cpu_set_t *sets) {
    if (device_count > 0 && device_count < nproc) {
        return status_fail(MUSTER_EINVAL,
                           "--numa-binding: %u workers but %zu device%s; each local rank is bound by its device: "
                           "start at most %zu worker%s",
                           nproc, device_count, str_plural(device_count), device_count, str_plural(device_count));
    }
    for (uint32_t i = 0; i < nproc; i++) {
        struct place p =
            device_count > 0 ? place_by_device(device_nodes, i, nproc) : place_by_block(topology, i, nproc);
        if (!node_has_cpu(topology, p.node)) {
            return status_fail(MUSTER_EINVAL,
                               "--numa-binding: this process may use no CPU of NUMA node %d (see taskset -p)", p.node);
        }
        CPU_ZERO(&sets[i]);
        int rc = take(mode, topology, p, &sets[i]);
        if (rc != MUSTER_OK) {
            return rc;
        }
    }
    return MUSTER_OK;
}
