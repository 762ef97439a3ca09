/* The barrier at the end of a job, by a counter in the nodes' store: keys and contents are PyTorch's. */
#ifndef RENDEZVOUS_EXIT_BARRIER_H
#define RENDEZVOUS_EXIT_BARRIER_H

#include <stdbool.h>

#include "store/kv_client.h"

struct exit_barrier;

/* passed: all have come. Otherwise the time is up, some will not come, or the store is lost, with muster_detail().
 * Once, from the loop; may close the barrier. */
typedef void exit_barrier_cb(void *ctx, bool passed);

/* Is it known already that not all will come? */
typedef bool exit_barrier_in_vain(const void *ctx);

/* Counts this node in and waits for `count` nodes. client: borrowed until exit_barrier_close(); nobody else may use it
 * meanwhile. prefix: of the keys; copied. in_vain: asked once, when the node has been counted and others are missing;
 * what becomes known later is for the caller to act upon. MUSTER_ENOMEM, MUSTER_ECLOSED, MUSTER_ELIMIT. */
int exit_barrier_start(struct kv_client *client, const char *prefix, uint32_t count, uint64_t timeout_ms,
                       exit_barrier_in_vain *in_vain, exit_barrier_cb *cb, void *ctx, struct exit_barrier **out);
/* After the callback, or to give up: then close the client first, so that no answer can come. NULL accepted. */
void exit_barrier_close(struct exit_barrier *barrier);

#endif
