/* Waiting: no wake-up is lost, with and without barriers through the kernel, between threads and between processes;
 * errors, deadlines and what is done meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/host/bell.h"

enum { ROUNDS = 20000, SLEEPERS = 3 };
#define LONG_NS (INT64_C(60) * CLOCK_NS_PER_S)

/* Two sides that count in turn; each sleeps at once. In shared memory. */
struct table {
    struct comm_bell bells[2];
    _Alignas(64) _Atomic uint32_t counts[2];
};

struct side {
    struct table *table;
    uint32_t index;
    bool uses_barriers;
    int status;
};

struct awaited {
    _Atomic uint32_t *count;
    uint32_t least;
};

static bool is_reached(void *argument) {
    const struct awaited *awaited = argument;
    return atomic_load_explicit(awaited->count, memory_order_acquire) >= awaited->least;
}

static int64_t from_now(int64_t ns) {
    return clock_monotonic_ns() + ns;
}

static void *count_in_turn(void *argument) {
    struct side *side = argument;
    struct table *table = side->table;
    struct comm_waiter waiter = {.bell = &table->bells[side->index]};
    const int32_t pids[2] = {getpid(), getpid()};
    comm_waiter_tune(&waiter, pids, 2);
    if (!side->uses_barriers) {
        atomic_store(&waiter.bell->sleepers_use_barriers, 0);
    }
    for (uint32_t round = 1; round <= ROUNDS && side->status == 0; round++) {
        waiter.spin_count = round % 3 == 0 ? round % 50 : 0; /* to meet the other at different moments */
        waiter.yield_count = 0;
        if (side->index == 0) {
            atomic_store_explicit(&table->counts[0], round, memory_order_release);
            comm_bell_ring(&table->bells[1]);
        }
        struct awaited awaited = {&table->counts[1 - side->index], round};
        side->status = comm_wait(&waiter, is_reached, &awaited, from_now(LONG_NS));
        if (side->index == 1) {
            atomic_store_explicit(&table->counts[1], round, memory_order_release);
            comm_bell_ring(&table->bells[0]);
        }
    }
    return NULL;
}

static struct table *make_table(void) {
    struct table *table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(table != MAP_FAILED);
    return table;
}

static void between_threads(bool uses_barriers) {
    struct table *table = make_table();
    struct side sides[2] = {{.table = table, .uses_barriers = uses_barriers},
                            {.table = table, .index = 1, .uses_barriers = uses_barriers}};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, count_in_turn, &sides[1]), 0);
    (void)count_in_turn(&sides[0]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(sides[0].status, 0);
    assert_int_equal(sides[1].status, 0);
    assert_int_equal(munmap(table, sizeof *table), 0);
}

static void between_processes(bool uses_barriers) {
    struct table *table = make_table();
    struct side sides[2] = {{.table = table, .uses_barriers = uses_barriers},
                            {.table = table, .index = 1, .uses_barriers = uses_barriers}};
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)count_in_turn(&sides[1]);
        _exit(sides[1].status == 0 ? 0 : 1);
    }
    (void)count_in_turn(&sides[0]);
    int ended = -1;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    assert_int_equal(sides[0].status, 0);
    assert_int_equal(munmap(table, sizeof *table), 0);
}

static void no_wake_up_is_lost_with_barriers(void **state) {
    (void)state;
    between_threads(true);
    between_processes(true);
}

static void no_wake_up_is_lost_without_barriers(void **state) {
    (void)state;
    between_threads(false);
    between_processes(false);
}

/* ---- several on one bell, and what else ends a wait ---- */

struct scene {
    struct comm_bell bell;
    struct comm_waiter waiter;
    _Atomic uint32_t count, asked, idled;
    int said[SLEEPERS];
};

struct sleeper {
    struct scene *scene;
    int index;
};

static void *sleep_on(void *argument) {
    const struct sleeper *sleeper = argument;
    struct awaited awaited = {&sleeper->scene->count, 1};
    sleeper->scene->said[sleeper->index] = comm_wait(&sleeper->scene->waiter, is_reached, &awaited, from_now(LONG_NS));
    return NULL;
}

static int say_gone(void *context) {
    struct scene *scene = context;
    atomic_fetch_add(&scene->asked, 1);
    return status_fail(MUSTER_EPEER, "rank 3 is gone");
}

static bool count_idle(void *context) {
    struct scene *scene = context;
    return atomic_fetch_add(&scene->idled, 1) < 5;
}

static void set_scene(struct scene *scene) {
    *scene = (struct scene){0};
    scene->waiter = (struct comm_waiter){.bell = &scene->bell, .context = scene};
    int32_t pid = getpid();
    comm_waiter_tune(&scene->waiter, &pid, 1);
    scene->waiter.spin_count = scene->waiter.yield_count = 0;
}

static void with_sleepers(struct scene *scene, void (*act)(struct scene *scene), int expected) {
    pthread_t threads[SLEEPERS];
    struct sleeper sleepers[SLEEPERS];
    for (int i = 0; i < SLEEPERS; i++) {
        sleepers[i] = (struct sleeper){scene, i};
        assert_int_equal(pthread_create(&threads[i], NULL, sleep_on, &sleepers[i]), 0);
    }
    while (atomic_load(&scene->bell.sleepers) < SLEEPERS) {
        (void)sched_yield();
    }
    act(scene);
    for (int i = 0; i < SLEEPERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(scene->said[i], expected);
    }
    assert_int_equal(atomic_load(&scene->bell.sleepers), 0);
}

static void publish(struct scene *scene) {
    atomic_store_explicit(&scene->count, 1, memory_order_release);
    comm_bell_ring(&scene->bell);
}

