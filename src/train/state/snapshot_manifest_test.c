/* Manifests and file names: golden text, every flipped bit, and a writer that got it wrong but summed it right. */
#include "train/state/snapshot_manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "train/state/checksum.h"

static void encode(struct buf *out) {
    static int64_t epoch = 3;
    static double loss = 0.25;
    static char note[] = "so\nfar";
    static const uint64_t checksums[] = {0x0123456789abcdef, 1};
    struct muster_tensor tensors[] = {{.name = "a"}, {.name = "b"}};
    struct muster_value values[] = {muster_value_integer("epoch", &epoch), muster_value_real("loss", &loss),
                                    muster_value_text("note", note, sizeof note)};
    struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(tensors, 2, values, 3);
    struct snapshot_data data = {.bytes = 176, .checksum = 0xfedcba9876543210, .tensor_checksums = checksums};
    buf_init(out, 4096);
    assert_int_equal(snapshot_manifest_encode(12, &state, &data, out), 0);
}

static void golden_text(void **state) {
    (void)state;
    static const char golden[] = "{\n"
                                 "  \"format\": \"muster-snapshot\",\n"
                                 "  \"version\": 1,\n"
                                 "  \"step\": 12,\n"
                                 "  \"file\": \"step-12-fedcba9876543210.safetensors\",\n"
                                 "  \"bytes\": 176,\n"
                                 "  \"xxh3\": \"fedcba9876543210\",\n"
                                 "  \"values\": {\n"
                                 "    \"epoch\": 3,\n"
                                 "    \"loss\": 0.25,\n"
                                 "    \"note\": \"so\\nfar\"\n"
                                 "  },\n"
                                 "  \"tensors\": {\n"
                                 "    \"a\": \"0123456789abcdef\",\n"
                                 "    \"b\": \"0000000000000001\"\n"
                                 "  },\n"
                                 "  \"checksum\": \"0e27a754225fb211\"\n"
                                 "}\n";
    struct buf text;
    encode(&text);
    assert_int_equal(buf_append(&text, "", 1), 0);
    assert_string_equal((const char *)buf_bytes(&text), golden);
    struct snapshot_manifest manifest;
    uint64_t checksum = 0;
    assert_int_equal(snapshot_manifest_decode(buf_bytes(&text), text.len - 1, &manifest), 0);
    assert_true(manifest.step == 12 && manifest.bytes == 176 && manifest.checksum == 0xfedcba9876543210 &&
                manifest.id == 0x0e27a754225fb211);
    assert_true(snapshot_manifest_tensor(&manifest, "a", &checksum) && checksum == 0x0123456789abcdef);
    assert_false(snapshot_manifest_tensor(&manifest, "c", &checksum));
    snapshot_manifest_done(&manifest);
    buf_done(&text);
}

/* The values that xxHash's own test programs agree on, so that another build of it cannot drift. */
static void checksums_are_xxh3(void **state) {
    (void)state;
    assert_int_equal(checksum_of("", 0), 0x2d06800538d394c2);
    struct checksum pieces;
    uint8_t bytes[5000];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * i);
    }
    checksum_init(&pieces);
    checksum_add(&pieces, bytes, 1);
    checksum_add(&pieces, bytes + 1, 1024);
    checksum_add(&pieces, bytes + 1025, sizeof bytes - 1025);
    assert_int_equal(checksum_value(&pieces), checksum_of(bytes, sizeof bytes));
}

static void every_flipped_bit_and_every_cut_is_seen(void **state) {
    (void)state;
    struct buf text;
    struct snapshot_manifest manifest;
    encode(&text);
    uint8_t *bytes = buf_bytes(&text);
    for (size_t bit = 0; bit < text.len * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(snapshot_manifest_decode(bytes, text.len, &manifest), MUSTER_ECORRUPT);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < text.len; cut++) {
        assert_int_equal(snapshot_manifest_decode(bytes, cut, &manifest), MUSTER_ECORRUPT);
    }
    assert_int_equal(snapshot_manifest_decode(bytes, text.len, &manifest), 0);
    snapshot_manifest_done(&manifest);
    buf_done(&text);
}

