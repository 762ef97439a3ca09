/* Between hosts, ranks that are out of data gather what the others compute with. They can do so in one order alone, and
 * whoever has data is held to it: in another order the ranks of a host would overwrite what their neighbours read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include <muster/fsdp.h>

#include "comm/group/ranks_test_support.h"

enum { UNITS = 3, FROZEN = 0 };

static const struct muster_fsdp_parameter parameters[UNITS] = {
    {.name = "a", .count = 64, .frozen = true}, {.name = "b", .count = 64}, {.name = "c", .count = 64}};
static const struct muster_fsdp_unit units[UNITS] = {
    {"first", &parameters[0], 1}, {"second", &parameters[1], 1}, {"third", &parameters[2], 1}};

static struct muster_fsdp *make(struct rank *rank, struct muster_group *group) {
    struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
    struct muster_fsdp *fsdp = NULL;
    options.uneven_inputs = true;
    rank_check_code(rank, muster_fsdp_create(group, units, UNITS, &options, &fsdp), 0);
    return fsdp;
}

static void hold(struct rank *rank, struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    struct muster_fsdp_view view;
    rank_check_code(rank, muster_fsdp_acquire(fsdp, unit, pass, &view), 0);
    if (view.gradients) {
        memset(view.gradients, 0, parameters[unit].count * sizeof(float));
    }
}

static void use(struct rank *rank, struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    hold(rank, fsdp, unit, pass);
    rank_check_code(rank, muster_fsdp_release(fsdp, unit, pass), 0);
}

static void refuse(struct rank *rank, struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    struct muster_fsdp_view view;
    rank_check_code(rank, muster_fsdp_acquire(fsdp, unit, pass, &view), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "one at a time") != NULL);
}

/* What is refused does not count: the step goes on as it should. */
static void step_in_order(struct rank *rank, struct muster_fsdp *fsdp) {
    rank_check_code(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP), 0);
    refuse(rank, fsdp, 1, MUSTER_FSDP_FORWARD);
    hold(rank, fsdp, 0, MUSTER_FSDP_FORWARD);
    refuse(rank, fsdp, 1, MUSTER_FSDP_FORWARD); /* two at a time */
    rank_check_code(rank, muster_fsdp_release(fsdp, 0, MUSTER_FSDP_FORWARD), 0);
    refuse(rank, fsdp, 0, MUSTER_FSDP_FORWARD); /* twice */
    use(rank, fsdp, 1, MUSTER_FSDP_FORWARD);
    refuse(rank, fsdp, 1, MUSTER_FSDP_BACKWARD); /* the forward pass is not over */
    hold(rank, fsdp, 2, MUSTER_FSDP_FORWARD);
    refuse(rank, fsdp, 2, MUSTER_FSDP_BACKWARD);
    rank_check_code(rank, muster_fsdp_release(fsdp, 2, MUSTER_FSDP_FORWARD), 0);
    refuse(rank, fsdp, 1, MUSTER_FSDP_BACKWARD);
    hold(rank, fsdp, 2, MUSTER_FSDP_BACKWARD);
    refuse(rank, fsdp, 1, MUSTER_FSDP_BACKWARD);
    rank_check_code(rank, muster_fsdp_release(fsdp, 2, MUSTER_FSDP_BACKWARD), 0);
    use(rank, fsdp, 1, MUSTER_FSDP_BACKWARD);
    use(rank, fsdp, FROZEN, MUSTER_FSDP_BACKWARD);
    rank_check_code(rank, muster_fsdp_finish(fsdp), 0);
}

/* The last rank has one step less than the others. */
static int keep_order(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = make(rank, group);
    bool stepped = true;
    step_in_order(rank, fsdp);
    if (rank->rank + 1 < rank->size) {
        step_in_order(rank, fsdp);
    }
    while (stepped) {
        rank_check_code(rank, muster_fsdp_shadow(fsdp, &stepped), 0);
    }
    muster_fsdp_free(fsdp);
    muster_group_free(group);
    return 0;
}

static void units_are_used_in_order_and_one_at_a_time(void **state) {
    (void)state;
    const struct ranks_options two_hosts = {.ranks_per_host = 2};
    ranks_run_with(4, keep_order, NULL, &two_hosts);
}

static int forget_frozen(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = make(rank, group);
    rank_check_code(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP), 0);
    for (size_t unit = 0; unit < UNITS; unit++) {
        use(rank, fsdp, unit, MUSTER_FSDP_FORWARD);
    }
    use(rank, fsdp, 2, MUSTER_FSDP_BACKWARD);
    use(rank, fsdp, 1, MUSTER_FSDP_BACKWARD);
    rank_mark(rank, 1); /* the first that finishes tells the other, which has to have come so far */
    rank_await(rank, 1 - rank->rank, 1);
    rank_check(rank, muster_fsdp_finish(fsdp) != 0);
    rank_check(rank, rank->rank > 0 || strstr(muster_detail(), "unit 0 (first)") != NULL);
    muster_fsdp_free(fsdp);
    muster_group_free(group);
    return 0;
}

static void a_frozen_unit_is_used_in_both_passes(void **state) {
    (void)state;
    const struct ranks_options two_hosts = {.ranks_per_host = 1};
    ranks_run_with(2, forget_frozen, NULL, &two_hosts);
}

/* On one host nothing is gathered, and any order is right. */
static int hold_two(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = make(rank, group);
    rank_check_code(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP), 0);
    hold(rank, fsdp, 2, MUSTER_FSDP_FORWARD);
    use(rank, fsdp, 1, MUSTER_FSDP_FORWARD);
    rank_check_code(rank, muster_fsdp_release(fsdp, 2, MUSTER_FSDP_FORWARD), 0);
    use(rank, fsdp, 1, MUSTER_FSDP_BACKWARD);
    use(rank, fsdp, 2, MUSTER_FSDP_BACKWARD);
    rank_check_code(rank, muster_fsdp_finish(fsdp), 0);
    muster_fsdp_free(fsdp);
    muster_group_free(group);
    return 0;
}

static void on_one_host_any_order_is_right(void **state) {
    (void)state;
    ranks_run(2, hold_two, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_used_in_order_and_one_at_a_time),
        cmocka_unit_test(a_frozen_unit_is_used_in_both_passes),
        cmocka_unit_test(on_one_host_any_order_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
