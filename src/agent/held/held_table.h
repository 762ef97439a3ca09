/* Which memory the agent holds: descriptors by name. Pure: descriptors are numbers, and closing them is the caller's.
 */
#ifndef AGENT_HELD_TABLE_H
#define AGENT_HELD_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/held/held_wire.h"

struct held_entry {
    char name[HELD_NAME_BYTES];
    int fd;
    uint64_t bytes;
};

struct held_table {
    struct held_entry *entries; /* owned; in no order */
    size_t count, capacity, max;
};

/* At most `max` names, and never more than HELD_NAMES_MAX. */
void held_table_init(struct held_table *t, size_t max);
void held_table_done(struct held_table *t);

/* *out_old: the descriptor that had the name until now, or -1. MUSTER_ELIMIT, MUSTER_ENOMEM: nothing has changed. */
int held_table_put(struct held_table *t, const char *name, int fd, uint64_t bytes, int *out_old);

/* -1: nothing has that name. It stays the table's. */
int held_table_get(const struct held_table *t, const char *name);

/* Takes out a name: its descriptor, now the caller's, or -1. */
int held_table_drop(struct held_table *t, const char *name);

/* Takes out some name: its descriptor, or -1 when none is left. */
int held_table_drop_any(struct held_table *t);

/* Of all, or UINT64_MAX if that is more. */
uint64_t held_table_bytes(const struct held_table *t);

#endif
