/* Serving a store at an endpoint: is its address one of this machine's, and where to listen. */
#ifndef RENDEZVOUS_STORE_HOST_H
#define RENDEZVOUS_STORE_HOST_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "net/endpoint.h"
#include "store/server/kv_server.h"

/* The host is a numeric loopback address, or localhost. */
bool store_host_is_loopback(const char *host);
/* The first address that this machine may bind; NULL: none. Borrowed from `addresses`. */
const struct sockaddr *store_host_first_local(const struct net_addresses *addresses);

/* Listens: at the given loopback addresses alone or, without any (NULL), on every address of this machine, as names can
 * mean any of them. `options` without addresses. MUSTER_ESYSTEM (errno kept: EADDRINUSE), MUSTER_ENOMEM. */
int store_host_open(uv_loop_t *loop, const struct net_addresses *loopback, uint16_t port,
                    struct kv_server_options options, struct kv_server **out);

#endif
