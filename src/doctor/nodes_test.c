/* The tournament, what nodes tell each other, and what stands out between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

#include "base/str.h"
#include "doctor/nodes.h"

/* Everybody meets everybody once, and is in one pair a round at most. */
static void all_meet_once(void **state) {
    (void)state;
    for (uint32_t count = 2; count <= 64; count++) {
        uint8_t met[64][64] = {{0}};
        for (uint32_t round = 0; round < doctor_round_count(count); round++) {
            for (uint32_t rank = 0; rank < count; rank++) {
                uint32_t other, back;
                if (!doctor_opponent(count, round, rank, &other)) {
                    assert_int_equal(count % 2, 1);
                    continue;
                }
                assert_true(other < count && other != rank);
                assert_true(doctor_opponent(count, round, other, &back));
                assert_int_equal(back, rank);
                met[rank][other]++;
            }
        }
        for (uint32_t a = 0; a < count; a++) {
            for (uint32_t b = 0; b < count; b++) {
                assert_int_equal(met[a][b], a != b);
            }
        }
    }
    assert_int_equal(doctor_round_count(1), 0);
    assert_int_equal(doctor_round_count(1000), DOCTOR_ROUNDS_MAX);
}

static void nodes_and_pairs_as_text(void **state) {
    (void)state;
    struct buf text;
    struct doctor_node node = {.host = "node7",
                               .addr = "10.0.0.7",
                               .port = 40000,
                               .nonce = UINT64_C(0x7fffffffffffffff),
                               .is_serving = true,
                               .version = "1",
                               .kernel = "6.1",
                               .gpu_driver = "535",
                               .pid = 7,
                               .processor_count = 8,
                               .gpu_count = 2,
                               .memory_mib = 3,
                               .shm_mib = 4,
                               .file_limit = 5,
                               .mtu = 9000,
                               .unresolved_count = 1,
                               .unresolved = "node8"};
    struct doctor_node read;
    memset(&read, 0, sizeof read);
    buf_init(&text, DOCTOR_RECORD_BYTES_MAX);
    assert_int_equal(doctor_node_write(&node, &text), 0);
    assert_int_equal(doctor_node_read(buf_bytes(&text), text.len, &read), 0);
    assert_int_equal(doctor_node_compare(&node, &read), 0);
    assert_int_equal(read.mtu, 9000);
    assert_int_equal(read.port, 40000);
    assert_true(read.is_serving);
    assert_string_equal(read.unresolved, "node8");
    buf_clear(&text);
    struct doctor_pair pair = {.from = 3, .to = 4, .is_measured = true, .latency_us = 12.5, .both_mbps = 7};
    struct doctor_pair back;
    assert_int_equal(doctor_pair_write(&pair, &text), 0);
    assert_int_equal(doctor_pair_read(buf_bytes(&text), text.len, &back), 0);
    assert_true(back.from == 3 && back.to == 4 && back.is_measured);
    assert_true(back.latency_us > 12.4 && back.latency_us < 12.6);
    buf_done(&text);
}

static void damaged_text_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "{}",
                                        "[]",
                                        "{\"host\":\"a\",\"addr\":\"b\",\"port\":0}",
                                        "{\"host\":\"a\",\"addr\":7,\"port\":1}",
                                        "{\"host\":\"a\",\"addr\":\"b\",\"port\":65536}"};
    struct doctor_node node;
    struct doctor_pair pair;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(doctor_node_read(texts[i], strlen(texts[i]), &node), MUSTER_EPROTOCOL);
    }
    assert_int_equal(doctor_pair_read("{\"from\":1,\"to\":1}", 17, &pair), MUSTER_EPROTOCOL);
    assert_int_equal(doctor_pair_read("{\"from\":-1,\"to\":1}", 18, &pair), MUSTER_EPROTOCOL);
    assert_int_equal(doctor_pair_read("{\"from\":1,\"to\":1024}", 20, &pair), MUSTER_EPROTOCOL);
}

