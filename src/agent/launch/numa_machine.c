/* This machine's topology and devices for --numa-binding. hwloc is opened at run time, so that an agent that does
 * not bind never loads it; only its C types are needed at build time. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/numa.h"
#include "base/library.h"
#include "base/status.h"
#include "base/str.h"

/* Devices looked at; more than any machine has. */
enum { DEVICES_MAX = 64 };

#ifdef MUSTER_HAVE_HWLOC
#include <hwloc.h>

/* The functions used, by name: one list gives the struct and the loader. */
#define HWLOC_FUNCTIONS(X)                                                                                             \
    X(hwloc_topology_init)                                                                                             \
    X(hwloc_topology_load)                                                                                             \
    X(hwloc_topology_destroy)                                                                                          \
    X(hwloc_topology_get_allowed_cpuset)                                                                               \
    X(hwloc_get_type_depth)                                                                                            \
    X(hwloc_get_nbobjs_by_depth)                                                                                       \
    X(hwloc_get_obj_by_depth)                                                                                          \
    X(hwloc_bitmap_isset)

struct hwloc_library {
    void *handle;
#define HWLOC_FIELD(name) __typeof__(&(name)) name; /* NOLINT(bugprone-macro-parentheses): a declaration */
    HWLOC_FUNCTIONS(HWLOC_FIELD)
#undef HWLOC_FIELD
};

static int open_hwloc(struct hwloc_library *lib) {
    const char *reason, *missing = NULL;
    lib->handle = library_open("libhwloc.so.15", &reason);
    if (lib->handle == NULL) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "--numa-binding needs hwloc (Debian, Ubuntu: apt-get install libhwloc15): %s", reason);
    }
#define HWLOC_FIND(name) missing = library_find(lib->handle, #name, &lib->name, sizeof lib->name) ? missing : #name;
    HWLOC_FUNCTIONS(HWLOC_FIND)
#undef HWLOC_FIND
    if (missing) {
        (void)dlclose(lib->handle);
        return status_fail(MUSTER_EUNSUPPORTED, "the installed hwloc has no %s", missing);
    }
    return MUSTER_OK;
}

/* Index of the object of `type` that holds `cpu`, or 0 where the machine shows none (a single socket, no cache). */
static int object_of(const struct hwloc_library *lib, hwloc_topology_t t, int depth, unsigned cpu) {
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) {
        return 0;
    }
    unsigned count = lib->hwloc_get_nbobjs_by_depth(t, depth);
    for (unsigned i = 0; i < count; i++) {
        hwloc_obj_t object = lib->hwloc_get_obj_by_depth(t, depth, i);
        if (object->cpuset != NULL && lib->hwloc_bitmap_isset(object->cpuset, cpu)) {
            return object->os_index == HWLOC_UNKNOWN_INDEX || object->type != HWLOC_OBJ_NUMANODE
                       ? (int)i
                       : (int)object->os_index;
        }
    }
    return 0;
}

/* The highest data or unified cache of the machine. */
static int cache_depth(const struct hwloc_library *lib, hwloc_topology_t t) {
    static const hwloc_obj_type_t levels[] = {HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE,
                                              HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L1CACHE};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        int depth = lib->hwloc_get_type_depth(t, levels[i]);
        if (depth >= 0) {
            return depth;
        }
    }
    return HWLOC_TYPE_DEPTH_UNKNOWN;
}

static int flatten(const struct hwloc_library *lib, hwloc_topology_t t, struct numa_topology *out) {
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) {
        return status_fail_errno(errno, "cannot read the CPU affinity of this process");
    }
    out->cpus = calloc(CPU_SETSIZE, sizeof *out->cpus);
    if (out->cpus == NULL) {
        return status_fail(MUSTER_ENOMEM, "no memory for the CPU table");
    }
    int cache = cache_depth(lib, t);
    hwloc_const_cpuset_t allowed = lib->hwloc_topology_get_allowed_cpuset(t);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        unsigned number = (unsigned)cpu;
        if (!CPU_ISSET(number, &mask) || !lib->hwloc_bitmap_isset(allowed, number)) {
            continue;
        }
        out->cpus[out->cpu_count++] =
            (struct numa_cpu){.cpu = cpu,
                              .node = object_of(lib, t, lib->hwloc_get_type_depth(t, HWLOC_OBJ_NUMANODE), number),
                              .socket = object_of(lib, t, lib->hwloc_get_type_depth(t, HWLOC_OBJ_PACKAGE), number),
                              .core = object_of(lib, t, lib->hwloc_get_type_depth(t, HWLOC_OBJ_CORE), number),
                              .cache = object_of(lib, t, cache, number)};
    }
    return MUSTER_OK;
}

static int read_topology(struct numa_topology *out) {
    struct hwloc_library lib;
    int rc = open_hwloc(&lib);
    if (rc != MUSTER_OK) {
        return rc;
    }
    hwloc_topology_t t;
    if (lib.hwloc_topology_init(&t) != 0) {
        (void)dlclose(lib.handle);
        return status_fail(MUSTER_ESYSTEM, "hwloc cannot start");
    }
    rc = lib.hwloc_topology_load(t) == 0 ? flatten(&lib, t, out)
                                         : status_fail(MUSTER_ESYSTEM, "hwloc cannot read this machine's topology");
    lib.hwloc_topology_destroy(t);
    (void)dlclose(lib.handle);
    return rc;
}
#else
static int read_topology(struct numa_topology *out) {
    (void)out;
    return status_fail(MUSTER_EUNSUPPORTED,
                       "--numa-binding: this muster was built without hwloc's headers (Debian, Ubuntu: "
                       "apt-get install libhwloc-dev, then build again)");
}
#endif

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int node_of_device(const char *pci_address) {
    char path[512];
    if (!str_format(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", pci_address)) {
        return 0;
    }
    FILE *f = fopen(path, "re");
    int node = 0;
    if (f != NULL) {
        if (fscanf(f, "%d", &node) != 1) {
            node = 0;
        }
        (void)fclose(f);
    }
    return node;
}

/* NUMA nodes of NVIDIA's devices in PCI order, which is the order of their numbers. */
static size_t read_devices(int *nodes) {
    char *names[DEVICES_MAX];
    size_t count = 0;
    DIR *dir = opendir("/proc/driver/nvidia/gpus");
    if (dir == NULL) {
        return 0;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL && count < DEVICES_MAX;) {
        if (entry->d_name[0] != '.' && (names[count] = strdup(entry->d_name)) != NULL) {
            count++;
        }
    }
    (void)closedir(dir);
    qsort(names, count, sizeof names[0], compare_names);
    for (size_t i = 0; i < count; i++) {
        nodes[i] = node_of_device(names[i]);
        free(names[i]);
    }
    return count;
}

int numa_plan(enum launch_numa mode, uint32_t nproc, cpu_set_t *sets) {
    struct numa_topology topology = {0};
    int nodes[DEVICES_MAX];
    int rc = read_topology(&topology);
    if (rc == MUSTER_OK) {
        rc = numa_assign(mode, &topology, nodes, read_devices(nodes), nproc, sets);
    }
    free(topology.cpus);
    return rc;
}
