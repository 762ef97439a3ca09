/* The out-of-memory counter: both spellings of the file, and claims against a counter that rises. */
#include "agent/guardian/guardian_oom.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void both_formats(void **state) {
    uint64_t count = 7;
    (void)state;
    assert_true(guardian_oom_parse("oom_kill_disable 0\nunder_oom 0\noom_kill 12\n", &count));
    assert_int_equal(count, 12);
    assert_true(guardian_oom_parse("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 5\n", &count));
    assert_int_equal(count, 2);
    assert_false(guardian_oom_parse("oom_kill_disable 0\nunder_oom 0\n", &count)); /* before Linux 4.13 */
    assert_false(guardian_oom_parse("", &count));
    assert_false(guardian_oom_parse("oom 3", &count));
}

static void counter_write(int fd, unsigned count) {
    char text[64];
    int length = snprintf(text, sizeof text, "oom 9\noom_kill %u\n", count);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, text, (size_t)length, 0), length);
}

static void each_victim_is_claimed_once(void **state) {
    char path[] = "/tmp/guardian_oom_test.XXXXXX";
    struct guardian_oom oom = {.fd = mkstemp(path), .seen = 3, .log_fd = -1};
    (void)state;
    assert_true(oom.fd >= 0);
    assert_int_equal(unlink(path), 0);
    counter_write(oom.fd, 3);
    assert_false(guardian_oom_claim(&oom, 1));
    counter_write(oom.fd, 5);
    assert_true(guardian_oom_claim(&oom, 1));
    assert_true(guardian_oom_claim(&oom, 1));
    assert_false(guardian_oom_claim(&oom, 1));
    guardian_oom_done(&oom);
    assert_false(guardian_oom_claim(&oom, 1)); /* unknown is "no" */
}

static void the_log_names_its_victims(void **state) {
    (void)state;
    assert_int_equal(
        guardian_oom_victim("6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
                            "oom_memcg=/x,task_memcg=/x,task=python,pid=1234,uid=0\n"),
        1234);
    assert_int_equal(
        guardian_oom_victim("3,1,2,-;Memory cgroup out of memory: Killed process 1234 (python) total-vm:1kB\n"), 1234);
    assert_int_equal(guardian_oom_victim("3,1,2,-;Out of memory: Killed process 7 (a,pid=9,) total-vm:1kB\n"), 7);
    assert_int_equal(guardian_oom_victim("6,1,2,-;audit: type=1400,pid=1234,\n"), 0);
    assert_int_equal(guardian_oom_victim(""), 0);
}

/* Two victims are asked for in the other order than the log has them; each is claimed once. */
static void a_victim_in_any_cgroup_is_claimed_by_the_log(void **state) {
    (void)state;
    int ends[2];
    static const char first[] = "3,1,2,-;Memory cgroup out of memory: Killed process 11 (a)\n",
                      second[] = "3,2,2,-;Memory cgroup out of memory: Killed process 12 (a)\n";
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), 0); /* a read is a record */
    struct guardian_oom oom = {.fd = -1, .log_fd = ends[0]};
    assert_int_equal(write(ends[1], first, sizeof first - 1), sizeof first - 1);
    assert_int_equal(write(ends[1], second, sizeof second - 1), sizeof second - 1);
    assert_true(guardian_oom_claim(&oom, 12));
    assert_false(guardian_oom_claim(&oom, 13));
    assert_true(guardian_oom_claim(&oom, 11));
    assert_false(guardian_oom_claim(&oom, 11));
    (void)close(ends[1]);
    guardian_oom_done(&oom);
}

static void folder_make(const char *root, const char *name, unsigned count) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s%s/memory.oom_control", root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fprintf(file, "oom_kill_disable 0\noom_kill %u\n", count) > 0);
    assert_int_equal(fclose(file), 0);
}

/* In version 1 a cgroup counts for itself alone; a worker may have been put into one below the agent's. */
static void cgroups_below_count_in_version_1(void **state) {
    char root[] = "/tmp/guardian_oom_test.XXXXXX", command[64];
    (void)state;
    assert_non_null(mkdtemp(root));
    folder_make(root, "/worker0", 1);
    folder_make(root, "/worker1", 2);
    folder_make(root, "/worker1/step", 4);
    assert_int_equal(guardian_oom_count_below(root), 7);
    assert_int_equal(guardian_oom_count_below("/no/such/folder"), 0);
    static const char *const names[] = {"/worker1/step", "/worker1", "/worker0", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(command, sizeof command, "%s%s/memory.oom_control", root, names[i]);
        (void)unlink(command);
        *strrchr(command, '/') = '\0';
        assert_int_equal(rmdir(command), 0);
    }
}

static void this_machine(void **state) {
    struct guardian_oom oom;
    (void)state;
    guardian_oom_init(&oom); /* whether there is a counter depends on the machine */
    assert_false(guardian_oom_claim(&oom, 1) && oom.fd < 0);
    guardian_oom_done(&oom);
    assert_int_equal(oom.fd, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_formats),
        cmocka_unit_test(each_victim_is_claimed_once),
        cmocka_unit_test(the_log_names_its_victims),
        cmocka_unit_test(a_victim_in_any_cgroup_is_claimed_by_the_log),
        cmocka_unit_test(cgroups_below_count_in_version_1),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
