/* A stream over two rings in memory that the two processes share; see link.h.
 *
 * Each ring has one writer and one reader. The counts of bytes written and read only rise; each is stored by one side
 * alone. Memory order: the writer fills the data, then stores `written` with release; the reader loads it with acquire
 * and so sees the data. The reader takes the data out, then stores `read` with release; the writer loads it with
 * acquire before it writes there again. Waking is the bell's part: its fence stands between the store and the look for
 * sleepers. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/p2p/link.h"

struct link_ring {
    struct link link; /* first: the two are cast into each other */
    struct link_ring_memory *in, *out;
    uint64_t data_bytes; /* power of two */
    struct comm_bell *peer_bell;
    pid_t pid;
    /* Our own copies: the shared ones are only loaded when these say "full" or "empty". */
    uint64_t written, read, seen_written, seen_read;
};

size_t link_ring_memory_bytes(size_t data_bytes) {
    return sizeof(struct link_ring_memory) + data_bytes;
}

static struct link_ring *ring_of(struct link *link) {
    return (struct link_ring *)link;
}

static void copy_out(const struct link_ring *ring, uint64_t from, uint8_t *to, size_t n) {
    size_t at = (size_t)(from & (ring->data_bytes - 1));
    size_t first = ring->data_bytes - at < n ? (size_t)(ring->data_bytes - at) : n;
    memcpy(to, ring->in->data + at, first);
    memcpy(to + first, ring->in->data, n - first);
}

static void copy_in(const struct link_ring *ring, uint64_t to, const uint8_t *from, size_t n) {
    size_t at = (size_t)(to & (ring->data_bytes - 1));
    size_t first = ring->data_bytes - at < n ? (size_t)(ring->data_bytes - at) : n;
    memcpy(ring->out->data + at, from, first);
    memcpy(ring->out->data, from + first, n - first);
}

static ssize_t ring_read(struct link *link, const struct iovec *parts, int part_count) {
    struct link_ring *ring = ring_of(link);
    if (ring->seen_written == ring->read) {
        ring->seen_written = atomic_load_explicit(&ring->in->written, memory_order_acquire);
        if (ring->seen_written == ring->read) {
            return LINK_AGAIN;
        }
    }
    uint64_t there = ring->seen_written - ring->read;
    if (there > ring->data_bytes) {
        errno = EPROTO; /* the peer has scribbled over its counter */
        return LINK_BROKEN;
    }
    size_t total = 0;
    for (int i = 0; i < part_count && there > 0; i++) {
        size_t n = parts[i].iov_len < there ? parts[i].iov_len : (size_t)there;
        copy_out(ring, ring->read + total, parts[i].iov_base, n);
        total += n;
        there -= n;
    }
    ring->read += total;
    atomic_store_explicit(&ring->in->read, ring->read, memory_order_release);
    comm_bell_ring(ring->peer_bell); /* it may wait for room */
    return (ssize_t)total;
}

static ssize_t ring_write(struct link *link, const struct iovec *parts, int part_count) {
    struct link_ring *ring = ring_of(link);
    size_t wanted = 0, total = 0;
    for (int i = 0; i < part_count; i++) {
        wanted += parts[i].iov_len;
    }
    if (ring->data_bytes - (ring->written - ring->seen_read) < wanted) {
        ring->seen_read = atomic_load_explicit(&ring->out->read, memory_order_acquire);
        if (ring->written - ring->seen_read > ring->data_bytes) {
            errno = EPROTO;
            return LINK_BROKEN;
        }
    }
    uint64_t room = ring->data_bytes - (ring->written - ring->seen_read);
    for (int i = 0; i < part_count && room > 0; i++) {
        size_t n = parts[i].iov_len < room ? parts[i].iov_len : (size_t)room;
        copy_in(ring, ring->written + total, parts[i].iov_base, n);
        total += n;
        room -= n;
    }
    if (total > 0) {
        ring->written += total;
        atomic_store_explicit(&ring->out->written, ring->written, memory_order_release);
        comm_bell_ring(ring->peer_bell);
    }
    return (ssize_t)total;
}

static ssize_t ring_read_memory(struct link *link, void *to, uint64_t address, size_t bytes) {
    struct link_ring *ring = ring_of(link);
    if (ring->pid == 0) {
        errno = EPERM;
        return LINK_BROKEN;
    }
    struct iovec here = {.iov_base = to, .iov_len = bytes};
    struct iovec there = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
    ssize_t n = process_vm_readv(ring->pid, &here, 1, &there, 1, 0);
    return n < 0 ? LINK_BROKEN : n;
}

static void ring_close(struct link *link) {
    free(link);
}

static const struct link_kind ring_kind = {.name = "shared memory",
                                           .read = ring_read,
                                           .write = ring_write,
                                           .read_memory = ring_read_memory,
                                           .close = ring_close};

struct link *link_ring_create(struct link_ring_memory *in, struct link_ring_memory *out, size_t data_bytes,
                              struct comm_bell *peer_bell, int32_t pid) {
    assert(data_bytes > 0 && (data_bytes & (data_bytes - 1)) == 0);
    struct link_ring *ring = calloc(1, sizeof *ring);
    if (!ring) {
        return NULL;
    }
    ring->link.kind = &ring_kind;
    ring->link.fd = -1;
    ring->in = in;
    ring->out = out;
    ring->data_bytes = data_bytes;
    ring->peer_bell = peer_bell;
    ring->pid = pid;
    return &ring->link;
}

uint64_t link_ring_withdrawn(const struct link *link) {
    const struct link_ring *ring = (const struct link_ring *)link;
    return atomic_load_explicit(&ring->out->withdrawn, memory_order_relaxed);
}

void link_ring_withdraw(struct link *link) {
    /* The fence: the count precedes whatever the caller does to the memory afterwards, for a peer that loads it after
     * having read that memory. No order of the addition itself would hold back what follows it on ARM. */
    atomic_fetch_add_explicit(&ring_of(link)->out->withdrawn, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
}

bool link_ring_is_taken(struct link *link) {
    struct link_ring *ring = ring_of(link);
    if (ring->seen_read != ring->written) {
        ring->seen_read = atomic_load_explicit(&ring->out->read, memory_order_acquire);
    }
    return ring->seen_read == ring->written;
}

uint64_t link_ring_peer_withdrawn(const struct link *link) {
    const struct link_ring *ring = (const struct link_ring *)link;
    atomic_thread_fence(memory_order_seq_cst); /* after the memory */
    return atomic_load_explicit(&ring->in->withdrawn, memory_order_seq_cst);
}
