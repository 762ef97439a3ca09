/* What the node with rank 0's worker tells the coordinator of that worker's engine, and when: with an answer to ALIVE,
 * if the coordinator knows of it. Two agents' rendezvous on one loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "rendezvous/member/native_impl.h"
#include "rendezvous/rdzv_nodes_test_support.h"

static const char *says;           /* what a worker's record has */
static int asked_count[NODES_MAX]; /* a node, what that is */

static int index_of(const void *ctx) {
    return (int)((const struct node *)ctx)->local_id;
}

static void engine(void *ctx, char out[RDZV_ENGINE_MAX]) {
    asked_count[index_of(ctx)]++;
    (void)str_copy(out, RDZV_ENGINE_MAX, says);
}

static struct native *native_of(const struct fixture *f, int i) {
    return f->nodes[i].rdzv->state;
}

static bool first_is_asked_twice(const struct fixture *f) {
    (void)f;
    return asked_count[0] >= 2;
}

static bool first_has_told(const struct fixture *f) {
    return strcmp(native_of(f, 0)->engine, says) == 0;
}

/* Node 0 has ranks 0 and 1. */
static void form(struct fixture *f) {
    f->options.backend = RDZV_BACKEND_MUSTER;
    f->options.conf.keep_alive_interval_ms = 100;
    f->options.conf.keep_alive_max_attempt = 100; /* a busy machine is patient */
    f->options.has_wished_rank = true;
    for (int i = 0; i < 2; i++) {
        f->options.wished_rank = (uint32_t)i;
        asked_count[i] = 0;
        nodes_start(f, i);
        f->nodes[i].local_id = (unsigned)i;
        f->nodes[i].rdzv->callbacks.engine = engine;
    }
    nodes_run_until(f, nodes_two_together);
    assert_int_equal(f->nodes[0].world.group_rank, 0);
}

static void rank_0s_node_tells_its_engine(void **state) {
    struct fixture *f = *state;
    says = "";
    form(f);
    nodes_run_until(f, first_is_asked_twice);
    assert_string_equal(native_of(f, 0)->engine, "");
    says = "muster (as asked for)";
    nodes_run_until(f, first_has_told);
    says = "mpi (as asked for)"; /* another group */
    nodes_run_until(f, first_has_told);
    assert_int_equal(asked_count[1], 0);
    assert_string_equal(native_of(f, 1)->engine, "");
}

static bool both_are_in_round_2(const struct fixture *f) {
    return f->nodes[0].world.round == 2 && f->nodes[1].world.round == 2;
}

static void each_world_is_told_anew(void **state) {
    struct fixture *f = *state;
    says = "mpi (as asked for)";
    form(f);
    nodes_run_until(f, first_has_told);
    rdzv_join(f->nodes[0].rdzv);
    assert_int_equal(native_of(f, 0)->part.phase, PARTICIPANT_JOINING);
    struct coordinator_message heard = {.kind = COORDINATOR_HEARD};
    int before = asked_count[0];
    native_heard(native_of(f, 0), &heard); /* no worker runs */
    assert_int_equal(asked_count[0], before);
    says = "";
    nodes_run_until(f, both_are_in_round_2);
    assert_string_equal(native_of(f, 0)->engine, ""); /* so that the same one would be told */
    says = "mpi (as asked for)";
    nodes_run_until(f, first_has_told);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rank_0s_node_tells_its_engine, nodes_setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(each_world_is_told_anew, nodes_setup, nodes_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
