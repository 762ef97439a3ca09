/* Each command of PMI-1, barriers, what nodes exchange, and workers that do not speak as they should. */
#include "agent/mpi/pmi_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

enum { WORKERS = 3, WORLD = 5, TEXT_MAX = 8192 };
#define SPACE "muster_7"

struct node {
    struct pmi_server *server;
    unsigned barriers, aborts, broken, left;
    uint32_t abort_rank, left_rank;
    enum mpi_stage stages[WORKERS];
    int abort_code;
    char abort_text[1100], why[256];
};

static void on_barrier(void *ctx) {
    ((struct node *)ctx)->barriers++;
}

/* The answer follows: who has it has been noted. */
static void on_stage(void *ctx, uint32_t local_rank, enum mpi_stage stage) {
    struct node *node = ctx;
    assert_int_equal(pmi_server_output(node->server, local_rank)->len, 0);
    node->stages[local_rank] = stage;
}

static void on_left(void *ctx, uint32_t local_rank) {
    struct node *node = ctx;
    node->left++;
    node->left_rank = local_rank;
}

static void on_abort(void *ctx, uint32_t local_rank, int exit_code, const char *text) {
    struct node *node = ctx;
    node->aborts++;
    node->abort_rank = local_rank;
    node->abort_code = exit_code;
    (void)snprintf(node->abort_text, sizeof node->abort_text, "%s", text);
}

static void on_broken(void *ctx, uint32_t local_rank, const char *why) {
    struct node *node = ctx;
    (void)local_rank;
    node->broken++;
    (void)snprintf(node->why, sizeof node->why, "%s", why);
}

static void node_init_mapped(struct node *node, const char *mapping) {
    *node = (struct node){0};
    const struct pmi_server_options options = {
        .space = SPACE, .mapping = mapping, .local_count = WORKERS, .world_size = WORLD, .seed = {1, 2}};
    const struct pmi_server_host host = {node, on_barrier, on_stage, on_left, on_abort, on_broken};
    assert_int_equal(pmi_server_create(&options, &host, &node->server), 0);
}

static void node_init(struct node *node) {
    node_init_mapped(node, "(vector,(0,1,3),(1,1,2))");
}

static void say(const struct node *node, uint32_t rank, const char *text) {
    assert_true(strlen(text) <= pmi_server_room(node->server, rank));
    pmi_server_heard(node->server, rank, text, strlen(text));
}

static void expect(const struct node *node, uint32_t rank, const char *expected) {
    char text[TEXT_MAX];
    struct buf *out = pmi_server_output(node->server, rank);
    (void)snprintf(text, sizeof text, "%.*s", (int)out->len, out->len > 0 ? (const char *)buf_bytes(out) : "");
    buf_consume(out, out->len);
    assert_string_equal(text, expected);
}

static void ask(const struct node *node, uint32_t rank, const char *text, const char *expected) {
    say(node, rank, text);
    expect(node, rank, expected);
}

