/* What the nodes of a round tell each other through the store before workers start: where the workers' store is, and
 * who starts how many workers of which role; from that, everybody's ranks. And the barrier at the end.
 *
 * Keys and contents are PyTorch's (docs/rendezvous.md, "After a round"). */
#ifndef RENDEZVOUS_EXCHANGE_H
#define RENDEZVOUS_EXCHANGE_H

#include "net/endpoint.h"
#include "store/client/kv_client.h"

struct exchange;

struct exchange_options {
    struct kv_client *client; /* borrowed until exchange_close(): requests that are answered at once */
    struct kv_client *waiter; /* borrowed: requests that may wait; nobody else may use it meanwhile */
    const char *prefix;       /* of all keys, "/" at the end; copied */
    const char *role;         /* copied */
    uint32_t rank;
    uint32_t node_count;
    uint32_t local_world_size;
    bool identical; /* every node starts as many workers of one role: nothing is told */
    /* Rank 0 gives the address of the workers' store, the others learn it unless address_known. */
    bool address_known;
    bool publish_address;
    const char *master_addr; /* copied */
    uint16_t master_port;
    uint64_t timeout_ms;
    /* With `identical`, where rank 0 says nothing else: how long its address is waited for. */
    uint64_t address_timeout_ms;
};

struct exchange_result {
    uint32_t base_global_rank;
    uint32_t global_world_size;
    uint32_t base_role_rank;
    uint32_t role_world_size;
    char master_addr[NET_HOST_MAX];
    uint16_t master_port;
};

/* status 0 and the result, or a code with muster_detail(); MUSTER_ENOENT: rank 0 has told what it has to tell, and no
 * address was with it (PyTorch's agents tell it once in their life). Once; may close the exchange. */
typedef void exchange_cb(void *ctx, int status, const struct exchange_result *result);

/* Starts; `cb` comes from the loop, never from inside. MUSTER_ENOMEM, MUSTER_ECLOSED, MUSTER_ELIMIT. */
int exchange_start(const struct exchange_options *options, exchange_cb *cb, void *ctx, struct exchange **out);

/* After `cb`, or to give up: then close the waiter first, so that no answer can come. NULL accepted. */
void exchange_close(struct exchange *exchange);

#endif
