/* Who has to go when there are too many: never somebody from an address with few. */
#include "store/server/kv_newcomers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 8, MANY = 64 };

static const uint64_t seed[2] = {1, 2};

static struct net_address_key v4(uint8_t last) {
    return (struct net_address_key){{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = last}};
}

static struct net_address_key v6(uint8_t network, uint8_t last) {
    return (struct net_address_key){{0xfd, [7] = network, [15] = last}};
}

static void add(struct kv_newcomers *n, struct kv_newcomer *newcomer, struct net_address_key from) {
    assert_int_equal(kv_newcomers_add(n, newcomer, &from), 0);
}

static void set_up(struct kv_newcomers *n, struct kv_newcomer all[MANY]) {
    memset(all, 0, MANY * sizeof *all);
    kv_newcomers_init(n, seed, MAX);
    assert_null(n->by_count);
}

static void tear_down(struct kv_newcomers *n, struct kv_newcomer all[MANY]) {
    for (size_t i = 0; i < MANY; i++) {
        kv_newcomers_remove(n, &all[i]);
    }
    assert_int_equal(n->count, 0);
    assert_int_equal(n->top, 0);
    assert_int_equal(n->sources.count, 0);
    assert_null(n->by_count); /* it is all given back */
    kv_newcomers_done(n);
}

static void a_flood_pushes_out_itself(void **state) {
    struct kv_newcomers n;
    struct kv_newcomer all[MANY];
    (void)state;
    set_up(&n, all);
    add(&n, &all[0], v4(1)); /* older than everything that follows */
    add(&n, &all[1], v4(2));
    for (size_t i = 2; i < MANY - 1; i++) {
        add(&n, &all[i], v4(9));
        struct kv_newcomer *out = kv_newcomers_excess(&n);
        assert_ptr_equal(out, i < MAX ? NULL : &all[i - MAX + 2]);
        if (out) {
            kv_newcomers_remove(&n, out);
            assert_null(kv_newcomers_excess(&n));
        }
    }
    add(&n, &all[MANY - 1], v4(3)); /* and who comes now has a place, too */
    assert_ptr_equal(kv_newcomers_excess(&n), &all[MANY - 1 - 6]);
    kv_newcomers_remove(&n, kv_newcomers_excess(&n));
    tear_down(&n, all);
}

static void addresses_with_one_each_go_by_age(void **state) {
    struct kv_newcomers n;
    struct kv_newcomer all[MANY];
    (void)state;
    set_up(&n, all);
    for (size_t i = 0; i < MANY; i++) {
        add(&n, &all[i], v4((uint8_t)i));
        struct kv_newcomer *out = kv_newcomers_excess(&n);
        assert_ptr_equal(out, i < MAX ? NULL : &all[i - MAX]);
        if (out) {
            kv_newcomers_remove(&n, out);
        }
    }
    tear_down(&n, all);
}

static void a_network_of_ipv6_is_one_source(void **state) {
    struct kv_newcomers n;
    struct kv_newcomer all[MANY];
    (void)state;
    set_up(&n, all);
    add(&n, &all[0], v6(1, 1));
    for (size_t i = 1; i <= MAX; i++) {
        add(&n, &all[i], v6(2, (uint8_t)i));
    }
    assert_int_equal(n.sources.count, 2);
    assert_ptr_equal(kv_newcomers_excess(&n), &all[1]);
    tear_down(&n, all);
}

/* As many at a time as there are, not as there may be. */
static void memory_follows_the_largest_source(void **state) {
    struct kv_newcomers n;
    struct kv_newcomer all[MANY] = {{.source = NULL}};
    (void)state;
    kv_newcomers_init(&n, seed, SIZE_MAX / 2);
    for (size_t i = 0; i < MANY; i++) {
        add(&n, &all[i], v4(1));
        assert_in_range(n.by_count_capacity, n.top + 1, 2 * n.top + 8);
    }
    tear_down(&n, all);
}

/* Against the plain way: count, and look for the oldest of the largest. */
static void any_order_of_coming_and_going(void **state) {
    struct kv_newcomers n;
    struct kv_newcomer all[MANY];
    unsigned source[MANY] = {0}, came[MANY] = {0}, clock = 0, counts[4] = {0};
    uint32_t random = 12345;
    (void)state;
    set_up(&n, all);
    for (unsigned step = 0; step < 20000; step++) {
        random = random * 1664525 + 1013904223;
        size_t i = random >> 8 & (MANY - 1);
        if (all[i].source) {
            kv_newcomers_remove(&n, &all[i]);
            counts[source[i]]--;
        } else {
            source[i] = random >> 20 & 3;
            came[i] = clock++;
            add(&n, &all[i], v4((uint8_t)source[i]));
            counts[source[i]]++;
        }
        struct kv_newcomer *out = kv_newcomers_excess(&n);
        assert_true((out != NULL) == (n.count > MAX));
        if (!out) {
            continue;
        }
        size_t at = (size_t)(out - all);
        for (size_t k = 0; k < MANY; k++) {
            assert_false(all[k].source && counts[source[k]] > counts[source[at]]);
            assert_false(all[k].source && source[k] == source[at] && came[k] < came[at]);
        }
        kv_newcomers_remove(&n, out);
        counts[source[at]]--;
    }
    tear_down(&n, all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_pushes_out_itself),       cmocka_unit_test(addresses_with_one_each_go_by_age),
        cmocka_unit_test(a_network_of_ipv6_is_one_source), cmocka_unit_test(memory_follows_the_largest_source),
        cmocka_unit_test(any_order_of_coming_and_going),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
