/* Identities: who shares a host, the bytes in the store, and bytes that are none. */
#include "comm/host/identity.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/log.h"
#include "comm/host/no_memfd_test_support.h"

static struct identity example(void) {
    struct identity identity = {
        .protocol = 0x0302,
        .host = {.pid_namespace = 0x0102, .mount_namespace = 3, .user_namespace = 4, .tag = 5, .user = 1000},
        .may_share = true,
        .network = 8,
        .pid = 77,
        .start_time = 99,
        .core_count = 2,
        .core_hash = 0x0A0B0C0D,
        .token = 0x21222324,
        .choice_hash = 6,
        .engine_wish = 2,
        .engine_facts = 5,
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
        5,    1, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE,
        0xEE, 2, 1,    0,    0,    0,    0,    0,    0,    3,    0,    0,    0,    0,    0,    0,    0,
        4,    0, 0,    0,    0,    0,    0,    0,    5,    0,    0,    0,    0,    0,    0,    0,    0xE8,
        3,    0, 0,    8,    0,    0,    0,    0,    0,    0,    0,    77,   0,    0,    0,    99,   0,
        0,    0, 0,    0,    0,    0,    2,    0,    2,    3,    0x0D, 0x0C, 0x0B, 0x0A, 0x24, 0x23, 0x22,
        0x21, 6, 0,    0,    0,    0,    0,    0,    0,    2,    5,    0x34, 0x12, 1,    0x20, 0x01, 0,
        0,    0, 0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    7,    2,    'a',  'b'};
    struct identity identity = example(), read;
    uint8_t bytes[IDENTITY_ENCODED_BYTES_MAX];
    assert_int_equal(identity_encode(&identity, bytes), sizeof expected);
    assert_memory_equal(bytes, expected, sizeof expected);
    assert_int_equal(identity_decode(bytes, sizeof expected, &read), 0);
    assert_true(identity_share_host(&identity, &read));
    assert_int_equal(read.pid, 77);
    assert_int_equal(read.token, 0x21222324);
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
    bytes[0] = 2;
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
        assert_true((identity_compare_hosts(&a, &b) < 0) != (identity_compare_hosts(&b, &a) < 0));                     \
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
    /* Where this is, is known all the same: ranks of several machines are not taken for neighbours. */
    assert_memory_equal(none.host.boot_id, plain.host.boot_id, sizeof plain.host.boot_id);
    assert_int_equal(none.host.pid_namespace, plain.host.pid_namespace);
    assert_int_equal(none.host.mount_namespace, plain.host.mount_namespace);
    assert_int_equal(none.host.user_namespace, plain.host.user_namespace);
}

static char warning[512];

static void keep_warning(enum log_level level, const char *file, int line, const char *text) {
    (void)level, (void)file, (void)line;
    (void)snprintf(warning, sizeof warning, "%s", text);
}

/* What a child finds: 0, it may share; 1, it may not, and has said why in a sentence with `word`. */
static int child_may_share(void (*prepare)(void), const char *word) {
    struct identity identity;
    pid_t pid = fork();
    if (pid == 0) {
        log_set_sink(keep_warning);
        prepare();
        identity_of_this_process(&identity);
        _exit(identity.may_share ? 0 : strstr(warning, word) ? 1 : 2);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void nothing(void) {
}

/* It goes on in a child with a new number, which /proc does not know. */
static void enter_pid_namespace(void) {
    int status = 0;
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
        _exit(77);
    }
    pid_t pid = fork();
    if (pid != 0) {
        (void)waitpid(pid, &status, 0);
        _exit(WEXITSTATUS(status));
    }
}

static void who_cannot_share_says_so(void **state) {
    (void)state;
    assert_int_equal(unsetenv("MUSTER_SHM"), 0);
    assert_int_equal(child_may_share(nothing, ""), 0);
    assert_int_equal(child_may_share(forbid_memfd, "Operation not permitted"), 1);
    int found = child_may_share(enter_pid_namespace, "another PID namespace");
    assert_true(found == 1 || found == 77); /* 77: no such namespaces here */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(cut_or_changed_bytes_are_refused),
        cmocka_unit_test(each_difference_parts_hosts),
        cmocka_unit_test(who_cannot_share_says_so),
        cmocka_unit_test(this_process_obeys_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
