/* What a meeting of very many ranks takes, computed with the code that does it: the sizes that
 * docs/process-groups.md#very-many-ranks states. A host has 8 ranks, or one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "comm/context/verdict.h"
#include "comm/host/identity.h"
#include "comm/host/topology.h"

/* The store's limits (docs/formats/tcpstore.md): bytes of a value, keys of a request, bytes of an answer. */
#define STORE_VALUE_BYTES_MAX ((size_t)8 << 20)
#define STORE_KEYS_MAX ((size_t)131072)
#define STORE_ANSWER_BYTES_MAX ((size_t)1 << 30)

struct world {
    uint32_t ranks, per_host;
    bool is_scattered;         /* neighbouring ranks are on different hosts */
    size_t verdict_bytes_max;  /* what one rank reads */
    size_t topology_bytes_max; /* what it keeps of it */
};

static uint32_t host_of(const struct world *world, uint32_t rank) {
    uint32_t hosts = world->ranks / world->per_host;
    return world->is_scattered ? rank % hosts : rank / world->per_host;
}

static struct identity *make_identities(const struct world *world) {
    struct identity *identities = calloc(world->ranks, sizeof *identities);
    assert_non_null(identities);
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        uint32_t host = host_of(world, rank);
        struct identity *identity = &identities[rank];
        *identity = (struct identity){.may_share = true, .pid = 1000, .core_count = 64, .core_hash = 1, .token = rank};
        memcpy(identity->host.boot_id, &host, sizeof host);
        (void)snprintf(identity->host_name, sizeof identity->host_name, "node-%05u", host);
    }
    return identities;
}

static size_t topology_bytes(const struct topology *topology) {
    return topology->size * sizeof *topology->host_of +
           topology->host_count * (sizeof *topology->host_names + sizeof *topology->core_counts);
}

static void measure(const struct world *world) {
    struct identity *identities = make_identities(world);
    uint32_t *tokens = calloc(world->ranks, sizeof *tokens);
    struct topology topology;
    struct verdict verdict;
    uint8_t *bytes = NULL;
    size_t len = 0;
    assert_non_null(tokens);
    assert_int_equal(topology_compute(identities, world->ranks, &topology), 0);
    assert_int_equal(topology.host_count, world->ranks / world->per_host);
    assert_int_equal(verdict_encode_topology(&topology, tokens, &bytes, &len), 0);
    assert_int_equal(verdict_decode(bytes, len, world->ranks, &verdict), 0);
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        assert_int_equal(verdict.topology.host_of[rank], host_of(world, rank));
    }
    size_t kept = topology_bytes(&verdict.topology);
    print_message("%u ranks, %u a host%s: verdict %zu bytes, topology %zu bytes\n", world->ranks, world->per_host,
                  world->is_scattered ? ", scattered" : "", len, kept);
    assert_in_range(len, world->ranks * sizeof *tokens, world->verdict_bytes_max);
    assert_true(len <= STORE_VALUE_BYTES_MAX);
    assert_in_range(kept, 1, world->topology_bytes_max);
    verdict_done(&verdict);
    topology_done(&topology);
    free(bytes);
    free(tokens);
    free(identities);
}

static void the_verdict_of_a_hundred_thousand_ranks_fits(void **state) {
    (void)state;
    static const struct world worlds[] = {{1024, 8, false, 7000, 13000},
                                          {1024, 1, false, 22000, 75000},
                                          {100000, 8, false, 620000, 1300000},
                                          {100000, 8, true, 860000, 1300000},
                                          {100000, 1, false, 2200000, 7300000}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        measure(&worlds[i]);
    }
}

/* Rank 0 reads all records by one request. */
static void rank_0_can_ask_for_all_records(void **state) {
    (void)state;
    assert_true(STORE_KEYS_MAX >= 100000);
    assert_true((size_t)100000 * (IDENTITY_ENCODED_BYTES_MAX + sizeof(uint64_t)) < STORE_ANSWER_BYTES_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_verdict_of_a_hundred_thousand_ranks_fits),
        cmocka_unit_test(rank_0_can_ask_for_all_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
