/* Ranks on two "hosts", network namespaces joined by a virtual cable: they find each other over the route between them,
 * with several connections. When every packet is lost without a word, the call's deadline ends the wait. When the
 * network comes back before a silent peer is given up, nothing has happened, and all goes on soon.
 *
 * Needs the right to make namespaces and the command `ip`; says so and counts as skipped where there is neither. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/p2p/p2p_impl.h"
#include "comm/p2p/p2p_test_support.h"

enum { APART, WIRED, TALKED, CUT, HEALED, DONE, SKIP_CODE = 77, ARGUMENTS_MAX = 16 };
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

/* From now on all that is sent goes to a machine that is not there. Both call it. */
static void cut(struct job_rank *rank) {
    job_mark(rank->job, TALKED);
    job_await(rank->job, TALKED, 2);
    job_check(ip_run("neigh replace %s lladdr 02:00:00:00:00:63 dev %s nud permanent", addresses[1 - rank->rank],
                     cables[rank->rank]));
    job_mark(rank->job, CUT);
    job_await(rank->job, CUT, 2);
}

static void heal(struct job_rank *rank) {
    job_check(ip_run("neigh del %s dev %s", addresses[1 - rank->rank], cables[rank->rank]));
    job_mark(rank->job, HEALED);
    job_await(rank->job, HEALED, 2);
}

static void pause_ms(int ms) {
    (void)poll(NULL, 0, ms);
}

struct exchange {
    uint8_t *out, *in;
    struct p2p_request requests[2];
};

static void exchange_begin(struct job_rank *rank, struct exchange *exchange, uint64_t tag) {
    struct p2p_envelope there = job_envelope(1 - rank->rank, tag);
    exchange->out = malloc(BYTES);
    exchange->in = malloc(BYTES);
    memset(exchange->out, 5 + (int)rank->rank, BYTES);
    job_post_send(rank, &exchange->requests[0], there, exchange->out, BYTES);
    job_post_receive(rank, &exchange->requests[1], there, exchange->in, BYTES);
}

static int exchange_end(struct job_rank *rank, struct exchange *exchange, int64_t deadline_ns) {
    struct p2p_request *all[2] = {&exchange->requests[0], &exchange->requests[1]};
    uint8_t other = (uint8_t)(6 - rank->rank);
    int code = p2p_wait(rank->p2p, &rank->waiter, all, 2, deadline_ns);
    job_check(code || (exchange->in[0] == other && memcmp(exchange->in, exchange->in + 1, BYTES - 1) == 0));
    free(exchange->out);
    free(exchange->in);
    return code;
}

static void talk(struct job_rank *rank, uint64_t tag) {
    struct exchange exchange;
    exchange_begin(rank, &exchange, tag);
    job_check(exchange_end(rank, &exchange, job_deadline()) == 0);
}

static int talk_until_cut(struct job_rank *rank, void *argument) {
    struct exchange exchange;
    (void)argument;
    talk(rank, 1);
    cut(rank);
    exchange_begin(rank, &exchange, 2);
    int64_t deadline = clock_monotonic_ns() + 300 * CLOCK_NS_PER_MS;
    job_check(exchange_end(rank, &exchange, deadline) == MUSTER_ETIMEOUT);
    job_check(clock_monotonic_ns() >= deadline && atomic_load(&rank->notice_count) == 0);
    return 0; /* and p2p_free() does not wait for ever */
}

/* ---- the network comes back ---- */

enum { LOST_AFTER_MS = 10000, CUT_MS = 7000 /* the kernel alone would send again after 12 s */ };
static _Atomic uint32_t told_silent, told_again;

static void count_lines(enum log_level level, const char *file, int line, const char *text) {
    (void)level, (void)file, (void)line;
    atomic_fetch_add(&told_silent, strstr(text, "has acknowledged nothing for 5") != NULL &&
                                       strstr(text, "waiting for it for up to 10 s") != NULL);
    atomic_fetch_add(&told_again, strstr(text, "answers again") != NULL);
}

/* Can the kernel be told to send again soon? */
static bool may_hurry(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), value = 0;
    socklen_t len = sizeof value;
    bool may = getsockopt(fd, IPPROTO_TCP, 44 /* TCP_RTO_MAX_MS */, &value, &len) == 0;
    (void)close(fd);
    return may;
}

