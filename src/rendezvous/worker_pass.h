/* A node's pass to the workers' store of another one, when the job has a secret: its agent connects, shows that it
 * knows the secret, and hears that workers from this address are served (worker_door.h). On a libuv loop; nothing
 * blocks. */
#ifndef RENDEZVOUS_WORKER_PASS_H
#define RENDEZVOUS_WORKER_PASS_H

#include <uv.h>

#include "rendezvous/native_session.h"

struct worker_pass;

/* 0: workers may come. Else it was not to be had, muster_detail() says why: MUSTER_EPROTOCOL (another secret),
 * MUSTER_ECONNECT, MUSTER_ETIMEOUT (nobody answers), MUSTER_ERESOLVE. May close the pass. */
typedef void worker_pass_cb(void *ctx, int status);

/* Tries until `timeout_ms` are over: the other agent may have other things to do at the moment. `host`: numeric or a
 * name; copied. `key->run_id` is borrowed until worker_pass_close(). `cb` comes once, from the loop. MUSTER_ENOMEM. */
int worker_pass_open(uv_loop_t *loop, const char *host, uint16_t port, const struct native_session_key *key,
                     uint64_t timeout_ms, worker_pass_cb *cb, void *ctx, struct worker_pass **out);

/* After `cb` or instead of it. Frees during later turns of the loop. NULL accepted. */
void worker_pass_close(struct worker_pass *pass);

#endif
