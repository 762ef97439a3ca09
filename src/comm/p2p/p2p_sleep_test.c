/* Sleeping on sockets: where no neighbour rings the bell, a thread that waits is woken by what comes, and by its bell,
 * without anybody who attends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include <muster/status.h>

#include "base/clock.h"
#include "comm/p2p/p2p_test_support.h"

#define LARGE_BYTES ((size_t)8 << 20)

/* Two ranks of one process. */
struct rank {
    struct p2p *p2p;
    struct comm_bell bell;
    struct comm_waiter waiter;
    uint8_t contact[P2P_CONTACT_BYTES_MAX];
    size_t contact_len;
    struct rank *other;
    _Atomic bool is_told;
};

static int get_contact(void *context, uint32_t peer, int64_t deadline_ns, uint8_t out[P2P_CONTACT_BYTES_MAX],
                       size_t *out_len) {
    const struct rank *other = ((struct rank *)context)->other;
    (void)peer;
    (void)deadline_ns;
    memcpy(out, other->contact, other->contact_len);
    *out_len = other->contact_len;
    return 0;
}

static void take_notice(void *context, const struct p2p_notice *notice) {
    (void)context;
    (void)notice;
}

static bool is_done(const struct p2p_request *request) {
    return atomic_load_explicit(&request->done, memory_order_acquire) != 0;
}

/* A first message, for which the connection is made: the last time that somebody attends. */
static void connect_them(struct rank ranks[2]) {
    struct p2p_request out, in;
    const struct p2p_envelope to = job_envelope(1, 0), from = job_envelope(0, 0);
    uint8_t sent = 1, came = 0;
    int64_t until = job_deadline();
    assert_int_equal(p2p_receive(ranks[1].p2p, &in, &from, &came, 1, until), 0);
    assert_int_equal(p2p_send(ranks[0].p2p, &out, &to, &sent, 1, until), 0);
    while (!is_done(&out) || !is_done(&in)) {
        for (int i = 0; i < 2; i++) {
            p2p_attend(ranks[i].p2p);
            (void)p2p_progress(ranks[i].p2p);
        }
        assert_true(clock_monotonic_ns() < until);
    }
    assert_int_equal(came, 1);
}

static int begin(void **state) {
    static struct rank ranks[2];
    memset(ranks, 0, sizeof ranks);
    for (uint32_t i = 0; i < 2; i++) {
        const struct p2p_config config = {.rank = i,
                                          .size = 2,
                                          .bell = &ranks[i].bell,
                                          .stream_count = 1,
                                          .contact = get_contact,
                                          .notice = take_notice,
                                          .context = &ranks[i]};
        assert_int_equal(p2p_create(&config, &ranks[i].p2p), 0);
        ranks[i].other = &ranks[1 - i];
        ranks[i].waiter.bell = &ranks[i].bell; /* no looks: it sleeps at once */
        ranks[i].contact_len = p2p_contact(ranks[i].p2p, ranks[i].contact);
    }
    connect_them(ranks);
    *state = ranks;
    return 0;
}

static int end(void **state) {
    struct rank *ranks = *state;
    for (int i = 0; i < 2; i++) {
        p2p_free(ranks[i].p2p);
        assert_int_equal(atomic_load(&ranks[i].bell.event), 0);
    }
    return 0;
}

static void await_sleeper(struct rank *rank) {
    int64_t until = job_deadline();
    while (atomic_load(&rank->bell.sleepers) == 0) {
        assert_true(clock_monotonic_ns() < until);
        (void)sched_yield();
    }
}

struct large {
    struct rank *rank;
    uint8_t *bytes;
    int status;
};

static void *receive_large(void *argument) {
    struct large *large = argument;
    const struct p2p_envelope from = job_envelope(0, 0);
    struct p2p_request request, *waited = &request;
    large->status = p2p_receive(large->rank->p2p, &request, &from, large->bytes, LARGE_BYTES, job_deadline());
    large->status =
        large->status ? large->status : p2p_wait(large->rank->p2p, &large->rank->waiter, &waited, 1, job_deadline());
    return NULL;
}

/* Both sleep, now for bytes, now for room in the socket. */
static void sockets_wake_a_sleeper(void **state) {
    struct rank *ranks = *state;
    static uint8_t out[LARGE_BYTES], in[LARGE_BYTES];
    struct large large = {.rank = &ranks[1], .bytes = in};
    const struct p2p_envelope to = job_envelope(1, 0);
    struct p2p_request request, *waited = &request;
    pthread_t thread;
    memset(out, 7, sizeof out);
    assert_int_equal(pthread_create(&thread, NULL, receive_large, &large), 0);
    await_sleeper(&ranks[1]);
    assert_int_equal(p2p_send(ranks[0].p2p, &request, &to, out, sizeof out, job_deadline()), 0);
    assert_int_equal(p2p_wait(ranks[0].p2p, &ranks[0].waiter, &waited, 1, job_deadline()), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(large.status, 0);
    assert_memory_equal(in, out, sizeof in);
}

static bool is_told(void *argument) {
    return atomic_load_explicit(&((struct rank *)argument)->is_told, memory_order_acquire);
}

static void *wait_to_be_told(void *argument) {
    struct rank *rank = argument;
    return (void *)(intptr_t)p2p_wait_until(rank->p2p, &rank->waiter, is_told, rank, job_deadline());
}

static void the_bell_wakes_all_sleepers(void **state) {
    struct rank *rank = &((struct rank *)*state)[1];
    for (int round = 0; round < 200; round++) {
        pthread_t threads[3];
        atomic_store(&rank->is_told, false);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, wait_to_be_told, rank), 0);
        }
        if (round % 2 == 0) {
            await_sleeper(rank);
        }
        atomic_store_explicit(&rank->is_told, true, memory_order_release);
        comm_bell_ring(&rank->bell);
        for (int i = 0; i < 3; i++) {
            void *status;
            assert_int_equal(pthread_join(threads[i], &status), 0);
            assert_null(status);
        }
        assert_int_equal(atomic_load(&rank->bell.sleepers), 0);
    }
}

static void a_deadline_ends_the_sleep(void **state) {
    struct rank *rank = &((struct rank *)*state)[1];
    atomic_store(&rank->is_told, false);
    int64_t until = clock_monotonic_ns() + CLOCK_NS_PER_MS;
    assert_int_equal(p2p_wait_until(rank->p2p, &rank->waiter, is_told, rank, until), MUSTER_ETIMEOUT);
    assert_true(clock_monotonic_ns() >= until);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sockets_wake_a_sleeper, begin, end),
        cmocka_unit_test_setup_teardown(the_bell_wakes_all_sleepers, begin, end),
        cmocka_unit_test_setup_teardown(a_deadline_ends_the_sleep, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
