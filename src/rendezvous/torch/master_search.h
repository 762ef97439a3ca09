/* Where the workers' store is, from what earlier rounds were told: MASTER_ADDR and MASTER_PORT under their prefixes.
 *
 * PyTorch's agents tell and ask this once in their life. One that stays rank 0 does not publish it again, one that
 * stays a member does not read it again; so whoever wants to meet them has to go where they already are. Of PyTorch's
 * stores what is found is empty (store_sweep.h). On the loop's thread, nothing blocks. */
#ifndef RENDEZVOUS_MASTER_SEARCH_H
#define RENDEZVOUS_MASTER_SEARCH_H

#include "net/endpoint.h"
#include "rendezvous/torch/store_sweep.h"
#include "store/client/kv_client.h"

struct master_search;

struct master_search_options {
    uv_loop_t *loop;
    struct kv_client *waiter; /* borrowed until master_search_close(); nobody else may use it meanwhile */
    const char *key;          /* of the rendezvous state; prefixes are made of it; copied */
    int64_t round;            /* rounds before this one are looked at, the latest first */
    const char *own_addr;     /* this node's own store, which needs no looking at; port 0: it has none; copied */
    uint16_t own_port;
    bool accept_muster; /* may the store be one of ours? */
    /* Is the store's host, by its name in the state, a node that this round can have met before? PyTorch's agents give
     * that name as MASTER_ADDR; ours give a numeric address there, and the name as MASTER_NODE. */
    bool (*accept_host)(void *ctx, const char *host);
};

struct master_found {
    char addr[NET_HOST_MAX];
    char node[NET_HOST_MAX]; /* its name in the state */
    uint16_t port;
};

/* status 0 and where; MUSTER_ENOENT: no earlier round names a store that is still there; or what failed. Once, from
 * the loop; may close the search. */
typedef void master_search_cb(void *ctx, int status, const struct master_found *found);

/* `ctx` goes to accept_host too. MUSTER_ENOMEM, MUSTER_ECLOSED, MUSTER_ELIMIT, MUSTER_EINVAL. */
int master_search_start(const struct master_search_options *options, master_search_cb *cb, void *ctx,
                        struct master_search **out);

/* After the callback, or to give up: then close the waiter first, so that no answer can come. NULL accepted. */
void master_search_close(struct master_search *search);

#endif
