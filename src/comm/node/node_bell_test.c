/* That a node's members ring each other's bells when they must. Later steps of a call ring as well, so a bell that is
 * not rung is hidden, or shows as a hang that nobody can explain. Here a member that sleeps looks at what the others
 * have done: once they have done all that they can do without it, its bell must have been rung, or the test fails at
 * once. No time is measured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <poll.h>

#include <muster/status.h>

#include "base/clock.h"
#include "comm/node/node_test_support.h"

/* Marks of the members: how often each has gone to sleep, and has been woken; how many calls it has ended. */
enum { MARK_ASLEEP = 0, MARK_AWAKE = 8, MARK_ENDED = 16 };
#define DEADLINE_NS (INT64_C(120) * CLOCK_NS_PER_S)

enum { BYTES = 64 * 1024, BROADCASTS = 300 };

/* Have the others done all that they can while this member sleeps, and all that is to wake it? */
typedef bool others_wait(const struct crew_member *member);

static bool is_rung(const struct crew_member *member, uint32_t seen) {
    return atomic_load_explicit(&member->waiter.bell->rings, memory_order_acquire) != seen;
}

static void sleep_until_rung(void *context, uint32_t seen, int64_t deadline_ns) {
    struct crew_member *member = context;
    others_wait *others = *(others_wait **)member->argument;
    (void)deadline_ns; /* a crew has an alarm of its own */
    crew_mark(member->crew, MARK_ASLEEP + member->index, crew_marked(member->crew, MARK_ASLEEP + member->index) + 1);
    while (!is_rung(member, seen)) {
        bool wait = others(member); /* before the bell is looked at again */
        if (wait && !is_rung(member, seen)) {
            (void)crew_fail(member, "it sleeps, the others wait for it, and nobody has rung its bell");
        }
        (void)poll(NULL, 0, 1);
    }
    crew_mark(member->crew, MARK_AWAKE + member->index, crew_marked(member->crew, MARK_AWAKE + member->index) + 1);
}

static void sleep_at_once(struct crew_member *member) {
    member->waiter.spin_count = 0;
    member->waiter.yield_count = 0;
    member->waiter.sleep_on = sleep_until_rung;
}

/* After a failure the other tests are left out: where one bell is missing they may wait for it until their deadlines.
 */
static void run_crew(uint32_t size, crew_function *function, others_wait *others) {
    static bool has_failed;
    static const struct crew_options options = {.no_peer_reads = true};
    int results[CREW_MAX];
    if (has_failed) {
        skip();
    }
    struct crew *crew = crew_start(size, function, &others, &options);
    crew_wait(crew, results);
    for (uint32_t i = 0; i < size; i++) {
        if (results[i] != 0) {
            has_failed = true;
            fail_msg("member %u of %u: %d, %s", i, size, results[i], crew_failure(crew));
        }
    }
    crew_free(crew);
}

static int call_at_last(struct crew_member *member, struct comm_call *call) {
    int status = crew_call(member, call, clock_monotonic_ns() + DEADLINE_NS);
    crew_mark(member->crew, MARK_ENDED + member->index, member->number);
    return status ? crew_fail(member, "gave %d", status) : 0;
}

/* ---- node_publish() ---- */

/* A barrier: 1 sleeps, 0 comes and sleeps, too, since 2 only comes when 0 has woken 1. */
static int meet_one_by_one(struct crew_member *member) {
    struct comm_call call = {.operation = COMM_BARRIER};
    if (member->index == 2) {
        crew_await_mark(member->crew, MARK_AWAKE + 1, 1);
    } else {
        sleep_at_once(member);
    }
    if (member->index == 0) {
        crew_await_mark(member->crew, MARK_ASLEEP + 1, 1);
    }
    return call_at_last(member, &call);
}

static bool member_0_has_come(const struct crew_member *member) {
    return member->index == 1 && crew_marked(member->crew, MARK_AWAKE + 1) == 0 &&
           crew_marked(member->crew, MARK_ASLEEP + 0) >= 1;
}

static void who_comes_wakes_those_who_are_there(void **state) {
    (void)state;
    run_crew(3, meet_one_by_one, member_0_has_come);
}

/* ---- node_consume() ---- */

/* The root runs ahead until there is no room, and sleeps. The other one takes what is there: nothing but that it has
 * done so can wake the root. */
static int broadcast_ahead(struct crew_member *member) {
    unsigned char buffer[256];
    memset(buffer, 1, sizeof buffer);
    int failed = 0;
    if (member->index == 0) {
        sleep_at_once(member);
    } else {
        crew_await_mark(member->crew, MARK_ASLEEP, 1);
    }
    for (int i = 0; i < BROADCASTS && !failed; i++) {
        struct comm_call call = {.operation = COMM_BROADCAST,
                                 .type = MUSTER_UINT8,
                                 .count = sizeof buffer,
                                 .send = buffer,
                                 .receive = buffer};
        failed = call_at_last(member, &call);
    }
    return failed;
}

/* The reader has ended all calls that the root has given it. */
static bool reader_has_read_all(const struct crew_member *root) {
    return crew_marked(root->crew, MARK_ENDED + 1) + 1 >= root->number;
}

static void who_has_read_wakes_the_writer(void **state) {
    (void)state;
    run_crew(2, broadcast_ahead, reader_has_read_all);
}

/* ---- node_publish_payload() ---- */

/* An all_reduce in which members 1 and 2 offer their buffers, and member 0 has none to offer: the others have to stage
 * their data after all. 1 sleeps until 0 comes; it goes on when 0 sleeps, and stages. 0 must be woken by that: 2 comes
 * when it has been. */
static void hold_until_0_sleeps(void *context, uint32_t seen, int64_t deadline_ns) {
    struct crew_member *member = context;
    sleep_until_rung(context, seen, deadline_ns);
    crew_await_mark(member->crew, MARK_ASLEEP + 0, 1);
}

/* 1 waits for 0's record in its first sleep, and stages; in its second it waits for 2, which comes when 0 has been
 * woken. */
static bool member_1_has_staged(const struct crew_member *member) {
    return member->index == 0 && crew_marked(member->crew, MARK_AWAKE + 0) == 0 &&
           crew_marked(member->crew, MARK_ASLEEP + 1) >= 2;
}

static int sum_with_offers(struct crew_member *member) {
    static unsigned char private_send[BYTES], private_receive[BYTES];
    void *send = private_send, *receive = private_receive;
    if (member->index != 0 &&
        (memory_allocate(member->memory, BYTES, &send) != 0 || memory_allocate(member->memory, BYTES, &receive) != 0)) {
        return crew_fail(member, "no memory");
    }
    if (member->index == 0) {
        sleep_at_once(member);
        crew_await_mark(member->crew, MARK_ASLEEP + 1, 1);
    } else if (member->index == 1) {
        sleep_at_once(member);
        member->waiter.sleep_on = hold_until_0_sleeps;
    } else {
        crew_await_mark(member->crew, MARK_AWAKE + 0, 1);
    }
    struct comm_call call = {.operation = COMM_ALL_REDUCE,
                             .type = MUSTER_UINT8,
                             .reduction = MUSTER_OP_MAX,
                             .count = BYTES,
                             .send = send,
                             .receive = receive};
    return call_at_last(member, &call);
}

static void who_stages_later_wakes_the_readers(void **state) {
    (void)state;
    run_crew(3, sum_with_offers, member_1_has_staged);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_comes_wakes_those_who_are_there),
        cmocka_unit_test(who_has_read_wakes_the_writer),
        cmocka_unit_test(who_stages_later_wakes_the_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
