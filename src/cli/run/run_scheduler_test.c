/* What `muster run` makes of a scheduler's variables: the options that follow, and the sentences of what cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/variables_test_support.h"
#include "cli/run/run_scheduler.h"

enum { WORDS_MAX = 16 };

static char log_text[LOG_TEXT_MAX]; /* the last warning */
static unsigned warning_count;

/* Who has started the agent, as its ancestors say, and its name and stdin. */
static const struct starter_sight task = {.is_task = true, .has_daemon = true};
static const struct starter_sight below_task = {.has_daemon = true};
static const struct starter_sight typed = {.has_daemon = true, .is_shell = true};
static const struct starter_sight nobody = {.is_whole = true};
static const struct starter_sight unseen = {.is_whole = false};
static const struct starter_sight *sight = &task;
static bool called_torchrun;

static void look(const struct starter_query *query, struct starter_sight *out) {
    (void)query;
    *out = *sight;
}

static void keep_log(enum log_level level, const char *file, int line, const char *text) {
    (void)file;
    (void)line;
    if (level >= LOG_LEVEL_WARNING) {
        (void)str_copy(log_text, sizeof log_text, text);
        warning_count++;
    }
}

static struct run_scheduler room;
static struct options options;

/* `text`: words separated by blanks. */
static int apply(const char *text, const char *const *variables) {
    static char words[512];
    static char script[] = "train.py";
    char *argv[WORDS_MAX], *rest = words;
    int argc = 0;
    assert_true(str_copy(words, sizeof words, text));
    for (char *word; text[0] != '\0' && (word = strsep(&rest, " ")) != NULL;) {
        argv[argc++] = word;
    }
    argv[argc++] = script;
    const struct run_machine machine = {.lookup = variables_lookup,
                                        .ctx = (void *)(uintptr_t)variables,
                                        .root = "",
                                        .is_torchrun = called_torchrun,
                                        .look = look};
    log_text[0] = '\0';
    warning_count = 0;
    status_clear();
    if (options_parse(argc, argv, variables_lookup, machine.ctx, &options) != OPTIONS_OK) {
        fail_msg("%s: %s", text, muster_detail());
    }
    return run_scheduler_apply(&options, &machine, &room);
}

/* `plan`: the options that are set. */
static void assert_plan(const char *text, const char *const *variables, const char *plan) {
    if (apply(text, variables) != MUSTER_OK) {
        fail_msg("%s: %s", text, muster_detail());
    }
    assert_string_equal(room.plan, plan);
}

static void assert_refused(const char *text, const char *const *variables, const char *in_message) {
    if (apply(text, variables) != MUSTER_EINVAL) {
        fail_msg("'%s' is accepted; '%s' was expected", text, in_message);
    }
    if (strstr(muster_detail(), in_message) == NULL) {
        fail_msg("'%s' is not in '%s'", in_message, muster_detail());
    }
}

#define STEP_OF(nodes, tasks)                                                                                          \
    "SLURM_JOB_ID=77", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_NODES=" nodes, "SLURM_STEP_NUM_TASKS=" tasks,                \
        "SLURM_STEP_NODELIST=gpu[1-" nodes "]"

#define USR1 " --preempt-signal=SIGUSR1"
#define THREE "gpu1:12077,gpu2:12077,gpu3:12077" /* of 8 */

static const char *const step[] = {STEP_OF("8", "8"), "SLURM_PROCID=3", "SLURM_GPUS_ON_NODE=4", NULL};

static void a_step_needs_no_option(void **state) {
    (void)state;
    assert_plan("", step,
                " --nnodes=8 --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=" THREE
                " --nproc-per-node=4" USR1);
    assert_string_equal(options.values[OPTION_NNODES].text, "8");
    assert_int_equal(options.values[OPTION_NNODES].source, OPTION_FROM_SCHEDULER);
    assert_string_equal(options.values[OPTION_RDZV_ENDPOINT].text, THREE);
    assert_int_equal(options.values[OPTION_MASTER_PORT].source, OPTION_FROM_DEFAULT);
}

