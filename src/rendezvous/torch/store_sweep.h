/* Finds out whether a workers' store lives, and empties it when PyTorch's agent hosts it.
 *
 * That agent keeps one store for its whole life, so that a restarted group would meet the keys of dead attempts. Ours
 * empties its store itself. All on the loop's thread, nothing blocks. */
#ifndef RENDEZVOUS_STORE_SWEEP_H
#define RENDEZVOUS_STORE_SWEEP_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct store_sweep;

/* status 0: there is a store, and is_muster says whose; PyTorch's is empty now (one that cannot be emptied is left as
 * it is, with a log line). MUSTER_ERESOLVE, MUSTER_ECONNECT and their like: there is none. Once, from the loop; may
 * close the sweep. */
typedef void store_sweep_cb(void *ctx, int status, bool is_muster);

/* Nobody may be using the store meanwhile. `host`: copied. MUSTER_ENOMEM, MUSTER_ESYSTEM, MUSTER_EINVAL. */
int store_sweep_start(uv_loop_t *loop, const char *host, uint16_t port, store_sweep_cb *cb, void *ctx,
                      struct store_sweep **out);

/* After the callback or instead of it. NULL accepted. */
void store_sweep_close(struct store_sweep *sweep);

#endif
