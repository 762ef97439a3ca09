/* See held_table.h. A few names, as a rule one or two a worker: they are looked through one by one. */
#include "agent/held/held_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum { CAPACITY_FIRST = 8, SHARES = 8, SHARE_LEAST = 16 };

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

static int take(struct held_table *t, struct held_entry *entry) {
    int fd = entry->fd;
    *entry = t->entries[--t->count];
    return fd;
}

size_t held_table_share(const struct held_table *t) {
    size_t share = t->max / SHARES > SHARE_LEAST ? t->max / SHARES : SHARE_LEAST;
    return share < t->max ? share : t->max;
}

/* What an owner has: how many names, and the one that was used least recently. */
struct belongings {
    size_t count;
    struct held_entry *oldest;
};

/* *out_named: the entry of that name, or NULL. */
static struct belongings look(const struct held_table *t, pid_t owner, const char *name,
                              struct held_entry **out_named) {
    struct belongings has = {0};
    *out_named = NULL;
    for (size_t i = 0; i < t->count; i++) {
        struct held_entry *entry = &t->entries[i];
        if (entry->owner == owner) {
            has.count++;
            has.oldest = !has.oldest || entry->used < has.oldest->used ? entry : has.oldest;
        }
        if (name && !*out_named && strcmp(entry->name, name) == 0) {
            *out_named = entry;
        }
    }
    return has;
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

int held_table_put(struct held_table *t, const char *name, int fd, uint64_t bytes, pid_t owner,
                   struct held_old *out_old) {
    struct held_entry *entry;
    struct belongings has = look(t, owner, name, &entry);
    assert(fd >= 0 && held_name_is_valid(name));
    *out_old = (struct held_old){.fd = entry ? entry->fd : -1};
    if (!entry) {
        if (has.count >= held_table_share(t) && has.oldest) {
            *out_old = (struct held_old){.fd = take(t, has.oldest), .is_given_up = true};
        }
        int status = make_room(t);
        if (status != MUSTER_OK) {
            return status;
        }
        entry = &t->entries[t->count++];
        (void)str_copy(entry->name, sizeof entry->name, name);
    }
    entry->fd = fd;
    entry->bytes = bytes;
    entry->owner = owner;
    entry->used = ++t->now;
    return MUSTER_OK;
}

int held_table_get(struct held_table *t, const char *name) {
    struct held_entry *entry = find(t, name);
    if (entry) {
        entry->used = ++t->now;
    }
    return entry ? entry->fd : -1;
}

int held_table_drop_left(struct held_table *t, bool (*has_ended)(pid_t owner)) {
    struct held_entry *named;
    struct belongings most = {0};
    for (size_t i = 0; i < t->count; i++) {
        pid_t owner = t->entries[i].owner;
        bool is_new = i == 0 || owner != t->entries[i - 1].owner; /* a process's names mostly lie side by side */
        struct belongings has = is_new ? look(t, owner, NULL, &named) : (struct belongings){0};
        most = has.count > most.count && has_ended(owner) ? has : most;
    }
    return most.oldest ? take(t, most.oldest) : -1;
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
