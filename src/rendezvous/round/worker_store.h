/* The store that the workers of a job meet in (MASTER_ADDR, MASTER_PORT), hosted by the agent of rank 0. */
#ifndef RENDEZVOUS_WORKER_STORE_H
#define RENDEZVOUS_WORKER_STORE_H

#include "net/endpoint.h"
#include "store/server/kv_server.h"

/* Who is served when the job has a secret: workers of this machine, of nodes that the guest has admitted
 * (admission_server.h), and from addresses that were allowed. */
struct worker_store_guard {
    const struct kv_guest *admission; /* borrowed as long as the store is there */
    const struct net_ranges *allowed; /* borrowed until return */
};

/* Where the store is served. A job whose nodes meet on loopback is served there, and at --local-addr, because that is
 * the MASTER_ADDR that its workers are told. A name there could be any of this machine's addresses, so that all serve.
 */
struct worker_store_place {
    bool loopback;          /* false: on every address */
    const char *local_addr; /* borrowed until return; NULL: none given */
};

/* Serves on a port of the kernel's choice. `guard`: NULL for everybody. MUSTER_ESYSTEM, MUSTER_ENOMEM. */
int worker_store_open(uv_loop_t *loop, struct worker_store_place place, const struct worker_store_guard *guard,
                      struct kv_server **out);

/* A port that is free now, for a store that a worker will host. */
int worker_store_free_port(uv_loop_t *loop, struct worker_store_place place, uint16_t *out);

/* For another attempt of the workers: opens *store, which is empty then, or empties it, so that none of its keys or
 * connections reach the next one. With `is_shared` false a free port is found instead, for worker 0. */
int worker_store_prepare(uv_loop_t *loop, struct worker_store_place place, bool is_shared,
                         const struct worker_store_guard *guard, struct kv_server **store, uint16_t *port);

/* The numeric address by which others reach this machine, when the connection to the store does not tell:
 * the first address of an interface that is up and not loopback, IPv4 before IPv6; "127.0.0.1" without one. */
void worker_store_own_address(char out[NET_ADDRESS_TEXT_MAX]);

/* The address that this node tells the others: the one given (NULL: none), else its own end of a connection to where
 * they meet (NULL: not known), else worker_store_own_address(). A loopback address says something only where everybody
 * is on this machine. */
void worker_store_told_address(const char *given, const struct sockaddr *connection, bool all_on_loopback, char *out,
                               size_t size);

#endif
