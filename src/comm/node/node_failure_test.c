/* What becomes of a node's calls when members make different ones, do not come, stop, or die at any moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/clock.h"
#include "comm/node/node_test_support.h"
#include "comm/schedule/choice.h"

enum { BUFFER_BYTES = 1 << 20, SAYS_PEER = 70, SAYS_TIMEOUT = 71, SAYS_MISMATCH = 72 };
#define LONG_NS (INT64_C(120) * CLOCK_NS_PER_S)
#define SHORT_NS (INT64_C(50) * CLOCK_NS_PER_MS)

static int said(int status) {
    return status == 0                  ? 0
           : status == MUSTER_EPEER     ? SAYS_PEER
           : status == MUSTER_ETIMEOUT  ? SAYS_TIMEOUT
           : status == MUSTER_EMISMATCH ? SAYS_MISMATCH
                                        : 1;
}

static unsigned char here[4096];
static _Thread_local unsigned char there[4096]; /* members may be threads */

static int run(struct crew_member *member, const struct comm_call *call, int64_t patience_ns) {
    struct comm_call own = *call;
    own.receive = call->receive ? call->receive : there;
    return crew_call(member, &own, clock_monotonic_ns() + patience_ns);
}

static const struct comm_call barrier = {.operation = COMM_BARRIER};

/* ---- different calls ---- */

static const struct comm_call sum = {
    .operation = COMM_ALL_REDUCE, .type = MUSTER_FLOAT32, .reduction = MUSTER_OP_SUM, .count = 100, .send = here};

struct difference {
    struct comm_call even, odd; /* what members of even and odd numbers call */
    const char *texts[2];
    int calls_before;
    bool is_noticed_later; /* in the barrier after it */
};

static int call_differently(struct crew_member *member) {
    const struct difference *difference = member->argument;
    for (int i = 0; i < difference->calls_before; i++) {
        if (run(member, &sum, LONG_NS) != 0) {
            return crew_fail(member, "call before");
        }
    }
    int status = run(member, member->index % 2 ? &difference->odd : &difference->even, LONG_NS);
    if (difference->is_noticed_later) {
        if (status != 0) {
            return crew_fail(member, "different calls that need nothing of each other");
        }
        status = run(member, &barrier, LONG_NS);
    }
    if (status != MUSTER_EMISMATCH) {
        return crew_fail(member, "different calls gave %d", status);
    }
    char text[64];
    (void)snprintf(text, sizeof text, "call %d:", difference->calls_before + 1);
    if (!strstr(muster_detail(), difference->texts[0]) || !strstr(muster_detail(), difference->texts[1]) ||
        !strstr(muster_detail(), text)) {
        return crew_fail(member, "detail");
    }
    return 0;
}

static void expect_ends(struct crew *crew, uint32_t size, int expected) {
    int results[CREW_MAX];
    crew_wait(crew, results);
    for (uint32_t i = 0; i < size; i++) {
        if (results[i] != expected) {
            fail_msg("member %u of %u gave %d: %s", i, size, results[i], crew_failure(crew));
        }
    }
    crew_free(crew);
}

static void expect_mismatch(struct difference difference) {
    for (int threads = 0; threads < 2; threads++) {
        for (difference.calls_before = 0; difference.calls_before < 200; difference.calls_before += 150) {
            struct crew *crew =
                crew_start(2, call_differently, &difference, &(struct crew_options){.threads = threads});
            expect_ends(crew, 2, 0);
        }
    }
}

static void other_operation(void **state) {
    (void)state;
    expect_mismatch(
        (struct difference){.even = sum, .odd = barrier, .texts = {"all_reduce of 100 float32", "barrier"}});
}

static void other_count(void **state) {
    (void)state;
    struct difference difference = {.even = sum, .odd = sum, .texts = {"of 100 float32, sum", "of 7 float32, sum"}};
    difference.odd.count = 7;
    expect_mismatch(difference);
}

static void other_type_and_reduction(void **state) {
    (void)state;
    struct difference difference = {.even = sum, .odd = sum, .texts = {"float32, sum", "int32, max"}};
    difference.odd.type = MUSTER_INT32;
    difference.odd.reduction = MUSTER_OP_MAX;
    expect_mismatch(difference);
}

/* Both write and read nothing: neither needs the other, so both come back, and the next call tells. */
static void each_believes_to_be_the_root(void **state) {
    (void)state;
    struct difference difference = {.even = sum,
                                    .odd = sum,
                                    .texts = {"broadcast of 100 float32, root 0", "broadcast of 100 float32, root 1"},
                                    .is_noticed_later = true};
    difference.even.operation = difference.odd.operation = COMM_BROADCAST;
    difference.odd.root = 1;
    expect_mismatch(difference);
}

