/* Names, values and transactions of a job in an etcd: what docs/formats/etcd-v3.md says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/str.h"
#include "rendezvous/finder/lease_keys.h"

static const char leader_text[] =
    "{\"muster\":1,\"identity\":\"000000000000000100000000000000ff\",\"addr\":\"10.0.0.1\",\"port\":40123}";
static const char world_text[] =
    "{\"muster\":1,\"round\":3,\"author\":\"00000000000000ff\",\"nodes\":4,\"host_rank\":0,\"charges\":[1,2,0],"
    "\"addr\":\"10.0.0.1\",\"port\":40123,\"lease\":7587}";

static void names_keep_jobs_apart(void **state) {
    struct lease_keys keys;
    char text[LEASE_KEY_MAX + 1];
    (void)state;
    assert_int_equal(lease_keys_init(&keys, "/muster", "a/b%"), 0);
    assert_string_equal(keys.leader, "/muster/a%2Fb%25/leader");
    assert_string_equal(keys.world, "/muster/a%2Fb%25/world");
    assert_string_equal(keys.first, "/muster/a%2Fb%25/");
    assert_string_equal(keys.end, "/muster/a%2Fb%250");
    memset(text, 'x', sizeof text);
    text[LEASE_KEY_MAX] = '\0';
    assert_int_equal(lease_keys_init(&keys, "/muster", text), MUSTER_EINVAL);
}

static void values_are_what_the_page_says(void **state) {
    struct lease_leader leader;
    struct lease_world world;
    struct buf out;
    (void)state;
    buf_init(&out, LEASE_VALUE_MAX);
    assert_int_equal(lease_leader_get(kv_slice_text(leader_text), &leader), 0);
    assert_int_equal(leader.identity[0], 1);
    assert_int_equal(leader.identity[1], 255);
    assert_string_equal(leader.place.addr, "10.0.0.1");
    assert_int_equal(leader.place.port, 40123);
    assert_int_equal(lease_leader_put(&leader, &out), 0);
    assert_int_equal(out.len, strlen(leader_text));
    assert_memory_equal(buf_bytes(&out), leader_text, out.len);
    buf_clear(&out);
    assert_int_equal(lease_world_get(kv_slice_text(world_text), &world), 0);
    assert_int_equal(world.record.round, 3);
    assert_int_equal(world.record.author, 255);
    assert_int_equal(world.record.size, 4);
    assert_int_equal(world.record.charges.changes, 2);
    assert_int_equal(world.lease_id, 7587);
    assert_int_equal(lease_world_put(&world, &out), 0);
    assert_int_equal(out.len, strlen(world_text));
    assert_memory_equal(buf_bytes(&out), world_text, out.len);
    buf_done(&out);
}

/* One piece of a right value at a time is exchanged. */
static void values_of_others_are_refused(void **state) {
    static const char *const wrong[][2] = {
        {"\"muster\":1", "\"muster\":2"},
        {"\"round\":3", "\"round\":0"},
        {"\"round\":3", "\"round\":\"3\""},
        {"00000000000000ff", "00000000000000fF"},
        {"00000000000000ff", "ff"},
        {"\"nodes\":4", "\"nodes\":0"},
        {"\"nodes\":4", "\"nodes\":4294967296"},
        {"\"host_rank\":0", "\"host_rank\":4"},
        {"[1,2,0]", "[1,-2,0]"},
        {"[1,2,0]", "[1]"},
        {"10.0.0.1", ""},
        {"10.0.0.1", "a b"},
        {"40123", "0"},
        {"40123", "65536"},
        {"{", "["},
    };
    struct lease_world world;
    struct lease_leader leader;
    char text[sizeof world_text + 32];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *at = strstr(world_text, wrong[i][0]);
        assert_non_null(at);
        (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - world_text), world_text, wrong[i][1],
                       at + strlen(wrong[i][0]));
        assert_int_equal(lease_world_get(kv_slice_text(text), &world), MUSTER_EPROTOCOL);
    }
    assert_int_equal(lease_leader_get(kv_slice_text(world_text), &leader), MUSTER_EPROTOCOL);
    assert_int_equal(lease_leader_get(kv_slice_of(NULL, 0), &leader), MUSTER_EPROTOCOL);
}

static void fence_compares_the_leader_and_the_world(void **state) {
    static const char wanted[] =
        "{\"compare\":[{\"target\":\"CREATE\",\"key\":\"L20vai9sZWFkZXI=\",\"create_revision\":"
        "\"41\"},{\"target\":\"VALUE\",\"key\":\"L20vai9sZWFkZXI=\",\"value\":"
        "\"eyJtdXN0ZXIiOjEsImlkZW50aXR5IjoiMDAwMDAwMDAwMDAwMDAwMTAwMDAwMDAwMDAwMDAwZmYiLCJhZGRyIjoiMTAuMC4wLjEiLCJwb3J0"
        "Ijo0MDEyM30="
        "\"},{\"target\":\"MOD\",\"key\":\"L20vai93b3JsZA==\",\"mod_revision\":\"57\"}],";
    struct lease_keys keys;
    struct lease_world world;
    struct lease_leader leader;
    struct buf out;
    (void)state;
    buf_init(&out, 8192);
    assert_int_equal(lease_leader_get(kv_slice_text(leader_text), &leader), 0);
    assert_int_equal(lease_keys_init(&keys, "/m", "j"), 0);
    assert_int_equal(lease_world_get(kv_slice_text(world_text), &world), 0);
    assert_int_equal(lease_keys_put_fence(&keys, &leader, 41, 57, &world, &out), 0);
    assert_true(out.len > strlen(wanted));
    assert_memory_equal(buf_bytes(&out), wanted, strlen(wanted));
    buf_done(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_keep_jobs_apart),
        cmocka_unit_test(values_are_what_the_page_says),
        cmocka_unit_test(values_of_others_are_refused),
        cmocka_unit_test(fence_compares_the_leader_and_the_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
