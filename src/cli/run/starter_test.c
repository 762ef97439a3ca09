/* Who has started a process: the judgement of each sight, and what is seen in a /proc that a test writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"
#include "cli/run/starter.h"

#define T true
#define F false

static void each_sight_is_judged(void **state) {
    (void)state;
    static const struct {
        struct starter_sight seen; /* task, daemon, whole, shell */
        enum starter slurm, mpi, kubernetes;
    } rows[] = {
        {{T, T, F, F}, STARTER_SCHEDULER, STARTER_SCHEDULER, STARTER_SCHEDULER}, /* srun muster */
        {{T, T, F, T}, STARTER_SCHEDULER, STARTER_SCHEDULER, STARTER_SCHEDULER}, /* srun --pty muster */
        {{T, F, F, F}, STARTER_SCHEDULER, STARTER_SCHEDULER, STARTER_SCHEDULER}, /* a pod's command */
        {{F, T, F, F}, STARTER_SCHEDULER, STARTER_SCHEDULER, STARTER_UNKNOWN},   /* srun bash script */
        {{F, T, F, T}, STARTER_ELSE, STARTER_ELSE, STARTER_ELSE},                /* srun --pty bash */
        {{F, F, T, T}, STARTER_ELSE, STARTER_ELSE, STARTER_ELSE},                /* a terminal that has the variables */
        {{F, F, F, T}, STARTER_ELSE, STARTER_ELSE, STARTER_ELSE},                /* the same in a container */
        {{F, F, T, F}, STARTER_ELSE, STARTER_ELSE, STARTER_UNKNOWN},             /* a script that has them */
        {{F, F, F, F}, STARTER_UNKNOWN, STARTER_UNKNOWN, STARTER_UNKNOWN},       /* a script in a container */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(starter_judge(SCHEDULER_SLURM, &rows[i].seen), rows[i].slurm);
        assert_int_equal(starter_judge(SCHEDULER_MPI, &rows[i].seen), rows[i].mpi);
        assert_int_equal(starter_judge(SCHEDULER_KUBERNETES, &rows[i].seen), rows[i].kubernetes);
    }
}

/* ---- a /proc ---- */

static char root[] = "/tmp/muster_starter_XXXXXX";

static void write_file(const char *folder, const char *name, const char *bytes, size_t size) {
    char path[256];
    assert_true(str_format(path, sizeof path, "%s/proc", root) && (mkdir(path, 0700) == 0 || errno == EEXIST));
    assert_true(str_format(path, sizeof path, "%s/proc/%s", root, folder) &&
                (mkdir(path, 0700) == 0 || errno == EEXIST));
    assert_true(str_format(path, sizeof path, "%s/proc/%s/%s", root, folder, name));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && close(fd) == 0);
}

static void clear(void) {
    char command[128];
    assert_true(str_format(command, sizeof command, "%s/proc", root));
    static const char *const names[] = {"1", "2", "3", "5", "7", "9", "self"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        for (int j = 0; j < 2; j++) {
            assert_true(str_format(path, sizeof path, "%s/proc/%s/%s", root, names[i], j ? "stat" : "environ"));
            (void)unlink(path);
        }
        assert_true(str_format(path, sizeof path, "%s/proc/%s", root, names[i]));
        (void)rmdir(path);
    }
    (void)rmdir(command);
}

/* "9 5 9 muster": number, parent, group, name. The first one is this process. "-" ends the list early: what is above
 * cannot be read. */
static struct starter_sight look(const char *const *processes, bool has_terminal, bool is_pod, const char *task,
                                 const char *first_environment) {
    struct starter_sight seen;
    clear();
    for (size_t i = 0; processes[i] != NULL; i++) {
        char number[16], name[64], line[128];
        int parent = 0, group = 0;
        assert_int_equal(sscanf(processes[i], "%15s %d %d %63[^\n]", number, &parent, &group, name), 4);
        (void)str_format(line, sizeof line, "%s (%s) S %d %d 1 0 -1\n", number, name, parent, group);
        write_file(number, "stat", line, strlen(line));
        if (i == 0) {
            write_file("self", "stat", line, strlen(line));
        }
    }
    if (first_environment != NULL) {
        write_file("1", "environ", first_environment, strlen(first_environment) + 1);
    }
    const struct starter_query query = {.root = root,
                                        .has_terminal = has_terminal,
                                        .first_is_task = is_pod,
                                        .variable = "PMI_SIZE",
                                        .task_process = task};
    starter_look(&query, &seen);
    return seen;
}

#define PROCESSES(...)                                                                                                 \
    (const char *const[]) {                                                                                            \
        __VA_ARGS__, NULL                                                                                              \
    }

static void assert_seen(struct starter_sight seen, struct starter_sight wanted) {
    if (seen.is_task != wanted.is_task || seen.has_daemon != wanted.has_daemon || seen.is_whole != wanted.is_whole ||
        seen.is_shell != wanted.is_shell) {
        fail_msg("task %d, daemon %d, whole %d, shell %d", seen.is_task, seen.has_daemon, seen.is_whole, seen.is_shell);
    }
}