/* A root that is far ahead waits for room, and notices there. */
static int root_runs_ahead(struct crew_member *member) {
    struct comm_call broadcast = {.operation = COMM_BROADCAST, .type = MUSTER_INT8, .count = 100};
    int status = 0;
    if (member->index == 0) {
        for (int i = 0; i < 1000 && status == 0; i++) {
            status = run(member, &broadcast, LONG_NS);
        }
    } else {
        status = run(member, &barrier, LONG_NS);
    }
    return said(status);
}

static void a_root_that_runs_ahead_notices(void **state) {
    (void)state;
    expect_ends(crew_start(2, root_runs_ahead, NULL, NULL), 2, SAYS_MISMATCH);
}

static int send_too_much(struct crew_member *member) {
    size_t sends[2] = {3, 3}, receives[2] = {3, 3};
    if (member->index == 1) {
        sends[0] = 4;
    }
    struct comm_call call = {.operation = COMM_ALL_TO_ALL,
                             .type = MUSTER_INT8,
                             .send = here,
                             .send_counts = sends,
                             .receive_counts = receives};
    int status = run(member, &call, member->index == 0 ? LONG_NS : SHORT_NS);
    if (member->index == 0 &&
        (status != MUSTER_EMISMATCH || !strstr(muster_detail(), "rank 0 expects 3 int8 from rank 1, which sends 4"))) {
        return crew_fail(member, "gave %d", status);
    }
    return 0;
}

static void exchanged_counts_are_compared(void **state) {
    (void)state;
    expect_ends(crew_start(2, send_too_much, NULL, NULL), 2, 0);
}

/* ---- members that do not come ---- */

static int come_alone(struct crew_member *member) {
    if (member->index == 2) {
        return SAYS_TIMEOUT; /* it never calls */
    }
    return said(run(member, &sum, SHORT_NS));
}

static void who_waits_in_vain_meets_its_deadline(void **state) {
    (void)state;
    expect_ends(crew_start(3, come_alone, NULL, NULL), 3, SAYS_TIMEOUT);
    expect_ends(crew_start(3, come_alone, NULL, &(struct crew_options){.threads = true}), 3, SAYS_TIMEOUT);
}

/* It has given all it had to give when it ends; the other comes later, and is told of the death before. */
static int end_after_giving(struct crew_member *member) {
    if (member->index == 1) {
        struct comm_call scatter = sum; /* a leaf that gives: */
        scatter.operation = COMM_GATHER;
        scatter.root = 0;
        return said(run(member, &scatter, LONG_NS));
    }
    crew_await_mark(member->crew, 0, 1);
    struct comm_call gather = sum;
    gather.operation = COMM_GATHER;
    unsigned char *room = calloc(2, 400);
    gather.receive = room;
    int status = run(member, &gather, LONG_NS);
    free(room);
    if (status != 0) {
        return crew_fail(member, "a call for which all was there gave %d", status);
    }
    const struct call_line *line = crew_line(member->crew, 1);
    if (call_line_finished(line) != 1 || call_line_begun(line) != 1 ||
        call_line_fingerprint(line, 1) != comm_call_fingerprint(&gather, 2)) {
        return crew_fail(member, "what is known of member 1");
    }
    status = run(member, &sum, LONG_NS);
    return status == MUSTER_EPEER ? 0 : crew_fail(member, "a call for which nothing comes gave %d", status);
}

static void what_a_dead_member_gave_still_counts(void **state) {
    (void)state;
    struct crew *crew = crew_start(2, end_after_giving, NULL, NULL);
    crew_await_end(crew, 1);
    crew_raise_alarm(crew);
    crew_mark(crew, 0, 1);
    expect_ends(crew, 2, 0);
}

/* ---- killed and stopped at any moment ---- */

struct endless {
    uint32_t operation; /* 0: all in turn */
    size_t count;
    bool shares;
    int64_t patience_ns;
    const struct choice *choice;
};

