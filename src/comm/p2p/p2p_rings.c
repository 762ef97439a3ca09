/* The rings of a host's processes in the shared segment, and the links over them; see p2p_impl.h.
 *
 * The memory has, for each receiver, a set of the neighbours who have begun to write to it: one cache line for up to
 * 512 of them. So nobody looks at rings that are not used. Behind that, each ordered pair has a ring, and a box for
 * short messages. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/p2p/p2p_impl.h"

enum { LINE_BYTES = 64, WORD_BITS = 64 };

struct p2p_ring_table {
    uint32_t count, local;
    size_t ring_bytes, data_bytes;
    size_t slot_bytes, box_bytes;
    size_t set_bytes;
    uint8_t *memory;   /* borrowed */
    uint32_t *by_peer; /* owned, by root rank: local number, UINT32_MAX */
    uint64_t *opened;  /* owned: our own view of the set of writers */
};

/* More neighbours, smaller rings: the whole stays below some hundred MiB of address space up to 256. */
static size_t data_bytes_for(uint32_t count) {
    return count <= 32 ? (size_t)64 << 10 : count <= 128 ? (size_t)16 << 10 : (size_t)4 << 10;
}

/* Of the boxes: room for 2 KiB up to 32 neighbours; a line more lets the same lines of different slots lie apart in the
 * caches. */
static size_t slot_bytes_for(uint32_t count) {
    return data_bytes_for(count) / 32 + LINE_BYTES;
}

