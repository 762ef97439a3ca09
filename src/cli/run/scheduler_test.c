/* What each scheduler's variables say. Those of Slurm, Open MPI and Hydra are as real ones set them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/status.h"
#include "cli/command/variables_test_support.h"
#include "cli/run/scheduler.h"

static int detect(const char *choice, const char *const *variables, struct scheduler *out) {
    status_clear();
    return scheduler_detect(choice, variables_lookup, (void *)(uintptr_t)variables, out);
}

static struct scheduler found(const char *const *variables) {
    struct scheduler s;
    if (detect("auto", variables, &s) != MUSTER_OK) {
        fail_msg("%s", muster_detail());
    }
    return s;
}

static void assert_refused(const char *choice, const char *const *variables, const char *in_message) {
    struct scheduler s;
    if (detect(choice, variables, &s) != MUSTER_EINVAL) {
        fail_msg("accepted; '%s' was expected", in_message);
    }
    if (strstr(muster_detail(), in_message) == NULL) {
        fail_msg("'%s' is not in '%s'", in_message, muster_detail());
    }
}

/* The variables say nothing of it, and the doubt why. */
static struct scheduler doubted(const char *const *variables, const char *in_doubt) {
    struct scheduler s = found(variables);
    if (strstr(s.doubt, in_doubt) == NULL) {
        fail_msg("'%s' is not in '%s'", in_doubt, s.doubt);
    }
    return s;
}

static void nothing_is_no_scheduler(void **state) {
    (void)state;
    static const char *const plain[] = {"HOME=/root", "MASTER_ADDR=a", "RANK=1", "WORLD_SIZE=2", NULL};
    static const char *const empty[] = {"SLURM_JOB_ID=", NULL};
    assert_int_equal(found(plain).kind, SCHEDULER_NONE);
    assert_int_equal(found(empty).kind, SCHEDULER_NONE);
    assert_refused("slurm", plain, "SLURM_JOB_ID");
    assert_refused("mpi", plain, "OMPI_COMM_WORLD_SIZE");
    assert_refused("kubernetes", plain, "PET_NNODES");
    assert_refused("pbs", plain, "auto, slurm, kubernetes, mpi or none");
}

#define STEP                                                                                                           \
    "SLURM_JOB_ID=7654321", "SLURM_STEP_ID=2", "SLURM_STEP_NUM_NODES=8", "SLURM_STEP_NUM_TASKS=8", "SLURM_NTASKS=8",   \
        "SLURM_STEP_NODELIST=gpu[001-007,9]", "SLURM_JOB_NODELIST=gpu[001-007,9-99]", "SLURM_JOB_NUM_NODES=98"

static void slurm_step(void **state) {
    (void)state;
    static const char *const variables[] = {STEP, "SLURM_PROCID=5", "SLURM_GPUS_ON_NODE=4", "SLURM_RESTART_COUNT=3",
                                            NULL};
    struct scheduler s = found(variables);
    assert_int_equal(s.kind, SCHEDULER_SLURM);
    assert_true(s.is_launched && s.is_on_node && s.knows_rank);
    assert_int_equal(s.agents, 8);
    assert_int_equal(s.nodes, 8);
    assert_int_equal(s.rank, 5);
    assert_int_equal(s.local_agents, 1);
    assert_int_equal(s.workers, 4);
    assert_int_equal(s.restarts, 3);
    assert_int_equal(s.host_count, 3);
    assert_string_equal(s.hosts[0], "gpu001");
    assert_string_equal(s.hosts[2], "gpu003");
    assert_string_equal(s.run_id, "7654321");
    assert_int_equal(s.port, 12000 + (7654321 + 2000) % 20000);
    assert_string_equal(s.where, "Slurm job 7654321, step 2");
    assert_string_equal(s.count_variable, "SLURM_STEP_NUM_TASKS");
    struct scheduler none;
    assert_int_equal(detect("none", variables, &none), MUSTER_OK);
    assert_int_equal(none.kind, SCHEDULER_NONE);
}

static void slurm_with_many_tasks_a_node(void **state) {
    (void)state;
    static const char *const even[] = {"SLURM_JOB_ID=1",
                                       "SLURM_STEP_ID=0",
                                       "SLURM_STEP_NUM_NODES=2",
                                       "SLURM_STEP_NUM_TASKS=8",
                                       "SLURM_PROCID=7",
                                       "SLURM_STEP_NODELIST=n[1-2]",
                                       NULL};
    struct scheduler s = found(even);
    assert_int_equal(s.local_agents, 4);
    assert_int_equal(s.agents, 8);
    assert_int_equal(s.nodes, 2);
}

