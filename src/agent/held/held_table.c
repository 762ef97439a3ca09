/* See held_table.h. A few names, as a rule one or two a worker: they are looked through one by one. */
#include "agent/held/held_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum { CAPACITY_FIRST = 8 };

void held_table_init(struct held_table *t, size_t max) {
    *t = (struct held_table){.max = max < HELD_NAMES_MAX ? max : HELD_NAMES_MAX};
}

void held_table_done(struct held_table *t) {
    free(t->entries);
    *t = (struct held_table){0};
}

static struct held_entry *find(const struct held_table *t, const char *name) {
    for (size_t i = 0; i < t->count; i++) {
        if (strcmp(t->entries[i].name, name) == 0) {
            return &t->entries[i];
        }
    }
    return NULL;
}

static int make_room(struct held_table *t) {
    if (t->count == t->max) {
        return status_fail(MUSTER_ELIMIT, "no more than %zu names of memory are kept", t->max);
    }
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : CAPACITY_FIRST;
        struct held_entry *entries = realloc(t->entries, capacity * sizeof *entries);
        if (!entries) {
            return status_fail(MUSTER_ENOMEM, "no memory for the names of %zu pieces of memory", capacity);
        }
        t->entries = entries;
        t->capacity = capacity;
    }
    return MUSTER_OK;
}

int held_table_put(struct held_table *t, const char *name, int fd, uint64_t bytes, int *out_old) {
    struct held_entry *entry = find(t, name);
    assert(fd >= 0 && held_name_is_valid(name));
    *out_old = entry ? entry->fd : -1;
    if (!entry) {
        int status = make_room(t);
        if (status != MUSTER_OK) {
            return status;
        }
        entry = &t->entries[t->count++];
        (void)str_copy(entry->name, sizeof entry->name, name);
    }
    entry->fd = fd;
    entry->bytes = bytes;
    return MUSTER_OK;
}

int held_table_get(const struct held_table *t, const char *name) {
    const struct held_entry *entry = find(t, name);
    return entry ? entry->fd : -1;
}

static int take(struct held_table *t, struct held_entry *entry) {
    int fd = entry->fd;
    *entry = t->entries[--t->count];
    return fd;
}

int held_table_drop(struct held_table *t, const char *name) {
    struct held_entry *entry = find(t, name);
    return entry ? take(t, entry) : -1;
}

int held_table_drop_any(struct held_table *t) {
    return t->count > 0 ? take(t, &t->entries[t->count - 1]) : -1;
}

uint64_t held_table_bytes(const struct held_table *t) {
    uint64_t sum = 0;
    for (size_t i = 0; i < t->count; i++) {
        uint64_t bytes = t->entries[i].bytes;
        sum = bytes > UINT64_MAX - sum ? UINT64_MAX : sum + bytes;
    }
    return sum;
}