static void names_sort_as_people_sort_them(void **state) {
    (void)state;
    struct doctor_node two = {.host = "node2"}, ten = {.host = "node10"};
    assert_true(doctor_node_compare(&two, &ten) < 0);
}

/* ---- findings ---- */

enum { NODES = 5, PAIRS = NODES * (NODES - 1) / 2 };
static struct doctor_node nodes[NODES];
static struct doctor_pair pairs[PAIRS];
static struct doctor_findings found;

/* Alike, 1000 MB/s and 50 us between any two. */
static int set_up(void **state) {
    (void)state;
    size_t count = 0;
    memset(&found, 0, sizeof found);
    for (uint32_t i = 0; i < NODES; i++) {
        nodes[i] = (struct doctor_node){.version = "1", .kernel = "6.1", .processor_count = 8, .mtu = 1500};
        (void)str_format(nodes[i].host, sizeof nodes[i].host, "node%u", i);
        for (uint32_t k = i + 1; k < NODES; k++) {
            pairs[count++] = (struct doctor_pair){.from = i,
                                                  .to = k,
                                                  .is_measured = true,
                                                  .latency_us = 50,
                                                  .forward_mbps = 1000,
                                                  .backward_mbps = 990,
                                                  .both_mbps = 1900};
        }
    }
    return 0;
}

static struct doctor_pair *pair_of(uint32_t a, uint32_t b) {
    for (size_t i = 0; i < PAIRS; i++) {
        if (pairs[i].from == a && pairs[i].to == b) {
            return &pairs[i];
        }
    }
    return NULL;
}

static void judge_pairs(void) {
    double scratch[PAIRS];
    doctor_judge_pairs(nodes, NODES, pairs, PAIRS, scratch, &found);
}

static void expect_only(enum doctor_level level, const char *what) {
    assert_int_equal(found.count, 1);
    assert_int_equal(found.list[0].level, level);
    if (!strstr(found.list[0].what, what)) {
        fail_msg("'%s' is not in '%s'", what, found.list[0].what);
    }
    assert_int_equal(found.list[0].advice[0] != '\0', level != DOCTOR_OK);
}

static void nothing_stands_out(void **state) {
    (void)state;
    judge_pairs();
    expect_only(DOCTOR_OK, "10 pairs: 990 MB/s and 50 us");
    found.count = 0;
    doctor_judge_nodes(nodes, NODES, &found);
    expect_only(DOCTOR_OK, "5 alike");
}

static void one_slow_link(void **state) {
    (void)state;
    pair_of(1, 3)->backward_mbps = 100;
    judge_pairs();
    expect_only(DOCTOR_WARNING, "node1 to node3 is slow: 1000 MB/s there, 100 back; others have 990");
}

static void one_slow_node(void **state) {
    (void)state;
    for (size_t i = 0; i < PAIRS; i++) {
        if (pairs[i].from == 2 || pairs[i].to == 2) {
            pairs[i].forward_mbps = pairs[i].backward_mbps = 110;
        }
    }
    judge_pairs();
    expect_only(DOCTOR_WARNING, "all links of node2 are slow: 110 MB/s at best; others have 990");
}

/* Two of the three pairs are slow: the third shows what is usual. */
static void one_slow_node_of_three(void **state) {
    (void)state;
    double scratch[3];
    struct doctor_pair three[3] = {*pair_of(0, 1), *pair_of(0, 2), *pair_of(1, 2)};
    three[1].forward_mbps = three[2].backward_mbps = 50;
    doctor_judge_pairs(nodes, 3, three, 3, scratch, &found);
    expect_only(DOCTOR_WARNING, "all links of node2 are slow");
}

static void one_late_link(void **state) {
    (void)state;
    pair_of(0, 4)->latency_us = 20000;
    judge_pairs();
    expect_only(DOCTOR_WARNING, "node0 to node4 takes long: 20000 us there and back; others take 50");
}

