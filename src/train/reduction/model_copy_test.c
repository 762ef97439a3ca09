/* The lists of a caller: which names are accepted, and where copies lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/ddp.h>
#include <muster/fsdp.h>

#include "base/status.h"
#include "train/reduction/model_copy.h"

_Static_assert(MODEL_NAME_MAX == MUSTER_DDP_NAME_MAX && MODEL_NAME_MAX == MUSTER_FSDP_NAME_MAX, "as the headers say");

static void refuses(const char *name, const char *sentence) {
    assert_int_equal(model_check_name("parameter", 3, name), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), sentence);
}

static void a_name_has_one_line_of_up_to_255_bytes(void **state) {
    (void)state;
    char name[MODEL_NAME_MAX + 1];
    memset(name, 'n', sizeof name);
    name[MODEL_NAME_MAX - 1] = '\0';
    assert_int_equal(model_check_name("parameter", 3, name), MUSTER_OK);
    name[MODEL_NAME_MAX - 1] = 'n';
    name[MODEL_NAME_MAX] = '\0';
    refuses(name, "parameter 3 has no name, or one of more than 255 bytes");
    refuses(NULL, "parameter 3 has no name, or one of more than 255 bytes");
    refuses("a\nb", "the name of parameter 3 has a line break");
}

/* A name need not stand at the beginning of its struct. */
struct named {
    int number;
    const char *name;
};

static void two_of_a_name_are_found_wherever_they_stand(void **state) {
    (void)state;
    struct named list[] = {{0, "d"}, {1, "a"}, {2, "c"}, {3, "b"}};
    size_t count = sizeof list / sizeof *list;
    assert_int_equal(model_check_unique("unit", &list[0].name, sizeof *list, count), MUSTER_OK);
    assert_string_equal(list[0].name, "d"); /* the list keeps its order */
    for (size_t first = 0; first < count; first++) {
        for (size_t second = first + 1; second < count; second++) {
            char copy[] = "x"; /* alike, not the same memory */
            struct named twice[sizeof list / sizeof *list];
            memcpy(twice, list, sizeof list);
            twice[first].name = "x";
            twice[second].name = copy;
            assert_int_equal(model_check_unique("unit", &twice[0].name, sizeof *twice, count), MUSTER_EINVAL);
            assert_string_equal(muster_detail(), "two units are called \"x\"");
        }
    }
    assert_int_equal(model_check_unique("unit", &list[0].name, sizeof *list, 1), MUSTER_OK);
}

static void pieces_of_a_block_are_aligned_and_apart(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 16, 0, 17, 40};
    _Alignas(max_align_t) uint8_t block[256];
    size_t counted = 0, used = 0;
    uint8_t *end = block;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_null(model_carve(NULL, &counted, sizes[i]));
        uint8_t *piece = model_carve(block, &used, sizes[i]);
        assert_true(piece >= end);
        assert_int_equal((uintptr_t)piece % _Alignof(max_align_t), 0);
        end = piece + sizes[i];
    }
    assert_int_equal(counted, used);
    assert_true(end <= block + used);
    assert_true(used <= sizeof block);
}

static void names_are_copied_one_behind_the_other(void **state) {
    (void)state;
    char given[] = "weight", memory[sizeof "weight" + sizeof "" + sizeof "bias"], *room = memory;
    const char *weight = model_keep_name(&room, given), *empty = model_keep_name(&room, "");
    const char *bias = model_keep_name(&room, "bias");
    given[0] = '?';
    assert_string_equal(weight, "weight");
    assert_string_equal(empty, "");
    assert_string_equal(bias, "bias");
    assert_ptr_equal(room, memory + sizeof memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_has_one_line_of_up_to_255_bytes),
        cmocka_unit_test(two_of_a_name_are_found_wherever_they_stand),
        cmocka_unit_test(pieces_of_a_block_are_aligned_and_apart),
        cmocka_unit_test(names_are_copied_one_behind_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