static void a_given_option_wins(void **state) {
    (void)state;
    static const char *const pet[] = {STEP_OF("8", "8"), "SLURM_PROCID=3", "PET_NPROC_PER_NODE=2", "PET_RDZV_ID=x",
                                      NULL};
    assert_plan("--nnodes=2:8 --rdzv-backend=c10d --nproc-per-node=1", step,
                " --rdzv-id=77 --rdzv-endpoint=gpu1:12077" USR1);
    assert_plan("--rdzv-endpoint=host:1 --rdzv-backend=c10d --rdzv-id=9 --nproc-per-node=1", step, " --nnodes=8" USR1);
    assert_plan("", pet, " --nnodes=8 --rdzv-backend=muster --node-rank=3 --rdzv-endpoint=" THREE USR1);
    /* torchrun's own way of static jobs: the backend stays what it was. */
    assert_plan("--master-addr=m --master-port=5", step,
                " --nnodes=8 --rdzv-id=77 --node-rank=3 --nproc-per-node=4" USR1);
    assert_plan("--rdzv-backend=static --nproc-per-node=1", step,
                " --nnodes=8 --rdzv-id=77 --node-rank=3 --master-addr=gpu1 --master-port=12077" USR1);
    assert_int_equal(options.values[OPTION_NODE_RANK].integer, 3);
    assert_int_equal(options.values[OPTION_MASTER_PORT].integer, 12077);
    assert_plan("--rdzv-backend=etcd --nproc-per-node=1", step, " --nnodes=8 --rdzv-id=77" USR1);
    assert_plan("--spares=2 --nproc-per-node=1", step,
                " --nnodes=6 --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=" THREE USR1);
    assert_plan("--scheduler=none", step, "");
}

/* Slurm's parts: a batch script of several components, a step on some of the nodes, more workers than devices. */
static void parts_of_an_allocation(void **state) {
    (void)state;
    static const char *const components[] = {"SLURM_JOB_ID=77",
                                             "SLURM_NNODES=1",
                                             "SLURM_JOB_NODELIST=n1",
                                             "SLURM_HET_SIZE=2",
                                             "SLURMD_NODENAME=n1",
                                             "SLURM_PROCID=0",
                                             "SLURM_JOB_NUM_NODES_HET_GROUP_0=1",
                                             "SLURM_JOB_NUM_NODES_HET_GROUP_1=7",
                                             NULL};
    static const char *const late[] = {STEP_OF("2", "2"), "SLURM_PROCID=1", "SLURM_JOB_NODELIST=gpu[1-4]",
                                       "MASTER_ADDR=gpu3", NULL};
    static const char *const right[] = {STEP_OF("2", "2"), "SLURM_PROCID=1", "SLURM_JOB_NODELIST=gpu[1-4]",
                                        "MASTER_ADDR=gpu2", NULL};
    static const char *const overcommitted[] = {STEP_OF("1", "2"), "SLURM_PROCID=1", "SLURM_OVERCOMMIT=1", NULL};
    static const char *const tasks[] = {STEP_OF("8", "8"), "SLURM_PROCID=3", "SLURM_NTASKS_PER_NODE=1",
                                        "SLURM_GPUS_ON_NODE=4", NULL};
    static const char *const batch_tasks[] = {STEP_OF("2", "16"), "SLURM_PROCID=3", "SLURM_NTASKS_PER_NODE=8", NULL};
    assert_refused("", components, "which has 8 nodes, and the agent would run on one");
    assert_plan(
        "", late,
        " --nnodes=2 --rdzv-backend=muster --rdzv-id=77 --node-rank=1 --rdzv-endpoint=gpu1:12077,gpu2:12077" USR1);
    assert_non_null(
        strstr(log_text, "MASTER_ADDR is a node of the job but not one of the nodes of Slurm job 77, step 0"));
    assert_plan("", right,
                " --nnodes=2 --rdzv-backend=muster --rdzv-id=77 --node-rank=1 --rdzv-endpoint=gpu2:12077" USR1);
    assert_refused("", overcommitted, "2 agents have been started on 1 node,");
    assert_refused("", batch_tasks, "16 agents have been started on 2 nodes");
    assert_plan("--nproc-per-node=8", tasks,
                " --nnodes=8 --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=" THREE USR1);
    assert_non_null(strstr(log_text, "--nproc-per-node=8, but Slurm job 77, step 0 has 4 GPUs on this node"));
}

