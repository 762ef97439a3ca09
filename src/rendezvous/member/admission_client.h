/* Admission of a node's workers to the workers' store of another one, when the job has a secret: its agent connects,
 * shows that it knows the secret, and hears that workers from this address are served (admission_server.h). On a libuv
 * loop; nothing blocks. */
#ifndef RENDEZVOUS_ADMISSION_CLIENT_H
#define RENDEZVOUS_ADMISSION_CLIENT_H

#include <uv.h>

#include "net/loop_clock.h"
#include "rendezvous/member/native_connection.h"

struct admission_client;

/* 0: workers may come. Else it was not to be had, muster_detail() says why: MUSTER_EPROTOCOL (another secret),
 * MUSTER_ECONNECT, MUSTER_ETIMEOUT (nobody answers), MUSTER_ERESOLVE. May close the client. */
typedef void admission_client_cb(void *ctx, int status);

/* Tries until `timeout_ms` are over: the other agent may have other things to do at the moment. `host`: numeric or a
 * name; copied. `key->run_id` is borrowed until admission_client_close(). `cb` comes once, from the loop.
 * MUSTER_ENOMEM. */
int admission_client_open(uv_loop_t *loop, const char *host, uint16_t port, const struct native_connection_key *key,
                          uint64_t timeout_ms, admission_client_cb *cb, void *ctx, struct admission_client **out);

/* By whose clock its time is counted; borrowed until admission_client_close(). Right after opening. Without one, time
 * that this process was away counts as well. */
void admission_client_set_clock(struct admission_client *client, struct loop_clock *clock);

/* After `cb` or instead of it. Frees during later turns of the loop. NULL accepted. */
void admission_client_close(struct admission_client *client);

#endif
