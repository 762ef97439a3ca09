/* The process tree as /proc tells it, and killing by level and by tree, with processes of this test's own. */
#include "agent/guardian/reaper.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/guardian/reaper_proc.h"

enum { FAMILY = 3 };

/* A child with a grandchild and a great-grandchild; returns when all live. */
static pid_t family_start(void) {
    int pair[2];
    assert_int_equal(pipe(pair), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int i = 1; i < FAMILY && fork() == 0; i++) {
            (void)setsid();
        }
        if (write(pair[1], "x", 1) == 1) {
            for (;;) {
                (void)pause();
            }
        }
        _exit(1);
    }
    for (int i = 0; i < FAMILY; i++) {
        char byte;
        assert_int_equal(read(pair[0], &byte, 1), 1);
    }
    (void)close(pair[0]);
    (void)close(pair[1]);
    return child;
}

struct seen {
    pid_t wanted;
    pid_t parent;
    unsigned count;
};

static bool visit(void *ctx, pid_t pid, pid_t parent) {
    struct seen *seen = ctx;
    seen->count++;
    if (pid == seen->wanted) {
        seen->parent = parent;
    }
    return true;
}

static void count_death(void *ctx, pid_t pid, int wait_status) {
    (void)pid;
    assert_true(WIFSIGNALED(wait_status));
    assert_int_equal(WTERMSIG(wait_status), SIGKILL);
    ++*(unsigned *)ctx;
}

/* SIGCHLD is blocked throughout. */
static void child_signal_wait(void) {
    sigset_t set;
    int number;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    assert_int_equal(sigwait(&set, &number), 0);
}

static void listings_agree(void **state) {
    (void)state;
    pid_t child = family_start();
    struct seen scanned = {.wanted = child};
    struct seen listed = {.wanted = child};
    assert_true(reaper_has_children());
    assert_int_equal(reaper_any_child(), child);
    assert_int_equal(reaper_proc_parent(child), getpid());
    assert_int_equal(reaper_proc_parent(getpid()), getppid());
    assert_true(reaper_proc_scan(visit, &scanned));
    assert_true(reaper_proc_children(visit, &listed));
    assert_int_equal(scanned.parent, getpid());
    assert_int_equal(listed.parent, getpid());
    assert_int_equal(listed.count, 1);
    assert_true(scanned.count >= FAMILY + 1);
    unsigned dead = 0;
    while (!reaper_collect(count_death, &dead)) {
        (void)reaper_kill_children();
        child_signal_wait();
    }
    assert_int_equal(dead, FAMILY);
    assert_false(reaper_has_children());
    assert_int_equal(reaper_any_child(), 0);
}

static void kills_the_whole_tree_in_one_pass(void **state) {
    (void)state;
    (void)family_start();
    assert_int_equal(reaper_kill_descendants(0, 0), FAMILY);
    unsigned dead = 0;
    while (!reaper_collect(count_death, &dead)) {
        child_signal_wait();
    }
    assert_int_equal(dead, FAMILY);
    assert_int_equal(reaper_kill_descendants(0, 0), 0);
}

static void spares_others(void **state) {
    (void)state;
    pid_t child = family_start();
    pid_t other = fork(); /* not a descendant of the one that kills */
    if (other == 0) {
        (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
        pid_t own = fork();
        if (own == 0) {
            for (;;) {
                (void)pause();
            }
        }
        bool right = reaper_kill_descendants(0, 0) == 1 && waitpid(own, NULL, 0) == own && reaper_kill_children() == 0;
        _exit(right ? 0 : 1);
    }
    int wait_status;
    assert_int_equal(waitpid(other, &wait_status, 0), other);
    assert_int_equal(wait_status, 0);
    assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    unsigned dead = 0;
    while (!reaper_collect(count_death, &dead)) {
        (void)reaper_kill_children();
        child_signal_wait();
    }
    assert_int_equal(dead, FAMILY);
}

static void the_state_of_a_process_is_read(void **state) {
    (void)state;
    assert_int_equal(reaper_proc_state(getpid()), 'R');
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(0);
    }
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(reaper_proc_state(child), 'Z');
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(reaper_proc_state(child), '\0');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listings_agree),
        cmocka_unit_test(kills_the_whole_tree_in_one_pass),
        cmocka_unit_test(spares_others),
        cmocka_unit_test(the_state_of_a_process_is_read),
    };
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || sigprocmask(SIG_BLOCK, &set, NULL) != 0) {
        perror("reaper_test cannot take orphans");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