/* An Indexed Job whose manifest says two numbers; both launchers' variables at once. */
static void two_say_different_things(void **state) {
    (void)state;
    static const char *const beyond[] = {"KUBERNETES_SERVICE_HOST=10.96.0.1",
                                         "JOB_COMPLETION_INDEX=4",
                                         "PET_NNODES=4",
                                         "HOSTNAME=train-4",
                                         "MUSTER_SERVICE=svc",
                                         NULL};
    static const char *const renumbered[] = {"KUBERNETES_SERVICE_HOST=10.96.0.1",
                                             "JOB_COMPLETION_INDEX=1",
                                             "PET_NODE_RANK=2",
                                             "PET_NNODES=4",
                                             "HOSTNAME=train-1",
                                             "MUSTER_SERVICE=svc",
                                             NULL};
    static const char *const mpi_in_slurm[] = {STEP_OF("8", "8"),
                                               "SLURM_PROCID=0",
                                               "SLURM_JOB_NODELIST=gpu[1-8]",
                                               "OMPI_COMM_WORLD_SIZE=2",
                                               "OMPI_COMM_WORLD_RANK=1",
                                               "OMPI_COMM_WORLD_LOCAL_SIZE=1",
                                               NULL};
    assert_refused("", beyond, "this is process 4, but PET_NNODES says that there are 4");
    assert_refused("", renumbered, "this pod is called 'train-1'");
    assert_refused("--nnodes=4", mpi_in_slurm, "would wait for nodes that do not come");
    assert_int_equal(apply("--standalone", mpi_in_slurm), MUSTER_OK);
    assert_non_null(strstr(log_text, "but --standalone says that a job has one node"));
}

/* So many endpoints as there are hosts, up to three, unless the first start would be slower for it. */
static void the_first_hosts_serve(void **state) {
    (void)state;
    static const char *const two[] = {STEP_OF("2", "2"), "SLURM_PROCID=1", NULL};
    static const char *const master[] = {STEP_OF("8", "8"), "SLURM_PROCID=3", "MASTER_ADDR=m", NULL};
    static const char *const port[] = {STEP_OF("8", "8"), "SLURM_PROCID=3", "MASTER_PORT=5", NULL};
    static const char more[] = " --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=" THREE USR1;
    static const char one[] = " --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=gpu1:12077" USR1;
    assert_plan(
        "", two,
        " --nnodes=2 --rdzv-backend=muster --rdzv-id=77 --node-rank=1 --rdzv-endpoint=gpu1:12077,gpu2:12077" USR1);
    assert_plan("", master,
                " --nnodes=8 --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=m:12077" USR1);
    assert_plan(
        "", port,
        " --nnodes=8 --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=gpu1:5,gpu2:5,gpu3:5" USR1);
    assert_plan("--nnodes=2:8 --nproc-per-node=1", step, more);
    assert_plan("--nnodes=2:6 --spares=2 --nproc-per-node=1", step, more);
    assert_plan("--nnodes=2:9 --nproc-per-node=1", step, one);
    assert_plan("--nnodes=2:8 --spares=2 --nproc-per-node=1", step, one);
    assert_plan("--nnodes=2:4 --nproc-per-node=1", step, one);
}

