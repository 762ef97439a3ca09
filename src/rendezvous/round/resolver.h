/* Resolves one name, or finds this machine's own full name, without blocking the loop. The system resolver may take
 * minutes, or never return: it runs on a detached thread that nobody waits for. Numeric addresses and localhost need no
 * thread. */
#ifndef RENDEZVOUS_RESOLVER_H
#define RENDEZVOUS_RESOLVER_H

#include <uv.h>

#include "net/endpoint.h"

struct resolver;

/* status 0 and the addresses, or MUSTER_ERESOLVE with the reason in muster_detail(). Borrowed until return. */
typedef void resolver_cb(void *ctx, int status, const struct net_addresses *addresses);

/* Starts a thread for a name that is not numeric. `cb` comes once, from the loop. MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int resolver_start(uv_loop_t *loop, const char *host, uint16_t port, resolver_cb *cb, void *ctx, struct resolver **out);

typedef void resolver_name_cb(void *ctx, const char *name);

/* This machine's full name (net_full_host_name()), which is a look-up, too. `cb` comes once, from the loop.
 * MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int resolver_start_own_name(uv_loop_t *loop, resolver_name_cb *cb, void *ctx, struct resolver **out);

/* After `cb` or instead of it; NULL accepted. The thread, if still at work, ends on its own. */
void resolver_close(struct resolver *resolver);

#endif
