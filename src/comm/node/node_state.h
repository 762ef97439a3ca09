/* What the files of a node share: what lies in the shared segment, and what a member knows of itself. Owned by node.c.
 *
 * A call consists of steps, which all members count alike: same calls, same steps. In a step each member may publish
 * one record: up to NODE_INLINE_BYTES in a line of its own, more in its ring, whose positions all members also
 * reckon alike (whether they publish or not), so that a record is found without being told where it is. A reader waits
 * for the line's stamp to become the number of the step.
 *
 * Memory order. A record is written, then its line's stamp is stored with release order; a reader loads the stamp with
 * acquire order, then reads the record. A reader stores `consumed` with release order when it has read all that
 * it needs of the steps up to that one; a writer loads that with acquire order before it writes to the same line or the
 * same part of the ring again. So each piece of memory that is not atomic changes hands by such a pair. A member
 * whose record of a call's first step is seen has consumed all steps of the calls before: that saves reading
 * `consumed` in calls where everybody waits for everybody.
 *
 * Different calls. Each member keeps a hash over the fingerprints of all its calls; it stands in each line and beside
 * `consumed`. So whoever reads either notices, at the next opportunity, that another made a different call, even if the
 * two did not wait for each other in that call. Who waits in vain compares the members' lines (engine/call_line.h). */
#ifndef COMM_NODE_STATE_H
#define COMM_NODE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/node/node.h"
#include "comm/schedule/choice.h"

enum {
    NODE_CACHE_LINE = 64,
    NODE_LINES = 128, /* steps that may be under way: how far ahead a member can get in rooted calls */
    NODE_INLINE_BYTES = 48,
    NODE_RING_BYTES_MAX = 256 * 1024, /* a member's; less when there are many */
    NODE_RING_BYTES_MIN = 64 * 1024,
    NODE_RINGS_BYTES_MAX = 4 * 1024 * 1024, /* of all members together, if that allows the minimum */
    NODE_PIECES_PER_RING = 4,
};

struct node_line {
    _Alignas(NODE_CACHE_LINE) _Atomic uint64_t stamp; /* the step, 0 before the first */
    uint64_t hash;
    unsigned char data[NODE_INLINE_BYTES];
};

/* A member's part of the segment; written by that member alone. The areas of all members come first, then their rings:
 * everybody looks at all areas in each call, and at rings only where records are long. */
struct node_area {
    uint64_t cookie, cookie_address; /* node_single_copy.c; written before the first step */
    /* Seldom read by others. */
    _Alignas(NODE_CACHE_LINE) _Atomic uint32_t processor; /* on which it waited last, plus one; 0: not yet */
    /* The step up to which all that it needs has been read: the low half; the high half is one of the hash. */
    _Alignas(NODE_CACHE_LINE) _Atomic uint64_t consumed;
    _Alignas(NODE_CACHE_LINE) struct node_line lines[NODE_LINES]; /* of step s at s % NODE_LINES */
    /* The same lines of two members then do not compete for a place in the caches. */
    _Alignas(NODE_CACHE_LINE) unsigned char unused[NODE_CACHE_LINE];
};

enum node_reading { NODE_READING_UNKNOWN, NODE_READING_DENIED, NODE_READING_ALLOWED };

struct node {
    uint32_t size, index;
    bool may_read_peers;
    bool is_crowded;           /* ranks share cores, as this member sees it */
    uint32_t processor;        /* see struct node_area */
    uint32_t shared_waits;     /* for members on this one's core */
    enum node_reading reading; /* of each other's private memory: the same on all members */
    uint64_t cookie;
    struct node_area *own;
    struct node_area *areas;        /* one a member */
    unsigned char *rings;           /* one a member, ring_stride from each other */
    size_t ring_bytes, ring_stride; /* the former a power of two */
    size_t piece_bytes, part_bytes; /* the most that a record holds at a time, as a whole or for each other member */
    struct comm_waiter *waiter;
    struct memory *memory;
    struct node_member *members;
    const void **records; /* scratch: one pointer a member */
    void **outs;          /* likewise */
    size_t *offsets;      /* scratch: where the blocks of two buffers begin, 2 * (size + 1) */
    size_t *froms;        /* scratch: one a member, see struct plan */

    struct choice_table when_private, when_shared;
    uint32_t algorithm; /* of the last call */

    /* The call under way. */
    const struct comm_call *call;
    int64_t deadline_ns;
    uint64_t number; /* for sentences */
    uint64_t hash;   /* over the fingerprints of all calls */

    /* Steps. */
    uint64_t step;     /* the last one opened */
    uint64_t first;    /* of this call */
    uint64_t known;    /* all members have consumed at least up to here */
    uint64_t tail;     /* up to here all must have consumed before the last opened step may be written */
    uint64_t position; /* in the ring, counted on from lap to lap */
    uint64_t starts[NODE_LINES];
    uint32_t hashes[NODE_LINES]; /* the half of the hash, for comparison with `consumed` */
    bool inlined[NODE_LINES];
};

static inline struct node_area *node_area(const struct node *node, uint32_t member) {
    return &node->areas[member];
}

/* Where a member's record of an opened step lies. */
static inline void *node_record(const struct node *node, uint32_t member, uint64_t step) {
    uint64_t slot = step % NODE_LINES;
    return node->inlined[slot] ? (void *)node_area(node, member)->lines[slot].data
                               : (void *)(node->rings + (size_t)member * node->ring_stride +
                                          (node->starts[slot] & (node->ring_bytes - 1)));
}

/* ---- the first step of a call that may be direct: node_direct.c tells what for ---- */

/* In the line of a record that lies in the ring. `staged` becomes the number of the step when the ring's part of the
 * record is there, too: at once for a member without an offer (it is not looked at then). */
struct node_offer {
    _Atomic uint64_t staged; /* in calls by single copy: the buffer's address */
    bool is_direct;
    bool has_receive; /* `receive` is a place */
    struct memory_place send, receive;
};

static inline struct node_offer *node_offer_of(const struct node *node, uint32_t member, uint64_t step) {
    return (struct node_offer *)(void *)node_area(node, member)->lines[step % NODE_LINES].data;
}

#endif
