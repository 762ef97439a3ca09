/* Does the machine reorder as ARMv8 does, no less and no more? The classic small programs of the literature on memory
 * models say so: for each, whether its odd result can come about. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "memory/machine.h"

enum { X, Y, Z, U };

/* The odd result: what registers have, and memory. */
enum { MEMORY = -1 };
struct wanted {
    int thread, at, value;
};
static struct wanted wanted[4];
static size_t wanted_count;

static bool is_wanted(const struct outcome *outcome) {
    bool is = outcome->is_stuck;
    for (size_t i = 0; i < wanted_count && is; i++) {
        const struct wanted *it = &wanted[i];
        is = (it->thread == MEMORY ? outcome->memory : outcome->registers[it->thread])[it->at] == it->value;
    }
    return is;
}

static struct program p;

static int begin(void **state) {
    (void)state;
    memset(&p, 0, sizeof p);
    wanted_count = 0;
    return 0;
}

static void want(int thread, int at, int value) {
    wanted[wanted_count++] = (struct wanted){thread, at, value};
}

static bool can_happen(void) {
    struct exploration found = explore(&p, is_wanted);
    assert_false(found.is_full);
    assert_true(found.is_bad || found.end_count > 0);
    (void)begin(NULL);
    return found.is_bad;
}

/* ---- message passing (MP): data, then a flag ---- */

enum dependency { NOTHING, ADDRESS, CONTROL, DATA };

static bool message_passing(enum order between_stores, enum order flag, enum order look, enum order between_loads,
                            enum dependency dependency) {
    (void)store(&p, 0, X, 1, RELAXED);
    fence(&p, 0, between_stores);
    (void)store(&p, 0, Y, 1, flag);
    (void)load(&p, 1, 0, Y, look);
    fence(&p, 1, between_loads);
    if (dependency == CONTROL) {
        skip_if(&p, 1, 0, 2, 0);
    }
    struct instruction *data = load(&p, 1, 1, X, RELAXED);
    data->after = dependency == ADDRESS ? 0 : NO_REGISTER;
    want(1, 0, 1);
    want(1, 1, 0);
    return can_happen();
}

static void messages_pass_in_order_with_release_and_acquire(void **state) {
    (void)state;
    assert_true(message_passing(NO_FENCE, RELAXED, RELAXED, NO_FENCE, NOTHING));
    assert_true(message_passing(NO_FENCE, RELEASE, RELAXED, NO_FENCE, NOTHING));
    assert_true(message_passing(NO_FENCE, RELAXED, ACQUIRE, NO_FENCE, NOTHING));
    assert_false(message_passing(NO_FENCE, RELEASE, ACQUIRE, NO_FENCE, NOTHING));
    assert_false(message_passing(NO_FENCE, RELEASE, ACQUIRE_PC, NO_FENCE, NOTHING));
    assert_false(message_passing(FENCE_STORES, RELAXED, RELAXED, FENCE_LOADS, NOTHING));
    assert_false(message_passing(FENCE_FULL, RELAXED, RELAXED, FENCE_FULL, NOTHING));
    assert_true(message_passing(FENCE_LOADS, RELAXED, RELAXED, FENCE_FULL, NOTHING));
    assert_true(message_passing(FENCE_FULL, RELAXED, RELAXED, FENCE_STORES, NOTHING));
}

/* A branch does not keep loads in order, an address does. */
static void addresses_order_loads_and_branches_do_not(void **state) {
    (void)state;
    assert_false(message_passing(NO_FENCE, RELEASE, RELAXED, NO_FENCE, ADDRESS));
    assert_true(message_passing(NO_FENCE, RELEASE, RELAXED, NO_FENCE, CONTROL));
}

/* ---- store buffering (SB): each stores, and looks for the other's store ---- */

