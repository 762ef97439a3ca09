/* A sign that rank 0 lives, for ranks that cannot see its process: a socket on which it listens until it has told who
 * is on which host. It never accepts; the kernel does, and ends the connections with the process. Who waits for rank 0
 * connects: when the connection ends and a new one is refused by the same address, rank 0 has gone, or has told.
 *
 * An address alone proves nothing, since the same one may belong to several machines (bridges of containers). So only
 * what was connected before counts, and addresses of this machine are left out if rank 0 runs on another. */
#ifndef COMM_BEACON_H
#define COMM_BEACON_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/host/identity.h"

/* Listens (on_loopback: nowhere else), and writes where into the identity. Returns the socket, to be closed; -1:
 * without a beacon its end is noticed at the time-out. */
int beacon_light(bool on_loopback, struct identity *out);

struct beacon_watch {
    struct identity identity;
    uint32_t at; /* which of its addresses */
    int fd;      /* -1: none */
    bool is_connected, was_connected;
};

/* identity: whose beacon; copied. Does nothing yet. */
void beacon_watch_begin(struct beacon_watch *watch, const struct identity *identity);
void beacon_watch_end(struct beacon_watch *watch);
/* Looks, without blocking; to be called again and again. true: it has gone out. */
bool beacon_is_out(struct beacon_watch *watch);
/* Can it ever be seen from here? */
bool beacon_is_in_sight(const struct beacon_watch *watch);

#endif
