/* The door of a workers' store when the job has a secret: an agent of another node shows that it knows it, and from
 * then on workers of that node are served, until the store is emptied for the next round (kv_guest_admit()). Workers
 * are plain TCPStore clients, who cannot show anything themselves.
 *
 * A guest of the store's server: greeting, handshake and one ALIVE, which is answered by HEARD
 * (docs/formats/coordinator.md). The other side is worker_pass.h. */
#ifndef RENDEZVOUS_WORKER_DOOR_H
#define RENDEZVOUS_WORKER_DOOR_H

#include "rendezvous/secret.h"
#include "store/kv_guest.h"

struct worker_door;

/* `secret` is borrowed until worker_door_free(), `run_id` copied. MUSTER_ENOMEM. */
int worker_door_create(const struct secret *secret, const char *run_id, struct worker_door **out);
void worker_door_free(struct worker_door *door); /* after the store; NULL accepted */

const struct kv_guest *worker_door_guest(const struct worker_door *door);

#endif