/* Takes the golden text with `from` replaced by `to`, gives it a checksum that fits, and decodes it. */
static int decode_with(const char *from, const char *to) {
    struct buf text;
    struct snapshot_manifest manifest;
    char changed[2048], trailer[64];
    encode(&text);
    assert_int_equal(buf_append(&text, "", 1), 0);
    const char *golden = (const char *)buf_bytes(&text), *at = strstr(golden, from);
    assert_non_null(at);
    (void)snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - golden), golden, to, at + strlen(from));
    size_t checked = strlen(changed) - 37;
    (void)snprintf(trailer, sizeof trailer, ",\n  \"checksum\": \"%016lx\"\n}\n",
                   (unsigned long)checksum_of(changed, checked));
    assert_int_equal(strlen(trailer), 37);
    memcpy(changed + checked, trailer, 38);
    int code = snapshot_manifest_decode((const uint8_t *)changed, strlen(changed), &manifest);
    if (code == 0) {
        snapshot_manifest_done(&manifest);
    }
    buf_done(&text);
    return code;
}

static void what_is_summed_right_must_be_right_too(void **state) {
    (void)state;
    static const char *const changes[][2] = {
        {"muster-snapshot", "other"},
        {"\"version\": 1", "\"version\": 2"},
        {"\"step\": 12", "\"step\": 13"}, /* the file is not of that step */
        {"\"step\": 12", "\"step\": -12"},
        {"\"step\": 12", "\"step\": 1.2e1"},
        {"\"bytes\": 176", "\"bytes\": 7"},
        {"\"bytes\": 176", "\"bytes\": \"176\""},
        {"\"bytes\": 176", "\"bytes\": 99999999999999999999"},
        {"\"step-12-", "\"../step-12-"},
        {"\"xxh3\": \"fedcba", "\"xxh3\": \"FEDCBA"},
        {"\"xxh3\": \"fedcba", "\"xxh3\": \"0xdcba"},
        {"\"xxh3\": \"fe", "\"xxh3\": \""},
        {"\"values\": {", "\"value\": {"},
        {"\"tensors\": {", "\"values\": {"}, /* twice */
        {"\"epoch\": 3", "\"epoch\": 3, \"epoch\": 4"},
        {"{\n", "[\n"},
    };
    assert_int_equal(decode_with("", ""), 0);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        status_clear();
        if (decode_with(changes[i][0], changes[i][1]) != MUSTER_EUNSUPPORTED || muster_detail()[0] == '\0') {
            fail_msg("%s -> %s was accepted", changes[i][0], changes[i][1]);
        }
    }
}

static void names_are_read_as_they_are_written(void **state) {
    (void)state;
    char name[SNAPSHOT_NAME_MAX];
    struct snapshot_name parsed;
    snapshot_name_data(name, INT64_MAX, UINT64_MAX);
    assert_string_equal(name, "step-9223372036854775807-ffffffffffffffff.safetensors");
    parsed = snapshot_name_parse(name);
    assert_true(parsed.kind == SNAPSHOT_DATA && parsed.step == INT64_MAX && parsed.checksum == UINT64_MAX);
    snapshot_name_manifest(name, 0);
    assert_string_equal(name, "step-0.json");
    assert_int_equal(snapshot_name_parse(name).kind, SNAPSHOT_MANIFEST);
    snapshot_name_temporary(name, 10, SNAPSHOT_DATA);
    assert_string_equal(name, "step-10.safetensors.tmp");
    assert_int_equal(snapshot_name_parse(name).kind, SNAPSHOT_TEMPORARY);
    snapshot_name_temporary(name, 10, SNAPSHOT_MANIFEST);
    assert_string_equal(name, "step-10.json.tmp");
    assert_true(snapshot_name_parse(name).kind == SNAPSHOT_TEMPORARY && snapshot_name_parse(name).step == 10);
    static const char *const others[] = {"",
                                         ".",
                                         "step-",
                                         "step-1",
                                         "step-01.json",
                                         "step--1.json",
                                         "step-1.JSON",
                                         "step-1.json ",
                                         "step-9223372036854775808.json",
                                         "step-1-.safetensors",
                                         "step-1-0123456789abcde.safetensors",
                                         "step-1-0123456789abcdeg.safetensors",
                                         "step-1-0123456789abcdef.safetensors.tmp",
                                         "step-1.safetensors",
                                         "Step-1.json",
                                         "xstep-1.json"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_int_equal(snapshot_name_parse(others[i]).kind, SNAPSHOT_OTHER);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_text),
        cmocka_unit_test(checksums_are_xxh3),
        cmocka_unit_test(every_flipped_bit_and_every_cut_is_seen),
        cmocka_unit_test(what_is_summed_right_must_be_right_too),
        cmocka_unit_test(names_are_read_as_they_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