static void slurm_master_address_is_obeyed(void **state) {
    (void)state;
    static const char *const variables[] = {STEP, "SLURM_PROCID=0", "MASTER_ADDR=gpu002-ib", "MASTER_PORT=1234", NULL};
    struct scheduler s = found(variables);
    assert_int_equal(s.host_count, 1);
    assert_string_equal(s.hosts[0], "gpu002-ib");
    assert_int_equal(s.port, 1234);
}

static void slurm_batch_script_and_shell(void **state) {
    (void)state;
    static const char *const batch[] = {"SLURM_JOB_ID=2",
                                        "SLURM_JOB_NUM_NODES=2",
                                        "SLURM_NNODES=2",
                                        "SLURM_JOB_NODELIST=n[1-2]",
                                        "SLURM_PROCID=0",
                                        "SLURMD_NODENAME=n1",
                                        "SLURM_TASKS_PER_NODE=1(x2)",
                                        NULL};
    static const char *const shell[] = {"SLURM_JOB_ID=3", "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_NODELIST=n[1-2]", NULL};
    static const char *const interactive_step[] = {"SLURM_JOB_ID=3",     "SLURM_STEP_ID=4294967290",
                                                   "SLURM_NNODES=2",     "SLURM_JOB_NODELIST=n[1-2]",
                                                   "SLURMD_NODENAME=n1", NULL};
    struct scheduler s = found(batch);
    assert_true(!s.is_launched && s.is_on_node);
    assert_int_equal(s.nodes, 2);
    assert_string_equal(s.where, "the batch script of Slurm job 2");
    s = found(shell);
    assert_true(!s.is_launched && !s.is_on_node);
    assert_string_equal(s.where, "the shell of Slurm job 3");
    s = found(interactive_step);
    assert_true(!s.is_launched && s.is_on_node);
    assert_int_equal(s.nodes, 2);
}

static void slurm_nonsense(void **state) {
    (void)state;
    static const char *const job[] = {"SLURM_JOB_ID=12a", NULL};
    static const char *const rank[] = {STEP, "SLURM_PROCID=8", NULL};
    static const char *const tasks[] = {"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=zero", NULL};
    static const char *const list[] = {"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n[1-", NULL};
    static const char *const count[] = {"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_NODES=3",
                                        "SLURM_STEP_NODELIST=n[1-2]", NULL};
    static const char *const gpus[] = {"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_GPUS_ON_NODE=-1", NULL};
    static const char *const many[] = {"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=65537", NULL};
    assert_int_equal(found(job).kind, SCHEDULER_NONE);
    assert_refused("slurm", job, "SLURM_JOB_ID is '12a'");
    struct scheduler s = doubted(rank, "process 8, but SLURM_STEP_NUM_TASKS says that there are 8");
    assert_true(s.agents == 0 && !s.knows_rank);
    assert_int_equal(doubted(tasks, "SLURM_STEP_NUM_TASKS is 'zero'").agents, 0);
    assert_int_equal(doubted(list, "Slurm's list of nodes").host_count, 0);
    assert_int_equal(doubted(count, "there are 3 nodes, and lists 2").host_count, 0);
    assert_int_equal(doubted(gpus, "SLURM_GPUS_ON_NODE is '-1'").workers, 0);
    assert_int_equal(doubted(many, "at most 65536").agents, 0);
}

