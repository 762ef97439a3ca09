/* Headers of safetensors files: golden bytes, what others may write, and what nobody may. */
#include "train/state/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

static int decode(const char *header, uint64_t data_bytes, struct safetensors *out) {
    /* An allocation of exactly this size, so that a sanitizer sees a read past the end. */
    size_t length = strlen(header);
    uint8_t *exact = malloc(length ? length : 1);
    assert_non_null(exact);
    memcpy(exact, header, length);
    int code = safetensors_decode(exact, length, data_bytes, out);
    free(exact);
    return code;
}

static void golden_bytes(void **state) {
    (void)state;
    static const char golden[] = "\x90\0\0\0\0\0\0\0"
                                 "{\"__metadata__\":{\"step\":\"12\"},"
                                 "\"b\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
                                 "\"a\":{\"dtype\":\"BF16\",\"shape\":[1,3],\"data_offsets\":[8,14]}}     ";
    float data[4] = {0};
    struct muster_tensor tensors[] = {
        {.name = "a", .type = MUSTER_BFLOAT16, .dim_count = 2, .shape = {1, 3}, .data = data},
        {.name = "b", .type = MUSTER_FLOAT64, .data = data},
    };
    struct safetensors table;
    struct buf bytes;
    buf_init(&bytes, 4096);
    assert_int_equal(safetensors_layout(tensors, 2, &table), 0);
    assert_int_equal(table.data_bytes, 14);
    assert_int_equal(table.entries[0].index, 1); /* the larger elements first */
    assert_int_equal(safetensors_encode(&table, 12, &bytes), 0);
    assert_int_equal(bytes.len, sizeof golden - 1);
    assert_memory_equal(buf_bytes(&bytes), golden, sizeof golden - 1);
    assert_int_equal(bytes.len % 8, 0);
    safetensors_done(&table);

    size_t length = 0;
    assert_int_equal(safetensors_header_length(buf_bytes(&bytes), bytes.len + 14, &length), 0);
    assert_int_equal(length, bytes.len - 8);
    assert_int_equal(safetensors_decode(buf_bytes(&bytes) + 8, length, 14, &table), 0);
    assert_int_equal(table.count, 2);
    const struct safetensors_entry *a = safetensors_find(&table, "a");
    assert_non_null(a);
    assert_true(a->type == MUSTER_BFLOAT16 && a->dim_count == 2 && a->shape[1] == 3 && a->offset == 8 && a->bytes == 6);
    assert_int_equal(safetensors_match(a, &tensors[0]), 0);
    assert_int_equal(safetensors_match(a, &tensors[1]), MUSTER_EINVAL);
    assert_null(safetensors_find(&table, "c"));
    safetensors_done(&table);
    buf_done(&bytes);
}

