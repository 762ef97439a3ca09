/* The store that the workers of a job meet in (MASTER_ADDR, MASTER_PORT), hosted by the agent of rank 0. */
#ifndef RENDEZVOUS_WORKER_STORE_H
#define RENDEZVOUS_WORKER_STORE_H

#include "net/endpoint.h"
#include "store/kv_server.h"

/* Serves on a port of the kernel's choice: on loopback alone, or on every address. MUSTER_ESYSTEM, MUSTER_ENOMEM. */
int worker_store_open(uv_loop_t *loop, bool loopback, struct kv_server **out);

/* A port that is free now, for a store that a worker will host. */
int worker_store_free_port(uv_loop_t *loop, bool loopback, uint16_t *out);

/* The numeric address by which others reach this machine, when the connection to the store does not tell:
 * the first address of an interface that is up and not loopback, IPv4 before IPv6; "127.0.0.1" without one. */
void worker_store_own_address(char out[NET_ADDRESS_TEXT_MAX]);

#endif
