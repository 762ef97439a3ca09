/* Two "hosts", network namespaces, joined by several cables: links use all of them, a faster one more; one that leads
 * nowhere, or breaks, does what the documentation says.
 *
 * Needs the right to make namespaces and the commands `ip` and `tc`; says so and counts as skipped where there is
 * neither. Everything ends with the processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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
#include "comm/p2p/p2p_impl.h"
#include "comm/p2p/p2p_test_support.h"

enum {
    APART,
    WIRED,
    CUT,
    ENDED,
    RECEIVED,
    TALKED /* and by the number of connections */,
    SKIP_CODE = 77,
    ARGUMENTS_MAX = 24,
    BATCH = 4,
    ROUNDS = 5,
    CABLES_MAX = 3
};

extern char **environ;

/* ---- cables ---- */

/* Of a test, in all of its processes. */
static struct {
    uint32_t count;
    const char *rates[CABLES_MAX]; /* for tc; NULL: none is set */
    bool leads_nowhere[CABLES_MAX];
    struct p2p_zero_copy zero_copy;
    struct link_plan plans[2];
    size_t plan_count;
    uint32_t lost_after_ms, path_lost_after_ms;
} cables;

static bool run_words(char *words) {
    char *arguments[ARGUMENTS_MAX], *rest = NULL;
    size_t count = 0;
    for (char *word = strtok_r(words, " ", &rest); word && count + 1 < ARGUMENTS_MAX;
         word = strtok_r(NULL, " ", &rest)) {
        arguments[count++] = word;
    }
    arguments[count] = NULL;
    pid_t pid;
    int status;
    return count > 0 && posix_spawnp(&pid, arguments[0], NULL, NULL, arguments, environ) == 0 &&
           waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Runs a command of words separated by blanks, in this process's network namespace. */
static bool run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool run(const char *format, ...) {
    char words[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    return run_words(words);
}

/* Each cable is a network of its own: 10.99.C.0. */
static void set_up_cable(const struct job_rank *rank, uint32_t cable) {
    job_check(run("ip addr add 10.99.%u.%u/24 dev wire%u", cable, rank->rank + 1, cable));
    job_check(run("ip link set wire%u up", cable));
    if (cables.rates[cable]) {
        job_check(run("tc qdisc add dev wire%u root tbf rate %s burst 64kb latency 20ms", cable, cables.rates[cable]));
    }
    if (cables.leads_nowhere[cable]) {
        job_check(run("ip neigh replace 10.99.%u.%u lladdr 02:00:00:00:00:63 dev wire%u nud permanent", cable,
                      2 - rank->rank, cable));
    }
}

/* In each rank, before it looks at its interfaces. */
static void move_apart(struct job_rank *rank) {
    job_check(unshare(CLONE_NEWNET) == 0);
    job_mark(rank->job, APART);
    job_await(rank->job, WIRED, 1);
    job_check(run("ip link set lo up"));
    for (uint32_t cable = 0; cable < cables.count; cable++) {
        set_up_cable(rank, cable);
    }
    job_mark(rank->job, WIRED);
    job_await(rank->job, WIRED, 3);
}

/* What has gone out on the cable from here. */
static uint64_t bytes_sent(uint32_t cable) {
    char name[32], line[512];
    unsigned long long received, sent = 0;
    (void)snprintf(name, sizeof name, "wire%u:", cable);
    FILE *file = fopen("/proc/self/net/dev", "re");
    while (file && fgets(line, sizeof line, file)) {
        char *at = strstr(line, name);
        if (at && sscanf(at + strlen(name), "%llu %*u %*u %*u %*u %*u %*u %*u %llu", &received, &sent) == 2) {
            break;
        }
    }
    if (file) {
        (void)fclose(file);
    }
    return sent;
}

static void run_on_cables(job_body *body, void *argument) {
    struct job *job =
        job_start(2, body, argument,
                  &(struct job_options){.prepare = move_apart,
                                        .lost_after_ms = cables.lost_after_ms ? cables.lost_after_ms : 700,
                                        .path_lost_after_ms = cables.path_lost_after_ms,
                                        .zero_copy = cables.zero_copy,
                                        .plans = cables.plans,
                                        .plan_count = cables.plan_count});
    job_await(job_shared(job), APART, 2);
    for (uint32_t cable = 0; cable < cables.count; cable++) {
        assert_true(run("ip link add wire%u netns %d type veth peer name wire%u netns %d", cable, (int)job_pid(job, 0),
                        cable, (int)job_pid(job, 1)));
    }
    job_mark(job_shared(job), WIRED);
    assert_int_equal(job_wait(job, 0), 0);
    assert_int_equal(job_wait(job, 1), 0);
    job_free(job);
}

/* ---- messages ---- */

/* Rank 0 sends, and has something else in the buffer at once; rank 1 receives and compares. */
static void pass_message(struct job_rank *rank, uint64_t tag, size_t bytes) {
    uint8_t *buffer = malloc(bytes);
    job_check(buffer != NULL);
    for (size_t i = 0; i < bytes && rank->rank == 0; i++) {
        buffer[i] = (uint8_t)(i * 7 + (i >> 13) + tag);
    }
    if (rank->rank == 0) {
        job_check(job_send(rank, job_envelope(1, tag), buffer, bytes) == 0);
        memset(buffer, 0xee, bytes);
    } else {
        job_check(job_receive(rank, job_envelope(0, tag), buffer, bytes) == 0);
        for (size_t i = 0; i < bytes; i++) {
            job_check(buffer[i] == (uint8_t)(i * 7 + (i >> 13) + tag));
        }
    }
    free(buffer);
}

static uint32_t open_streams(struct job_rank *rank) {
    p2p_lock(rank->p2p);
    uint32_t count = rank->p2p->links[1 - rank->rank] ? rank->p2p->links[1 - rank->rank]->streams_open : 0;
    p2p_unlock(rank->p2p);
    return count;
}

/* Further connections are made beside the first messages. */
static void await_streams(struct job_rank *rank, uint32_t count) {
    pass_message(rank, count, 100);
    while (open_streams(rank) < count) {
        (void)p2p_progress(rank->p2p);
        (void)poll(NULL, 0, 1);
    }
    job_mark(rank->job, TALKED + count);
    job_await(rank->job, TALKED + count, 2);
}

/* Sends messages and returns what part of them went over the second of two cables, in percent. */
static uint64_t second_carries(struct job_rank *rank, uint64_t first_tag) {
    uint64_t before[2] = {bytes_sent(0), bytes_sent(1)}, after[2];
    for (uint64_t tag = first_tag; tag < first_tag + BATCH; tag++) {
        pass_message(rank, tag, ((size_t)4 << 20) + tag);
    }
    after[0] = bytes_sent(0) - before[0], after[1] = bytes_sent(1) - before[1];
    return rank->rank == 0 ? 100 * after[1] / (after[0] + after[1]) : 0;
}

/* What rank 0 has found, in both. */
static bool agree(struct job_rank *rank, uint64_t tag, bool found) {
    uint8_t byte = found;
    job_check((rank->rank == 0 ? job_send(rank, job_envelope(1, tag), &byte, 1)
                               : job_receive(rank, job_envelope(0, tag), &byte, 1)) == 0);
    return byte != 0;
}

/* argument: uint32_t[2], the least and the most that the second cable is to carry, in percent. One of ROUNDS must show
 * it: a cable that loses a packet rests for 200 ms, and so does a process on a busy machine. */
static int spread(struct job_rank *rank, void *argument) {
    const uint32_t *bounds = argument;
    await_streams(rank, cables.count == 3 ? 6 : 4);
    bool is_spread = false;
    for (uint64_t round = 0; round < ROUNDS && !is_spread; round++) {
        uint64_t tag = 2 + round * (BATCH + 1), percent = second_carries(rank, tag);
        is_spread = agree(rank, tag + BATCH, cables.count == 3 || (percent >= bounds[0] && percent <= bounds[1]));
    }
    job_check(is_spread);
    for (uint32_t cable = 0; cable < cables.count && rank->rank == 0; cable++) {
        job_check(bytes_sent(cable) > 100000);
    }
    job_mark(rank->job, ENDED);
    job_await(rank->job, ENDED, 2);
    return 0;
}

static void all_interfaces_carry_a_message(void **state) {
    (void)state;
    static const uint32_t bounds[2] = {25, 75};
    cables.count = 2;
    cables.rates[0] = cables.rates[1] = "400mbit";
    run_on_cables(spread, (void *)(uintptr_t)bounds);
    cables.count = 3;
    cables.rates[2] = "400mbit";
    run_on_cables(spread, (void *)(uintptr_t)bounds);
}

/* A tenth as fast: it carries a tenth or so; more where the machine is too busy to fill the other one. */
static void a_slower_interface_carries_less(void **state) {
    (void)state;
    static const uint32_t bounds[2] = {1, 45};
    memset(&cables, 0, sizeof cables);
    cables.count = 2;
    cables.rates[0] = "400mbit";
    cables.rates[1] = "40mbit";
    run_on_cables(spread, (void *)(uintptr_t)bounds);
}

/* ---- as it was measured ---- */

static void plan(const char *line) {
    assert_int_equal(link_plan_parse(line, strlen(line), &cables.plans[cables.plan_count++]), 0);
}

static _Atomic uint32_t lines_passed_over;

static void count_lines(enum log_level level, const char *file, int line, const char *text) {
    (void)level, (void)file, (void)line;
    if (strstr(text, "a line of MUSTER_CHOICE_FILE") && strstr(text, "is passed over: 10.99.")) {
        (void)atomic_fetch_add(&lines_passed_over, 1);
    }
}

/* What a plan leads to: connections, the least on each cable, and lines of the plan that do not fit. */
struct outcome {
    uint32_t streams, bytes_least[2], bytes_most[2], passed_over;
};

static int follow_the_plan(struct job_rank *rank, void *argument) {
    const struct outcome *outcome = argument;
    log_set_sink(count_lines);
    log_set_level(LOG_LEVEL_INFO);
    await_streams(rank, outcome->streams);
    for (uint64_t tag = 20; tag < 23; tag++) {
        pass_message(rank, tag, ((size_t)4 << 20) + tag);
    }
    job_check(open_streams(rank) == outcome->streams);
    job_mark(rank->job, RECEIVED);
    job_await(rank->job, RECEIVED, 2);
    for (uint32_t cable = 0; cable < 2 && rank->rank == 0; cable++) {
        job_check(bytes_sent(cable) >= outcome->bytes_least[cable] && bytes_sent(cable) <= outcome->bytes_most[cable]);
    }
    uint32_t lines = atomic_load(&lines_passed_over); /* of who has made the connections, perhaps both */
    p2p_lock(rank->p2p);
    job_check(lines == outcome->passed_over || (!rank->p2p->links[1 - rank->rank]->is_mine && lines == 0));
    p2p_unlock(rank->p2p);
    job_mark(rank->job, ENDED);
    job_await(rank->job, ENDED, 2);
    return 0;
}

enum { ALL_BYTES = 3 * (4 << 20), FEW_BYTES = 100000 };

static void a_plan_says_which_interfaces_and_how_many_connections(void **state) {
    (void)state;
    static const struct outcome second_alone = {3, {0, ALL_BYTES}, {FEW_BYTES, UINT32_MAX}, 0},
                                both = {2, {FEW_BYTES, FEW_BYTES}, {UINT32_MAX, UINT32_MAX}, 0};
    memset(&cables, 0, sizeof cables);
    cables.count = 2;
    cables.rates[0] = cables.rates[1] = "400mbit";
    plan("link 8 10.99.0.1=10.99.0.3"); /* another host's */
    plan("link 3 10.99.1.2=10.99.1.1");
    run_on_cables(follow_the_plan, (void *)(uintptr_t)&second_alone);
    cables.plan_count = 0;
    plan("link 2 10.99.1.1=10.99.1.2 10.99.0.1=10.99.0.2");
    run_on_cables(follow_the_plan, (void *)(uintptr_t)&both);
}

static void a_plan_that_does_not_fit_is_passed_over(void **state) {
    (void)state;
    static const struct outcome missing = {4, {FEW_BYTES, FEW_BYTES}, {UINT32_MAX, UINT32_MAX}, 2};
    memset(&cables, 0, sizeof cables);
    cables.count = 2;
    cables.rates[0] = cables.rates[1] = "400mbit";
    plan("link 8 10.99.0.1=10.99.0.2 10.99.7.1=10.99.7.2");
    plan("link 8 10.99.1.1=10.99.0.2 10.99.0.1=10.99.1.2"); /* crosswise */
    run_on_cables(follow_the_plan, (void *)(uintptr_t)&missing);
}

/* The kernel holds what has not gone out for tenths of a second, on all connections. argument: of uint64_t, the fewest
 * writes that it holds memory of. */
static int send_held(struct job_rank *rank, void *argument) {
    await_streams(rank, 4);
    for (uint64_t tag = 2; tag < 6; tag++) {
        pass_message(rank, tag, ((size_t)4 << 20) + tag);
    }
    p2p_lock(rank->p2p);
    uint64_t writes = rank->p2p->zero_copy_writes;
    bool copies_all = rank->p2p->links[1 - rank->rank]->copies_all;
    p2p_unlock(rank->p2p);
    if (rank->rank == 0) {
        job_check(writes >= *(const uint64_t *)argument && copies_all == !cables.zero_copy.always);
    }
    job_mark(rank->job, ENDED);
    job_await(rank->job, ENDED, 2);
    return 0;
}

/* With `always`, and as it is by itself: between namespaces of one machine the kernel copies, and tells. */
static void messages_go_without_a_copy(void **state) {
    (void)state;
    static const uint64_t fewest[] = {1, 32};
    memset(&cables, 0, sizeof cables);
    cables.count = 2;
    cables.rates[0] = cables.rates[1] = "200mbit";
    for (int always = 0; always < 2; always++) {
        cables.zero_copy = (struct p2p_zero_copy){.bytes_min = 64 << 10, .always = always};
        run_on_cables(send_held, (void *)(uintptr_t)&fewest[always]);
    }
}

/* The first connection works; those that would go where nobody answers are made beside it, in the end. */
static int talk(struct job_rank *rank, void *argument) {
    (void)argument;
    await_streams(rank, 2);
    pass_message(rank, 2, (size_t)2 << 20);
    await_streams(rank, 4); /* P2P_DIAL_MS later */
    pass_message(rank, 3, (size_t)2 << 20);
    job_mark(rank->job, ENDED);
    job_await(rank->job, ENDED, 2);
    return 0;
}

static void an_interface_may_lead_nowhere(void **state) {
    (void)state;
    memset(&cables, 0, sizeof cables);
    cables.count = 2;
    cables.leads_nowhere[1] = true;
    run_on_cables(talk, NULL);
}

/* The second cable is pulled in the middle of a message: after a while the link ends, with a sentence that says which
 * connection was lost, and why. A peer whose other cable works is not waited for as long as one that is silent. */
static int lose_one(struct job_rank *rank, void *argument) {
    (void)argument;
    const size_t bytes = (size_t)64 << 20;
    uint8_t *buffer = calloc(1, bytes);
    struct p2p_request request;
    job_check(buffer != NULL);
    await_streams(rank, 4);
    if (rank->rank == 0) {
        job_post_send(rank, &request, job_envelope(1, 2), buffer, bytes);
    } else {
        job_post_receive(rank, &request, job_envelope(0, 2), buffer, bytes);
    }
    while (job_moved(rank, &request) < bytes / 8) {
        (void)p2p_progress(rank->p2p);
    }
    job_mark(rank->job, CUT);
    job_await(rank->job, CUT, 2);
    job_check(run("ip neigh replace 10.99.1.%u lladdr 02:00:00:00:00:63 dev wire1 nud permanent", 2 - rank->rank));
    job_check(job_wait_for(rank, &request) == MUSTER_EPEER);
    job_check(strstr(muster_detail(), rank->rank == 0 ? "rank 1" : "rank 0") != NULL);
    /* Who has sent on it says so; the other side is told, or sees the connections end. */
    job_check(rank->rank != 0 || strstr(muster_detail(), "10.99.1.2: nothing was acknowledged for ") != NULL);
    free(buffer);
    return 0;
}

static void an_interface_that_breaks_fails_the_job(void **state) {
    (void)state;
    memset(&cables, 0, sizeof cables);
    cables.count = 2;
    cables.rates[0] = cables.rates[1] = "200mbit";
    cables.lost_after_ms = 10 * JOB_DEADLINE_MS;
    cables.path_lost_after_ms = 700;
    run_on_cables(lose_one, NULL);
}

/* The peer reads nothing, so its window is closed; then all cables are cut. Until then it was alive. */
static int cut_while_closed(struct job_rank *rank, void *argument) {
    enum { MESSAGES = 9, LATE_MS = 2000 };
    const size_t bytes = 100000; /* all together more than a socket takes that nobody reads */
    struct p2p_request requests[MESSAGES];
    uint8_t *buffer = calloc(MESSAGES, bytes);
    (void)argument;
    job_check(buffer != NULL);
    for (uint32_t i = 0; i < MESSAGES && rank->rank == 0; i++) {
        job_post_send(rank, &requests[i], job_envelope(1, 2), buffer + i * bytes, bytes);
    }
    (void)poll(NULL, 0, LATE_MS);
    job_check(atomic_load(&rank->notice_count) == 0);
    job_mark(rank->job, CUT);
    job_await(rank->job, CUT, 2);
    for (uint32_t cable = 0; cable < cables.count; cable++) {
        job_check(run("ip neigh replace 10.99.%u.%u lladdr 02:00:00:00:00:63 dev wire%u nud permanent", cable,
                      2 - rank->rank, cable));
    }
    if (rank->rank == 0) {
        job_check(job_wait_for(rank, &requests[MESSAGES - 1]) == MUSTER_EPEER);
        job_check(strstr(muster_detail(), "nothing was acknowledged for ") != NULL);
    }
    job_mark(rank->job, ENDED);
    job_await(rank->job, ENDED, 2);
    free(buffer);
    return 0;
}

static void a_cut_is_found_while_the_peer_reads_nothing(void **state) {
    (void)state;
    memset(&cables, 0, sizeof cables);
    cables.lost_after_ms = 2500;
    for (cables.count = 1; cables.count <= 2; cables.count++) {
        run_on_cables(cut_while_closed, NULL);
    }
}

/* Tried in a process of its own, which takes everything with it when it ends. */
static bool may_make_cables(void) {
    pid_t pid = fork();
    if (pid == 0) {
        bool good = unshare(CLONE_NEWNET) == 0 && run("ip link add wire0 type veth peer name wire1") &&
                    run("tc qdisc add dev wire0 root tbf rate 100mbit burst 64kb latency 20ms");
        _exit(good ? 0 : 1);
    }
    int status;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(void) {
    if (!may_make_cables()) {
        (void)fprintf(stderr, "SKIPPED: no right to make network namespaces with virtual cables, or no `ip` or `tc`\n");
        return SKIP_CODE;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_interfaces_carry_a_message),
        cmocka_unit_test(a_slower_interface_carries_less),
        cmocka_unit_test(a_plan_says_which_interfaces_and_how_many_connections),
        cmocka_unit_test(a_plan_that_does_not_fit_is_passed_over),
        cmocka_unit_test(messages_go_without_a_copy),
        cmocka_unit_test(an_interface_may_lead_nowhere),
        cmocka_unit_test(an_interface_that_breaks_fails_the_job),
        cmocka_unit_test(a_cut_is_found_while_the_peer_reads_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
