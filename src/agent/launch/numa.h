/* --numa-binding: which CPUs each worker may use.
 *
 * The rules are torchrun's, applied to the device of each local rank: device i belongs to local rank i, and its NUMA
 * node decides. On a machine without devices, where torchrun cannot bind at all, the local ranks are spread over the
 * NUMA nodes in equal blocks, and the same rules apply with ranks in the place of devices. */
#ifndef AGENT_NUMA_H
#define AGENT_NUMA_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/launch/launch.h"

/* One logical CPU that this process may use. Numbers are the kernel's; equal numbers mean "shared". */
struct numa_cpu {
    int cpu;
    int node;
    int socket;
    int core;
    int cache; /* the largest cache level: CPUs with the same number share one */
};

struct numa_topology {
    struct numa_cpu *cpus; /* sorted by cpu */
    size_t cpu_count;
};

/* Pure. Fills sets[0..nproc-1]. device_nodes: NUMA node of each device, device_count of them (may be 0; -1 counts as
 * node 0). MUSTER_EINVAL, saying what to do, when there are devices but fewer than nproc, or when a node has no CPU
 * that may be used or too few cores for "exclusive". */
int numa_assign(enum launch_numa mode, const struct numa_topology *topology, const int *device_nodes,
                size_t device_count, uint32_t nproc, cpu_set_t *sets);

/* The same for this machine: topology by hwloc, which is opened here and closed again, devices from sysfs.
 * Blocks (tens of milliseconds). MUSTER_EUNSUPPORTED when hwloc is not installed. */
int numa_plan(enum launch_numa mode, uint32_t nproc, cpu_set_t *sets);

#endif
