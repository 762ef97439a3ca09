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
bool store_host_are_loopback(const struct net_addresses *addresses); /* all of at least one */
/* Where this process reaches what it serves itself, with the port. On loopback alone: where it listens. Else this asks:
 * the first of `named` that is this machine's now, else loopback, of IPv4 or IPv6, else an interface's. */
void store_host_own_address(const struct kv_server *server, const struct net_addresses *named, struct net_address *out);

enum { STORE_HOST_HINT_SIZE = 320 };
/* An endpoint that is loopback, since it was written so or not given at all (`host` NULL), leads each host to itself.
 * What people should know of it, where other nodes may come: where others reach this node, which serves there, or that
 * this node looks for the host on its own machine alone. "" where this machine has no other address. Returns `out`. */
const char *store_host_hint(const char *host, uint16_t port, bool is_served_here, char out[STORE_HOST_HINT_SIZE]);

/* Listens: at those of the given loopback addresses that this machine has, or, without any (NULL), on every address of
 * this machine, as names can mean any of them. `options` without addresses. MUSTER_ESYSTEM (errno kept: EADDRINUSE),
 * MUSTER_ENOMEM. */
int store_host_open(uv_loop_t *loop, const struct net_addresses *loopback, uint16_t port,
                    struct kv_server_options options, struct kv_server **out);

#endif
