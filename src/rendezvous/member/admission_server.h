/* Admission to a workers' store when the job has a secret: an agent of another node shows that it knows it, and from
 * then on workers of that node are served, until the store is emptied for the next round (kv_guest_admit()). Workers
 * are plain TCPStore clients, who cannot show anything themselves.
 *
 * A guest of the store's server: greeting, handshake and one ALIVE, which is answered by HEARD
 * (docs/formats/coordinator.md). The other side is admission_client.h. */
#ifndef RENDEZVOUS_ADMISSION_SERVER_H
#define RENDEZVOUS_ADMISSION_SERVER_H

#include "rendezvous/wire/secret.h"
#include "store/server/kv_guest.h"

struct admission_server;

/* `secret` is borrowed until admission_server_free(), `run_id` copied. MUSTER_ENOMEM. */
int admission_server_create(const struct secret *secret, const char *run_id, struct admission_server **out);
void admission_server_free(struct admission_server *server); /* after the store; NULL accepted */

const struct kv_guest *admission_server_guest(const struct admission_server *server);

#endif
