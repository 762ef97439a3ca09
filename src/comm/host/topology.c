/* Grouping ranks by host, and the form in the store:
 *
 *     u32 magic "MTOP", u8 version, u8 is_one_network, varint size, varint host_count,
 *     host_count times: u8 length, name, varint cores
 *     until all ranks have a host: varint run length, varint host
 *
 * Varints as in base/bytes.h. */
#include "comm/host/topology.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"

#define MAGIC UINT32_C(0x504F544D) /* "MTOP" */
enum { VERSION = 3, VARINT_U32_BYTES = 5 };

static int allocate(struct topology *topology, uint32_t size, uint32_t host_count) {
    *topology = (struct topology){.size = size, .host_count = host_count};
    topology->host_of = calloc(size, sizeof *topology->host_of);
    topology->host_names = calloc(host_count, sizeof *topology->host_names);
    topology->core_counts = calloc(host_count, sizeof *topology->core_counts);
    if (!topology->host_of || !topology->host_names || !topology->core_counts) {
        topology_done(topology);
        return status_fail(MUSTER_ENOMEM, "no memory for the topology of %u ranks", size);
    }
    return 0;
}

void topology_done(struct topology *topology) {
    free(topology->host_of);
    free(topology->host_names);
    free(topology->core_counts);
    *topology = (struct topology){0};
}

/* A rank, to be put beside those of its host. */
struct member {
    const struct identity *identity;
    uint32_t rank;
};

