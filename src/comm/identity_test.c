/* Identities: who shares a host, the bytes in the store, and bytes that are none. */
#include "comm/identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

static struct identity example(void) {
    struct identity identity = {
        .host = {.pid_namespace = 0x0102, .mount_namespace = 3, .user_namespace = 4, .tag = 5, .user = 1000},
        .may_share = true,
        .pid = 77,
        .start_time = 99,
        .core_count = 2,
        .core_hash = 0x0A0B0C0D,
        .choice_hash = 6,
        .host_name = "ab"};
    static const uint8_t address[IDENTITY_ADDRESS_BYTES] = {0x20, 0x01, [15] = 7};
    identity.beacon_port = 0x1234;
    identity.beacon_address_count = 1;
    memcpy(identity.beacon_addresses[0], address, sizeof address);
    memset(identity.host.boot_id, 0xEE, sizeof identity.host.boot_id);
    return identity;
}

static void golden_bytes(void **state) {
    (void)state;
    static const uint8_t expected[] = {
        2,    1,    0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE,
        2,    1,    0,    0,    0,    0,    0,    0,    3,    0,    0,    0,    0,    0,    0,    0,    4,    0,
        0,    0,    0,    0,    0,    0,    5,    0,    0,    0,    0,    0,    0,    0,    0xE8, 3,    0,    0,
        77,   0,    0,    0,    99,   0,    0,    0,    0,    0,    0,    0,    2,    0,    0,    0,    0x0D, 0x0C,
        0x0B, 0x0A, 6,    0,    0,    0,    0,    0,    0,    0,    0x34, 0x12, 1,    0x20, 0x01, 0,    0,    0,
        0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    7,    2,    'a',  'b'};
    struct identity identity = example(), read;
    uint8_t bytes[IDENTITY_ENCODED_BYTES_MAX];
    assert_int_equal(identity_encode(&identity, bytes), sizeof expected);
    assert_memory_equal(bytes, expected, sizeof expected);
    assert_int_equal(identity_decode(bytes, sizeof expected, &read), 0);
    assert_true(identity_share_host(&identity, &read));
    assert_int_equal(read.pid, 77);
    assert_int_equal(read.start_time, 99);
    assert_string_equal(read.host_name, "ab");
    assert_int_equal(read.beacon_port, 0x1234);
    assert_int_equal(read.beacon_address_count, 1);
    assert_memory_equal(read.beacon_addresses[0], identity.beacon_addresses[0], IDENTITY_ADDRESS_BYTES);
}

static void cut_or_changed_bytes_are_refused(void **state) {
    (void)state;
    struct identity identity = example(), read;
    uint8_t bytes[IDENTITY_ENCODED_BYTES_MAX + 1] = {0};
    size_t len = identity_encode(&identity, bytes);
    for (size_t n = 0; n < len; n++) {
        assert_int_equal(identity_decode(bytes, n, &read), MUSTER_EPROTOCOL);
    }
    assert_int_equal(identity_decode(bytes, len + 1, &read), MUSTER_EPROTOCOL);
    bytes[0] = 1;
    assert_int_equal(identity_decode(bytes, len, &read), MUSTER_EPROTOCOL);
}

static void each_difference_parts_hosts(void **state) {
    (void)state;
    struct identity a = example(), b = example();
    assert_true(identity_share_host(&a, &b));
    b.pid = 78; /* another process of the host */
    assert_true(identity_share_host(&a, &b));
#define PARTS(change)                                                                                                  \
    do {                                                                                                               \
        b = example();                                                                                                 \
        change;                                                                                                        \
        assert_false(identity_share_host(&a, &b));                                                                     \
        assert_false(identity_share_host(&b, &a));                                                                     \
    } while (0)
    PARTS(b.host.boot_id[15]++);
    PARTS(b.host.pid_namespace++);
    PARTS(b.host.mount_namespace++);
    PARTS(b.host.user_namespace++);
    PARTS(b.host.tag++);
    PARTS(b.host.user++);
    PARTS(b.may_share = false);
}

static void this_process_obeys_the_environment(void **state) {
    (void)state;
    struct identity plain, none, other;
    assert_int_equal(unsetenv("MUSTER_SHM"), 0);
    assert_int_equal(unsetenv("MUSTER_HOST_ID"), 0);
    identity_of_this_process(&plain);
    assert_true(plain.may_share);
    assert_int_equal(plain.pid, getpid());
    assert_true(plain.start_time > 0);
    assert_true(identity_share_host(&plain, &plain));
    assert_int_equal(setenv("MUSTER_HOST_ID", "elsewhere", 1), 0);
    identity_of_this_process(&other);
    assert_false(identity_share_host(&plain, &other));
    assert_int_equal(setenv("MUSTER_SHM", "0", 1), 0);
    identity_of_this_process(&none);
    assert_false(identity_share_host(&none, &none));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(cut_or_changed_bytes_are_refused),
        cmocka_unit_test(each_difference_parts_hosts),
        cmocka_unit_test(this_process_obeys_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
