/* --numa-binding on drawn machines: two sockets of two nodes, siblings, unequal cache groups. */
#include "agent/launch/numa.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#include <muster/status.h>

enum { CPUS = 16 };

/* 4 nodes of 2 cores with 2 siblings each; cpu n and n+8 are siblings, as Linux numbers them; 2 nodes a socket. */
static struct numa_topology siblings(struct numa_cpu cpus[CPUS]) {
    for (int i = 0; i < CPUS; i++) {
        int core = i % 8;
        cpus[i] = (struct numa_cpu){.cpu = i, .node = core / 2, .socket = core / 4, .core = core, .cache = core / 2};
    }
    return (struct numa_topology){.cpus = cpus, .cpu_count = CPUS};
}

static void assert_set(const cpu_set_t *set, const int *cpus, int count) {
    assert_int_equal(CPU_COUNT(set), count);
    for (int i = 0; i < count; i++) {
        assert_true(CPU_ISSET((size_t)cpus[i], set));
    }
}
#define ASSERT_SET(set, ...)                                                                                           \
    assert_set(&(set), (const int[]){__VA_ARGS__}, (int)(sizeof(int[]){__VA_ARGS__} / sizeof(int)))

static void node_follows_the_device(void **state) {
    (void)state;
    struct numa_cpu cpus[CPUS];
    struct numa_topology t = siblings(cpus);
    const int devices[] = {3, -1, 1};
    cpu_set_t sets[3];
    assert_int_equal(numa_assign(LAUNCH_NUMA_NODE, &t, devices, 3, 3, sets), 0);
    ASSERT_SET(sets[0], 6, 7, 14, 15);
    ASSERT_SET(sets[1], 0, 1, 8, 9);
    ASSERT_SET(sets[2], 2, 3, 10, 11);
}

static void socket_takes_all_its_nodes(void **state) {
    (void)state;
    struct numa_cpu cpus[CPUS];
    struct numa_topology t = siblings(cpus);
    const int devices[] = {2};
    cpu_set_t sets[1];
    assert_int_equal(numa_assign(LAUNCH_NUMA_SOCKET, &t, devices, 1, 1, sets), 0);
    ASSERT_SET(sets[0], 4, 5, 6, 7, 12, 13, 14, 15);
}

static void exclusive_gives_whole_cores_and_the_rest_to_the_first(void **state) {
    (void)state;
    struct numa_cpu cpus[CPUS];
    struct numa_topology t = siblings(cpus);
    for (int i = 0; i < CPUS; i++) {
        cpus[i].node = 0; /* one node of 8 cores for 3 workers: 3, 3, 2 */
    }
    const int devices[] = {0, 0, 0};
    cpu_set_t sets[3];
    assert_int_equal(numa_assign(LAUNCH_NUMA_EXCLUSIVE, &t, devices, 3, 3, sets), 0);
    ASSERT_SET(sets[0], 0, 1, 2, 8, 9, 10);
    ASSERT_SET(sets[1], 3, 4, 5, 11, 12, 13);
    ASSERT_SET(sets[2], 6, 7, 14, 15);
}

static void exclusive_refuses_more_workers_than_cores(void **state) {
    (void)state;
    struct numa_cpu cpus[CPUS];
    struct numa_topology t = siblings(cpus);
    const int devices[] = {0, 0, 0};
    cpu_set_t sets[3];
    assert_int_equal(numa_assign(LAUNCH_NUMA_EXCLUSIVE, &t, devices, 3, 3, sets), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "2 usable cores for 3 workers"));
}

static void core_complex_prefers_larger_groups_and_wraps(void **state) {
    (void)state;
    /* groups of one node: {0} {1,2,3} {4,5,6}: sizes 1, 3, 3 */
    struct numa_cpu cpus[] = {{0, 0, 0, 0, 9}, {1, 0, 0, 1, 5}, {2, 0, 0, 2, 5}, {3, 0, 0, 3, 5},
                              {4, 0, 0, 4, 7}, {5, 0, 0, 5, 7}, {6, 0, 0, 6, 7}};
    struct numa_topology t = {.cpus = cpus, .cpu_count = 7};
    const int devices[] = {0, 0, 0, 0};
    cpu_set_t sets[4];
    assert_int_equal(numa_assign(LAUNCH_NUMA_CORE_COMPLEX, &t, devices, 4, 4, sets), 0);
    ASSERT_SET(sets[0], 1, 2, 3);
    ASSERT_SET(sets[1], 4, 5, 6);
    ASSERT_SET(sets[2], 0);
    ASSERT_SET(sets[3], 1, 2, 3);
}

static void without_devices_ranks_are_spread_in_blocks(void **state) {
    (void)state;
    struct numa_cpu cpus[CPUS];
    struct numa_topology t = siblings(cpus);
    cpu_set_t sets[8];
    assert_int_equal(numa_assign(LAUNCH_NUMA_EXCLUSIVE, &t, NULL, 0, 8, sets), 0);
    for (int i = 0; i < 8; i++) {
        ASSERT_SET(sets[i], i, i + 8);
    }
    assert_int_equal(numa_assign(LAUNCH_NUMA_NODE, &t, NULL, 0, 1, sets), 0);
    ASSERT_SET(sets[0], 0, 1, 8, 9);
}

static void too_few_devices_and_forbidden_nodes_are_refused(void **state) {
    (void)state;
    struct numa_cpu cpus[CPUS];
    struct numa_topology t = siblings(cpus);
    const int devices[] = {0, 5};
    cpu_set_t sets[4];
    assert_int_equal(numa_assign(LAUNCH_NUMA_NODE, &t, devices, 2, 3, sets), MUSTER_EINVAL);
    assert_int_equal(numa_assign(LAUNCH_NUMA_NODE, &t, devices, 2, 2, sets), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "no CPU of NUMA node 5"));
}

/* On whatever machine this runs: every worker gets CPUs, all of them allowed. */
static void this_machine_can_be_planned(void **state) {
    (void)state;
    cpu_set_t sets[1], allowed;
    int rc = numa_plan(LAUNCH_NUMA_NODE, 1, sets);
    if (rc == MUSTER_EUNSUPPORTED) {
        print_message("SKIP: this machine does not tell its processors\n");
        skip();
    }
    assert_int_equal(rc, 0);
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    assert_true(CPU_COUNT(&sets[0]) > 0);
    CPU_AND(&allowed, &allowed, &sets[0]);
    assert_true(CPU_EQUAL(&allowed, &sets[0]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(node_follows_the_device),
        cmocka_unit_test(socket_takes_all_its_nodes),
        cmocka_unit_test(exclusive_gives_whole_cores_and_the_rest_to_the_first),
        cmocka_unit_test(exclusive_refuses_more_workers_than_cores),
        cmocka_unit_test(core_complex_prefers_larger_groups_and_wraps),
        cmocka_unit_test(without_devices_ranks_are_spread_in_blocks),
        cmocka_unit_test(too_few_devices_and_forbidden_nodes_are_refused),
        cmocka_unit_test(this_machine_can_be_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