static void one_node_stays_one_node(void **state) {
    (void)state;
    static const char *const one[] = {STEP_OF("1", "1"), "SLURM_PROCID=0", "SLURM_GPUS_ON_NODE=4", NULL};
    assert_plan("", one, " --nproc-per-node=4" USR1);
    assert_plan("--standalone --nproc-per-node=2 --preempt-signal=none", one, "");
    assert_plan("", (const char *const[]){"HOME=/", NULL}, "");
}

/* The plan is as it would be without the scheduler, but for the devices and the signal. */
static void assert_alone(const char *text, const char *const *variables, const char *in_warning) {
    assert_plan(text, variables, " --nproc-per-node=4" USR1);
    if (strstr(log_text, in_warning) == NULL) {
        fail_msg("'%s' is not in '%s'", in_warning, log_text);
    }
}

static void several_nodes_that_would_run_alone(void **state) {
    (void)state;
    static const char *const pet[] = {STEP_OF("8", "8"), "SLURM_PROCID=3", "SLURM_GPUS_ON_NODE=4", "PET_NNODES=1",
                                      NULL};
    assert_alone("--standalone", step,
                 "step 0 has started 8 agents (SLURM_STEP_NUM_TASKS), but --standalone says that a");
    assert_alone("--nnodes=1", step, "but --nnodes says that a job has one node");
    assert_alone("--nnodes=1:1", step, "but --nnodes says that a job has one node");
    assert_alone("", pet, "but PET_NNODES says that a job has one node");
    assert_refused("--nnodes=9", step, "wait for nodes that do not come");
    assert_refused("--nnodes=x", step, "--nnodes=x is not a number of nodes");
    assert_plan("--standalone --scheduler=none", step, "");
    assert_plan("--nnodes=9 --rdzv-endpoint=h --rdzv-backend=c10d --nproc-per-node=1", step, " --rdzv-id=77" USR1);
    assert_plan("--nnodes=4 --nproc-per-node=1", step,
                " --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=gpu1:12077" USR1);
    assert_non_null(strstr(log_text, "the others are spare nodes"));
}

static void several_agents_on_a_node(void **state) {
    (void)state;
    static const char *const crowd[] = {STEP_OF("2", "8"), "SLURM_PROCID=3", NULL};
    static const char *const uneven[] = {STEP_OF("2", "3"), "SLURM_PROCID=2", NULL};
    static const char *const mpi[] = {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0",
                                      "OMPI_COMM_WORLD_LOCAL_SIZE=2", NULL};
    assert_refused("", crowd, "8 agents have been started on 2 nodes");
    assert_refused("", crowd, "srun --ntasks-per-node=1");
    assert_refused("--nnodes=2", crowd, "srun --ntasks-per-node=1");
    assert_refused("", uneven, "3 agents have been started on 2 nodes");
    assert_refused("", mpi, "mpirun --map-by ppr:1:node");
    assert_plan("--nnodes=8", crowd,
                " --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=gpu1:12077,gpu2:12077" USR1);
}

static void ranks_that_the_batch_script_has_expanded(void **state) {
    (void)state;
    assert_plan("--node-rank=0 --master-addr=m --nproc-per-node=1", step, " --nnodes=8 --rdzv-id=77" USR1);
    assert_non_null(strstr(log_text, "this is process 3 of Slurm job 77, step 0"));
    assert_plan("--node-rank=3 --master-addr=m --nproc-per-node=1", step, " --nnodes=8 --rdzv-id=77" USR1);
}

