/* The one JSON value around which PyTorch's legacy etcd backend turns, R/rdzv/active_version: read, and rewritten for
 * each step of a rendezvous (docs/rendezvous.md).
 *
 * Pure: text in, struct or text out. What Python's json.dumps() would write is written, and members that are not known
 * are kept. */
#ifndef RENDEZVOUS_ETCD_WORLD_H
#define RENDEZVOUS_ETCD_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ETCD_WORLD_VERSION_MAX = 24 };

enum etcd_world_status {
    ETCD_WORLD_ABSENT,   /* there is no value */
    ETCD_WORLD_SETUP,    /* its maker is not done */
    ETCD_WORLD_JOINABLE, /* nodes may enter */
    ETCD_WORLD_FROZEN,   /* those that did confirm */
    ETCD_WORLD_FINAL,    /* all have */
    ETCD_WORLD_CLOSED,
};

struct etcd_world {
    enum etcd_world_status status;
    char version[ETCD_WORLD_VERSION_MAX]; /* "" in setup, and of what was closed before it had one */
    uint32_t participants;                /* their ranks are 0 to one less */
    uint32_t confirmed;                   /* keep_alives */
    uint64_t waiting;                     /* num_workers_waiting */
};

/* MUSTER_ECORRUPT for what PyTorch's agents would not write; MUSTER_ENOMEM. */
int etcd_world_read(const char *text, size_t len, struct etcd_world *out);

/* Is `path` among the keep_alives of a text that etcd_world_read() took? */
bool etcd_world_has_keep_alive(const char *text, const char *path);

/* New texts, malloc'd; NULL without memory. `text` is one that etcd_world_read() took. */
char *etcd_world_setup(void);
char *etcd_world_joinable(const char *version);
/* One more participant, whose rank is what there were; freeze: nobody else. */
char *etcd_world_join(const char *text, bool freeze);
char *etcd_world_freeze(const char *text);
/* One more keep_alive; with the last of them the world is final. */
char *etcd_world_confirm(const char *text, const char *path);
char *etcd_world_wait(const char *text); /* one more node waits */
char *etcd_world_close(const char *text);

#endif