static bool store_buffering(enum order stores, enum order between, enum order loads) {
    for (int thread = 0; thread < 2; thread++) {
        (void)store(&p, thread, thread == 0 ? X : Y, 1, stores);
        fence(&p, thread, between);
        (void)load(&p, thread, 0, thread == 0 ? Y : X, loads);
        want(thread, 0, 0);
    }
    return can_happen();
}

static void both_may_miss_the_others_store(void **state) {
    (void)state;
    assert_true(store_buffering(RELAXED, NO_FENCE, RELAXED));
    assert_true(store_buffering(RELAXED, FENCE_LOADS, RELAXED));
    assert_true(store_buffering(RELAXED, FENCE_STORES, RELAXED));
    assert_true(store_buffering(RELEASE, NO_FENCE, ACQUIRE_PC));
    assert_false(store_buffering(RELEASE, NO_FENCE, ACQUIRE)); /* C's seq_cst */
    assert_false(store_buffering(RELAXED, FENCE_FULL, RELAXED));
}

/* An atomic operation on a third place is no fence: the load may go between its halves. */
static void an_atomic_operation_is_no_fence(void **state) {
    (void)state;
    for (int thread = 0; thread < 2; thread++) {
        (void)store(&p, thread, thread == 0 ? X : Y, 1, RELAXED);
        (void)add(&p, thread, 1, thread == 0 ? Z : U, 1, ACQUIRE_RELEASE);
        (void)load(&p, thread, 0, thread == 0 ? Y : X, RELAXED);
        want(thread, 0, 0);
    }
    assert_true(can_happen());
    /* But two on one place see each other, whoever is first. */
    for (int thread = 0; thread < 2; thread++) {
        (void)store(&p, thread, thread == 0 ? X : Y, 1, RELAXED);
        (void)add(&p, thread, 1, Z, 1, ACQUIRE_RELEASE);
        (void)load(&p, thread, 0, thread == 0 ? Y : X, RELAXED);
        want(thread, 0, 0);
    }
    assert_false(can_happen());
}

/* Each reads its own store before memory has it, and the other's place by an address that depends on that. */
static void a_thread_sees_its_own_stores_first(void **state) {
    (void)state;
    for (int thread = 0; thread < 2; thread++) {
        (void)store(&p, thread, thread == 0 ? X : Y, 1, RELAXED);
        (void)load(&p, thread, 1, thread == 0 ? X : Y, RELAXED);
        load(&p, thread, 0, thread == 0 ? Y : X, RELAXED)->after = 1;
        want(thread, 0, 0);
        want(thread, 1, 1);
    }
    assert_true(can_happen());
}

/* ---- load buffering (LB): each loads what the other stores later ---- */

static bool load_buffering(enum order loads, enum order stores, enum dependency dependency) {
    for (int thread = 0; thread < 2; thread++) {
        (void)load(&p, thread, 0, thread == 0 ? X : Y, loads);
        if (dependency == CONTROL) {
            skip_if(&p, thread, 0, 2, 0);
        }
        if (dependency == DATA) { /* what it has loaded: where would a 1 come from? */
            (void)store_from(&p, thread, thread == 0 ? Y : X, 0, stores);
        } else {
            store(&p, thread, thread == 0 ? Y : X, 1, stores)->after = dependency == ADDRESS ? 0 : NO_REGISTER;
        }
        want(thread, 0, 1);
    }
    return can_happen();
}

static void loads_may_come_after_later_stores(void **state) {
    (void)state;
    assert_true(load_buffering(RELAXED, RELAXED, NOTHING));
    assert_false(load_buffering(RELAXED, RELAXED, DATA));
    assert_false(load_buffering(RELAXED, RELAXED, CONTROL));
    assert_false(load_buffering(RELAXED, RELAXED, ADDRESS));
    assert_false(load_buffering(ACQUIRE, RELAXED, NOTHING));
    assert_false(load_buffering(RELAXED, RELEASE, NOTHING));
}

/* ---- S, R, 2+2W: which store is the last? ---- */

