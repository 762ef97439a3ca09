/* Spawn orders there and back, their limits, and damaged ones. */
#include "agent/guardian/guardian_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

static void encode(const struct guardian_spawn *spawn, struct buf *out) {
    buf_init(out, GUARDIAN_SPAWN_BYTES_MAX);
    assert_int_equal(guardian_wire_encode(42, spawn, out), MUSTER_OK);
}

static void there_and_back(void **state) {
    const char *argv[] = {"program", "", "an argument", NULL};
    const char *envp[] = {"A=1", "B=", NULL};
    cpu_set_t set;
    struct guardian_order order;
    struct buf body;
    (void)state;
    CPU_ZERO(&set);
    CPU_SET(3, &set);
    struct guardian_spawn spawn = {argv, envp, 5, -1, &set, sizeof set, true, 6};
    encode(&spawn, &body);
    assert_int_equal(guardian_wire_decode(buf_bytes(&body), body.len, &order), MUSTER_OK);
    assert_int_equal(order.head.id, 42);
    assert_true(order.head.has_stdout);
    assert_false(order.head.has_stderr);
    assert_true(order.head.has_given);
    assert_true(order.head.is_preloaded);
    assert_string_equal(order.argv[0], "program");
    assert_string_equal(order.argv[1], "");
    assert_string_equal(order.argv[2], "an argument");
    assert_null(order.argv[3]);
    assert_string_equal(order.envp[0], "A=1");
    assert_string_equal(order.envp[1], "B=");
    assert_null(order.envp[2]);
    assert_memory_equal(order.cpus, &set, sizeof set);
    guardian_order_done(&order);
    buf_done(&body);
}

static void no_environment_no_cpus(void **state) {
    const char *argv[] = {"program", NULL};
    const char *envp[] = {NULL};
    struct guardian_spawn spawn = {argv, envp, -1, -1, NULL, 0, false, 0};
    struct guardian_order order;
    struct buf body;
    (void)state;
    encode(&spawn, &body);
    assert_int_equal(guardian_wire_decode(buf_bytes(&body), body.len, &order), MUSTER_OK);
    assert_null(order.envp[0]);
    assert_null(order.cpus);
    guardian_order_done(&order);
    buf_done(&body);
}

/* Every shorter body is refused, and so is a longer one. */
static void damaged_orders(void **state) {
    const char *argv[] = {"program", "x", NULL};
    const char *envp[] = {"A=1", NULL};
    cpu_set_t set;
    struct guardian_order order;
    struct buf body;
    (void)state;
    CPU_ZERO(&set);
    struct guardian_spawn spawn = {argv, envp, -1, -1, &set, sizeof set, false, 0};
    encode(&spawn, &body);
    for (size_t length = 0; length < body.len; length++) {
        uint8_t *copy = malloc(length + 1); /* of its own size, so that a sanitizer sees a read beyond it */
        assert_non_null(copy);
        memcpy(copy, buf_bytes(&body), length);
        assert_int_equal(guardian_wire_decode(copy, length, &order), MUSTER_EPROTOCOL);
        free(copy);
    }
    assert_int_equal(buf_append(&body, "x", 1), MUSTER_OK);
    assert_int_equal(guardian_wire_decode(buf_bytes(&body), body.len, &order), MUSTER_EPROTOCOL);
    buf_done(&body);
}

static void counts_beyond_limits(void **state) {
    struct guardian_spawn_head head = {.argv_count = 0};
    struct guardian_order order;
    (void)state;
    assert_int_equal(guardian_wire_decode((uint8_t *)&head, sizeof head, &order), MUSTER_EPROTOCOL);
    head.argv_count = GUARDIAN_STRINGS_MAX + 1;
    assert_int_equal(guardian_wire_decode((uint8_t *)&head, sizeof head, &order), MUSTER_EPROTOCOL);
    head = (struct guardian_spawn_head){.argv_count = 1, .envp_count = UINT32_MAX};
    assert_int_equal(guardian_wire_decode((uint8_t *)&head, sizeof head, &order), MUSTER_EPROTOCOL);
    head = (struct guardian_spawn_head){.argv_count = 1, .cpus_bytes = GUARDIAN_CPUS_BYTES_MAX + 1};
    assert_int_equal(guardian_wire_decode((uint8_t *)&head, sizeof head, &order), MUSTER_EPROTOCOL);
}

static void what_cannot_be_asked_for(void **state) {
    const char *nothing[] = {NULL};
    const char *empty[] = {"", NULL};
    const char *argv[] = {"program", NULL};
    cpu_set_t set;
    struct buf body;
    (void)state;
    CPU_ZERO(&set);
    buf_init(&body, GUARDIAN_SPAWN_BYTES_MAX);
    struct guardian_spawn spawn = {nothing, nothing, -1, -1, NULL, 0, false, 0};
    assert_int_equal(guardian_wire_encode(0, &spawn, &body), MUSTER_EINVAL);
    spawn.argv = empty;
    assert_int_equal(guardian_wire_encode(0, &spawn, &body), MUSTER_EINVAL);
    spawn = (struct guardian_spawn){argv, nothing, -1, -1, &set, GUARDIAN_CPUS_BYTES_MAX + 1, false, 0};
    assert_int_equal(guardian_wire_encode(0, &spawn, &body), MUSTER_EINVAL);
    const char **many = calloc(GUARDIAN_STRINGS_MAX + 2, sizeof *many);
    assert_non_null(many);
    for (size_t i = 0; i <= GUARDIAN_STRINGS_MAX; i++) {
        many[i] = "x";
    }
    spawn = (struct guardian_spawn){many, nothing, -1, -1, NULL, 0, false, 0};
    assert_int_equal(guardian_wire_encode(0, &spawn, &body), MUSTER_ELIMIT);
    many[GUARDIAN_STRINGS_MAX] = NULL;
    assert_int_equal(guardian_wire_encode(0, &spawn, &body), MUSTER_OK);
    free((void *)many);
    buf_done(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),           cmocka_unit_test(no_environment_no_cpus),
        cmocka_unit_test(damaged_orders),           cmocka_unit_test(counts_beyond_limits),
        cmocka_unit_test(what_cannot_be_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