static void headers_of_others_are_read(void **state) {
    (void)state;
    static const struct {
        const char *header;
        uint64_t data_bytes;
        size_t count;
    } good[] = {
        {"{}", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{ \"x\" : {\"shape\":[2],\"data_offsets\":[0,2],\"dtype\":\"U8\"} }\n   ", 2, 1},
        {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[2,2]},"
         "\"x\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2, 2},
        {"{\"\\u00e4\":{\"dtype\":\"U32\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct safetensors table;
        assert_int_equal(decode(good[i].header, good[i].data_bytes, &table), 0);
        assert_int_equal(table.count, good[i].count);
        safetensors_done(&table);
    }
}

static void types_that_muster_lacks_cannot_be_loaded(void **state) {
    (void)state;
    struct safetensors table;
    struct muster_tensor wanted = {.name = "x", .type = MUSTER_INT8, .dim_count = 1, .shape = {2}};
    assert_int_equal(decode("{\"x\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, &table), 0);
    assert_int_equal(safetensors_match(safetensors_find(&table, "x"), &wanted), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "tensor x is another type [2] in the file, int8 [2] in the program");
    safetensors_done(&table);
}

/* Each with 8 bytes of data. */
static void what_the_format_allows_is_read_or_listed(void **state) {
    (void)state;
    static const struct {
        const char *header, *dtype, *unread;
    } good[] = {
        {"{\"__metadata__\":null,\"x\":{\"dtype\":\"BOOL\",\"shape\":[8],\"data_offsets\":[0,8]}}", "BOOL", NULL},
        {"{\"x\":{\"dtype\":\"F4\",\"shape\":[4,4],\"data_offsets\":[0,8],\"more\":[1]}}", "F4", NULL},
        {"{\"x\":{\"dtype\":\"F8_E8M0\",\"shape\":[8],\"data_offsets\":[0,8]}}", "F8_E8M0", NULL},
        {"{\"x\":{\"dtype\":\"C64\",\"shape\":[],\"data_offsets\":[0,8]}}", "C64", NULL},
        {"{\"x\":{\"dtype\":\"F31\",\"shape\":[3],\"data_offsets\":[0,8]}}", NULL, "a dtype that is not known here"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,8],\"data_offsets\":[0,8]}}", NULL,
         "more than 8 dimensions"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct safetensors table;
        assert_int_equal(decode(good[i].header, 8, &table), 0);
        const struct safetensors_entry *entry = safetensors_find(&table, "x");
        assert_int_equal(entry->type, MUSTER_TYPE_COUNT);
        assert_int_equal(entry->bytes, 8);
        assert_true((entry->other != NULL) == (good[i].dtype != NULL));
        if (good[i].dtype) {
            assert_string_equal(entry->other->dtype, good[i].dtype);
            assert_null(entry->unread);
        } else {
            assert_string_equal(entry->unread, good[i].unread);
        }
        safetensors_done(&table);
    }
}

/* Each with 8 bytes of data. */
static void hostile_headers_are_refused(void **state) {
    (void)state;
#define ENTRY(name, dtype, shape, offsets)                                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const char *const bad[] = {
        "",
        "[]",
        " {}",
        "{}x",
        "{",
        "{}", /* data that nobody has */
        "{\"x\":1}",
        "{" ENTRY("x", "F32", "[2]", "[0,4]") "}",  /* too few bytes for the shape */
        "{" ENTRY("x", "F32", "[2]", "[8,0]") "}",  /* backwards */
        "{" ENTRY("x", "F32", "[2]", "[4,12]") "}", /* past the end */
        "{" ENTRY("x", "F32", "[2]", "[0]") "}",
        "{" ENTRY("x", "F32", "[2]", "[0,8,8]") "}",
        "{" ENTRY("x", "F32", "[2]", "[0,8.0]") "}",
        "{" ENTRY("x", "F32", "[2]", "[-8,8]") "}",
        "{" ENTRY("x", "F32", "[2]", "[0,18446744073709551624]") "}",
        "{" ENTRY("x", "F32", "[-2]", "[0,8]") "}",
        "{" ENTRY("x", "F32", "[\"2\"]", "[0,8]") "}",
        "{" ENTRY("x", "F32", "2", "[0,8]") "}",
        "{" ENTRY("x", "F32", "[4611686018427387904,4,2]", "[0,8]") "}", /* the product wraps around to 0 */
        "{" ENTRY("x", "F32", "[9223372036854775807,0]", "[0,0]") "}",
        "{\"x\":{\"dtype\":7,\"shape\":[8],\"data_offsets\":[0,8]}}",
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[8]}}",
        "{" ENTRY("x", "U8", "[4]", "[0,4]") "," ENTRY("x", "U8", "[4]", "[4,8]") "}", /* one name twice */
        "{" ENTRY("x", "U8", "[4]", "[0,4]") "," ENTRY("y", "U8", "[5]", "[3,8]") "}", /* overlap */
        "{" ENTRY("x", "U8", "[8]", "[0,8]") "," ENTRY("y", "U8", "[8]", "[0,8]") "}", /* the same bytes twice */
        "{" ENTRY("x", "U8", "[4]", "[0,4]") "," ENTRY("y", "U8", "[3]", "[5,8]") "}", /* a gap */
        "{" ENTRY("x", "F4", "[15]", "[0,8]") "}",                                     /* no whole bytes */
        "{" ENTRY("x", "F6_E2M3", "[8]", "[0,8]") "}",
        "{" ENTRY("x", "F4", "[9223372036854775807,2]", "[0,8]") "}",
        "{" ENTRY("x", "F31", "[2]", "[0,7]") "}", /* of unknown types, too, all bytes belong to a tensor */
        "{" ENTRY("x", "F31", "[2]", "[0,9]") "}",
        "{" ENTRY("x", "F31", "[\"2\"]", "[0,8]") "}",
        "{" ENTRY("x", "U8", "[7]", "[1,8]") "}",
        "{" ENTRY("x", "U8", "[7]", "[0,7]") "}",
        "{" ENTRY("", "U8", "[8]", "[0,8]") "}",
        "{" ENTRY("\xff", "U8", "[8]", "[0,8]") "}",
        "{" ENTRY("\\u0000", "U8", "[8]", "[0,8]") "}",
        "{\"__metadata__\":[]," ENTRY("x", "U8", "[8]", "[0,8]") "}",
        "{\"__metadata__\":{\"step\":1}," ENTRY("x", "U8", "[8]", "[0,8]") "}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct safetensors table = {.count = 99};
        status_clear();
        if (decode(bad[i], 8, &table) != MUSTER_ECORRUPT || muster_detail()[0] == '\0' || table.count != 99) {
            fail_msg("%s: %s", bad[i], muster_detail());
        }
    }
}

static void lengths_are_checked_before_they_are_used(void **state) {
    (void)state;
    static const uint8_t huge[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    static const uint8_t nine_mib[8] = {0, 0, 0x90, 0, 0, 0, 0, 0};
    static const uint8_t three[8] = {3};
    size_t length = 77;
    assert_int_equal(safetensors_header_length(huge, UINT64_MAX, &length), MUSTER_ECORRUPT);
    assert_int_equal(safetensors_header_length(nine_mib, UINT64_MAX, &length), MUSTER_ELIMIT);
    assert_int_equal(safetensors_header_length(three, 10, &length), MUSTER_ECORRUPT);
    assert_int_equal(safetensors_header_length(three, 7, &length), MUSTER_ECORRUPT);
    assert_int_equal(length, 77);
    assert_int_equal(safetensors_header_length(three, 11, &length), 0);
    assert_int_equal(length, 3);
}

static void names_that_are_too_long_or_too_many(void **state) {
    (void)state;
    struct safetensors table;
    char header[1024], name[MUSTER_NAME_MAX + 1];
    memset(name, 'n', MUSTER_NAME_MAX);
    for (size_t cut = 0; cut < 2; cut++) {
        name[MUSTER_NAME_MAX - cut] = '\0';
        (void)snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", name);
        assert_int_equal(decode(header, 8, &table), cut ? 0 : MUSTER_ECORRUPT);
    }
    safetensors_done(&table);
    struct buf many;
    buf_init(&many, 4 << 20);
    for (size_t i = 0; i < MUSTER_TENSORS_MAX + 2; i++) {
        assert_int_equal(
            buf_printf(&many, "%c\"%zu\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? ',' : '{', i),
            0);
    }
    assert_int_equal(buf_printf(&many, "}"), 0);
    assert_int_equal(safetensors_decode(buf_bytes(&many), many.len, 0, &table), MUSTER_ELIMIT);
    buf_done(&many);
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    struct safetensors table;
    size_t depth = 1 << 20;
    uint8_t *header = malloc(depth);
    assert_non_null(header);
    memset(header, '[', depth);
    memcpy(header, "{\"x\":", 5);
    assert_int_equal(safetensors_decode(header, depth, 8, &table), MUSTER_ECORRUPT);
    free(header);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(headers_of_others_are_read),
        cmocka_unit_test(types_that_muster_lacks_cannot_be_loaded),
        cmocka_unit_test(what_the_format_allows_is_read_or_listed),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(lengths_are_checked_before_they_are_used),
        cmocka_unit_test(names_that_are_too_long_or_too_many),
        cmocka_unit_test(deep_nesting_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
