/* More workers than processes allowed. The limit does not bind root, so this runs under a user id of its own; without
 * root there is no telling how many processes the user has, and the test is skipped. */
#include "proc_harness.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

enum { UID_FIRST = 1000000, SKIPPED = 77 };

static rlim_t count_threads(pid_t pid) {
    char path[64];
    rlim_t count = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    assert_non_null(threads);
    for (const struct dirent *entry; (entry = readdir(threads)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    (void)closedir(threads);
    return count;
}

static void more_workers_than_processes(void **state) {
    struct harness *h = *state;
    char words[96];
    const char *argv[] = {"sleep", "1000", NULL};
    harness_spawn_argv(h, 0, argv);
    harness_until(h, &h->spawned_count, 1);
    /* Room for this process and the guardian, with the threads that a sanitizer gives to each, and two workers. */
    rlim_t count = count_threads(getpid()) + count_threads(guardian_pid(h->guardian)) + 2;
    struct rlimit limit = {count, count};
    assert_int_equal(prlimit(guardian_pid(h->guardian), RLIMIT_NPROC, &limit, NULL), 0);
    for (uint32_t id = 1; id < 4; id++) {
        harness_spawn_argv(h, id, argv);
    }
    harness_until(h, &h->failed_count, 2);
    assert_int_equal(h->spawned_count, 2);
    assert_int_equal(h->failed_errno, EAGAIN);
    (void)snprintf(words, sizeof words, "more workers than processes allowed: this user may have %llu",
                   (unsigned long long)count);
    assert_non_null(strstr(h->failed_why, words));
    (void)harness_kill_all(h);
    assert_int_equal(h->exit_count, 2);
    harness_spawn_argv(h, 0, argv); /* there is room again */
    harness_until(h, &h->spawned_count, 3);
}

static void never(void *ctx) {
    (void)ctx;
    fail();
}

static void never_pid(void *ctx, uint32_t id, pid_t pid) {
    (void)id;
    (void)pid;
    never(ctx);
}

static void never_failed(void *ctx, uint32_t id, int error_number, const char *why) {
    (void)id;
    (void)error_number;
    (void)why;
    never(ctx);
}

static void never_exit(void *ctx, const struct guardian_exit *exit) {
    (void)exit;
    never(ctx);
}

static void no_room_for_the_guardian(void **state) {
    static const struct guardian_callbacks none = {never_pid, never_failed, never_exit, never, never, NULL, NULL, NULL};
    struct rlimit before;
    uv_loop_t loop;
    struct guardian *guardian = NULL;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NPROC, &before), 0);
    struct rlimit limit = {1, before.rlim_max};
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(setrlimit(RLIMIT_NPROC, &limit), 0);
    assert_int_equal(guardian_create(&loop, &none, NULL, &guardian), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "ulimit -u"));
    assert_null(guardian);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_int_equal(setrlimit(RLIMIT_NPROC, &before), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(more_workers_than_processes, harness_setup, harness_teardown),
        cmocka_unit_test(no_room_for_the_guardian),
    };
    uid_t uid = (uid_t)(UID_FIRST + getpid());
    if (geteuid() != 0) {
        print_message("SKIP: needs root, to become a user without other processes\n");
        return SKIPPED;
    }
    if (setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0) {
        return 1; /* without the last a leak checker cannot look at this process, nor this process at the guardian */
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