static void scripts_and_shells(void **state) {
    (void)state;
    static const char *const batch[] = {"SLURM_JOB_ID=2",     "SLURM_NNODES=2",       "SLURM_JOB_NODELIST=n[1-2]",
                                        "SLURMD_NODENAME=n1", "SLURM_GPUS_ON_NODE=2", NULL};
    static const char *const shell[] = {"SLURM_JOB_ID=2", "SLURM_NNODES=2", "SLURM_JOB_NODELIST=n[1-2]", NULL};
    static const char *const one[] = {"SLURM_JOB_ID=2",     "SLURM_NNODES=1",       "SLURM_JOB_NODELIST=n1",
                                      "SLURMD_NODENAME=n1", "SLURM_GPUS_ON_NODE=2", NULL};
    static const char *const login[] = {"SLURM_JOB_ID=2", "SLURM_NNODES=1", "SLURM_JOB_NODELIST=n1", NULL};
    assert_refused("", batch, "this is the batch script of Slurm job 2, which has 2 nodes");
    assert_refused("", batch, "srun --ntasks-per-node=1 muster run");
    assert_plan("--standalone --nproc-per-node=1", batch, USR1);
    assert_non_null(strstr(log_text, "which has 2 nodes, but --standalone says that the job has one"));
    assert_refused("", shell, "this is the shell of Slurm job 2");
    assert_plan("--standalone --scheduler=none", shell, "");
    assert_plan("--nnodes=2 --rdzv-endpoint=n1 --rdzv-backend=c10d --nproc-per-node=1", batch,
                USR1); /* started by ssh */
    assert_plan("", one, " --nproc-per-node=2" USR1);
    assert_string_equal(log_text, "");
    assert_plan("", login, "");
    assert_non_null(strstr(log_text, "perhaps not one of its nodes"));
}

static void mpi_launchers(void **state) {
    (void)state;
    static const char *const open_mpi[] = {"OMPI_COMM_WORLD_SIZE=2",
                                           "OMPI_COMM_WORLD_RANK=1",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE=1",
                                           "OMPI_MCA_ess_base_jobid=65537",
                                           "OMPI_MCA_orte_hnp_uri=65536.0;tcp://192.0.2.2:41407",
                                           NULL};
    static const char *const hydra[] = {"PMI_SIZE=2", "PMI_RANK=1", "MPI_LOCALNRANKS=1", NULL};
    static const char *const told[] = {"PMI_SIZE=2",          "PMI_RANK=1",    "MPI_LOCALNRANKS=1",
                                       "MASTER_ADDR=fd00::1", "MASTER_PORT=7", NULL};
    static const char *const pmix[] = {"PMIX_RANK=1", "MASTER_ADDR=n1", NULL};
    assert_plan("", open_mpi,
                " --nnodes=2 --rdzv-backend=muster --rdzv-id=mpi-65537 --node-rank=1 --rdzv-endpoint=192.0.2.2:12001");
    assert_refused("", hydra, "give --rdzv-endpoint=HOST:PORT, the same on all, or pass MASTER_ADDR=HOST");
    assert_plan("", told, " --nnodes=2 --rdzv-backend=muster --node-rank=1 --rdzv-endpoint=[fd00::1]:7");
    assert_refused("", pmix, "does not say how many agents there are (this is number 1): give --nnodes");
    assert_plan("--nnodes=2", pmix, " --rdzv-backend=muster --node-rank=1 --rdzv-endpoint=n1");
    assert_plan("--rdzv-endpoint=h --nnodes=2", hydra, " --node-rank=1");
}

#define POD "KUBERNETES_SERVICE_HOST=10.96.0.1"