/* One that is no number is as good as none: the next one that says the same counts. */
static void what_cannot_be_right_says_nothing(void **state) {
    (void)state;
    static const char *const tasks[] = {STEP, "SLURM_PROCID=5", NULL};
    static const char *const next[] = {"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=x",
                                       "SLURM_NTASKS=4", "SLURM_PROCID=3",  NULL};
    static const char *const pmi[] = {"PMI_RANK=1", "PMI_SIZE=x", NULL};
    static const char *const hydra[] = {"PMI_RANK=1", "PMI_SIZE=x", "MPI_LOCALNRANKS=2", NULL};
    static const char *const open_mpi[] = {"OMPI_COMM_WORLD_SIZE=many", "OMPI_COMM_WORLD_RANK=1", NULL};
    static const char *const pmix[] = {"PMIX_RANK=first", NULL};
    static const char *const port[] = {STEP, "SLURM_PROCID=0", "MASTER_PORT=70000", NULL};
    static const char *const link[] = {STEP, "SLURM_PROCID=0", "MASTER_PORT=tcp://10.96.5.5:29500", NULL};
    assert_int_equal(found(next).agents, 4);
    assert_string_equal(found(next).count_variable, "SLURM_NTASKS");
    assert_int_equal(found(pmi).kind, SCHEDULER_NONE);
    assert_int_equal(found(hydra).kind, SCHEDULER_NONE);
    assert_int_equal(found(open_mpi).kind, SCHEDULER_NONE);
    assert_int_equal(found(pmix).kind, SCHEDULER_NONE);
    assert_refused("mpi", pmi, "PMI_SIZE is 'x'");
    assert_int_equal(doubted(port, "MASTER_PORT is 70000").port, found(tasks).port);
    assert_int_equal(found(link).port, found(tasks).port);
    assert_string_equal(found(link).doubt, "");
}

#define OPEN_MPI                                                                                                       \
    "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0",                          \
        "OMPI_MCA_ess_base_jobid=1252720641", "PMIX_RANK=3",                                                           \
        "OMPI_MCA_orte_hnp_uri=1252720640.0;tcp://192.0.2.2,10.0.0.2:41407;tcp6://[fd00::2]:34365"

static void open_mpi(void **state) {
    (void)state;
    static const char *const plain[] = {OPEN_MPI, "OMPI_COMM_WORLD_RANK=3", NULL};
    static const char *const in_slurm[] = {OPEN_MPI,
                                           "OMPI_COMM_WORLD_RANK=3",
                                           "SLURM_JOB_ID=1",
                                           "SLURM_STEP_ID=0",
                                           "SLURM_PROCID=1",
                                           "SLURM_JOB_NODELIST=n[5-8]",
                                           NULL};
    static const char *const elsewhere[] = {OPEN_MPI, "OMPI_COMM_WORLD_RANK=0",
                                            "OMPI_MCA_orte_local_daemon_uri=1252720640.1;tcp://192.0.2.3:5", NULL};
    static const char *const told[] = {OPEN_MPI, "OMPI_COMM_WORLD_RANK=0", "MASTER_ADDR=n9",
                                       "OMPI_MCA_orte_local_daemon_uri=1252720640.1;tcp://192.0.2.3:5", NULL};
    struct scheduler s = found(plain);
    assert_int_equal(s.kind, SCHEDULER_MPI);
    assert_int_equal(s.agents, 4);
    assert_int_equal(s.rank, 3);
    assert_int_equal(s.local_agents, 1);
    assert_string_equal(s.hosts[0], "192.0.2.2");
    assert_string_equal(s.run_id, "mpi-1252720641");
    assert_int_equal(s.port, 12000 + (1252720641 >> 16) % 20000);
    s = found(in_slurm); /* mpirun has started it, and begins with the allocation's first node */
    assert_int_equal(s.kind, SCHEDULER_MPI);
    assert_string_equal(s.hosts[0], "n5");
    assert_int_equal(doubted(elsewhere, "rank 0 is not on the host of mpirun").host_count, 0);
    assert_string_equal(found(told).hosts[0], "n9");
}

static void other_mpi(void **state) {
    (void)state;
    static const char *const hydra[] = {
        "PMI_RANK=1",     "PMI_SIZE=2",      "MPI_LOCALNRANKS=2",         "MPI_LOCALRANKID=1",
        "SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_JOB_NODELIST=n[5-8]", NULL};
    static const char *const srun_pmi[] = {"PMI_RANK=1", "PMI_SIZE=2", STEP, "SLURM_PROCID=1", NULL};
    static const char *const pmi[] = {"PMI_RANK=1", "PMI_SIZE=2", NULL};
    static const char *const pmix[] = {"PMIX_RANK=1", "PMIX_NAMESPACE=prun.n1.77@1", NULL};
    struct scheduler s = found(hydra);
    assert_int_equal(s.kind, SCHEDULER_MPI);
    assert_int_equal(s.local_agents, 2);
    assert_string_equal(s.hosts[0], "n5");
    assert_int_equal(found(srun_pmi).kind, SCHEDULER_SLURM);
    s = found(pmi);
    assert_int_equal(s.kind, SCHEDULER_MPI);
    assert_int_equal(s.agents, 2);
    assert_string_equal(s.hosts[0], "");
    s = found(pmix);
    assert_int_equal(s.kind, SCHEDULER_MPI);
    assert_int_equal(s.agents, 0);
    assert_int_equal(s.rank, 1);
    assert_string_equal(s.run_id, "prun.n1.77@1");
}