static void tasks_of_slurm(void **state) {
    (void)state;
    static const char stepd[] = "5 1 5 slurmstepd", init[] = "1 0 1 systemd";
    assert_seen(look(PROCESSES("7 5 7 muster", stepd, init), F, F, "7", NULL), (struct starter_sight){T, T, F, F});
    /* srun --pty muster, srun --pty bash, and a script in its place */
    assert_seen(look(PROCESSES("7 5 7 muster", stepd, init), T, F, "7", NULL), (struct starter_sight){T, T, F, F});
    assert_seen(look(PROCESSES("9 7 9 muster", "7 5 7 bash", stepd, init), T, F, "7", NULL),
                (struct starter_sight){F, T, F, T});
    assert_seen(look(PROCESSES("9 7 7 muster", "7 5 7 bash", stepd, init), T, F, "7", NULL),
                (struct starter_sight){F, T, F, F});
    /* srun bash script; a script that a shell at the terminal has started */
    assert_seen(look(PROCESSES("9 7 7 muster", "7 5 7 bash", stepd, init), F, F, "7", NULL),
                (struct starter_sight){F, T, F, F});
    assert_seen(look(PROCESSES("9 3 3 muster", "3 7 3 train.sh", "7 5 7 bash", stepd, init), T, F, "7", NULL),
                (struct starter_sight){F, T, F, T});
    /* others' processes are hidden (hidepid): the task's number tells */
    assert_seen(look(PROCESSES("7 5 7 muster"), F, F, "7", NULL), (struct starter_sight){T, F, F, F});
    assert_seen(look(PROCESSES("9 7 7 muster", "7 5 7 bash"), F, F, "7", NULL), (struct starter_sight){F, T, F, F});
    assert_seen(look(PROCESSES("9 7 9 muster", "7 5 7 bash"), T, F, "7", NULL), (struct starter_sight){F, T, F, T});
    /* in a namespace of processes, whose first one has the variables */
    assert_seen(look(PROCESSES("9 1 0 muster", "1 0 0 sinit"), F, F, "777", "PMI_SIZE=2"),
                (struct starter_sight){F, F, F, F});
    assert_seen(look(PROCESSES("1 0 0 muster"), T, F, "777", "PMI_SIZE=2"), (struct starter_sight){F, F, F, F});
}

static void ranks_of_mpi(void **state) {
    (void)state;
    static const char *const daemons[] = {"orted",          "prted",   "hydra_pmi_proxy", "hydra_bstrap_pr",
                                          "mpirun.openmpi", "prterun", "flux-shell",      "mpispawn",
                                          "mpiexec.hydra",  "orterun", "slurmstepd"};
    for (size_t i = 0; i < sizeof daemons / sizeof *daemons; i++) {
        char daemon[64];
        (void)str_format(daemon, sizeof daemon, "5 1 5 %s", daemons[i]);
        assert_seen(look(PROCESSES("9 5 9 muster", daemon, "1 0 1 init"), F, F, NULL, NULL),
                    (struct starter_sight){T, T, F, F});
        assert_seen(look(PROCESSES("9 7 5 muster", "7 5 5 sh", daemon, "1 0 1 init"), F, F, NULL, NULL),
                    (struct starter_sight){F, T, F, F});
    }
    /* names with brackets and blanks; a daemon of something else */
    assert_seen(look(PROCESSES("9 7 9 muster", "7 1 7 a) S (mpirun", "1 0 1 init"), F, F, NULL, "HOME=/"),
                (struct starter_sight){F, F, T, F});
}

/* Whole: up to somebody who has begun without the variable. */
static void variables_that_a_script_has_set(void **state) {
    (void)state;
    static const char first[] = "1 0 1 init", script[] = "7 1 7 bash", self[] = "9 7 7 muster";
    assert_seen(look(PROCESSES(self, script, first), F, F, NULL, "HOME=/"), (struct starter_sight){F, F, T, F});
    assert_seen(look(PROCESSES(self, script, first), F, F, NULL, "XPMI_SIZE=2"), (struct starter_sight){F, F, T, F});
    assert_seen(look(PROCESSES(self, script, first), F, F, NULL, "PMI_SIZE=2"), (struct starter_sight){F, F, F, F});
    assert_seen(look(PROCESSES(self, script, first), F, F, NULL, NULL), (struct starter_sight){F, F, F, F});
    assert_seen(look(PROCESSES(self, first), F, F, NULL, "HOME=/"), (struct starter_sight){F, F, F, F});
    assert_seen(look(PROCESSES(self, script, first), T, F, NULL, "PMI_SIZE=2"), (struct starter_sight){F, F, F, T});
}

static void pods(void **state) {
    (void)state;
    static const char first[] = "1 0 1 sh";
    assert_seen(look(PROCESSES("1 0 1 muster"), F, T, NULL, "PMI_SIZE=2"), (struct starter_sight){T, F, F, F});
    assert_seen(look(PROCESSES("1 0 1 muster"), T, T, NULL, "PMI_SIZE=2"), (struct starter_sight){T, F, F, F});
    assert_seen(look(PROCESSES("9 1 1 muster", first), T, T, NULL, "PMI_SIZE=2"), (struct starter_sight){F, T, F, F});
    /* kubectl exec -it */
    assert_seen(look(PROCESSES("9 7 9 muster", "7 0 7 bash", first), T, T, NULL, "PMI_SIZE=2"),
                (struct starter_sight){F, F, F, T});
    assert_seen(look(PROCESSES("7 0 7 muster", first), T, T, NULL, "PMI_SIZE=2"), (struct starter_sight){F, F, F, T});
}

static int make_root(void **state) {
    (void)state;
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    clear();
    return rmdir(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sight_is_judged),
        cmocka_unit_test(tasks_of_slurm),
        cmocka_unit_test(ranks_of_mpi),
        cmocka_unit_test(variables_that_a_script_has_set),
        cmocka_unit_test(pods),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