static bool program_s(enum order flag, enum order look, enum dependency dependency) {
    (void)store(&p, 0, X, 2, RELAXED);
    (void)store(&p, 0, Y, 1, flag);
    (void)load(&p, 1, 0, Y, look);
    if (dependency == CONTROL) {
        skip_if(&p, 1, 0, 2, 0);
    }
    (void)store(&p, 1, X, 1, RELAXED);
    want(1, 0, 1);
    want(MEMORY, X, 2);
    return can_happen();
}

static void a_store_after_a_load_comes_last(void **state) {
    (void)state;
    assert_true(program_s(RELAXED, RELAXED, CONTROL));
    assert_true(program_s(RELEASE, RELAXED, NOTHING));
    assert_false(program_s(RELEASE, RELAXED, CONTROL));
    assert_false(program_s(RELEASE, ACQUIRE, NOTHING));
}

static bool program_r(enum order between, enum order stores, enum order loads) {
    (void)store(&p, 0, X, 1, RELAXED);
    fence(&p, 0, between);
    (void)store(&p, 0, Y, 1, stores);
    (void)store(&p, 1, Y, 2, stores);
    fence(&p, 1, between);
    (void)load(&p, 1, 0, X, loads);
    want(1, 0, 0);
    want(MEMORY, Y, 2);
    return can_happen();
}

static void a_load_after_the_last_store_sees_what_was_before_the_others(void **state) {
    (void)state;
    assert_true(program_r(NO_FENCE, RELAXED, RELAXED));
    assert_true(program_r(NO_FENCE, RELEASE, ACQUIRE_PC));
    assert_false(program_r(NO_FENCE, RELEASE, ACQUIRE));
    assert_false(program_r(FENCE_FULL, RELAXED, RELAXED));
}

static bool two_and_two_stores(enum order second) {
    for (int thread = 0; thread < 2; thread++) {
        (void)store(&p, thread, thread == 0 ? X : Y, 1, RELAXED);
        (void)store(&p, thread, thread == 0 ? Y : X, 2, second);
    }
    want(MEMORY, X, 1);
    want(MEMORY, Y, 1);
    return can_happen();
}

static void both_first_stores_may_come_last(void **state) {
    (void)state;
    assert_true(two_and_two_stores(RELAXED));
    assert_false(two_and_two_stores(RELEASE));
}

/* ---- three and four threads (WRC, ISA2, IRIW): a store is seen by all others at once ---- */

static bool write_to_read(enum order middle, enum order look, bool has_dependencies) {
    (void)store(&p, 0, X, 1, RELAXED);
    (void)load(&p, 1, 0, X, RELAXED);
    store(&p, 1, Y, 1, middle)->after = has_dependencies ? 0 : NO_REGISTER;
    (void)load(&p, 2, 0, Y, look);
    load(&p, 2, 1, X, RELAXED)->after = has_dependencies ? 0 : NO_REGISTER;
    want(1, 0, 1);
    want(2, 0, 1);
    want(2, 1, 0);
    return can_happen();
}

static void what_was_seen_is_seen_by_those_who_are_told(void **state) {
    (void)state;
    assert_true(write_to_read(RELAXED, RELAXED, false));
    assert_true(write_to_read(RELEASE, RELAXED, false));
    assert_true(write_to_read(RELAXED, ACQUIRE, false));
    assert_false(write_to_read(RELAXED, RELAXED, true));
    assert_false(write_to_read(RELEASE, ACQUIRE, false));
}

/* A message that is handed on, by a thread that has not looked at the data. */
static bool handed_on(enum order first) {
    (void)store(&p, 0, X, 1, RELAXED);
    (void)store(&p, 0, Y, 1, first);
    (void)load(&p, 1, 0, Y, RELAXED);
    (void)store_from(&p, 1, Z, 0, RELAXED);
    (void)load(&p, 2, 0, Z, RELAXED);
    load(&p, 2, 1, X, RELAXED)->after = 0;
    want(2, 0, 1);
    want(2, 1, 0);
    return can_happen();
}

