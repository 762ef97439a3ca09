/* Which rank runs on which host: computed once by rank 0 from everybody's identity, and read by all. Pure. */
#ifndef COMM_TOPOLOGY_H
#define COMM_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/host/identity.h"

struct topology {
    uint32_t size, host_count;
    bool is_one_network;                          /* all ranks can reach each other through loopback */
    uint8_t engine_facts;                         /* that all ranks have (comm/engine/engine_choice.h) */
    uint32_t *host_of;                            /* per rank; hosts are numbered in the order of their first ranks */
    char (*host_names)[IDENTITY_HOST_NAME_BYTES]; /* per host */
    uint32_t *core_counts; /* per host: cores that its ranks may run on, together; where hosts are of one machine
                            * (MUSTER_SHM=0, containers), their share, rounded down */
};

/* MUSTER_ENOMEM. Sorts the ranks by host. */
int topology_compute(const struct identity *identities, uint32_t size, struct topology *out);
void topology_done(struct topology *topology);

/* The bytes in the store, malloc'd: the caller's. Runs of ranks on one host take two bytes or a few. */
int topology_encode(const struct topology *topology, uint8_t **out, size_t *out_len);
/* MUSTER_EPROTOCOL: no topology of `size` ranks; MUSTER_ENOMEM. */
int topology_decode(const uint8_t *data, size_t len, uint32_t size, struct topology *out);

#endif
