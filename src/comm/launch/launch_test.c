/* Who has started this process, by its environment alone; see launch.h. */
#include "comm/launch/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

/* "NAME=value" entries, up to a NULL. */
static const char *find(void *context, const char *name) {
    size_t len = strlen(name);
    for (const char *const *entry = context; *entry; entry++) {
        if (strncmp(*entry, name, len) == 0 && (*entry)[len] == '=') {
            return *entry + len + 1;
        }
    }
    return NULL;
}

#define ENVIRONMENT(...)                                                                                               \
    (void *)(const char *const[]) {                                                                                    \
        __VA_ARGS__, NULL                                                                                              \
    }

static void a_launchers_variables_come_first(void **state) {
    (void)state;
    struct launch launch;
    assert_int_equal(launch_find(find, ENVIRONMENT("HOME=/"), &launch), 0);
    assert_int_equal(launch.kind, LAUNCH_ALONE);
    assert_null(launch.starter);
    void *worker = ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=1", "OMPI_COMM_WORLD_RANK=1",
                               "OMPI_COMM_WORLD_SIZE=9", "PMI_FD=5");
    assert_int_equal(launch_find(find, worker, &launch), 0);
    assert_int_equal(launch.kind, LAUNCH_ENV);
    /* Half of it: muster_store_open_env() names what is missing. */
    assert_int_equal(launch_find(find, ENVIRONMENT("MASTER_PORT=1"), &launch), 0);
    assert_int_equal(launch.kind, LAUNCH_ENV);
    assert_int_equal(launch_find(find, ENVIRONMENT("MASTER_ADDR=a"), &launch), 0);
    assert_int_equal(launch.kind, LAUNCH_ENV);
    assert_int_equal(launch_find(find, ENVIRONMENT("RANK=1", "PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=3"), &launch), 0);
    assert_int_equal(launch.kind, LAUNCH_ENV);
}

static void starters_tell_ranks(void **state) {
    (void)state;
    struct launch launch;
    assert_int_equal(launch_find(find, ENVIRONMENT("PMI_RANK=1", "PMI_SIZE=3", "PMI_FD=6"), &launch), 0);
    assert_true(launch.kind == LAUNCH_PMI1 && launch.rank == 1 && launch.size == 3 && launch.pmi_fd == 6);
    void *open_mpi = ENVIRONMENT("OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "PMIX_NAMESPACE=1", "PMIX_RANK=2",
                                 "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1");
    assert_int_equal(launch_find(find, open_mpi, &launch), 0);
    assert_true(launch.kind == LAUNCH_PMIX && launch.rank == 2 && launch.size == 4);
    assert_int_equal(launch_find(find, ENVIRONMENT("PMIX_NAMESPACE=1", "PMIX_RANK=0"), &launch), 0);
    assert_int_equal(launch.kind, LAUNCH_PMIX);
    assert_int_equal(launch_find(find, ENVIRONMENT("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"), &launch), 0);
    assert_int_equal(launch.kind, LAUNCH_ALONE);
    assert_non_null(launch.starter);
    /* A batch script is no step: SLURM_PROCID says nothing there. */
    assert_int_equal(launch_find(find, ENVIRONMENT("SLURM_PROCID=0", "SLURM_NTASKS=8"), &launch), 0);
    assert_int_equal(launch.kind, LAUNCH_ALONE);
}

static void master_addr_always_works(void **state) {
    (void)state;
    struct launch launch;
    void *srun = ENVIRONMENT("SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=4", "MASTER_ADDR=n1", "SLURM_JOB_ID=7");
    assert_int_equal(launch_find(find, srun, &launch), 0);
    assert_true(launch.kind == LAUNCH_MASTER && launch.rank == 3 && launch.size == 4);
    assert_int_equal(launch.master_port, LAUNCH_MASTER_PORT);
    assert_string_equal(launch.master_host, "n1");
    void *hydra = ENVIRONMENT("PMI_RANK=0", "PMI_SIZE=2", "PMI_FD=3", "MASTER_ADDR=n1", "MASTER_PORT=1234");
    assert_int_equal(launch_find(find, hydra, &launch), 0);
    assert_true(launch.kind == LAUNCH_MASTER && launch.master_port == 1234);
    /* Kubernetes, with a service called "master" */
    void *link = ENVIRONMENT("PMI_RANK=0", "PMI_SIZE=2", "MASTER_ADDR=n1", "MASTER_PORT=tcp://10.96.5.5:29500");
    assert_int_equal(launch_find(find, link, &launch), 0);
    assert_true(launch.kind == LAUNCH_MASTER && launch.master_port == LAUNCH_MASTER_PORT);
    assert_int_equal(launch_find(find, ENVIRONMENT("MASTER_PORT=tcp://10.96.5.5:29500"), &launch), 0);
    assert_int_equal(launch.kind, LAUNCH_ALONE);
}

static void what_is_missing_is_said(void **state) {
    (void)state;
    struct launch launch;
    void *srun = ENVIRONMENT("SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=4", "SLURM_JOB_ID=7");
    assert_int_equal(launch_find(find, srun, &launch), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "Slurm's srun has started this process as rank 3 of 4"));
    assert_non_null(strstr(muster_detail(), "MASTER_ADDR"));
    assert_non_null(strstr(muster_detail(), "--mpi=pmi2"));
    assert_int_equal(launch_find(find, ENVIRONMENT("PMI_RANK=x", "PMI_SIZE=2"), &launch), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "PMI_RANK is 'x'"));
    assert_int_equal(launch_find(find, ENVIRONMENT("PMI_RANK=2", "PMI_SIZE=2", "PMI_FD=3"), &launch), MUSTER_EINVAL);
    assert_int_equal(launch_find(find, ENVIRONMENT("PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=-3"), &launch), MUSTER_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_launchers_variables_come_first),
        cmocka_unit_test(starters_tell_ranks),
        cmocka_unit_test(master_addr_always_works),
        cmocka_unit_test(what_is_missing_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
