/* Topologies: grouping, golden bytes, and that no bytes are read beyond what is there. */
#include "comm/host/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

static struct identity on_host(unsigned number) {
    struct identity identity = {.may_share = true, .pid = 1, .core_count = 4, .core_hash = number};
    identity.host.boot_id[0] = (uint8_t)number;
    (void)snprintf(identity.host_name, sizeof identity.host_name, "h%u", number);
    return identity;
}

static void hosts_are_numbered_by_first_ranks(void **state) {
    (void)state;
    static const unsigned places[] = {9, 4, 4, 9, 7, 4};
    static const uint32_t expected[] = {0, 1, 1, 0, 2, 1};
    struct identity identities[6];
    struct topology topology;
    for (int i = 0; i < 6; i++) {
        identities[i] = on_host(places[i]);
    }
    assert_int_equal(topology_compute(identities, 6, &topology), 0);
    assert_int_equal(topology.host_count, 3);
    assert_memory_equal(topology.host_of, expected, sizeof expected);
    assert_string_equal(topology.host_names[0], "h9");
    assert_string_equal(topology.host_names[1], "h4");
    assert_string_equal(topology.host_names[2], "h7");
    topology_done(&topology);
}

static void who_may_not_share_is_a_host(void **state) {
    (void)state;
    struct identity identities[3] = {on_host(1), on_host(1), on_host(1)};
    struct topology topology;
    identities[1].may_share = false;
    assert_int_equal(topology_compute(identities, 3, &topology), 0);
    assert_int_equal(topology.host_count, 2);
    assert_int_equal(topology.host_of[1], 1);
    assert_int_equal(topology.host_of[2], 0);
    topology_done(&topology);
}

static void one_network_is_noticed(void **state) {
    (void)state;
    struct identity identities[3] = {on_host(1), on_host(2), on_host(3)};
    for (uint64_t other = 0; other < 4; other++) { /* 0: of all that is not known; else of the last rank */
        identities[0].network = identities[1].network = other ? 3 : 0;
        identities[2].network = other;
        struct topology topology, read;
        uint8_t *bytes = NULL;
        size_t len = 0;
        assert_int_equal(topology_compute(identities, 3, &topology), 0);
        assert_int_equal(topology_encode(&topology, &bytes, &len), 0);
        assert_int_equal(topology_decode(bytes, len, 3, &read), 0);
        assert_int_equal(topology.is_one_network, other == 3);
        assert_int_equal(read.is_one_network, other == 3);
        topology_done(&topology);
        topology_done(&read);
        free(bytes);
    }
}

static struct topology example(void) {
    struct identity identities[200];
    struct topology topology;
    for (unsigned i = 0; i < 200; i++) {
        identities[i] = on_host(i == 0 ? 1 : i < 150 ? 2 : 1);
        identities[i].engine_facts = i == 17 ? 5 : 7; /* what all have is told */
    }
    assert_int_equal(topology_compute(identities, 200, &topology), 0);
    return topology;
}

static void golden_bytes(void **state) {
    (void)state;
    static const uint8_t expected[] = {'M', 'T', 'O', 'P', 3, 0, 5, 0xC8, 1, 2, 2,  'h', '1',
                                       4,   2,   'h', '2', 4, 1, 0, 0x95, 1, 1, 50, 0};
    struct topology topology = example(), read;
    uint8_t *bytes = NULL;
    size_t len = 0;
    assert_int_equal(topology_encode(&topology, &bytes, &len), 0);
    assert_int_equal(len, sizeof expected);
    assert_memory_equal(bytes, expected, len);
    assert_int_equal(topology_decode(bytes, len, 200, &read), 0);
    assert_int_equal(read.host_count, 2);
    assert_memory_equal(read.host_of, topology.host_of, 200 * sizeof *read.host_of);
    assert_string_equal(read.host_names[1], "h2");
    assert_int_equal(read.engine_facts, 5);
    topology_done(&read);
    topology_done(&topology);
    free(bytes);
}

/* Every cut, and every byte changed to every value: refused, or a topology within its bounds. */
static void damaged_bytes_do_no_harm(void **state) {
    (void)state;
    struct topology topology = example(), read;
    uint8_t *bytes = NULL;
    size_t len = 0, accepted = 0;
    assert_int_equal(topology_encode(&topology, &bytes, &len), 0);
    assert_int_equal(topology_decode(bytes, len, 199, &read), MUSTER_EPROTOCOL);
    for (size_t cut = 0; cut < len; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1); /* exactly as long, for the sanitizer */
        assert_non_null(copy);
        memcpy(copy, bytes, cut);
        assert_int_equal(topology_decode(copy, cut, 200, &read), MUSTER_EPROTOCOL);
        free(copy);
    }
    for (size_t at = 0; at < len; at++) {
        uint8_t before = bytes[at];
        for (unsigned value = 0; value < 256; value++) {
            bytes[at] = (uint8_t)value;
            if (topology_decode(bytes, len, 200, &read) == 0) {
                accepted++;
                for (uint32_t rank = 0; rank < read.size; rank++) {
                    assert_true(read.host_of[rank] < read.host_count);
                }
                topology_done(&read);
            }
        }
        bytes[at] = before;
    }
    assert_true(accepted > 0); /* names may be anything */
    topology_done(&topology);
    free(bytes);
}

/* Ranks of one machine that may not share memory have their share of its cores, as a host of two among five ranks has.
 * A rank elsewhere, or on other cores, does not compete. */
static void hosts_of_one_machine_divide_its_cores(void **state) {
    (void)state;
    struct identity identities[7];
    struct topology topology;
    for (int i = 0; i < 7; i++) {
        identities[i] = on_host(i == 6 ? 2 : 1);
        identities[i].may_share = i < 2;
    }
    identities[5].core_hash = 99;
    assert_int_equal(topology_compute(identities, 7, &topology), 0);
    assert_int_equal(topology.host_count, 6);
    assert_int_equal(topology.core_counts[0], 1); /* 2 of the 5 ranks on 4 cores */
    assert_int_equal(topology.core_counts[1], 0);
    assert_int_equal(topology.core_counts[3], 0);
    assert_int_equal(topology.core_counts[4], 4); /* other cores */
    assert_int_equal(topology.core_counts[5], 4); /* another machine */
    topology_done(&topology);
    for (int i = 0; i < 4; i++) {
        identities[i].may_share = false;
    }
    assert_int_equal(topology_compute(identities, 4, &topology), 0);
    for (int host = 0; host < 4; host++) {
        assert_int_equal(topology.core_counts[host], 1);
    }
    topology_done(&topology);
}

static void cores_are_counted_by_set(void **state) {
    (void)state;
    struct identity identities[5] = {on_host(1), on_host(1), on_host(1), on_host(2), on_host(2)};
    struct topology topology;
    identities[2].core_hash = 77; /* pinned elsewhere */
    identities[2].core_count = 1;
    assert_int_equal(topology_compute(identities, 5, &topology), 0);
    assert_int_equal(topology.core_counts[0], 5);
    assert_int_equal(topology.core_counts[1], 4);
    topology_done(&topology);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_numbered_by_first_ranks),
        cmocka_unit_test(who_may_not_share_is_a_host),
        cmocka_unit_test(cores_are_counted_by_set),
        cmocka_unit_test(hosts_of_one_machine_divide_its_cores),
        cmocka_unit_test(one_network_is_noticed),
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(damaged_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
