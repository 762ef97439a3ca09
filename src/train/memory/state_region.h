/* Memory for a state of training: parameters, and what optimizers remember. All of it comes from here, so that it can
 * be shared by the ranks of a host, and come from another process that keeps it when its users die.
 *
 * A region is one mapping a host: the ranks of the group on one host see the same memory. It is anonymous memory with
 * the name "muster-state", which /proc/PID/smaps shows. */
#ifndef TRAIN_STATE_REGION_H
#define TRAIN_STATE_REGION_H

#include <stddef.h>

#include <muster/group.h>

#include "comm/host/segment.h"

struct state_region {
    struct segment segment;
    void *memory; /* aligned to 64 bytes; NULL: a region of 0 bytes */
    size_t bytes;
};

/* A region of `bytes` on this host, zeroed. Collective over the group; ranks of one host give the same number, hosts
 * their own. segment.fd is open in the host's lowest rank, for as long as the region there, and -1 in the others: it is
 * what holder_put() takes. NULL: for this process alone. what: for sentences, "parameters". A failure of one rank is a
 * failure of all, with its sentence (the group has been aborted). Blocks. MUSTER_ENOMEM (pages are reserved: a later
 * write cannot end in SIGBUS), MUSTER_ESYSTEM. */
int state_region_create(struct muster_group *group, const char *what, size_t bytes, struct state_region *out);

/* A region in memory that somebody else has made and holds: fd is that of a struct segment, and stays the caller's. Not
 * collective. MUSTER_ECORRUPT: it is no such memory, or has less than `bytes`. */
int state_region_adopt(int fd, size_t bytes, struct state_region *out);

/* The region of a host that one of its ranks has found: fd is that of memory made with state_region_create(), given by
 * the first rank of the group, whose ranks are all on one host; it stays the caller's. out->segment.fd is another one
 * on every rank, for a holder. Collective; NULL: for this process alone. Errors as with state_region_create(). */
int state_region_find(struct muster_group *group, const char *what, int fd, struct state_region *out);

/* Unmaps it here. A region that is zeroed throughout is accepted. */
void state_region_free(struct state_region *region);

#endif