static void one_broken_link_and_node(void **state) {
    (void)state;
    pair_of(0, 1)->is_measured = false;
    pair_of(0, 1)->latency_us = 0;
    (void)str_copy(pair_of(0, 1)->reason, DOCTOR_REASON_MAX, "Connection timed out");
    judge_pairs();
    expect_only(DOCTOR_ERROR, "node0 does not reach node1: Connection timed out");
    found.count = 0;
    for (size_t i = 0; i < PAIRS; i++) {
        pairs[i].is_measured = pairs[i].from != 3 && pairs[i].to != 3;
    }
    judge_pairs();
    expect_only(DOCTOR_ERROR, "no pair with node3 could be measured");
}

/* The MTU of a tunnel on the way, for instance. */
static void one_link_that_drops_long_packets(void **state) {
    (void)state;
    pair_of(0, 1)->is_measured = false;
    pair_of(0, 1)->latency_us = 80;
    (void)str_copy(pair_of(0, 1)->reason, DOCTOR_REASON_MAX, "it took more than 10 s");
    judge_pairs();
    expect_only(DOCTOR_ERROR,
                "node0 reaches node1 (80 us there and back), but not with much data: it took more than 10 s");
}

static void one_wrong_clock(void **state) {
    (void)state;
    for (size_t i = 0; i < PAIRS; i++) {
        pairs[i].ahead_us = pairs[i].to == 4 ? 7.5e6 : pairs[i].from == 4 ? -7.5e6 : 3;
    }
    judge_pairs();
    expect_only(DOCTOR_WARNING, "the clock of node4 is 7.500 s ahead of the others");
}

static void two_clocks_are_one_finding(void **state) {
    (void)state;
    double scratch[1];
    struct doctor_pair pair = *pair_of(0, 1);
    pair.ahead_us = -80000;
    doctor_judge_pairs(nodes, 2, &pair, 1, scratch, &found);
    expect_only(DOCTOR_NOTE, "the clock of node1 is 0.080 s behind the others");
}

static void differences(void **state) {
    (void)state;
    nodes[3].mtu = 9000;
    doctor_judge_nodes(nodes, NODES, &found);
    expect_only(DOCTOR_WARNING, "the MTU is 1500, but 9000 on node3");
    found.count = 0;
    nodes[3].mtu = 1500;
    nodes[0].gpu_count = 7;
    nodes[1].gpu_count = nodes[2].gpu_count = nodes[3].gpu_count = nodes[4].gpu_count = 8;
    doctor_judge_nodes(nodes, NODES, &found);
    expect_only(DOCTOR_WARNING, "the number of GPUs is 8, but 7 on node0");
    found.count = 0;
    nodes[0].gpu_count = 8;
    nodes[1].unresolved_count = 2;
    (void)str_copy(nodes[1].unresolved, sizeof nodes[1].unresolved, "node2");
    doctor_judge_nodes(nodes, NODES, &found);
    expect_only(DOCTOR_NOTE, "do not resolve, or lead elsewhere, on node1 (such as node2)");
}

static void nodes_of_one_name(void **state) {
    (void)state;
    for (uint32_t i = 0; i < NODES; i++) {
        (void)str_copy(nodes[i].host, sizeof nodes[i].host, "localhost");
        (void)str_copy(nodes[i].addr, sizeof nodes[i].addr, "127.0.0.1");
    }
    pair_of(1, 3)->forward_mbps = 100;
    judge_pairs();
    expect_only(DOCTOR_WARNING, "node 1 (127.0.0.1) to node 3 (127.0.0.1) is slow");
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        CASE(all_meet_once),
        CASE(nodes_and_pairs_as_text),
        CASE(damaged_text_is_refused),
        CASE(names_sort_as_people_sort_them),
        CASE(nothing_stands_out),
        CASE(one_slow_link),
        CASE(one_slow_node),
        CASE(one_slow_node_of_three),
        CASE(one_late_link),
        CASE(one_broken_link_and_node),
        CASE(one_link_that_drops_long_packets),
        CASE(one_wrong_clock),
        CASE(two_clocks_are_one_finding),
        CASE(differences),
        CASE(nodes_of_one_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
