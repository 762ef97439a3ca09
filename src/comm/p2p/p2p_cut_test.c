/* Ranks on two "hosts", network namespaces joined by a virtual cable: they find each other over the route between them,
 * with several connections; and when every packet is lost without a word, the call's deadline ends the wait.
 *
 * Needs the right to make namespaces and the command `ip`; says so and counts as skipped where there is neither. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/p2p/p2p_test_support.h"

enum { APART, WIRED, TALKED, CUT, SKIP_CODE = 77, ARGUMENTS_MAX = 16 };
#define BYTES ((size_t)3 << 20)
static const char *const cables[] = {"muster0", "muster1"};
static const char *const addresses[] = {"10.99.0.1", "10.99.0.2"};

extern char **environ;

/* Runs `ip` with words separated by blanks, in this process's network namespace. */
static bool ip_in_place(char *words) {
    char *arguments[ARGUMENTS_MAX] = {(char *)(uintptr_t) "ip"}, *rest = NULL;
    size_t count = 1;
    for (char *word = strtok_r(words, " ", &rest); word && count + 1 < ARGUMENTS_MAX;
         word = strtok_r(NULL, " ", &rest)) {
        arguments[count++] = word;
    }
    pid_t pid;
    int status;
    return posix_spawnp(&pid, "ip", NULL, NULL, arguments, environ) == 0 && waitpid(pid, &status, 0) == pid &&
           WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool ip_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool ip_run(const char *format, ...) {
    char words[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    return ip_in_place(words);
}

/* In each rank, before it looks at its interfaces: a namespace of its own, then the cable. */
static void move_apart(struct job_rank *rank) {
    const char *cable = cables[rank->rank];
    job_check(unshare(CLONE_NEWNET) == 0);
    job_mark(rank->job, APART);
    job_await(rank->job, WIRED, 1);
    job_check(ip_run("link set lo up"));
    job_check(ip_run("addr add %s/24 dev %s", addresses[rank->rank], cable));
    job_check(ip_run("link set %s up", cable));
}

static int talk_until_cut(struct job_rank *rank, void *argument) {
    (void)argument;
    uint32_t other = 1 - rank->rank;
    uint8_t *out = malloc(BYTES), *in = malloc(BYTES);
    struct p2p_request requests[2], *all[2] = {&requests[0], &requests[1]};
    struct p2p_envelope there = job_envelope(other, 1);
    memset(out, 5 + (int)rank->rank, BYTES);
    job_post_send(rank, &requests[0], there, out, BYTES);
    job_post_receive(rank, &requests[1], there, in, BYTES);
    job_check(p2p_wait(rank->p2p, &rank->waiter, all, 2, job_deadline()) == 0);
    job_check(in[0] == 5 + other && in[BYTES - 1] == 5 + other);
    job_mark(rank->job, TALKED);
    job_await(rank->job, TALKED, 2);
    /* From now on all that is sent goes to a machine that is not there. */
    job_check(
        ip_run("neigh replace %s lladdr 02:00:00:00:00:63 dev %s nud permanent", addresses[other], cables[rank->rank]));
    job_mark(rank->job, CUT);
    job_await(rank->job, CUT, 2);
    there = job_envelope(other, 2);
    job_post_send(rank, &requests[0], there, out, BYTES);
    job_post_receive(rank, &requests[1], there, in, BYTES);
    int64_t deadline = clock_monotonic_ns() + 300 * CLOCK_NS_PER_MS;
    job_check(p2p_wait(rank->p2p, &rank->waiter, all, 2, deadline) == MUSTER_ETIMEOUT);
    job_check(clock_monotonic_ns() >= deadline && atomic_load(&rank->notice_count) == 0);
    free(out);
    free(in);
    return 0; /* and p2p_free() does not wait for ever */
}

static void the_deadline_finds_who_is_cut_off(void **state) {
    (void)state;
    struct job *job = job_start(2, talk_until_cut, NULL, &(struct job_options){.prepare = move_apart});
    job_await(job_shared(job), APART, 2);
    assert_true(ip_run("link add %s netns %d type veth peer name %s netns %d", cables[0], (int)job_pid(job, 0),
                       cables[1], (int)job_pid(job, 1)));
    job_mark(job_shared(job), WIRED);
    assert_int_equal(job_wait(job, 0), 0);
    assert_int_equal(job_wait(job, 1), 0);
    job_free(job);
}

/* Tried in a process of its own, which takes everything with it when it ends. */
static bool may_make_namespaces(void) {
    pid_t pid = fork();
    if (pid == 0) {
        bool good = unshare(CLONE_NEWNET) == 0 && ip_run("link add muster0 type veth peer name muster1");
        _exit(good ? 0 : 1);
    }
    int status;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(void) {
    if (!may_make_namespaces()) {
        (void)fprintf(stderr, "SKIPPED: no right to make network namespaces with virtual cables, or no `ip`\n");
        return SKIP_CODE;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_deadline_finds_who_is_cut_off)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
