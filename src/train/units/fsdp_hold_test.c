/* Units that are held several times, and over more than a pass: what acquire gives then, and when gradients are
 * complete. The group is a fake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "train/reduction/fake_group_test_support.h"
#include "train/units/fsdp_impl.h"

enum { COUNT = 64 };
static const struct muster_fsdp_parameter first[] = {{.name = "a.w", .count = COUNT}},
                                          second[] = {{.name = "b.w", .count = COUNT}};
static const struct muster_fsdp_parameter third[] = {{.name = "c.f", .count = COUNT, .frozen = true}};
static const struct muster_fsdp_unit units[] = {{"a", first, 1}, {"b", second, 1}, {"c", third, 1}};

static struct muster_fsdp *begun(struct muster_group *group) {
    struct muster_fsdp *fsdp = NULL;
    assert_int_equal(muster_fsdp_create(group, units, 3, NULL, &fsdp), 0);
    assert_int_equal(muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP), 0);
    fake_group_forget(group);
    return fsdp;
}

static struct muster_fsdp_view acquired(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    struct muster_fsdp_view view = {NULL, NULL, false};
    assert_int_equal(muster_fsdp_acquire(fsdp, unit, pass, &view), 0);
    return view;
}

static void released(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    assert_int_equal(muster_fsdp_release(fsdp, unit, pass), 0);
}

static void use(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    struct muster_fsdp_view view = acquired(fsdp, unit, pass);
    if (view.gradients) {
        memset(view.gradients, 0, COUNT * sizeof(float));
    }
    released(fsdp, unit, pass);
}

/* The owner of a part may write it when all ranks have given its gradients. */
static void gradients_are_kept_while_the_unit_is_looked_at(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_fsdp *fsdp = begun(&group);
    (void)acquired(fsdp, 1, MUSTER_FSDP_FORWARD);
    use(fsdp, 0, MUSTER_FSDP_FORWARD);
    use(fsdp, 1, MUSTER_FSDP_BACKWARD);
    assert_string_equal(group.log, ""); /* it is still held from the forward pass */
    released(fsdp, 1, MUSTER_FSDP_FORWARD);
    assert_string_equal(group.log, "reduce_scatter_v 32 float32 average async; ");
    use(fsdp, 0, MUSTER_FSDP_BACKWARD);
    assert_int_equal(muster_fsdp_finish(fsdp), 0);
    muster_fsdp_free(fsdp);
}

static void a_unit_is_held_twice_in_the_forward_pass(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_fsdp *fsdp = begun(&group);
    struct muster_fsdp_view one = acquired(fsdp, 0, MUSTER_FSDP_FORWARD),
                            other = acquired(fsdp, 0, MUSTER_FSDP_FORWARD);
    assert_ptr_equal(one.parameters, other.parameters);
    released(fsdp, 0, MUSTER_FSDP_FORWARD);
    released(fsdp, 0, MUSTER_FSDP_FORWARD);
    use(fsdp, 1, MUSTER_FSDP_FORWARD);
    use(fsdp, 1, MUSTER_FSDP_BACKWARD);
    use(fsdp, 0, MUSTER_FSDP_BACKWARD);
    assert_string_equal(group.log, "reduce_scatter_v 32 float32 average async; wait; ");
    other = acquired(fsdp, 0, MUSTER_FSDP_BACKWARD);
    assert_true(other.add); /* the second use */
    released(fsdp, 0, MUSTER_FSDP_BACKWARD);
    assert_int_equal(muster_fsdp_finish(fsdp), 0);
    muster_fsdp_free(fsdp);
}

/* Neither of two that write could know whether to add. */
static void gradients_have_one_writer_at_a_time(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_fsdp *fsdp = begun(&group);
    struct muster_fsdp_view view;
    use(fsdp, 0, MUSTER_FSDP_FORWARD);
    use(fsdp, 0, MUSTER_FSDP_FORWARD);
    use(fsdp, 1, MUSTER_FSDP_FORWARD);
    use(fsdp, 2, MUSTER_FSDP_FORWARD);
    use(fsdp, 2, MUSTER_FSDP_FORWARD);
    (void)acquired(fsdp, 2, MUSTER_FSDP_BACKWARD);
    view = acquired(fsdp, 2, MUSTER_FSDP_BACKWARD); /* nothing of it learns */
    assert_null(view.gradients);
    released(fsdp, 2, MUSTER_FSDP_BACKWARD);
    released(fsdp, 2, MUSTER_FSDP_BACKWARD);
    use(fsdp, 1, MUSTER_FSDP_BACKWARD);
    (void)acquired(fsdp, 0, MUSTER_FSDP_BACKWARD);
    assert_int_equal(muster_fsdp_acquire(fsdp, 0, MUSTER_FSDP_BACKWARD, &view), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "muster_fsdp_acquire: unit 0 (a) is acquired in the backward pass while it is "
                                         "held there: release it first");
    released(fsdp, 0, MUSTER_FSDP_BACKWARD);
    view = acquired(fsdp, 0, MUSTER_FSDP_BACKWARD);
    assert_true(view.add);
    released(fsdp, 0, MUSTER_FSDP_BACKWARD);
    assert_int_equal(muster_fsdp_finish(fsdp), 0);
    assert_int_equal(group.failed, 0);
    muster_fsdp_free(fsdp);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_kept_while_the_unit_is_looked_at),
        cmocka_unit_test(a_unit_is_held_twice_in_the_forward_pass),
        cmocka_unit_test(gradients_have_one_writer_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