static void what_is_handed_on_keeps_its_order(void **state) {
    (void)state;
    assert_true(handed_on(RELAXED));
    assert_false(handed_on(RELEASE));
}

static bool two_readers_of_two_writers(enum order first, bool has_dependencies) {
    (void)store(&p, 0, X, 1, RELAXED);
    (void)store(&p, 1, Y, 1, RELAXED);
    for (int thread = 2; thread < 4; thread++) {
        (void)load(&p, thread, 0, thread == 2 ? X : Y, first);
        load(&p, thread, 1, thread == 2 ? Y : X, RELAXED)->after = has_dependencies ? 0 : NO_REGISTER;
        want(thread, 0, 1);
        want(thread, 1, 0);
    }
    return can_happen();
}

static void all_see_stores_in_one_order(void **state) {
    (void)state;
    assert_true(two_readers_of_two_writers(RELAXED, false));
    assert_false(two_readers_of_two_writers(RELAXED, true));
    assert_false(two_readers_of_two_writers(ACQUIRE_PC, false));
}

/* ---- one place (CoRR, RSW), and guesses (PPOCA, PPOAA) ---- */

static void loads_of_one_place_see_it_in_order(void **state) {
    (void)state;
    (void)store(&p, 0, X, 1, RELAXED);
    (void)load(&p, 1, 0, X, RELAXED);
    (void)load(&p, 1, 1, X, RELAXED);
    want(1, 0, 1);
    want(1, 1, 0);
    assert_false(can_happen());
}

/* Two loads of Z that see the same store may go in any order, and take what depends on them along. */
static bool reads_same_write(bool is_written) {
    (void)store(&p, 0, X, 1, RELAXED);
    fence(&p, 0, FENCE_FULL);
    (void)store(&p, 0, Y, 1, RELAXED);
    (void)load(&p, 1, 0, Y, RELAXED);
    load(&p, 1, 1, Z, RELAXED)->after = 0;
    (void)load(&p, 1, 2, Z, RELAXED);
    load(&p, 1, 3, X, RELAXED)->after = 2;
    if (is_written) {
        (void)store(&p, 2, Z, 1, RELAXED);
        want(1, 1, 1);
        want(1, 2, 0);
    } else {
        want(1, 0, 1);
        want(1, 3, 0);
    }
    return can_happen();
}

static void loads_that_see_the_same_store_may_swap(void **state) {
    (void)state;
    assert_true(reads_same_write(false));
    assert_false(reads_same_write(true));
}

/* A store behind a branch waits. A load of what it stores does not, and neither does what depends on that. */
static bool speculated_store(enum dependency dependency) {
    (void)store(&p, 0, X, 1, RELAXED);
    fence(&p, 0, FENCE_FULL);
    (void)store(&p, 0, Y, 1, RELAXED);
    (void)load(&p, 1, 0, Y, RELAXED);
    if (dependency == CONTROL) {
        skip_if(&p, 1, 0, 2, 0);
    }
    store(&p, 1, Z, 1, RELAXED)->after = dependency == ADDRESS ? 0 : NO_REGISTER;
    (void)load(&p, 1, 1, Z, RELAXED);
    load(&p, 1, 2, X, RELAXED)->after = 1;
    want(1, 0, 1);
    want(1, 2, 0);
    return can_happen();
}

static void branches_are_guessed_and_addresses_are_not(void **state) {
    (void)state;
    assert_true(speculated_store(CONTROL));
    assert_false(speculated_store(ADDRESS));
}

/* What a wrong guess did has not happened. */
static void a_wrong_guess_leaves_nothing(void **state) {
    (void)state;
    (void)store(&p, 0, X, 1, RELAXED);
    (void)load(&p, 1, 0, X, RELAXED);
    skip_if(&p, 1, 0, 1, 1);
    (void)store(&p, 1, Y, 1, RELAXED);
    (void)load(&p, 1, 1, Z, RELAXED);
    want(1, 0, 1);
    want(MEMORY, Y, 1);
    assert_false(can_happen());
}