static void raise_alarm(struct scene *scene) {
    atomic_store_explicit(&scene->waiter.alarm, 1, memory_order_release);
    comm_bell_ring(&scene->bell);
}

static void one_ring_wakes_all(void **state) {
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct scene scene;
        set_scene(&scene);
        with_sleepers(&scene, publish, 0);
    }
}

static void an_alarm_ends_the_wait(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene);
    scene.waiter.stopped = say_gone;
    with_sleepers(&scene, raise_alarm, MUSTER_EPEER);
}

static void a_condition_that_holds_is_preferred(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene);
    scene.waiter.stopped = say_gone;
    atomic_store(&scene.waiter.alarm, 1);
    atomic_store(&scene.count, 1);
    struct awaited awaited = {&scene.count, 1};
    assert_int_equal(comm_wait(&scene.waiter, is_reached, &awaited, 0), 0);
    awaited.least = 2;
    assert_int_equal(comm_wait(&scene.waiter, is_reached, &awaited, from_now(LONG_NS)), MUSTER_EPEER);
    assert_string_equal(muster_detail(), "rank 3 is gone");
}

/* Without an alarm, stopped() has the last word when the deadline passes. */
static void the_deadline_ends_the_wait(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene);
    struct awaited awaited = {&scene.count, 1};
    int64_t before_ns = clock_monotonic_ns(), deadline_ns = from_now(20 * CLOCK_NS_PER_MS);
    assert_int_equal(comm_wait(&scene.waiter, is_reached, &awaited, deadline_ns), MUSTER_ETIMEOUT);
    assert_true(clock_monotonic_ns() >= deadline_ns && before_ns < deadline_ns);
    assert_int_equal(comm_wait(&scene.waiter, is_reached, &awaited, 0), MUSTER_ETIMEOUT);
    scene.waiter.stopped = say_gone;
    assert_int_equal(comm_wait(&scene.waiter, is_reached, &awaited, from_now(CLOCK_NS_PER_MS)), MUSTER_EPEER);
    assert_int_equal(atomic_load(&scene.bell.sleepers), 0);
}

static void other_things_are_done_meanwhile(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene);
    scene.waiter.idle = count_idle;
    scene.waiter.yield_count = 10;
    struct awaited awaited = {&scene.count, 1};
    assert_int_equal(comm_wait(&scene.waiter, is_reached, &awaited, from_now(CLOCK_NS_PER_MS)), MUSTER_ETIMEOUT);
    /* Five times it had something to do, after which the looks began anew: then nine more, and once before sleeping. */
    assert_true(atomic_load(&scene.idled) >= 5 + 9 + 1);
}

static bool always_busy(void *context) {
    (void)context;
    return true;
}

static void even_while_busy_the_deadline_counts(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene);
    scene.waiter.idle = always_busy;
    scene.waiter.yield_count = 10;
    struct awaited awaited = {&scene.count, 1};
    assert_int_equal(comm_wait(&scene.waiter, is_reached, &awaited, from_now(CLOCK_NS_PER_MS)), MUSTER_ETIMEOUT);
}

struct moving {
    struct comm_waiter *waiter;
    int looks, needed;
};

static bool moves_until_it_is_there(void *argument) {
    struct moving *moving = argument;
    moving->waiter->has_moved = true;
    return ++moving->looks >= moving->needed;
}

/* Nobody rings: who slept would sleep until the deadline. */
static void while_something_moves_nobody_sleeps(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene);
    scene.waiter.spin_count = 2;
    scene.waiter.yield_count = 2;
    struct moving moving = {&scene.waiter, 0, 1000};
    assert_int_equal(comm_wait(&scene.waiter, moves_until_it_is_there, &moving, from_now(60 * CLOCK_NS_PER_S)), 0);
    assert_int_equal(moving.looks, 1000);
    moving = (struct moving){&scene.waiter, 0, INT_MAX};
    assert_int_equal(comm_wait(&scene.waiter, moves_until_it_is_there, &moving, from_now(CLOCK_NS_PER_MS)),
                     MUSTER_ETIMEOUT);
}

static void ranks_that_outnumber_the_cores_yield_early(void **state) {
    (void)state;
    struct comm_bell bell = {0};
    struct comm_waiter alone = {.bell = &bell}, crowded = {.bell = &bell};
    int32_t pids[4096];
    for (size_t i = 0; i < sizeof pids / sizeof *pids; i++) {
        pids[i] = getpid();
    }
    comm_waiter_tune(&alone, pids, 1);
    comm_waiter_tune(&crowded, pids, sizeof pids / sizeof *pids);
    assert_true(crowded.spin_count * 10 < alone.spin_count);
    assert_true(crowded.yield_count > 0);
    uint32_t near = crowded.yield_count;
    comm_waiter_crowd_far(&crowded);
    assert_true(crowded.yield_count > 0 && crowded.yield_count < near);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_wake_up_is_lost_with_barriers),
        cmocka_unit_test(no_wake_up_is_lost_without_barriers),
        cmocka_unit_test(one_ring_wakes_all),
        cmocka_unit_test(an_alarm_ends_the_wait),
        cmocka_unit_test(a_condition_that_holds_is_preferred),
        cmocka_unit_test(the_deadline_ends_the_wait),
        cmocka_unit_test(other_things_are_done_meanwhile),
        cmocka_unit_test(even_while_busy_the_deadline_counts),
        cmocka_unit_test(while_something_moves_nobody_sleeps),
        cmocka_unit_test(ranks_that_outnumber_the_cores_yield_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