#define POD "KUBERNETES_SERVICE_HOST=10.96.0.1"

static void kubernetes(void **state) {
    (void)state;
    static const char *const pod[] = {POD, "HOSTNAME=notebook-0", NULL};
    static const char *const indexed[] = {
        POD, "JOB_COMPLETION_INDEX=2", "PET_NNODES=4", "HOSTNAME=train-v2-2", "MUSTER_SERVICE=train", NULL};
    static const char *const renamed[] = {POD, "JOB_COMPLETION_INDEX=2", "HOSTNAME=x", "MUSTER_SERVICE=train", NULL};
    static const char *const elastic[] = {POD, "PET_NNODES=2:5", "PET_RDZV_ENDPOINT=a:1", "HOSTNAME=w-1", NULL};
    static const char *const operator[] = {
        POD, "MASTER_ADDR=job-master-0", "MASTER_PORT=23456", "WORLD_SIZE=3", "RANK=2", NULL};
    static const char *const trainer[] = {POD, "PET_NNODES=2", "PET_NODE_RANK=2", "PET_MASTER_ADDR=a", NULL};
    static const char *const broken[] = {POD, "PET_NNODES=many", NULL};
    static const char *const word[] = {POD, "MASTER_ADDR=a", "WORLD_SIZE=auto", "RANK=0", NULL};
    static const char *const linked[] = {
        POD, "MASTER_ADDR=a", "MASTER_PORT=tcp://10.96.5.5:29500", "WORLD_SIZE=3", "RANK=2", NULL};
    assert_int_equal(found(pod).kind, SCHEDULER_NONE);
    struct scheduler s = found(indexed);
    assert_int_equal(s.kind, SCHEDULER_KUBERNETES);
    assert_int_equal(s.agents, 4);
    assert_int_equal(s.rank, 2);
    assert_int_equal(s.host_count, 3);
    assert_string_equal(s.hosts[0], "train-v2-0.train");
    assert_string_equal(s.hosts[2], "train-v2-2.train");
    assert_string_equal(s.run_id, "train-v2");
    assert_int_equal(s.port, 0);
    assert_int_equal(doubted(renamed, "called 'x'").host_count, 0);
    s = found(elastic);
    assert_int_equal(s.agents, 5);
    assert_false(s.knows_rank);
    s = found(operator);
    assert_int_equal(s.agents, 3);
    assert_int_equal(s.rank, 2);
    assert_string_equal(s.hosts[0], "job-master-0");
    assert_int_equal(s.port, 23456);
    assert_int_equal(doubted(trainer, "process 2, but PET_NNODES says that there are 2").agents, 0);
    assert_int_equal(found(broken).agents, 0);
    assert_int_equal(found(word).kind, SCHEDULER_NONE);
    s = found(linked);
    assert_int_equal(s.agents, 3);
    assert_int_equal(s.port, 0);
}

static void a_worker_is_in_no_schedulers_hands(void **state) {
    (void)state;
    static const char *const worker[] = {STEP, "SLURM_PROCID=5", "TORCHELASTIC_RUN_ID=7654321", NULL};
    struct scheduler s;
    assert_int_equal(found(worker).kind, SCHEDULER_NONE);
    assert_int_equal(detect("slurm", worker, &s), MUSTER_OK);
    assert_int_equal(s.kind, SCHEDULER_SLURM);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_no_scheduler),
        cmocka_unit_test(slurm_step),
        cmocka_unit_test(slurm_with_many_tasks_a_node),
        cmocka_unit_test(slurm_master_address_is_obeyed),
        cmocka_unit_test(slurm_batch_script_and_shell),
        cmocka_unit_test(slurm_nonsense),
        cmocka_unit_test(what_cannot_be_right_says_nothing),
        cmocka_unit_test(open_mpi),
        cmocka_unit_test(other_mpi),
        cmocka_unit_test(kubernetes),
        cmocka_unit_test(a_worker_is_in_no_schedulers_hands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
