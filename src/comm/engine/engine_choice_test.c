/* Every wish under all facts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "comm/engine/engine_choice.h"

static void names_are_read_back(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < ENGINE_KIND_COUNT; kind++) {
        enum engine_kind read = ENGINE_KIND_COUNT;
        assert_int_equal(engine_kind_parse(engine_kind_name((enum engine_kind)kind), "here", &read), 0);
        assert_int_equal(read, kind);
    }
    assert_string_equal(engine_kind_name((enum engine_kind)99), "unknown engine");
}

static void nothing_said_is_auto(void **state) {
    (void)state;
    enum engine_kind read = ENGINE_MUSTER;
    assert_int_equal(engine_kind_parse(NULL, "here", &read), 0);
    assert_int_equal(read, ENGINE_AUTO);
    read = ENGINE_MUSTER;
    assert_int_equal(engine_kind_parse("", "here", &read), 0);
    assert_int_equal(read, ENGINE_AUTO);
}

static void another_name_is_refused_with_those_there_are(void **state) {
    (void)state;
    enum engine_kind read;
    assert_int_equal(engine_kind_parse("gloo", "MUSTER_ENGINE", &read), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "MUSTER_ENGINE is 'gloo'"));
    assert_non_null(strstr(muster_detail(), "'auto', 'muster', 'mpi'"));
}

static void a_wish_is_followed_whatever_there_is(void **state) {
    (void)state;
    for (uint32_t facts = 0; facts < 8; facts++) {
        for (uint32_t hosts = 1; hosts <= 2; hosts++) {
            assert_int_equal(engine_choose(ENGINE_MUSTER, facts, hosts).kind, ENGINE_MUSTER);
            assert_int_equal(engine_choose(ENGINE_MPI, facts, hosts).kind, ENGINE_MPI);
        }
    }
}

static void auto_takes_mpi_only_where_all_of_it_is_there(void **state) {
    (void)state;
    const uint32_t all = ENGINE_FACT_FABRIC | ENGINE_FACT_MPI_STARTED | ENGINE_FACT_MPI_FOUND;
    for (uint32_t facts = 0; facts <= all; facts++) {
        for (uint32_t hosts = 1; hosts <= 2; hosts++) {
            struct engine_choice choice = engine_choose(ENGINE_AUTO, facts, hosts);
            assert_int_equal(choice.kind, facts == all && hosts > 1 ? ENGINE_MPI : ENGINE_MUSTER);
            assert_true(strlen(choice.reason) > 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_read_back),
        cmocka_unit_test(nothing_said_is_auto),
        cmocka_unit_test(another_name_is_refused_with_those_there_are),
        cmocka_unit_test(a_wish_is_followed_whatever_there_is),
        cmocka_unit_test(auto_takes_mpi_only_where_all_of_it_is_there),
    };
    return cmocka_run_group_tests_name("engine_choice", tests, NULL, NULL);
}
