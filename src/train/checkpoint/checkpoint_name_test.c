/* Names of a checkpoint's files: one spelling each, and no stranger's. */
#include "train/checkpoint/checkpoint_name.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void each_kind_is_read_as_it_is_written(void **state) {
    (void)state;
    static const struct {
        struct checkpoint_name name;
        const char *text;
    } cases[] = {
        {{.kind = CHECKPOINT_RECORD, .step = 10}, "checkpoint-10.json"},
        {{.kind = CHECKPOINT_MAP, .step = 0, .token = 1}, "checkpoint-0-0000000000000001.json"},
        {{.kind = CHECKPOINT_PART, .step = 10, .token = 0x8c1d9f02a4b3e675, .part = 3},
         "checkpoint-10-8c1d9f02a4b3e675-3.safetensors"},
        {{.kind = CHECKPOINT_TEMPORARY, .step = 10, .token = UINT64_MAX}, "checkpoint-10-ffffffffffffffff.tmp"},
        {{.kind = CHECKPOINT_PART, .step = INT64_MAX, .token = UINT64_MAX, .part = 65535},
         "checkpoint-9223372036854775807-ffffffffffffffff-65535.safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[CHECKPOINT_NAME_MAX];
        checkpoint_name_write(text, &cases[i].name);
        assert_string_equal(text, cases[i].text);
        struct checkpoint_name name = checkpoint_name_parse(text);
        assert_true(name.kind == cases[i].name.kind && name.step == cases[i].name.step &&
                    name.token == cases[i].name.token && name.part == cases[i].name.part);
    }
}

static void other_names_are_strangers(void **state) {
    (void)state;
    static const char *const names[] = {
        "",
        "checkpoint-",
        "checkpoint-.json",
        "checkpoint--1.json",
        "checkpoint-+1.json",
        "checkpoint- 1.json",
        "checkpoint-01.json",
        "checkpoint-1.json.tmp",
        "checkpoint-1.JSON",
        "checkpoint-1",
        "checkpoint-9223372036854775808.json",
        "checkpoint-99999999999999999999.json",
        "checkpoint-1-8c1d9f02a4b3e67.json",
        "checkpoint-1-8C1D9F02A4B3E675.json",
        "checkpoint-1-0x1d9f02a4b3e675.json",
        "checkpoint-1-8c1d9f02a4b3e675.safetensors",
        "checkpoint-1-8c1d9f02a4b3e675-.safetensors",
        "checkpoint-1-8c1d9f02a4b3e675-03.safetensors",
        "checkpoint-1-8c1d9f02a4b3e675--3.safetensors",
        "checkpoint-1-8c1d9f02a4b3e675-3.json",
        "checkpoint-1-8c1d9f02a4b3e675-4294967296.safetensors",
        "checkpoint-1-8c1d9f02a4b3e675.tmp2",
        "step-1.json",
        "my-checkpoint-1.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(checkpoint_name_parse(names[i]).kind, CHECKPOINT_OTHER);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_is_read_as_it_is_written),
        cmocka_unit_test(other_names_are_strangers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