static int bear_a_cut(struct job_rank *rank, void *argument) {
    struct exchange exchange;
    (void)argument;
    log_set_sink(count_lines);
    talk(rank, 1);
    cut(rank);
    job_check(p2p_silence_ms(rank->p2p, 1 - rank->rank) == 0);
    exchange_begin(rank, &exchange, 2);
    pause_ms(CUT_MS);
    job_check(atomic_load(&rank->notice_count) == 0);
    int64_t silence_ms = p2p_silence_ms(rank->p2p, 1 - rank->rank);
    job_check(silence_ms >= CUT_MS - 1000 && silence_ms < LOST_AFTER_MS);
    heal(rank);
    int64_t healed_ns = clock_monotonic_ns();
    job_check(exchange_end(rank, &exchange, job_deadline()) == 0);
    job_check(!may_hurry() || clock_monotonic_ns() - healed_ns < 4 * CLOCK_NS_PER_S);
    job_mark(rank->job, DONE);
    job_await(rank->job, DONE, 2);
    pause_ms(1000); /* looks are made each 0.6 s */
    job_check(p2p_silence_ms(rank->p2p, 1 - rank->rank) == 0 && atomic_load(&rank->notice_count) == 0);
    job_check(atomic_load(&told_silent) == 1 && atomic_load(&told_again) == 1);
    p2p_lock(rank->p2p);
    job_check(rank->p2p->links[1 - rank->rank]->streams[0]->pause_ms == 0);
    p2p_unlock(rank->p2p);
    return 0;
}

/* It is given up in the end, with the time and whose wish it was. */
static int lose_the_peer(struct job_rank *rank, void *argument) {
    struct exchange exchange;
    (void)argument;
    talk(rank, 1);
    cut(rank);
    exchange_begin(rank, &exchange, 2);
    job_check(exchange_end(rank, &exchange, job_deadline()) == MUSTER_EPEER);
    job_check(strstr(muster_detail(), "cannot be reached any more from rank ") &&
              strstr(muster_detail(), ": nothing was acknowledged for 1."));
    return 0;
}

/* Nobody answers who is called for the first time. P2P_DIAL_MS is for one try; there are further ones. */
static int call_in_a_cut(struct job_rank *rank, void *argument) {
    struct exchange exchange;
    (void)argument;
    cut(rank);
    exchange_begin(rank, &exchange, 1);
    pause_ms(P2P_DIAL_MS + 1000);
    job_check(atomic_load(&rank->notice_count) == 0);
    heal(rank);
    job_check(exchange_end(rank, &exchange, job_deadline()) == 0);
    job_mark(rank->job, DONE);
    job_await(rank->job, DONE, 2);
    return 0;
}

/* Who leaves during a cut takes its last words with it only when the peer is given up. */
static int leave_in_a_cut(struct job_rank *rank, void *argument) {
    enum { WORDS = 1000 };
    uint8_t words[WORDS];
    struct p2p_request request;
    (void)argument;
    talk(rank, 1);
    if (rank->rank == 1) {
        job_post_receive(rank, &request, job_envelope(0, 2), words, WORDS);
        job_check(ip_run("link set %s down", cables[1]));
        job_mark(rank->job, CUT);
        pause_ms(2 * P2P_SILENT_MS);
        job_mark(rank->job, HEALED);
        job_check(ip_run("link set %s up", cables[1]));
        job_check(job_wait_for(rank, &request) == 0 && job_is_filled(words, WORDS, 2));
        return 0;
    }
    job_await(rank->job, CUT, 1);
    job_fill(words, WORDS, 2);
    job_check(job_send(rank, job_envelope(1, 2), words, WORDS) == 0);
    return 0; /* and into p2p_free() */
}

/* true: rank 0 has ended after the cut. */
static bool run_apart(job_body *body, uint32_t lost_after_ms) {
    struct job *job =
        job_start(2, body, NULL, &(struct job_options){.prepare = move_apart, .lost_after_ms = lost_after_ms});
    job_await(job_shared(job), APART, 2);
    assert_true(ip_run("link add %s netns %d type veth peer name %s netns %d", cables[0], (int)job_pid(job, 0),
                       cables[1], (int)job_pid(job, 1)));
    job_mark(job_shared(job), WIRED);
    assert_int_equal(job_wait(job, 0), 0);
    bool was_healed = job_mark_time_ns(job_shared(job), HEALED) != 0;
    assert_int_equal(job_wait(job, 1), 0);
    job_free(job);
    return was_healed;
}

static void the_deadline_finds_who_is_cut_off(void **state) {
    (void)state;
    (void)run_apart(talk_until_cut, 1500);
}

static void a_cut_that_ends_is_borne(void **state) {
    (void)state;
    (void)run_apart(bear_a_cut, LOST_AFTER_MS);
}

static void a_cut_that_does_not_end_is_told(void **state) {
    (void)state;
    (void)run_apart(lose_the_peer, 1500);
}

static void who_does_not_answer_is_called_again(void **state) {
    (void)state;
    (void)run_apart(call_in_a_cut, 10 * LOST_AFTER_MS);
}

static void who_leaves_waits_for_a_silent_peer(void **state) {
    (void)state;
    assert_true(run_apart(leave_in_a_cut, 10 * LOST_AFTER_MS));
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_deadline_finds_who_is_cut_off),  cmocka_unit_test(a_cut_that_ends_is_borne),
        cmocka_unit_test(a_cut_that_does_not_end_is_told),    cmocka_unit_test(who_does_not_answer_is_called_again),
        cmocka_unit_test(who_leaves_waits_for_a_silent_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