static size_t set_bytes_for(uint32_t count) {
    return ((count + WORD_BITS - 1) / WORD_BITS * sizeof(uint64_t) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

size_t p2p_rings_bytes(uint32_t count) {
    size_t pair = link_ring_memory_bytes(data_bytes_for(count)) + short_box_bytes(slot_bytes_for(count));
    return count * set_bytes_for(count) + (size_t)count * count * pair;
}

static struct link_ring_memory *ring_at(const struct p2p_ring_table *table, uint32_t from, uint32_t to) {
    size_t index = (size_t)from * table->count + to;
    return (struct link_ring_memory *)(void *)(table->memory + table->count * table->set_bytes +
                                               index * table->ring_bytes);
}

static struct short_box *box_at(const struct p2p_ring_table *table, uint32_t from, uint32_t to) {
    size_t index = (size_t)from * table->count + to, rings = (size_t)table->count * table->count * table->ring_bytes;
    return (struct short_box *)(void *)(table->memory + table->count * table->set_bytes + rings +
                                        index * table->box_bytes);
}

static _Atomic uint64_t *writers_of(const struct p2p_ring_table *table, uint32_t local) {
    return (_Atomic uint64_t *)(void *)(table->memory + local * table->set_bytes);
}

int rings_create(struct p2p *p2p) {
    const struct p2p_config *config = &p2p->config;
    if (!config->rings || config->neighbour_count < 2) {
        return 0;
    }
    struct p2p_ring_table *table = calloc(1, sizeof *table);
    if (!table) {
        return status_fail(MUSTER_ENOMEM, "no memory for the table of rings");
    }
    p2p->rings = table;
    table->count = config->neighbour_count;
    table->local = config->local;
    table->data_bytes = data_bytes_for(table->count);
    table->ring_bytes = link_ring_memory_bytes(table->data_bytes);
    table->set_bytes = set_bytes_for(table->count);
    table->slot_bytes = slot_bytes_for(table->count);
    table->box_bytes = short_box_bytes(table->slot_bytes);
    table->memory = config->rings;
    table->by_peer = malloc(config->size * sizeof *table->by_peer);
    table->opened = calloc(1, table->set_bytes);
    if (!table->by_peer || !table->opened) {
        return status_fail(MUSTER_ENOMEM, "no memory for the table of rings"); /* freed by rings_destroy() */
    }
    memset(table->by_peer, 0xff, config->size * sizeof *table->by_peer);
    int32_t *pids = calloc(table->count, sizeof *pids);
    for (uint32_t local = 0; local < table->count; local++) {
        assert(config->neighbours[local].peer < config->size);
        table->by_peer[config->neighbours[local].peer] = local;
        if (pids) {
            pids[local] = config->neighbours[local].pid;
        }
    }
    p2p->is_crowded = !pids || comm_is_crowded(pids, table->count);
    free(pids);
    return 0;
}

void rings_destroy(struct p2p *p2p) {
    if (p2p->rings) {
        free(p2p->rings->by_peer);
        free(p2p->rings->opened);
        free(p2p->rings);
        p2p->rings = NULL;
    }
}

uint32_t rings_local(const struct p2p *p2p, uint32_t peer) {
    return p2p->rings ? p2p->rings->by_peer[peer] : UINT32_MAX;
}

int rings_open(struct p2p *p2p, struct p2p_link *link) {
    struct p2p_ring_table *table = p2p->rings;
    uint32_t local = table->by_peer[link->peer];
    const struct p2p_neighbour *neighbour = &p2p->config.neighbours[local];
    link->is_ring = true;
    link->may_read_memory = p2p->config.may_read_peers;
    struct link *io = link_ring_create(ring_at(table, local, table->local), ring_at(table, table->local, local),
                                       table->data_bytes, neighbour->bell, link->may_read_memory ? neighbour->pid : 0);
    int code = stream_open(p2p, link, io, 0, false, true);
    if (code == 0) {
        link->short_slot_bytes = table->slot_bytes;
        link->short_bell = neighbour->bell;
        link->short_in = box_at(table, local, table->local);
        link->short_out = box_at(table, table->local, local);
        table->opened[local / WORD_BITS] |= UINT64_C(1) << local % WORD_BITS;
        (void)atomic_fetch_or_explicit(&writers_of(table, local)[table->local / WORD_BITS],
                                       UINT64_C(1) << table->local % WORD_BITS, memory_order_release);
        comm_bell_ring(neighbour->bell);
    }
    return code;
}

bool p2p_is_called(const struct p2p *p2p) {
    const struct p2p_ring_table *table = p2p->rings;
    bool is_called = false;
    for (uint32_t word = 0; table && word * WORD_BITS < table->count && !is_called; word++) {
        is_called = atomic_load_explicit(&writers_of(table, table->local)[word], memory_order_relaxed) != 0;
    }
    return is_called;
}

/* Links that neighbours have begun to use. */
static void open_new(struct p2p *p2p, struct p2p_ring_table *table) {
    _Atomic uint64_t *writers = writers_of(table, table->local);
    for (uint32_t word = 0; word * WORD_BITS < table->count; word++) {
        uint64_t fresh = atomic_load_explicit(&writers[word], memory_order_acquire) & ~table->opened[word];
        while (fresh != 0) {
            uint32_t local = word * WORD_BITS + (uint32_t)__builtin_ctzll(fresh);
            fresh &= fresh - 1;
            struct p2p_link *link = local < table->count ? link_entry(p2p, p2p->config.neighbours[local].peer) : NULL;
            if (link && link->state == LINK_NEW) {
                (void)rings_open(p2p, link); /* without memory: tried again in the next round */
            } else {
                table->opened[word] |= UINT64_C(1) << local % WORD_BITS;
            }
        }
    }
}

bool rings_progress(struct p2p *p2p) {
    struct p2p_ring_table *table = p2p->rings;
    if (!table) {
        return false;
    }
    open_new(p2p, table);
    bool moved = false;
    for (struct p2p_stream *stream = p2p->open, *next; stream; stream = next) {
        next = stream->next_open;
        if (stream->io && stream->io->fd < 0) {
            moved = short_take(p2p, stream->link) || moved;
            moved = (stream->io && stream_read(p2p, stream)) || moved;
            moved = (stream->io && stream->link->reading.first && link_read_memory(p2p, stream->link)) || moved;
            p2p->is_reading = p2p->is_reading || stream->link->reading.first;
        }
    }
    return moved;
}