static void kubernetes(void **state) {
    (void)state;
    static const char *const indexed[] = {
        POD, "JOB_COMPLETION_INDEX=2", "PET_NNODES=4", "HOSTNAME=train-2", "MUSTER_SERVICE=svc", NULL};
    static const char *const no_service[] = {POD, "JOB_COMPLETION_INDEX=2", "PET_NNODES=4", "HOSTNAME=train-2", NULL};
    static const char *const single[] = {POD, "JOB_COMPLETION_INDEX=2", "HOSTNAME=train-2", NULL};
    static const char *const elastic[] = {
        POD, "PET_NNODES=2:4", "PET_RDZV_ENDPOINT=w-0:29400", "PET_RDZV_BACKEND=c10d", "PET_NPROC_PER_NODE=2", NULL};
    static const char *const trainer[] = {
        POD, "PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_ADDR=a", "PET_MASTER_PORT=29400", NULL};
    static const char *const operator[] = {POD, "MASTER_ADDR=m-0", "MASTER_PORT=23456", "WORLD_SIZE=3", "RANK=2", NULL};
    assert_plan(
        "", indexed,
        " --rdzv-backend=muster --rdzv-id=train --node-rank=2 --rdzv-endpoint=train-0.svc,train-1.svc,train-2.svc");
    assert_refused("", no_service, "MUSTER_SERVICE=NAME of its headless service");
    assert_int_equal(apply("--standalone", indexed), MUSTER_OK);
    assert_non_null(strstr(log_text, "but --standalone says that a job has one node"));
    assert_int_equal(apply("--nnodes=1", indexed), MUSTER_OK);
    assert_plan("", single, "");
    assert_non_null(strstr(log_text, "runs on its own"));
    assert_plan("", elastic, "");
    assert_plan("", trainer, "");
    assert_plan("", operator, " --nnodes=3 --rdzv-backend=muster --node-rank=2 --rdzv-endpoint=m-0:23456");
}

static const char *const pty[] = {STEP_OF("1", "4"), "SLURM_PROCID=0", "SLURMD_NODENAME=gpu1", NULL};
static const char *const pmi[] = {"PMI_RANK=0", "PMI_SIZE=4", NULL};
static const char *const pmi_host[] = {"PMI_RANK=0", "PMI_SIZE=4", "MASTER_ADDR=n1", NULL};
static const char *const pmix_alone[] = {"PMIX_RANK=0", "PMIX_NAMESPACE=n", NULL};
static const char *const pod[] = {POD, "MASTER_ADDR=m-0", "MASTER_PORT=23456", "WORLD_SIZE=8", "RANK=0", NULL};

#define STEP_PLAN                                                                                                      \
    " --nnodes=8 --rdzv-backend=muster --rdzv-id=77 --node-rank=3 --rdzv-endpoint=" THREE " --nproc-per-node=4" USR1
#define PMI_PLAN " --nnodes=4 --rdzv-backend=muster --node-rank=0 --rdzv-endpoint=n1"
#define POD_PLAN " --nnodes=8 --rdzv-backend=muster --node-rank=0 --rdzv-endpoint=m-0:23456"