static int call_for_ever(struct crew_member *member) {
    const struct endless *endless = member->argument;
    void *send, *receive;
    if (endless->shares) {
        if (memory_allocate(member->memory, BUFFER_BYTES, &send) != 0 ||
            memory_allocate(member->memory, BUFFER_BYTES, &receive) != 0) {
            return crew_fail(member, "memory");
        }
    } else {
        send = calloc(1, BUFFER_BYTES);
        receive = calloc(1, BUFFER_BYTES);
    }
    int status = 0;
    for (uint64_t i = 1; status == 0; i++) {
        struct comm_call call = {.operation =
                                     (enum comm_operation)(endless->operation ? endless->operation : 1 + i % 9),
                                 .type = MUSTER_FLOAT32,
                                 .count = endless->count,
                                 .root = (uint32_t)(i / 9 % member->size),
                                 .send = send,
                                 .receive = receive};
        status = run(member, &call, endless->patience_ns);
        crew_mark(member->crew, member->index, i);
    }
    if (!endless->shares) {
        free(send);
        free(receive);
    }
    return said(status);
}

static void kill_one(uint32_t size, struct endless endless, uint64_t calls_before) {
    struct crew *crew = crew_start(size, call_for_ever, &endless, &(struct crew_options){.choice = endless.choice});
    uint32_t victim = (uint32_t)(calls_before % size);
    crew_await_mark(crew, victim, calls_before);
    assert_int_equal(kill(crew_pid(crew, victim), SIGKILL), 0);
    crew_await_end(crew, victim);
    crew_raise_alarm(crew);
    int results[CREW_MAX];
    crew_wait(crew, results);
    for (uint32_t i = 0; i < size; i++) {
        int expected = i == victim ? -1000 - SIGKILL : SAYS_PEER;
        if (results[i] != expected) {
            fail_msg("member %u of %u (%u killed in operation %u) gave %d: %s", i, size, victim, endless.operation,
                     results[i], crew_failure(crew));
        }
    }
    crew_free(crew);
}

static void killed_in_any_operation(void **state) {
    (void)state;
    for (uint32_t operation = COMM_BARRIER; operation <= COMM_ALL_TO_ALL; operation++) {
        for (int shares = 0; shares < 2; shares++) {
            struct endless endless = {.operation = operation, .shares = shares, .patience_ns = LONG_NS, .count = 3};
            kill_one(2, endless, 100 + operation);
            endless.count = 20000;
            kill_one(4, endless, 10 + operation);
        }
    }
}

static void killed_while_others_read_its_memory(void **state) {
    (void)state;
    static const char text[] = "broadcast private * * * single_copy\nall_gather private * * * single_copy\n"
                               "gather private * * * single_copy\nscatter private * * * single_copy\n";
    static struct choice choice;
    assert_int_equal(choice_parse(text, sizeof text - 1, &choice), 0);
    for (uint32_t operation = COMM_BROADCAST; operation <= COMM_SCATTER; operation++) {
        struct endless endless = {.operation = operation, .patience_ns = LONG_NS, .count = 60000, .choice = &choice};
        for (uint64_t round = 0; round < 5; round++) {
            kill_one(3, endless, 3 + round * 4);
        }
    }
}

static void killed_at_any_moment(void **state) {
    (void)state;
    for (uint64_t round = 1; round <= 40; round++) {
        struct endless endless = {.shares = round % 2, .patience_ns = LONG_NS, .count = round % 3 ? 5 : 30000};
        kill_one(3, endless, 1 + round * 7);
    }
}

static void stopped_until_the_deadline(void **state) {
    (void)state;
    struct endless endless = {.patience_ns = 4 * SHORT_NS, .count = 10000};
    struct crew *crew = crew_start(3, call_for_ever, &endless, NULL);
    crew_await_mark(crew, 1, 20);
    assert_int_equal(kill(crew_pid(crew, 1), SIGSTOP), 0);
    crew_await_end(crew, 0);
    crew_await_end(crew, 2);
    assert_int_equal(kill(crew_pid(crew, 1), SIGCONT), 0);
    expect_ends(crew, 3, SAYS_TIMEOUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_operation),
        cmocka_unit_test(other_count),
        cmocka_unit_test(other_type_and_reduction),
        cmocka_unit_test(each_believes_to_be_the_root),
        cmocka_unit_test(a_root_that_runs_ahead_notices),
        cmocka_unit_test(exchanged_counts_are_compared),
        cmocka_unit_test(who_waits_in_vain_meets_its_deadline),
        cmocka_unit_test(what_a_dead_member_gave_still_counts),
        cmocka_unit_test(killed_in_any_operation),
        cmocka_unit_test(killed_while_others_read_its_memory),
        cmocka_unit_test(killed_at_any_moment),
        cmocka_unit_test(stopped_until_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
