/* Which memory the agent holds: descriptors by name. Pure: descriptors are numbers, and closing them is the caller's.
 */
#ifndef AGENT_HELD_TABLE_H
#define AGENT_HELD_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/held/held_wire.h"

struct held_entry {
    char name[HELD_NAME_BYTES];
    int fd;
    pid_t owner; /* the process that has put it */
    uint64_t bytes;
    uint64_t used; /* by held_table.now */
};

struct held_table {
    struct held_entry *entries; /* owned; in no order */
    size_t count, capacity, max;
    uint64_t now; /* counts puts and gets */
};

/* At most `max` names, and never more than HELD_NAMES_MAX. */
void held_table_init(struct held_table *t, size_t max);
void held_table_done(struct held_table *t);

/* What one process may have of them; a worker needs a handful. A process that puts more is forgetting them: for each
 * its oldest one goes, and nobody else's. */
size_t held_table_share(const struct held_table *t);

/* What makes way for a name that is put. */
struct held_old {
    int fd;           /* the table's no more, and now the caller's; -1: nothing */
    bool is_given_up; /* it had another name, the one of the owner's that was used least recently: it has its share */
};

/* MUSTER_ELIMIT, MUSTER_ENOMEM: nothing has changed. */
int held_table_put(struct held_table *t, const char *name, int fd, uint64_t bytes, pid_t owner,
                   struct held_old *out_old);

/* -1: nothing has that name. It stays the table's. */
int held_table_get(struct held_table *t, const char *name);

/* Takes out a name that an ended process has left, of the one that has left most: its descriptor, or -1. */
int held_table_drop_left(struct held_table *t, bool (*has_ended)(pid_t owner));

/* Takes out a name: its descriptor, now the caller's, or -1. */
int held_table_drop(struct held_table *t, const char *name);

/* Takes out some name: its descriptor, or -1 when none is left. */
int held_table_drop_any(struct held_table *t);

/* Of all, or UINT64_MAX if that is more. */
uint64_t held_table_bytes(const struct held_table *t);

#endif