/* ---- what is not ARM's ---- */

static bool streaming(enum order between) {
    (void)store(&p, 0, X, 1, STREAMING);
    fence(&p, 0, between);
    (void)store(&p, 0, Y, 1, RELEASE);
    (void)load(&p, 1, 0, Y, ACQUIRE);
    (void)load(&p, 1, 1, X, RELAXED);
    want(1, 0, 1);
    want(1, 1, 0);
    return can_happen();
}

static void stores_past_the_caches_need_a_fence(void **state) {
    (void)state;
    assert_true(streaming(NO_FENCE));
    assert_false(streaming(FENCE_STORES));
    assert_false(streaming(FENCE_FULL));
}

static bool barriers_of_all(enum action action) {
    (void)store(&p, 0, X, 1, RELAXED);
    (void)load(&p, 0, 0, Y, RELAXED);
    (void)store(&p, 1, Y, 1, RELAXED);
    if (action == ALL_BARRIERS) {
        act(&p, 1, ALL_BARRIERS, 0);
    } else {
        fence(&p, 1, FENCE_FULL);
    }
    (void)load(&p, 1, 0, X, RELAXED);
    want(0, 0, 0);
    want(1, 0, 0);
    return can_happen();
}

static void one_thread_can_execute_the_barrier_of_another(void **state) {
    (void)state;
    assert_true(barriers_of_all(FENCE));
    assert_false(barriers_of_all(ALL_BARRIERS));
}

/* Who is killed has done what comes before, and nothing of what comes after. Who only stops may have done both. */
static bool reads_what_is_left(enum action action) {
    (void)store(&p, 0, X, 1, RELAXED);
    (void)store(&p, 0, Y, 1, RELAXED);
    act(&p, 1, action, 0);
    (void)load(&p, 1, 0, X, RELAXED);
    (void)load(&p, 1, 1, Y, RELAXED);
    want(1, 0, 0);
    want(1, 1, 1);
    return can_happen();
}

static void the_killed_have_done_what_came_before(void **state) {
    (void)state;
    assert_false(reads_what_is_left(AWAIT_DEATH));
    assert_true(reads_what_is_left(STOP));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(messages_pass_in_order_with_release_and_acquire, begin),
        cmocka_unit_test_setup(addresses_order_loads_and_branches_do_not, begin),
        cmocka_unit_test_setup(both_may_miss_the_others_store, begin),
        cmocka_unit_test_setup(an_atomic_operation_is_no_fence, begin),
        cmocka_unit_test_setup(a_thread_sees_its_own_stores_first, begin),
        cmocka_unit_test_setup(loads_may_come_after_later_stores, begin),
        cmocka_unit_test_setup(a_store_after_a_load_comes_last, begin),
        cmocka_unit_test_setup(a_load_after_the_last_store_sees_what_was_before_the_others, begin),
        cmocka_unit_test_setup(both_first_stores_may_come_last, begin),
        cmocka_unit_test_setup(what_was_seen_is_seen_by_those_who_are_told, begin),
        cmocka_unit_test_setup(what_is_handed_on_keeps_its_order, begin),
        cmocka_unit_test_setup(all_see_stores_in_one_order, begin),
        cmocka_unit_test_setup(loads_of_one_place_see_it_in_order, begin),
        cmocka_unit_test_setup(loads_that_see_the_same_store_may_swap, begin),
        cmocka_unit_test_setup(branches_are_guessed_and_addresses_are_not, begin),
        cmocka_unit_test_setup(a_wrong_guess_leaves_nothing, begin),
        cmocka_unit_test_setup(stores_past_the_caches_need_a_fence, begin),
        cmocka_unit_test_setup(one_thread_can_execute_the_barrier_of_another, begin),
        cmocka_unit_test_setup(the_killed_have_done_what_came_before, begin),
    };
    return cmocka_run_group_tests_name("memory/litmus", tests, NULL, NULL);
}
