/* The legacy etcd backend's value: texts as PyTorch 2.13 writes them, byte for byte, and what it never writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/etcd_legacy/etcd_world.h"

#define SETUP "{\"status\": \"setup\"}"
#define EMPTY "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": []}"
#define ONE "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": [0]}"
#define TWO "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0, 1], \"keep_alives\": []}"
#define HALF "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0, 1], \"keep_alives\": [\"/p/rank_1\"]}"
#define FINAL                                                                                                          \
    "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0, 1], \"keep_alives\": [\"/p/rank_1\", "          \
    "\"/p/rank_0\"], \"num_workers_waiting\": 0}"
#define WAITED                                                                                                         \
    "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0, 1], \"keep_alives\": [\"/p/rank_1\", "          \
    "\"/p/rank_0\"], \"num_workers_waiting\": 1}"
#define CLOSED                                                                                                         \
    "{\"status\": \"closed\", \"version\": \"1\", \"participants\": [0, 1], \"keep_alives\": [\"/p/rank_1\", "         \
    "\"/p/rank_0\"], \"num_workers_waiting\": 1}"

static struct etcd_world read_text(const char *text) {
    struct etcd_world world;
    assert_int_equal(etcd_world_read(text, strlen(text), &world), 0);
    return world;
}

/* Frees what it compares. */
static void expect(char *text, const char *wanted) {
    assert_non_null(text);
    assert_string_equal(text, wanted);
    free(text);
}

static void a_round_is_written_as_python_writes_it(void **state) {
    (void)state;
    expect(etcd_world_setup(), SETUP);
    expect(etcd_world_joinable("1"), EMPTY);
    expect(etcd_world_join(EMPTY, false), ONE);
    expect(etcd_world_join(ONE, true), TWO);
    expect(etcd_world_confirm(TWO, "/p/rank_1"), HALF);
    expect(etcd_world_confirm(HALF, "/p/rank_0"), FINAL);
    expect(etcd_world_wait(FINAL), WAITED);
    expect(etcd_world_close(WAITED), CLOSED);
}

static void last_call_freezes_who_is_there(void **state) {
    (void)state;
    expect(etcd_world_freeze(ONE),
           "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": []}");
}

static void each_status_is_read(void **state) {
    (void)state;
    assert_int_equal(read_text(SETUP).status, ETCD_WORLD_SETUP);
    struct etcd_world world = read_text(ONE);
    assert_int_equal(world.status, ETCD_WORLD_JOINABLE);
    assert_string_equal(world.version, "1");
    assert_int_equal(world.participants, 1);
    world = read_text(HALF);
    assert_int_equal(world.status, ETCD_WORLD_FROZEN);
    assert_int_equal(world.participants, 2);
    assert_int_equal(world.confirmed, 1);
    world = read_text(WAITED);
    assert_int_equal(world.status, ETCD_WORLD_FINAL);
    assert_int_equal(world.waiting, 1);
    assert_int_equal(read_text(CLOSED).status, ETCD_WORLD_CLOSED);
    assert_string_equal(read_text(CLOSED).version, "1");
    assert_int_equal(read_text(CLOSED).participants, 2);
    assert_int_equal(read_text("{\"status\": \"closed\"}").status, ETCD_WORLD_CLOSED); /* closed while it was set up */
}

static void unknown_members_are_kept(void **state) {
    (void)state;
    expect(etcd_world_join("{\"status\": \"joinable\", \"version\": \"7\", \"participants\": [], \"x\": {\"y\": 1}}",
                           false),
           "{\"status\": \"joinable\", \"version\": \"7\", \"participants\": [0], \"x\": {\"y\": 1}}");
}

static void keep_alives_are_found(void **state) {
    (void)state;
    assert_true(etcd_world_has_keep_alive(HALF, "/p/rank_1"));
    assert_false(etcd_world_has_keep_alive(HALF, "/p/rank_0"));
}

static void what_pytorch_never_writes_is_refused(void **state) {
    static const char *const texts[] = {
        "",
        "7",
        "{}",
        "{\"status\": \"open\"}",
        "{\"status\": \"joinable\", \"version\": 1, \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"../x\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"123456789012345678901234\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"1\"}",
        "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": [1]}",
        "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": {}}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0]}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": [0]}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [], \"keep_alives\": [\"/p\"]}",
        "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": []}",
        "{\"status\": \"final\", \"version\": \"1\", \"participants\": [], \"keep_alives\": []}",
    };
    struct etcd_world world;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(etcd_world_read(texts[i], strlen(texts[i]), &world), MUSTER_ECORRUPT);
        assert_non_null(strstr(muster_detail(), "is not PyTorch's"));
    }
}

static void fewer_than_none_cannot_wait(void **state) {
    struct etcd_world world;
    const char *text = "{\"status\": \"final\", \"version\": \"1\", \"participants\": [], \"keep_alives\": [], "
                       "\"num_workers_waiting\": -1}";
    (void)state;
    assert_int_equal(etcd_world_read(text, strlen(text), &world), MUSTER_ECORRUPT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_is_written_as_python_writes_it),
        cmocka_unit_test(last_call_freezes_who_is_there),
        cmocka_unit_test(each_status_is_read),
        cmocka_unit_test(unknown_members_are_kept),
        cmocka_unit_test(keep_alives_are_found),
        cmocka_unit_test(what_pytorch_never_writes_is_refused),
        cmocka_unit_test(fewer_than_none_cannot_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
