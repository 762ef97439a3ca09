/* Whom the coordinator refuses, in which words, and the ranks of those whom it does not. */
#include "rendezvous/coordinator/coordinator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_impl.h"
#include "rendezvous/coordinator/coordinator_peers_test_support.h"

/* ---- refusals ---- */

static void strangers_are_refused_in_words(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 3, false);
    f->list[0].node.run_id = kv_slice_text("other");
    f->list[1].node.min_nodes = 1;
    f->list[2].node.local_world_size = 0;
    f->list[3].node.last_round = UINT64_MAX;
    peers_join(f, 0);
    peers_hear_refusal(f, 0, MUSTER_EINVAL, "serves the job \"job\": give all nodes the same --rdzv-id");
    peers_join(f, 1);
    peers_hear_refusal(f, 1, MUSTER_EINVAL, "--nnodes=1:3, the job has 2:3: start all nodes with the same");
    peers_join(f, 2);
    peers_hear_refusal(f, 2, MUSTER_EPROTOCOL, "without workers");
    f->list[3].round = UINT64_MAX;
    peers_join(f, 3);
    peers_hear_refusal(f, 3, MUSTER_EPROTOCOL, "is not possible");
    assert_int_equal(peers_look(f).member_count, 0);
}

static void identity_that_is_there_is_refused_until_it_goes(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 2, false);
    peers_join(f, 0);
    f->list[1].node.identity[0] = f->list[0].node.identity[0];
    peers_join(f, 1);
    peers_hear_refusal(f, 1, MUSTER_ECONNECT, "try again");
    peers_lose(f, 0);
    peers_join(f, 1);
    assert_non_null(f->list[1].member);
    peers_hear_nothing(f);
}

static void member_that_becomes_another_is_refused_and_gone(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 2, 2);
    f->list[0].node.topology = kv_slice_text("rack1");
    peers_join(f, 0);
    peers_hear_refusal(f, 0, MUSTER_EPROTOCOL, "connect anew");
    assert_int_equal(peers_hear(f, 1, COORDINATOR_CHANGE)->change, COORDINATOR_NODE_LEFT);
    assert_int_equal(peers_look(f).member_count, 1);
}

static void world_of_too_many_workers_is_refused(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 2, false);
    f->list[0].node.local_world_size = INT32_MAX - 2;
    f->list[1].node.local_world_size = 3;
    peers_join_many(f, 2);
    peers_hear_refusal(f, 1, MUSTER_ELIMIT, "more than 2^31: give it fewer nodes");
    f->list[1].node.local_world_size = 2;
    peers_join(f, 1);
    assert_int_equal(peers_hear(f, 0, COORDINATOR_WORLD)->world.global_world_size, INT32_MAX);
    f->list[1].round = 1;
    f->list[1].node.local_world_size = UINT32_MAX;
    peers_hear_world(f, 1, 1, 1, 2);
    peers_join(f, 1);
    peers_hear_refusal(f, 1, MUSTER_ELIMIT, "2^31");
}

/* ---- ranks ---- */

static void compare(const char *a, const char *b, int way) {
    assert_int_equal(coordinator_compare_natural(kv_slice_text(a), kv_slice_text(b)), way);
    assert_int_equal(coordinator_compare_natural(kv_slice_text(b), kv_slice_text(a)), -way);
}

static void names_compare_naturally(void **state) {
    (void)state;
    compare("host2", "host10", -1);
    compare("10.0.0.9", "10.0.0.10", -1);
    compare("9.255.0.1", "10.0.0.1", -1);
    compare("host", "host0", -1);
    compare("a", "a", 0);
    compare("", "", 0);
    compare("", "a", -1);
    compare("a1b2", "a1b2", 0);
    compare("1", "01", -1);
    compare("01a", "1c", 1); /* or else "1b" would lie between texts that begin with "01" */
    compare("0", "00", -1);
    compare("host1", "hostA", -1);
    compare("99999999999999999999998", "99999999999999999999999", -1);
    compare("\xff", "a", 1);
}

enum { NONE = -1 }; /* no rank is wished */