static void each_command_has_its_answer(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    ask(&node, 0, "cmd=init pmi_version=1 pmi_subversion=1\n",
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    ask(&node, 0, "cmd=init pmi_version=2 pmi_subversion=0\n",
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n");
    ask(&node, 0, "cmd=get_maxes\n", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0\n");
    ask(&node, 0, "cmd=get_appnum\n", "cmd=appnum appnum=0 rc=0\n");
    ask(&node, 0, "cmd=get_universe_size\n", "cmd=universe_size size=5 rc=0\n");
    ask(&node, 1, "cmd=get_my_kvsname\n", "cmd=my_kvsname kvsname=" SPACE " rc=0\n");
    ask(&node, 1, "cmd=get kvsname=" SPACE " key=PMI_process_mapping\n",
        "cmd=get_result rc=0 msg=success value=(vector,(0,1,3),(1,1,2))\n");
    ask(&node, 2, "cmd=finalize\n", "cmd=finalize_ack rc=0\n");
    ask(&node, 2, "cmd=publish_name service=a port=b\n", "cmd=publish_result rc=-1 msg=not_offered\n");
    ask(&node, 2, "cmd=unpublish_name service=a\n", "cmd=unpublish_result rc=-1 msg=not_offered\n");
    ask(&node, 2, "cmd=lookup_name service=a\n", "cmd=lookup_result rc=-1 msg=not_offered\n");
    assert_int_equal(node.broken, 0);
    pmi_server_free(node.server);
}

static void spawn_is_refused_at_its_end(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    ask(&node, 0, "mcmd=spawn\nnprocs=2\nexecname=/bin/true\ncmd=abort exitcode=1\n", "");
    ask(&node, 0, "endcmd\n", "cmd=spawn_result rc=-1 msg=muster_run_does_not_spawn\n");
    ask(&node, 0, "cmd=spawn nprocs=1\n", "cmd=spawn_result rc=-1 msg=muster_run_does_not_spawn\n");
    ask(&node, 0, "cmd=get_appnum\n", "cmd=appnum appnum=0 rc=0\n");
    assert_int_equal(node.aborts, 0);
    pmi_server_free(node.server);
}

static void lines_may_come_in_pieces(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    const char *text = "cmd=get_appnum\ncmd=get_universe_size\n";
    for (const char *at = text; *at != '\0'; at++) {
        pmi_server_heard(node.server, 0, at, 1);
    }
    expect(&node, 0, "cmd=appnum appnum=0 rc=0\ncmd=universe_size size=5 rc=0\n");
    pmi_server_free(node.server);
}

static void what_is_put_can_be_got(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    ask(&node, 0, "cmd=get kvsname=" SPACE " key=a\n", "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
    ask(&node, 0, "cmd=put kvsname=" SPACE " key=a value=1=2\n", "cmd=put_result rc=0 msg=success\n");
    ask(&node, 1, "cmd=get kvsname=" SPACE " key=a\n", "cmd=get_result rc=0 msg=success value=1=2\n");
    ask(&node, 1, "cmd=put kvsname=" SPACE " key=a value=\n", "cmd=put_result rc=0 msg=success\n");
    ask(&node, 1, "cmd=get kvsname=" SPACE " key=a\n", "cmd=get_result rc=0 msg=success value=\n");
    ask(&node, 1, "cmd=get kvsname=other key=a\n", "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
    pmi_server_free(node.server);
}

static void ask_long(const struct node *node, size_t key_len, size_t value_len, const char *expected) {
    char key[128], value[2048], line[TEXT_MAX];
    memset(key, 'k', sizeof key);
    memset(value, 'v', sizeof value);
    (void)snprintf(line, sizeof line, "cmd=put kvsname=" SPACE " key=%.*s value=%.*s\n", (int)key_len, key,
                   (int)value_len, value);
    ask(node, 0, line, expected);
}

static void what_is_put_has_limits(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    static const char *const refused[][2] = {
        {"cmd=put kvsname=other key=a value=b\n", "another_kvsname"},
        {"cmd=put key=a value=b\n", "another_kvsname"},
        {"cmd=put kvsname=" SPACE " value=b\n", "no_key_to_put"},
        {"cmd=put kvsname=" SPACE " key= value=b\n", "no_key_to_put"},
        {"cmd=put kvsname=" SPACE " key=PMI_process_mapping value=b\n", "no_key_to_put"},
        {"cmd=put kvsname=" SPACE " key=a\n", "no_value_to_put"},
        {"cmd=put kvsname=" SPACE " key=a value=\t\n", "no_value_to_put"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char expected[128];
        (void)snprintf(expected, sizeof expected, "cmd=put_result rc=-1 msg=%s\n", refused[i][1]);
        ask(&node, 0, refused[i][0], expected);
    }
    ask_long(&node, PMI_SERVER_KEY_MAX, 1, "cmd=put_result rc=-1 msg=no_key_to_put\n");
    ask_long(&node, 1, PMI_SERVER_VALUE_MAX, "cmd=put_result rc=-1 msg=no_value_to_put\n");
    assert_int_equal(pmi_server_fresh(node.server)->len, 0);
    ask_long(&node, PMI_SERVER_KEY_MAX - 1, PMI_SERVER_VALUE_MAX - 1, "cmd=put_result rc=0 msg=success\n");
    pmi_server_free(node.server);
}

static void there_is_an_end_of_keys(void **state) {
    (void)state;
    struct node node;
    char value[PMI_SERVER_VALUE_MAX], line[TEXT_MAX];
    node_init(&node);
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    size_t pair = 4 + strlen("k00000") + strlen(value);
    for (unsigned i = 0; i < PMI_SERVER_FRESH_MAX / pair; i++) {
        (void)snprintf(line, sizeof line, "cmd=put kvsname=" SPACE " key=k%05u value=%s\n", i, value);
        ask(&node, 0, line, "cmd=put_result rc=0 msg=success\n");
    }
    size_t before = pmi_server_fresh(node.server)->len;
    (void)snprintf(line, sizeof line, "cmd=put kvsname=" SPACE " key=onemore value=%s\n", value);
    ask(&node, 0, line, "cmd=put_result rc=-1 msg=too_many_keys\n");
    assert_int_equal(pmi_server_fresh(node.server)->len, before);
    ask(&node, 0, "cmd=get kvsname=" SPACE " key=onemore\n", "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
    pmi_server_free(node.server);
}

static void all_wait_for_the_last(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    ask(&node, 0, "cmd=barrier_in\n", "");
    ask(&node, 2, "cmd=barrier_in\ncmd=get_appnum\n", "");
    assert_int_equal(node.barriers, 0);
    ask(&node, 1, "cmd=barrier_in group=WORLD\n", "");
    assert_int_equal(node.barriers, 1);
    pmi_server_barrier_done(node.server);
    expect(&node, 0, "cmd=barrier_out rc=0\n");
    expect(&node, 1, "cmd=barrier_out rc=0\n");
    expect(&node, 2, "cmd=barrier_out rc=0\ncmd=appnum appnum=0 rc=0\n");
    pmi_server_free(node.server);
}

/* Who has sent the next one already is in it when it leaves this one. */
static void the_next_barrier_may_be_waiting(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    for (uint32_t i = 0; i < WORKERS; i++) {
        say(&node, i, "cmd=barrier_in\ncmd=barrier_in\n");
    }
    assert_int_equal(node.barriers, 1);
    pmi_server_barrier_done(node.server);
    assert_int_equal(node.barriers, 2);
    pmi_server_barrier_done(node.server);
    assert_int_equal(node.barriers, 2);
    expect(&node, 0, "cmd=barrier_out rc=0\ncmd=barrier_out rc=0\n");
    pmi_server_free(node.server);
}

static void a_barrier_of_some_is_refused(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    ask(&node, 0, "cmd=barrier_in group=0,1 tag=3\n", "cmd=barrier_out rc=-1 msg=only_of_all_ranks\n");
    assert_int_equal(node.barriers, 0);
    pmi_server_free(node.server);
}

static void who_waits_is_not_heard_without_end(void **state) {
    (void)state;
    struct node node;
    char rubbish[PMI_SERVER_LINE_MAX];
    node_init(&node);
    say(&node, 0, "cmd=barrier_in\n");
    memset(rubbish, 'x', sizeof rubbish);
    assert_int_equal(pmi_server_room(node.server, 0), PMI_SERVER_LINE_MAX);
    pmi_server_heard(node.server, 0, rubbish, sizeof rubbish);
    assert_int_equal(pmi_server_room(node.server, 0), 0);
    assert_int_equal(node.broken, 0);
    say(&node, 1, "cmd=barrier_in\n");
    say(&node, 2, "cmd=barrier_in\n");
    pmi_server_barrier_done(node.server);
    assert_int_equal(node.broken, 1);
    assert_true(pmi_server_is_closed(node.server, 0));
    pmi_server_free(node.server);
}

static void keys_reach_other_nodes(void **state) {
    (void)state;
    struct node here, there;
    node_init(&here);
    node_init(&there);
    ask(&here, 0, "cmd=put kvsname=" SPACE " key=a value=1\n", "cmd=put_result rc=0 msg=success\n");
    ask(&here, 1, "cmd=put kvsname=" SPACE " key=b value=\n", "cmd=put_result rc=0 msg=success\n");
    struct buf *fresh = pmi_server_fresh(here.server);
    static const uint8_t golden[] = {1, 0, 1, 0, 'a', '1', 1, 0, 0, 0, 'b'};
    assert_int_equal(fresh->len, sizeof golden);
    assert_memory_equal(buf_bytes(fresh), golden, sizeof golden);
    assert_int_equal(pmi_server_merge(there.server, buf_bytes(fresh), fresh->len), 0);
    ask(&there, 0, "cmd=get kvsname=" SPACE " key=a\n", "cmd=get_result rc=0 msg=success value=1\n");
    ask(&there, 0, "cmd=get kvsname=" SPACE " key=b\n", "cmd=get_result rc=0 msg=success value=\n");
    assert_int_equal(pmi_server_fresh(there.server)->len, 0);
    pmi_server_free(here.server);
    pmi_server_free(there.server);
}

static void what_no_node_has_put_is_refused(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    static const uint8_t cut[] = {1, 0, 2, 0, 'a', '1'}, no_key[] = {0, 0, 1, 0, '1'}, line[] = {1, 0, 1, 0, 'a', '\n'},
                         blank[] = {1, 0, 1, 0, ' ', '1'}, head[] = {1, 0, 1};
    assert_int_equal(pmi_server_merge(node.server, cut, sizeof cut), MUSTER_EPROTOCOL);
    assert_int_equal(pmi_server_merge(node.server, no_key, sizeof no_key), MUSTER_EPROTOCOL);
    assert_int_equal(pmi_server_merge(node.server, line, sizeof line), MUSTER_EPROTOCOL);
    assert_int_equal(pmi_server_merge(node.server, blank, sizeof blank), MUSTER_EPROTOCOL);
    assert_int_equal(pmi_server_merge(node.server, head, sizeof head), MUSTER_EPROTOCOL);
    assert_int_equal(pmi_server_merge(node.server, NULL, 0), 0);
    pmi_server_free(node.server);
}

static void abort_is_told_once(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    ask(&node, 1, "cmd=abort exitcode=9 message=no more data\ncmd=abort exitcode=3\n", "");
    assert_int_equal(node.aborts, 1);
    assert_int_equal(node.abort_rank, 1);
    assert_int_equal(node.abort_code, 9);
    assert_string_equal(node.abort_text, "no more data");
    assert_int_equal(pmi_server_room(node.server, 1), 0);
    assert_false(pmi_server_is_closed(node.server, 1)); /* it waits for its end: a closed connection it would report */
    say(&node, 2, "cmd=abort\n");
    assert_int_equal(node.abort_code, 1);
    pmi_server_free(node.server);
}

static const char init[] = "cmd=init pmi_version=1 pmi_subversion=1\n";
static const char init_answer[] = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";

static void init_and_finalize_are_told(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    say(&node, 1, "cmd=init pmi_version=2 pmi_subversion=0\n"); /* refused */
    assert_int_equal(node.stages[1], MPI_STAGE_NONE);
    ask(&node, 0, init, init_answer);
    assert_int_equal(node.stages[0], MPI_STAGE_INSIDE);
    ask(&node, 0, "cmd=finalize\n", "cmd=finalize_ack rc=0\n");
    assert_int_equal(node.stages[0], MPI_STAGE_FINALIZED);
    ask(&node, 0, init, init_answer); /* a worker may run one program after the other */
    assert_int_equal(node.stages[0], MPI_STAGE_INSIDE);
    assert_int_equal(node.stages[1], MPI_STAGE_NONE);
    pmi_server_free(node.server);
}

static void who_leaves_between_init_and_finalize_is_told(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    pmi_server_ended(node.server, 0); /* a program without MPI */
    ask(&node, 1, init, init_answer);
    ask(&node, 1, "cmd=finalize\n", "cmd=finalize_ack rc=0\n");
    pmi_server_ended(node.server, 1);
    assert_int_equal(node.left, 0);
    ask(&node, 2, init, init_answer);
    pmi_server_ended(node.server, 2);
    assert_int_equal(node.left, 1);
    assert_int_equal(node.left_rank, 2);
    pmi_server_free(node.server);
}

static void who_leaves_a_barrier_is_told(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    ask(&node, 1, init, init_answer);
    ask(&node, 1, "cmd=barrier_in\n", "");
    pmi_server_ended(node.server, 1);
    assert_int_equal(node.left, 1);
    assert_int_equal(node.left_rank, 1);
    pmi_server_free(node.server);
}

static void who_will_not_come_to_a_barrier_is_told(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    pmi_server_ended(node.server, 2);
    ask(&node, 0, init, init_answer);
    assert_int_equal(node.left, 0);
    ask(&node, 0, "cmd=barrier_in\n", "");
    assert_int_equal(node.left, 1);
    assert_int_equal(node.left_rank, 2);
    pmi_server_ended(node.server, 1);
    assert_int_equal(node.left, 2);
    assert_int_equal(node.left_rank, 1);
    pmi_server_free(node.server);
}

/* What it has done wrong is told already. */
static void who_aborts_or_is_broken_has_not_left(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    ask(&node, 0, init, init_answer);
    ask(&node, 0, "cmd=abort exitcode=9\n", "");
    ask(&node, 1, init, init_answer);
    ask(&node, 1, "rubbish\n", "");
    ask(&node, 2, init, init_answer);
    ask(&node, 2, "cmd=barrier_in\n", "");
    pmi_server_ended(node.server, 0);
    pmi_server_ended(node.server, 1);
    assert_int_equal(node.left, 0);
    pmi_server_free(node.server);
}

static void who_does_not_speak_pmi_is_closed(void **state) {
    (void)state;
    static const char *const texts[] = {"GET / HTTP/1.1\n", "\n", "cmd=\n", "cmd=nothing\n", "mcmd=other\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct node node;
        node_init(&node);
        ask(&node, 0, texts[i], "");
        assert_int_equal(node.broken, 1);
        assert_true(pmi_server_is_closed(node.server, 0));
        assert_int_equal(pmi_server_room(node.server, 0), 0);
        ask(&node, 1, "cmd=get_appnum\n", "cmd=appnum appnum=0 rc=0\n");
        pmi_server_free(node.server);
    }
}

static void a_line_has_an_end(void **state) {
    (void)state;
    struct node node;
    char line[PMI_SERVER_LINE_MAX];
    node_init(&node);
    memset(line, 'x', sizeof line);
    pmi_server_heard(node.server, 0, line, sizeof line);
    assert_int_equal(node.broken, 1);
    pmi_server_heard(node.server, 1, "cmd=get\0 key=a\n", 15);
    assert_int_equal(node.broken, 2);
    pmi_server_free(node.server);
}

static void who_does_not_read_is_closed(void **state) {
    (void)state;
    struct node node;
    node_init(&node);
    for (int i = 0; i < 100000 && node.broken == 0; i++) {
        say(&node, 0, "cmd=get_maxes\n");
    }
    assert_int_equal(node.broken, 1);
    assert_string_equal(node.why, "it asks and does not read the answers");
    pmi_server_free(node.server);
}

/* MPICH compares host names then. */
static void a_mapping_that_is_too_long_is_left_out(void **state) {
    (void)state;
    struct node node;
    char mapping[PMI_SERVER_VALUE_MAX + 1];
    memset(mapping, '(', sizeof mapping - 1);
    mapping[sizeof mapping - 1] = '\0';
    node_init_mapped(&node, mapping);
    ask(&node, 1, "cmd=get kvsname=" SPACE " key=PMI_process_mapping\n",
        "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
    pmi_server_free(node.server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_command_has_its_answer),
        cmocka_unit_test(spawn_is_refused_at_its_end),
        cmocka_unit_test(lines_may_come_in_pieces),
        cmocka_unit_test(what_is_put_can_be_got),
        cmocka_unit_test(what_is_put_has_limits),
        cmocka_unit_test(there_is_an_end_of_keys),
        cmocka_unit_test(all_wait_for_the_last),
        cmocka_unit_test(the_next_barrier_may_be_waiting),
        cmocka_unit_test(a_barrier_of_some_is_refused),
        cmocka_unit_test(who_waits_is_not_heard_without_end),
        cmocka_unit_test(keys_reach_other_nodes),
        cmocka_unit_test(what_no_node_has_put_is_refused),
        cmocka_unit_test(abort_is_told_once),
        cmocka_unit_test(init_and_finalize_are_told),
        cmocka_unit_test(who_leaves_between_init_and_finalize_is_told),
        cmocka_unit_test(who_leaves_a_barrier_is_told),
        cmocka_unit_test(who_will_not_come_to_a_barrier_is_told),
        cmocka_unit_test(who_aborts_or_is_broken_has_not_left),
        cmocka_unit_test(who_does_not_speak_pmi_is_closed),
        cmocka_unit_test(a_line_has_an_end),
        cmocka_unit_test(who_does_not_read_is_closed),
        cmocka_unit_test(a_mapping_that_is_too_long_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
