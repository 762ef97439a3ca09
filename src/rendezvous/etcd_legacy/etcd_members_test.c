/* What the folder of a round says of its members. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/etcd_legacy/etcd_members.h"

#define NODE(path, text)                                                                                               \
    { .key = (path), .value = (text) }
#define COUNT(list) (sizeof(list) / sizeof *(list))

static struct etcd_members read_members(const struct etcd_v2_node *children, size_t count, uint32_t participants) {
    struct etcd_members members;
    assert_int_equal(etcd_members_read(children, count, "/r/v_7", participants, "2", &members), MUSTER_OK);
    return members;
}

static void all_are_there(void **state) {
    static const struct etcd_v2_node nodes[] = {NODE("/r/v_7/rank_1", ""), NODE("/r/v_7/muster_1", "b_2_0"),
                                                NODE("/r/v_7/rank_0", ""), NODE("/r/v_7/muster_0", "a_1_0"),
                                                NODE("/r/v_7/kv", NULL)};
    const struct etcd_members members = read_members(nodes, COUNT(nodes), 2);
    (void)state;
    assert_true(members.all_muster);
    assert_int_equal(members.view.world_size, 2);
    assert_int_equal(members.view.missing, 0);
    assert_string_equal(members.lost, "");
    assert_string_equal(members.done, "");
}

static void done_lost_and_mute_ones_are_told_apart(void **state) {
    static const struct etcd_v2_node nodes[] = {NODE("/r/v_7/muster_0", "done a_1_0"), NODE("/r/v_7/rank_1", ""),
                                                NODE("/r/v_7/muster_1", "done b_2_0"),
                                                NODE("/r/v_7/muster_3", "d_4_0")};
    const struct etcd_members members = read_members(nodes, COUNT(nodes), 4);
    (void)state;
    assert_false(members.all_muster);
    assert_int_equal(members.view.missing, 3);
    assert_int_equal(members.view.missing_done, 1);
    assert_int_equal(members.view.missing_mute, 1);
    assert_int_equal(members.view.recorded_done, 2);
    assert_string_equal(members.lost, "the node of rank 2");
    assert_string_equal(members.done, "node a_1_0 has, node b_2_0 has");
}

static void older_agents_have_no_name(void **state) {
    static const struct etcd_v2_node nodes[] = {NODE("/r/v_7/muster_0", ""), NODE("/r/v_7/rank_1", ""),
                                                NODE("/r/v_7/muster_1", "")};
    const struct etcd_members members = read_members(nodes, COUNT(nodes), 2);
    (void)state;
    assert_true(members.all_muster);
    assert_int_equal(members.view.missing_mute, 0);
    assert_string_equal(members.lost, "the node of rank 0");
}

static void keys_of_nobody_are_passed_over(void **state) {
    static const struct etcd_v2_node nodes[] = {NODE("/r/v_7/rank_2", ""),   NODE("/r/v_7/rank_-1", ""),
                                                NODE("/r/v_7/rank_", ""),    NODE("/r/v_7/rank_x", ""),
                                                {.key = "/r/v_71/rank_0"},   {.key = "/r/v_7"},
                                                NODE("/r/v_7/muster_9", ""), {.key = "/r/v_7/rank_0/deep"}};
    const struct etcd_members members = read_members(nodes, COUNT(nodes), 2);
    (void)state;
    assert_int_equal(members.view.missing, 2);
    assert_int_equal(read_members(NULL, 0, 0).view.missing, 0);
}

static void another_protocol_is_named(void **state) {
    static const struct etcd_v2_node nodes[] = {NODE("/r/v_7/muster_0", "done a_1_0"), NODE("/r/v_7/protocol_0", "2"),
                                                NODE("/r/v_7/muster_1", "b_2_0"), NODE("/r/v_7/protocol_1", "3"),
                                                NODE("/r/v_7/rank_2", "")};
    static const struct etcd_v2_node old[] = {NODE("/r/v_7/muster_0", "a_1_0"), NODE("/r/v_7/protocol_0", "2"),
                                              NODE("/r/v_7/rank_1", ""), NODE("/r/v_7/muster_1", "")};
    struct etcd_members members = read_members(nodes, COUNT(nodes), 3);
    (void)state;
    assert_string_equal(members.other, "node b_2_0");
    assert_string_equal(members.other_protocol, "3");
    members = read_members(old, COUNT(old), 2);
    assert_string_equal(members.other, "the node of rank 1");
    assert_string_equal(members.other_protocol, "0");
    members = read_members(old, 3, 2); /* one of PyTorch's has none */
    assert_string_equal(members.other, "");
}

static void long_names_are_cut(void **state) {
    static char mark[1024], longer[4096];
    static struct etcd_v2_node nodes[64];
    static char keys[64][32];
    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    (void)etcd_members_mark("n", true, mark);
    assert_string_equal(mark, "done n");
    memcpy(longer, "done ", 5);
    for (size_t i = 0; i < COUNT(nodes); i++) {
        (void)snprintf(keys[i], sizeof keys[i], "/r/v_7/muster_%zu", i);
        nodes[i] = (struct etcd_v2_node){.key = keys[i], .value = i == 0 ? longer + 5 : longer};
    }
    const struct etcd_members members = read_members(nodes, COUNT(nodes), COUNT(nodes));
    assert_int_equal(members.view.missing_done, COUNT(nodes) - 1);
    assert_true(strlen(members.lost) < sizeof members.lost);
    assert_true(strlen(members.done) < sizeof members.done);
}

static void counter_is_base64_of_a_number(void **state) {
    struct etcd_members members = {.all_muster = true};
    (void)state;
    etcd_members_take_count(&members, "Mg==");
    assert_int_equal(members.view.arrived, 2);
    static const char *const odd[] = {NULL,
                                      "",
                                      "eA==",
                                      "LTE=",
                                      "OTk5OTk5OTk5OTk5",
                                      "%%%",
                                      "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MA=="};
    for (size_t i = 0; i < COUNT(odd); i++) {
        etcd_members_take_count(&members, odd[i]);
        assert_int_equal(members.view.arrived, 0);
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_are_there),
        cmocka_unit_test(done_lost_and_mute_ones_are_told_apart),
        cmocka_unit_test(older_agents_have_no_name),
        cmocka_unit_test(keys_of_nobody_are_passed_over),
        cmocka_unit_test(another_protocol_is_named),
        cmocka_unit_test(long_names_are_cut),
        cmocka_unit_test(counter_is_base64_of_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
