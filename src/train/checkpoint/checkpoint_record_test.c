/* Records: golden text, every flipped bit and every cut, other programs' and later versions', and their size. */
#include "train/checkpoint/checkpoint_record.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "base/str.h"
#include "train/state/checksum.h"

static const struct checkpoint_record example = {.step = 4,
                                                 .token = 0xa01a3a1f5c4e54b5,
                                                 .part_count = 16,
                                                 .map_bytes = 435,
                                                 .map_id = 0x9deb1a4490ca5355,
                                                 .bytes = 664};

static const char golden[] = "{\n"
                             "  \"format\": \"muster-checkpoint\",\n"
                             "  \"version\": 1,\n"
                             "  \"step\": 4,\n"
                             "  \"token\": \"a01a3a1f5c4e54b5\",\n"
                             "  \"parts\": 16,\n"
                             "  \"bytes\": 664,\n"
                             "  \"map\": {\n"
                             "    \"bytes\": 435,\n"
                             "    \"xxh3\": \"9deb1a4490ca5355\"\n"
                             "  },\n"
                             "  \"checksum\": \"154eaaf51eb6c764\"\n"
                             "}\n";

static void golden_text(void **state) {
    (void)state;
    struct buf text;
    struct checkpoint_record again;
    buf_init(&text, CHECKPOINT_RECORD_BYTES_MAX);
    assert_int_equal(checkpoint_record_encode(&example, &text), 0);
    assert_int_equal(text.len, strlen(golden));
    assert_memory_equal(buf_bytes(&text), golden, text.len);
    assert_int_equal(checkpoint_record_decode(buf_bytes(&text), text.len, &again), 0);
    assert_true(again.step == example.step && again.token == example.token && again.part_count == example.part_count &&
                again.map_bytes == example.map_bytes && again.map_id == example.map_id && again.bytes == example.bytes);
    buf_done(&text);
}

static void every_flipped_bit_and_every_cut_is_seen(void **state) {
    (void)state;
    uint8_t bytes[sizeof golden];
    struct checkpoint_record record;
    memcpy(bytes, golden, sizeof golden);
    for (size_t bit = 0; bit < strlen(golden) * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(checkpoint_record_decode(bytes, strlen(golden), &record), MUSTER_ECORRUPT);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t length = 0; length < strlen(golden); length++) {
        assert_int_equal(checkpoint_record_decode(bytes, length, &record), MUSTER_ECORRUPT);
    }
}

static int decode_with(const char *from, const char *to) {
    char body[1024], text[1200];
    struct checkpoint_record record;
    const char *at = strstr(golden, from);
    size_t length = strlen(golden) - strlen(",\n  \"checksum\": \"0123456789abcdef\"\n}\n");
    assert_non_null(at);
    assert_true(str_format(body, sizeof body, "%.*s%s%.*s", (int)(at - golden), golden, to,
                           (int)(length - (size_t)(at - golden) - strlen(from)), at + strlen(from)));
    assert_true(str_format(text, sizeof text, "%s,\n  \"checksum\": \"%016" PRIx64 "\"\n}\n", body,
                           checksum_of(body, strlen(body))));
    status_clear();
    return checkpoint_record_decode((const uint8_t *)text, strlen(text), &record);
}

/* No damage: an older checkpoint must not be taken in silence. */
static void what_another_program_wrote_is_not_taken_for_damage(void **state) {
    (void)state;
    static const char *const changes[][2] = {
        {"\"version\": 1", "\"version\": 2"},
        {"muster-checkpoint", "another"},
        {"\"step\": 4", "\"step\": -4"},
        {"\"step\": 4", "\"step\": \"4\""},
        {"\"parts\": 16", "\"parts\": 0"},
        {"\"parts\": 16", "\"parts\": 65537"},
        {"\"parts\": 16,", ""},
        {"a01a3a1f5c4e54b5", "A01A3A1F5C4E54B5"},
        {"\"bytes\": 664", "\"bytes\": 1e3"},
        {"\"bytes\": 435", "\"bytes\": 67108865"},
        {"9deb1a4490ca5355", "9deb1a4490ca535"},
        {"\"map\"", "\"mat\""},
        {"\"step\": 4", "\"step\": 4, \"step\": 4"},
        {"{\n", "[\n"},
    };
    assert_int_equal(decode_with("\"step\": 4", "\"step\": 5"), 0);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        if (decode_with(changes[i][0], changes[i][1]) != MUSTER_EUNSUPPORTED || muster_detail()[0] == '\0') {
            fail_msg("%s: %s", changes[i][1], muster_detail());
        }
    }
}

static void no_number_makes_it_long(void **state) {
    (void)state;
    const struct checkpoint_record largest = {.step = INT64_MAX,
                                              .token = UINT64_MAX,
                                              .part_count = 65536,
                                              .map_bytes = 64 << 20,
                                              .map_id = UINT64_MAX,
                                              .bytes = INT64_MAX};
    struct buf text;
    buf_init(&text, CHECKPOINT_RECORD_BYTES_MAX);
    assert_int_equal(checkpoint_record_encode(&largest, &text), 0);
    assert_true(text.len < 512);
    buf_done(&text);
    uint8_t *bytes = calloc(1, CHECKPOINT_RECORD_BYTES_MAX + 1);
    struct checkpoint_record record;
    assert_non_null(bytes);
    assert_int_equal(checkpoint_record_decode(bytes, CHECKPOINT_RECORD_BYTES_MAX + 1, &record), MUSTER_ECORRUPT);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_text),
        cmocka_unit_test(every_flipped_bit_and_every_cut_is_seen),
        cmocka_unit_test(what_another_program_wrote_is_not_taken_for_damage),
        cmocka_unit_test(no_number_makes_it_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
