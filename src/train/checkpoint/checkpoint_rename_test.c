/* Renames: which one counts, what the star stands for, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/fnv.h"
#include "train/checkpoint/checkpoint_rename.h"

static const char *const items[] = {"head=lm_head.weight", "encoder.*=model.encoder.*", "*.gain=*.weight",
                                    "*.odd=fixed", "block.*.end=*"};
static const struct checkpoint_renames renames = {items, sizeof items / sizeof items[0]};

static void the_first_that_fits_counts(void **state) {
    static const char *const cases[][2] = {
        {"head", "lm_head.weight"},
        {"heads", "heads"},
        {"encoder.w", "model.encoder.w"},
        {"encoder.", "model.encoder."},
        {"encoder.gain", "model.encoder.gain"},
        {"norm.gain", "norm.weight"},
        {".gain", ".weight"},
        {"gain", "gain"},
        {"any.odd", "fixed"},
        {"block.7.end", "7"},
        {"block.end", "block.end"}, /* the sides of the star may not overlap */
        {"other", "other"},
    };
    (void)state;
    assert_int_equal(checkpoint_renames_check(&renames), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[MUSTER_NAME_MAX];
        assert_int_equal(checkpoint_rename(&renames, cases[i][0], out), 0);
        assert_string_equal(out, cases[i][1]);
    }
}

static void what_is_no_rename_is_named(void **state) {
    static const char *const wrong[] = {"", "a", "=", "a=", "=b", "a**=b", "a*b*=c", "a*=b**", "a*=*b*", "a=*"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct checkpoint_renames one = {&wrong[i], 1};
        assert_int_equal(checkpoint_renames_check(&one), MUSTER_EINVAL);
        assert_non_null(strstr(muster_detail(), wrong[i]));
    }
    assert_int_equal(checkpoint_renames_check(&(struct checkpoint_renames){NULL, 1}), MUSTER_EINVAL);
    assert_int_equal(checkpoint_renames_check(&(struct checkpoint_renames){NULL, 0}), 0);
}

static void a_name_stays_in_its_room(void **state) {
    char name[MUSTER_NAME_MAX], out[MUSTER_NAME_MAX];
    const char *longer = "*=x*", *empty = "a*=*";
    const struct checkpoint_renames grows = {&longer, 1}, shrinks = {&empty, 1};
    (void)state;
    memset(name, 'a', sizeof name);
    name[MUSTER_NAME_MAX - 2] = '\0';
    assert_int_equal(checkpoint_rename(&grows, name, out), 0);
    assert_int_equal(strlen(out), MUSTER_NAME_MAX - 1);
    name[MUSTER_NAME_MAX - 2] = 'a';
    name[MUSTER_NAME_MAX - 1] = '\0';
    assert_int_equal(checkpoint_rename(&grows, name, out), MUSTER_EINVAL);
    assert_int_equal(checkpoint_rename(&shrinks, "a", out), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "the name that a rename gives to tensor a is empty");
}

static void other_renames_have_another_hash(void **state) {
    (void)state;
    uint64_t all = checkpoint_renames_hash(&renames, 1);
    for (size_t count = 0; count < renames.count; count++) {
        assert_true(checkpoint_renames_hash(&(struct checkpoint_renames){items, count}, 1) != all);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_that_fits_counts),
        cmocka_unit_test(what_is_no_rename_is_named),
        cmocka_unit_test(a_name_stays_in_its_room),
        cmocka_unit_test(other_renames_have_another_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
