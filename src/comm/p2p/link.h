/* One stream of bytes to one peer: the only thing that differs between TCP, TLS and a ring in shared memory. Frames,
 * and everything else, are above it.
 *
 * Calls never block. One thread at a time (p2p's lock). */
#ifndef COMM_LINK_H
#define COMM_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "comm/host/bell.h"

/* What read and write give beside a count of bytes. */
enum {
    LINK_AGAIN = 0,  /* nothing now */
    LINK_END = -1,   /* read: the peer has closed */
    LINK_BROKEN = -2 /* the connection is gone; errno says how */
};

struct link;

/* What has become of the memory that write_zero_copy() was given. */
enum link_hold {
    LINK_COPIED, /* it is the caller's, as after write() */
    LINK_HELD,   /* the kernel reads it until released() gives this write's number: they are numbered from 0 */
    LINK_NO_ROOM /* copied, since the kernel may not hold more at the moment, or not such memory */
};

/* Writes first ... last (modulo 2^32) have been given back. */
struct link_release {
    uint32_t first, last;
    bool was_copied; /* the kernel has copied it all the same */
};

struct link_kind {
    const char *name; /* "tcp", "tls", "shared memory" */
    ssize_t (*read)(struct link *link, const struct iovec *parts, int part_count);
    ssize_t (*write)(struct link *link, const struct iovec *parts, int part_count);
    /* From now on write_zero_copy() may be called. false: the socket cannot. NULL, like the other two: never. */
    bool (*allow_zero_copy)(struct link *link);
    /* As write(), but the kernel may go on reading the last part when the call is over. */
    ssize_t (*write_zero_copy)(struct link *link, const struct iovec *parts, int part_count, enum link_hold *out);
    /* true: *out says what has been given back since the last call; false: nothing. */
    bool (*released)(struct link *link, struct link_release *out);
    /* Copies out of the peer's memory: bytes, or LINK_BROKEN with errno (EPERM: not allowed). NULL: cannot. */
    ssize_t (*read_memory)(struct link *link, void *to, uint64_t address, size_t bytes);
    /* Sends what write() has taken and kept: 1 when all is sent, else LINK_AGAIN, LINK_BROKEN. NULL: it keeps nothing.
     */
    int (*flush)(struct link *link);
    /* Is there something to read that the socket does not tell of? NULL: never. */
    bool (*pending)(const struct link *link);
    /* Why it is broken, where errno cannot say (EPROTO); NULL, also as a result: errno says it. */
    const char *(*reason)(const struct link *link);
    void (*close)(struct link *link); /* frees it */
};

/* Begins every implementation's struct. */
struct link {
    const struct link_kind *kind;
    int fd; /* to be watched; -1: none, the peer rings the bell */
};

/* Takes the connected socket (also on failure: closed). NULL when out of memory. */
struct link *link_tcp_create(int fd);

/* Why the link is broken, where errno cannot say it; else NULL. */
static inline const char *link_reason(const struct link *link) {
    return link->kind->reason ? link->kind->reason(link) : NULL;
}

/* ---- rings ---- */

/* Two rings of one pair of processes, one a direction, in shared memory that was zero. */
struct link_ring_memory {
    _Alignas(64) _Atomic uint64_t written; /* by the sender: bytes put in since the beginning */
    _Atomic uint32_t withdrawn;            /* by the sender: messages that may not be read from its memory any more */
    _Alignas(64) _Atomic uint64_t read;    /* by the receiver: bytes taken out */
    _Alignas(64) uint8_t data[];
};

/* Of one ring with room for data_bytes (a power of two). */
size_t link_ring_memory_bytes(size_t data_bytes);

/* `pid` 0: its memory is not read. The rest is borrowed. NULL when out of memory. */
struct link *link_ring_create(struct link_ring_memory *in, struct link_ring_memory *out, size_t data_bytes,
                              struct comm_bell *peer_bell, int32_t pid);
/* Messages whose memory the peer may read carry this count; link_ring_withdraw() raises it when such a message is taken
 * back, link_ring_peer_withdrawn() says what the peer's is now. */
uint64_t link_ring_withdrawn(const struct link *link);
void link_ring_withdraw(struct link *link);
uint64_t link_ring_peer_withdrawn(const struct link *link);
/* Has the peer taken out everything that was written? Then it has seen all whole frames of it. */
bool link_ring_is_taken(struct link *link);

#endif