static void ranks_follow_topology_scheduler_name_address_pid_and_identity(void **state) {
    static const struct {
        const char *topology;
        int wished_rank;
        const char *host_name, *addr;
        int64_t pid;
        uint64_t identity[2];
    } in_order[PEERS] = {
        {"", NONE, "y", "z", 9, {9, 9}},
        {"sw2/rack1", 1, "y", "b", 9, {9, 1}},
        {"sw2/rack1", 2, "x", "a", 1, {8, 8}},
        {"sw2/rack1", NONE, "gpu10", "c2", 5, {7, 7}}, /* as PyTorch's agents compare names */
        {"sw2/rack1", NONE, "gpu2", "c2", 9, {6, 1}},
        {"sw2/rack1", NONE, "gpu2", "c10", 5, {1, 2}},
        {"sw2/rack1", NONE, "gpu2", "c10", 5, {1, 3}},
        {"sw10/rack1", 0, "a", "a", 1, {2, 0}},
    };
    struct peers *f = *state;
    peers_begin(f, PEERS, PEERS, false);
    for (size_t i = 0; i < PEERS; i++) {
        f->list[i].node.topology = kv_slice_text(in_order[i].topology);
        f->list[i].node.wished_rank = (uint32_t)in_order[i].wished_rank;
        f->list[i].node.host_name = kv_slice_text(in_order[i].host_name);
        f->list[i].node.addr = kv_slice_text(in_order[i].addr);
        f->list[i].node.pid = in_order[i].pid;
        memcpy(f->list[i].node.identity, in_order[i].identity, sizeof in_order[i].identity);
    }
    for (size_t i = 0; i < PEERS; i++) {
        peers_join(f, i * 5 % PEERS);
    }
    for (uint32_t i = 0; i < PEERS; i++) {
        assert_int_equal(f->list[i].heard[0].world.master_port, 29500);
        assert_string_equal(f->list[i].heard[0].master, "z");
        peers_hear_world(f, i, 1, i, PEERS);
    }
    peers_report_failure(f, 3);
    for (size_t i = PEERS; i-- > 0;) {
        peers_join(f, i);
    }
    for (uint32_t i = 0; i < PEERS; i++) {
        if (i != 3) {
            peers_hear(f, i, COORDINATOR_CHANGE);
        }
        peers_hear_world(f, i, 2, i, PEERS); /* the same members, the same ranks */
    }
}

static void workers_count_by_node_and_role(void **state) {
    static const uint32_t sizes[] = {4, 1, 8, 2};
    static const char *const roles[] = {"trainer", "reader", "trainer", "reader"};
    static const uint32_t globals[] = {0, 4, 5, 13};
    static const uint32_t in_role[] = {0, 0, 4, 1};
    static const uint32_t of_role[] = {12, 3, 12, 3};
    struct peers *f = *state;
    peers_begin(f, 4, 4, false);
    for (size_t i = 0; i < 4; i++) {
        f->list[i].node.local_world_size = sizes[i];
        f->list[i].node.role = kv_slice_text(roles[i]);
    }
    f->list[0].node.uses_agent_store = false;
    peers_join_many(f, 4);
    for (size_t i = 0; i < 4; i++) {
        const struct heard *heard = peers_hear(f, i, COORDINATOR_WORLD);
        assert_int_equal(heard->world.global_world_size, 15);
        assert_int_equal(heard->world.base_global_rank, globals[i]);
        assert_int_equal(heard->world.base_role_rank, in_role[i]);
        assert_int_equal(heard->world.role_world_size, of_role[i]);
        assert_false(heard->world.uses_agent_store); /* rank 0 says where it is */
    }
}

/* However much happens in a round, it is told in one bounded sentence, cut between characters. */
static void news_are_bounded(void **state) {
    enum { NODES = 8, WHY_BYTES = 300 };
    struct peers *f = *state;
    char why[WHY_BYTES + 1];
    for (size_t i = 0; i < WHY_BYTES; i += 3) {
        memcpy(why + i, "\xe2\x82\xac", 4);
    }
    const struct coordinator_failure failure = {.why = kv_slice_text(why)};
    peers_form(f, NODES, NODES, NODES);
    coordinator_failed(f->coordinator, f->list[0].member, &failure, f->now_ms);
    const char *text = peers_hear(f, 1, COORDINATOR_CHANGE)->text;
    assert_true(strlen(text) < WHY_BYTES);
    assert_string_equal(text + strlen(text) - 3, "\xe2\x82\xac");
    for (size_t i = 1; i < NODES; i++) {
        coordinator_failed(f->coordinator, f->list[i].member, &failure, f->now_ms);
        peers_report_failure(f, i); /* once a node */
    }
    peers_join_many(f, NODES);
    text = peers_hear(f, 0, COORDINATOR_WORLD)->text;
    assert_non_null(strstr(text, "; and "));
    assert_null(strstr(text, "rank 3"));
    const char *end = strstr(text, " more; charged 1 failure (1 so far)");
    assert_non_null(end);
    assert_string_equal(strchr(end, ')'), ")");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(strangers_are_refused_in_words, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(identity_that_is_there_is_refused_until_it_goes, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(member_that_becomes_another_is_refused_and_gone, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(world_of_too_many_workers_is_refused, peers_setup, peers_teardown),
        cmocka_unit_test(names_compare_naturally),
        cmocka_unit_test_setup_teardown(ranks_follow_topology_scheduler_name_address_pid_and_identity, peers_setup,
                                        peers_teardown),
        cmocka_unit_test_setup_teardown(workers_count_by_node_and_role, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(news_are_bounded, peers_setup, peers_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