static int compare_members(const void *left, const void *right) {
    const struct member *a = left, *b = right;
    int order = identity_compare_hosts(a->identity, b->identity);
    return order ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* Where the members of the host end that begin at `from`. */
static uint32_t end_of_host(const struct member *members, uint32_t from, uint32_t size) {
    uint32_t to = from + 1;
    while (to < size && identity_share_host(members[from].identity, members[to].identity)) {
        to++;
    }
    return to;
}

/* Ranks of a host that may use the same cores share them; otherwise each brings its own. Sets that overlap in part are
 * rare, and counted twice. */
static uint32_t count_cores(const struct member *members, uint32_t from, uint32_t to) {
    uint32_t cores = 0;
    for (uint32_t i = from; i < to; i++) {
        bool is_new = true;
        for (uint32_t other = i; is_new && other-- > from;) {
            is_new = members[other].identity->core_hash != members[i].identity->core_hash;
        }
        cores += is_new ? members[i].identity->core_count : 0;
    }
    return cores;
}

/* A host of the topology, as far as it competes with others: equal machines and sets of cores do. */
struct place {
    uint8_t boot_id[16];
    uint32_t core_hash, host, rank_count;
};

static int compare_places(const void *left, const void *right) {
    const struct place *a = left, *b = right;
    int order = memcmp(a->boot_id, b->boot_id, sizeof a->boot_id);
    if (order != 0 || a->core_hash != b->core_hash) {
        return order != 0 ? order : a->core_hash < b->core_hash ? -1 : 1;
    }
    return (a->host > b->host) - (a->host < b->host);
}

static bool share_cores(const struct place *a, const struct place *b) {
    return memcmp(a->boot_id, b->boot_id, sizeof a->boot_id) == 0 && a->core_hash == b->core_hash;
}

/* Ranks of one machine that may not share memory (MUSTER_SHM=0, containers) count as hosts of their own, but still
 * compete for its cores: each such host has its ranks' share of them, which may be none. */
static int divide_cores(const struct identity *identities, const uint32_t *first_ranks, struct topology *topology) {
    assert(topology->host_count > 0);
    struct place *places = calloc(topology->host_count, sizeof *places);
    if (!places) {
        return status_fail(MUSTER_ENOMEM, "no memory for the topology of %u ranks", topology->size);
    }
    for (uint32_t host = 0; host < topology->host_count; host++) {
        const struct identity *first = &identities[first_ranks[host]];
        places[host] = (struct place){.core_hash = first->core_hash, .host = host};
        memcpy(places[host].boot_id, first->host.boot_id, sizeof places[host].boot_id);
    }
    for (uint32_t rank = 0; rank < topology->size; rank++) {
        places[topology->host_of[rank]].rank_count++;
    }
    qsort(places, topology->host_count, sizeof *places, compare_places);
    for (uint32_t from = 0, to; from < topology->host_count; from = to) {
        uint64_t ranks = 0;
        for (to = from; to < topology->host_count && share_cores(&places[from], &places[to]); to++) {
            ranks += places[to].rank_count;
        }
        for (uint32_t i = from; i < to; i++) {
            uint32_t *cores = &topology->core_counts[places[i].host];
            *cores = (uint32_t)(*cores * (uint64_t)places[i].rank_count / ranks);
        }
    }
    free(places);
    return 0;
}

/* Numbers the hosts in the order of their first ranks, which go into first_ranks. members: sorted. */
static void number_hosts(const struct member *members, struct topology *topology, uint32_t *first_ranks) {
    for (uint32_t from = 0, to; from < topology->size; from = to) {
        to = end_of_host(members, from, topology->size);
        for (uint32_t i = from; i < to; i++) {
            topology->host_of[members[i].rank] = members[from].rank; /* for now: the host's first rank */
        }
    }
    topology->host_count = 0;
    for (uint32_t rank = 0; rank < topology->size; rank++) {
        uint32_t first = topology->host_of[rank];
        bool is_first = first == rank;
        topology->host_of[rank] = is_first ? topology->host_count : topology->host_of[first];
        if (is_first) {
            first_ranks[topology->host_count++] = rank;
        }
    }
}

static void describe_hosts(const struct identity *identities, const struct member *members, struct topology *topology) {
    topology->is_one_network = identities[0].network != 0;
    topology->engine_facts = UINT8_MAX;
    for (uint32_t rank = 0; rank < topology->size; rank++) {
        topology->is_one_network = topology->is_one_network && identities[rank].network == identities[0].network;
        topology->engine_facts &= identities[rank].engine_facts;
    }
    for (uint32_t from = 0, to; from < topology->size; from = to) {
        uint32_t host = topology->host_of[members[from].rank];
        to = end_of_host(members, from, topology->size);
        topology->core_counts[host] = count_cores(members, from, to);
        memcpy(topology->host_names[host], members[from].identity->host_name, IDENTITY_HOST_NAME_BYTES);
    }
}

int topology_compute(const struct identity *identities, uint32_t size, struct topology *out) {
    struct topology topology = {0};
    assert(size > 0);
    uint32_t *first_ranks = calloc(size, sizeof *first_ranks); /* of each host */
    struct member *members = calloc(size, sizeof *members);
    int code = first_ranks && members ? allocate(&topology, size, size)
                                      : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", size);
    for (uint32_t rank = 0; code == 0 && rank < size; rank++) {
        members[rank] = (struct member){&identities[rank], rank};
    }
    if (code == 0) {
        qsort(members, size, sizeof *members, compare_members);
        number_hosts(members, &topology, first_ranks);
        describe_hosts(identities, members, &topology);
        code = divide_cores(identities, first_ranks, &topology);
    }
    free(members);
    free(first_ranks);
    if (code) {
        topology_done(&topology);
        return code;
    }
    *out = topology;
    return 0;
}

int topology_encode(const struct topology *topology, uint8_t **out, size_t *out_len) {
    size_t room = 17 + 2 * VARINT_U32_BYTES +
                  (size_t)topology->host_count * (IDENTITY_HOST_NAME_BYTES + VARINT_U32_BYTES) +
                  (size_t)topology->size * 2 * VARINT_U32_BYTES;
    struct bytes_writer w = {malloc(room), room, 0, false};
    if (!w.data) {
        return status_fail(MUSTER_ENOMEM, "no memory for the topology of %u ranks", topology->size);
    }
    bytes_put_number(&w, MAGIC, 4);
    bytes_put_number(&w, VERSION, 1);
    bytes_put_number(&w, topology->is_one_network, 1);
    bytes_put_number(&w, topology->engine_facts, 1);
    bytes_put_varint(&w, topology->size);
    bytes_put_varint(&w, topology->host_count);
    for (uint32_t host = 0; host < topology->host_count; host++) {
        size_t length = strnlen(topology->host_names[host], IDENTITY_HOST_NAME_BYTES - 1);
        bytes_put_number(&w, length, 1);
        bytes_put(&w, topology->host_names[host], length);
        bytes_put_varint(&w, topology->core_counts[host]);
    }
    for (uint32_t rank = 0, end; rank < topology->size; rank = end) {
        for (end = rank + 1; end < topology->size && topology->host_of[end] == topology->host_of[rank];) {
            end++;
        }
        bytes_put_varint(&w, end - rank);
        bytes_put_varint(&w, topology->host_of[rank]);
    }
    *out = w.data;
    *out_len = w.used;
    return 0;
}

static int no_topology(struct topology *topology, size_t len) {
    topology_done(topology);
    return status_fail(MUSTER_EPROTOCOL, "the list of hosts in the store (%zu bytes) is not understood", len);
}

int topology_decode(const uint8_t *data, size_t len, uint32_t size, struct topology *out) {
    struct bytes_reader r = {data, len, 0, false};
    struct topology topology = {0};
    uint64_t magic = bytes_get_number(&r, 4), version = bytes_get_number(&r, 1), one_network = bytes_get_number(&r, 1),
             engine_facts = bytes_get_number(&r, 1), ranks = bytes_get_varint(&r), hosts = bytes_get_varint(&r);
    if (r.overrun || magic != MAGIC || version != VERSION || one_network > 1 || ranks != size || hosts == 0 ||
        hosts > size) {
        return no_topology(&topology, len);
    }
    int code = allocate(&topology, size, (uint32_t)hosts);
    if (code) {
        return code;
    }
    topology.is_one_network = one_network == 1;
    topology.engine_facts = (uint8_t)engine_facts;
    for (uint32_t host = 0; host < hosts; host++) {
        size_t length = bytes_get_number(&r, 1);
        const uint8_t *name = bytes_get(&r, length);
        uint64_t core_count = bytes_get_varint(&r);
        if (!name || length >= IDENTITY_HOST_NAME_BYTES || core_count > UINT32_MAX) {
            return no_topology(&topology, len);
        }
        topology.core_counts[host] = (uint32_t)core_count;
        memcpy(topology.host_names[host], name, length);
    }
    uint64_t next_host = 0; /* the order of first ranks: each run's host is known, or the next */
    for (uint32_t rank = 0; rank < size;) {
        uint64_t run = bytes_get_varint(&r), host = bytes_get_varint(&r);
        if (r.overrun || run == 0 || run > size - rank || host > next_host || host >= hosts) {
            return no_topology(&topology, len);
        }
        next_host += host == next_host ? 1 : 0;
        for (; run > 0; run--) {
            topology.host_of[rank++] = (uint32_t)host;
        }
    }
    if (next_host != hosts || r.used != len) {
        return no_topology(&topology, len);
    }
    *out = topology;
    return 0;
}