/* Who has started the agent, and what follows. */
static void variables_are_inherited(void **state) {
    (void)state;
    static const struct {
        const char *line;
        const char *const *variables;
        const struct starter_sight *sight;
        const char *plan, *refused; /* one of them */
        unsigned warnings;
        bool waits;
    } rows[] = {
        /* srun muster, srun bash script, srun apptainer exec, the same in a process namespace */
        {"", step, &task, STEP_PLAN, NULL, 0, false},
        {"", step, &below_task, STEP_PLAN, NULL, 0, false},
        {"", step, &unseen, STEP_PLAN, NULL, 0, true},
        /* srun --pty bash; a shell that has outlived its step */
        {"", pty, &typed, USR1, NULL, 0, false},
        {"", step, &typed, " --nproc-per-node=4" USR1, NULL, 1, false},
        {"", step, &nobody, "", NULL, 1, false},
        {"--scheduler=slurm", step, &nobody, STEP_PLAN, NULL, 0, false},
        {"", pty, &task, NULL, "4 agents have been started on 1 node", 0, false},
        {"", pty, &unseen, NULL, "SLURM_STEP_NUM_TASKS=4 says that there are so many agents on 1 node", 0, false},
        /* mpirun muster, mpirun sh -c, a container of mpirun's, a shell that has the variables */
        {"", pmi_host, &task, PMI_PLAN, NULL, 0, false},
        {"", pmi_host, &below_task, PMI_PLAN, NULL, 0, false},
        {"", pmi_host, &unseen, PMI_PLAN, NULL, 0, true},
        {"", pmi_host, &nobody, "", NULL, 1, false},
        {"", pmi, &typed, "", NULL, 0, false},
        {"", pmi, &nobody, "", NULL, 1, false},
        {"", pmi, &unseen, NULL, "if this is the only agent, add --nnodes=1", 0, false},
        {"", pmix_alone, &nobody, "", NULL, 1, false},
        {"", pmix_alone, &typed, "", NULL, 0, false},
        {"", pmix_alone, &unseen, NULL, "give --nnodes, the same on all, or --scheduler=none; if this is the", 0,
         false},
        {"--scheduler=mpi", pmi, &nobody, NULL, "does not say on which host", 0, false},
        /* a pod's first process, a script of a pod, a shell in it */
        {"", pod, &task, POD_PLAN, NULL, 0, false},
        {"", pod, &unseen, POD_PLAN, NULL, 0, true},
        {"", pod, &nobody, POD_PLAN, NULL, 0, true},
        {"", pod, &typed, "", NULL, 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sight = rows[i].sight;
        if (rows[i].refused != NULL) {
            assert_refused(rows[i].line, rows[i].variables, rows[i].refused);
        } else {
            assert_plan(rows[i].line, rows[i].variables, rows[i].plan);
        }
        if (warning_count != rows[i].warnings || (room.waits_because[0] != '\0') != rows[i].waits) {
            fail_msg("row %zu: %u warnings, the last '%s'; waits '%s'", i, warning_count, log_text, room.waits_because);
        }
    }
    sight = &unseen;
    assert_plan("", step, STEP_PLAN);
    assert_non_null(strstr(room.waits_because, "SLURM_STEP_NUM_TASKS=8"));
    assert_non_null(strstr(room.waits_because, "--nnodes=1"));
    sight = &task;
}

/* What nobody needs is not read: whatever is in it, such jobs start, and say nothing. */
static void a_complete_job_needs_no_variable(void **state) {
    (void)state;
    static const char *const lines[] = {
        "--nnodes=1 --node-rank=0 --master-addr=127.0.0.1 --master-port=29555 --nproc-per-node=1",
        "--nnodes=2 --node-rank=1 --master-addr=h --master-port=29555 --nproc-per-node=8 --rdzv-id=1",
        "--nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-id=x --nproc-per-node=1",
        "--standalone",
    };
    static const char *const environments[][8] = {
        {POD, "MASTER_ADDR=x", "RANK=0", "WORLD_SIZE=1", "MASTER_PORT=tcp://10.96.5.5:29500"},
        {POD, "MASTER_ADDR=x", "RANK=0", "WORLD_SIZE=auto"},
        {POD, "MASTER_ADDR=x", "RANK=8", "WORLD_SIZE=2"},
        {POD, "MASTER_ADDR=x", "RANK=0", "WORLD_SIZE=16"},
        {POD, "JOB_COMPLETION_INDEX=x", "MUSTER_SERVICE=s", "HOSTNAME=y"},
        {"PMI_SIZE=x", "PMI_RANK=y", "MPI_LOCALNRANKS=z"},
        {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_LOCAL_SIZE=x"},
        {"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n[1-", "SLURM_STEP_NUM_TASKS=zero",
         "SLURM_PROCID=-1", "SLURM_GPUS_ON_NODE=x", "MASTER_PORT=70000"},
        {"SLURM_JOB_ID=12a", "SLURM_STEP_ID=0"},
    };
    static const struct starter_sight *const sights[] = {&task, &unseen, &nobody};
    for (size_t i = 0; i < 4 * sizeof environments / sizeof *environments * 3; i++) {
        sight = sights[i % 3];
        if (apply(lines[i / 3 % 4], environments[i / 12]) != MUSTER_OK || warning_count > 0) {
            fail_msg("%s %s: %s %s", lines[i / 3 % 4], environments[i / 12][0], muster_detail(), log_text);
        }
    }
    sight = &task;
    assert_int_equal(apply("--nnodes=2 --rdzv-endpoint=h:1", pty), MUSTER_OK); /* crowded, but complete: a warning */
    assert_int_equal(warning_count, 2);
    assert_refused("", (const char *const[]){POD, "MASTER_ADDR=x", "RANK=8", "WORLD_SIZE=2", NULL},
                   "this is process 8, but WORLD_SIZE says that there are 2");
}

/* A line for torchrun means what it says. */
static void torchrun_takes_nothing_from_a_scheduler(void **state) {
    (void)state;
    static const char *const asked[] = {STEP_OF("8", "8"), "SLURM_PROCID=3", "SLURM_GPUS_ON_NODE=4",
                                        "MUSTER_SCHEDULER=auto", NULL};
    static const char *const batch[] = {"SLURM_JOB_ID=2",     "SLURM_NNODES=2",       "SLURM_JOB_NODELIST=n[1-2]",
                                        "SLURMD_NODENAME=n1", "SLURM_GPUS_ON_NODE=2", NULL};
    static const char *const pet[] = {
        POD, "JOB_COMPLETION_INDEX=2", "PET_NNODES=4", "HOSTNAME=train-2", "MUSTER_SERVICE=svc", NULL};
    static const struct {
        const char *line;
        const char *const *variables;
        const struct starter_sight *sight;
        const char *plan;
        unsigned warnings;
    } rows[] = {
        {"", step, &task, "", 1},
        {"--nproc-per-node=2", pty, &unseen, "", 1},
        {"", pmi, &unseen, "", 1},
        {"", pod, &unseen, "", 1},
        {"", pty, &typed, "", 0},
        {"", pmi, &nobody, "", 0},
        {"", pmix_alone, &unseen, "", 0},
        {"", batch, &below_task, "", 0},
        {"", pet, &task, "", 0},
        {"--standalone", step, &task, "", 0},
        {"--nnodes=2 --node-rank=1 --master-addr=a", step, &task, "", 0},
        {"--scheduler=auto", step, &task, STEP_PLAN, 0},
        {"--scheduler=slurm", step, &task, STEP_PLAN, 0},
        {"", asked, &task, STEP_PLAN, 0},
        {"--scheduler=none", step, &task, "", 0},
    };
    called_torchrun = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sight = rows[i].sight;
        assert_plan(rows[i].line, rows[i].variables, rows[i].plan);
        if (warning_count != rows[i].warnings || room.waits_because[0] != '\0') {
            fail_msg("row %zu: %u warnings, the last '%s'", i, warning_count, log_text);
        }
    }
    sight = &task;
    assert_plan("", step, "");
    assert_non_null(strstr(log_text, "SLURM_STEP_NUM_TASKS=8"));
    assert_non_null(strstr(log_text, "MUSTER_SCHEDULER=auto"));
    called_torchrun = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_needs_no_option),
        cmocka_unit_test(a_given_option_wins),
        cmocka_unit_test(the_first_hosts_serve),
        cmocka_unit_test(parts_of_an_allocation),
        cmocka_unit_test(two_say_different_things),
        cmocka_unit_test(one_node_stays_one_node),
        cmocka_unit_test(several_nodes_that_would_run_alone),
        cmocka_unit_test(several_agents_on_a_node),
        cmocka_unit_test(ranks_that_the_batch_script_has_expanded),
        cmocka_unit_test(scripts_and_shells),
        cmocka_unit_test(mpi_launchers),
        cmocka_unit_test(kubernetes),
        cmocka_unit_test(variables_are_inherited),
        cmocka_unit_test(a_complete_job_needs_no_variable),
        cmocka_unit_test(torchrun_takes_nothing_from_a_scheduler),
    };
    log_set_sink(keep_log);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
