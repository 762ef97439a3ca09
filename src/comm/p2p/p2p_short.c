/* Short messages between two processes of a host, past the frames: see p2p_impl.h.
 *
 * A box for each ordered pair of neighbours has a few slots; message n goes into slot n % SHORT_SLOTS, envelope and
 * data side by side, so that the smallest travel in one cache line, and its number is stored last (release). The
 * receiver waits for that number (acquire) and reads the slot, then stores how many it has taken (release), which the
 * sender loads (acquire) before it uses a slot again. Numbers count modulo 2^32; what a slot held before is SHORT_SLOTS
 * lower.
 *
 * Order. A message goes through the box only when nothing is under way in the ring: everything written there has been
 * taken out, and no send waits. A message that goes through the ring afterwards says how many went through the box
 * before it (the upper half of its number), and the receiver takes those first. So both sides see one order. */
#include <sched.h>
#include <string.h>

#include "base/status.h"
#include "comm/p2p/p2p_impl.h"

enum { SHORT_SLOTS = 8, LOOKS_PER_PROGRESS = 16, CROWDED_BELOW_LOOKS = 64 };

struct short_slot {
    _Alignas(64) _Atomic uint32_t number; /* of the message, from 1 on */
    uint32_t group, credit, tag;
    uint16_t bytes;
    uint8_t fingerprint, reserved[5];
    uint8_t data[];
};

struct short_box {
    _Alignas(64) _Atomic uint32_t taken; /* by the receiver: messages */
    _Alignas(64) uint8_t slots[];
};

size_t short_box_bytes(size_t slot_bytes) {
    return sizeof(struct short_box) + SHORT_SLOTS * slot_bytes;
}

static struct short_slot *slot_of(const struct p2p_link *link, struct short_box *box, uint32_t number) {
    return (struct short_slot *)(void *)(box->slots + (number % SHORT_SLOTS) * link->short_slot_bytes);
}

static size_t room_of(const struct p2p_link *link) {
    return link->short_slot_bytes - offsetof(struct short_slot, data);
}

/* ---- sending ---- */

static bool is_idle(const struct p2p_link *link) {
    const struct p2p_stream *stream = link->streams[0];
    return link->state == LINK_OPEN && link->short_out && !link->queue[P2P_MESSAGES].first && stream &&
           stream->header_bytes == 0 && stream->control.len == 0 && link_ring_is_taken(stream->io);
}

static bool has_slot(struct p2p_link *link) {
    if (link->short_sent - link->short_seen_taken == SHORT_SLOTS) {
        link->short_seen_taken = atomic_load_explicit(&link->short_out->taken, memory_order_acquire);
    }
    return link->short_sent - link->short_seen_taken < SHORT_SLOTS;
}

bool short_put(struct p2p_link *link, const struct p2p_envelope *envelope, const void *buffer, size_t bytes) {
    struct p2p_credit *credit = &link->credit[P2P_MESSAGES];
    if (envelope->lane != P2P_MESSAGES || !is_idle(link) || bytes > room_of(link) || envelope->tag > UINT32_MAX ||
        envelope->fingerprint > UINT8_MAX || credit_left(credit) < P2P_HEADER_COST + bytes || !has_slot(link)) {
        return false;
    }
    uint32_t number = ++link->short_sent;
    struct short_slot *slot = slot_of(link, link->short_out, number);
    slot->group = envelope->group;
    slot->credit = credit->told = credit->taken;
    slot->tag = (uint32_t)envelope->tag;
    slot->bytes = (uint16_t)bytes;
    slot->fingerprint = (uint8_t)envelope->fingerprint;
    if (bytes > 0) { /* an empty message's buffer may be NULL */
        memcpy(slot->data, buffer, bytes);
    }
    credit->sent += P2P_HEADER_COST + (uint32_t)bytes;
    atomic_store_explicit(&slot->number, number, memory_order_release);
    return true;
}

bool p2p_send_short(struct p2p *p2p, const struct p2p_envelope *envelope, const void *buffer, size_t bytes,
                    int64_t *out_ns) {
    p2p_lock(p2p);
    struct p2p_link *link = p2p->links[envelope->peer];
    bool is_sent =
        link && !p2p->has_failures && !link_takes_no_more(link, envelope) && short_put(link, envelope, buffer, bytes);
    if (is_sent) {
        comm_bell_ring(link->short_bell);
        *out_ns = ticks_monotonic_ns(&p2p->clock);
    }
    p2p_unlock(p2p);
    return is_sent;
}

/* ---- taking ---- */

/* The next message, if it has come. Its slot is ours until give_slot(). */
static struct short_slot *next_slot(const struct p2p_link *link) {
    uint32_t next = atomic_load_explicit(&link->short_came, memory_order_relaxed) + 1;
    struct short_slot *slot = slot_of(link, link->short_in, next);
    return atomic_load_explicit(&slot->number, memory_order_acquire) == next ? slot : NULL;
}

static void give_slot(struct p2p_link *link) {
    uint32_t came = atomic_load_explicit(&link->short_came, memory_order_relaxed) + 1;
    atomic_store_explicit(&link->short_came, came, memory_order_relaxed);
    atomic_store_explicit(&link->short_in->taken, came, memory_order_release);
}

static struct wire_frame frame_of(const struct short_slot *slot) {
    return (struct wire_frame){.kind = WIRE_BEGIN,
                               .lane = P2P_MESSAGES,
                               .payload = slot->bytes,
                               .group = slot->group,
                               .credit = slot->credit,
                               .tag = slot->tag,
                               .fingerprint = slot->fingerprint,
                               .bytes = slot->bytes};
}

bool short_take_until(struct p2p *p2p, struct p2p_link *link, uint32_t count) {
    bool moved = false;
    while (link->short_in && link->state != LINK_FAILED &&
           atomic_load_explicit(&link->short_came, memory_order_relaxed) != count) {
        const struct short_slot *slot = next_slot(link);
        if (!slot) {
            break;
        }
        if (slot->bytes > room_of(link)) {
            link_fail(p2p, link, MUSTER_EPROTOCOL, "rank %u sends a short message that is none", (unsigned)link->peer);
            return true;
        }
        struct wire_frame frame = frame_of(slot);
        credit_hear(&link->credit[P2P_MESSAGES], frame.credit);
        message_take(p2p, link, &frame, slot->data);
        give_slot(link);
        moved = true;
    }
    if (moved && link->queue[P2P_MESSAGES].first) {
        (void)link_flush(p2p, link); /* there may be credit now */
    }
    return moved;
}

bool short_take(struct p2p *p2p, struct p2p_link *link) {
    return short_take_until(p2p, link, atomic_load_explicit(&link->short_came, memory_order_relaxed) + SHORT_SLOTS);
}

/* ---- receiving without posting ---- */

struct p2p_link *p2p_expect_short(struct p2p *p2p, uint32_t peer, size_t bytes, int64_t *out_ns) {
    p2p_lock(p2p);
    struct p2p_link *link = p2p->links[peer];
    bool is_likely = link && link->short_in && link->state == LINK_OPEN && !p2p->has_failures &&
                     bytes <= room_of(link); /* longer ones are better posted: they come straight to their place */
    link = is_likely ? link : NULL;
    *out_ns = link ? ticks_monotonic_ns(&p2p->clock) : 0;
    p2p_unlock(p2p);
    return link;
}

/* With the lock. Is the next message in the box the one that this receive would get if it were posted? */
static const struct short_slot *find(const struct p2p *p2p, const struct p2p_link *link,
                                     const struct p2p_envelope *envelope, size_t bytes) {
    if (link->state != LINK_OPEN || link->arrivals || link->posted.first || p2p->any.first || p2p->has_failures) {
        return NULL;
    }
    const struct short_slot *slot = next_slot(link);
    bool fits = slot && slot->group == envelope->group && slot->tag == envelope->tag &&
                slot->fingerprint == envelope->fingerprint && slot->bytes <= bytes && slot->bytes <= room_of(link);
    return fits ? slot : NULL;
}

static bool take(struct p2p *p2p, struct p2p_link *link, const struct p2p_envelope *envelope, void *buffer,
                 size_t bytes, struct p2p_short *out) {
    p2p_lock(p2p);
    const struct short_slot *slot = find(p2p, link, envelope, bytes);
    if (slot) {
        struct p2p_credit *credit = &link->credit[P2P_MESSAGES];
        out->bytes = slot->bytes;
        credit_hear(credit, slot->credit);
        credit->came += P2P_HEADER_COST + slot->bytes;
        credit->taken += P2P_HEADER_COST + slot->bytes;
        if (slot->bytes > 0) {
            memcpy(buffer, slot->data, slot->bytes);
        }
        give_slot(link);
        credit_tell(p2p, link, P2P_MESSAGES);
        if (p2p->blocked) {
            (void)p2p_flush_blocked(p2p); /* credit: perhaps nobody waits */
        }
        out->end_ns = ticks_monotonic_ns(&p2p->clock);
    }
    p2p_unlock(p2p);
    return slot != NULL;
}

/* Looks at the box without the lock: its memory stays until p2p_free(). */
bool p2p_receive_short(struct p2p *p2p, struct comm_waiter *waiter, struct p2p_link *link,
                       const struct p2p_envelope *envelope, void *buffer, size_t bytes, struct p2p_short *out) {
    bool is_crowded = waiter->spin_count < CROWDED_BELOW_LOOKS; /* then the sender may need this core */
    uint32_t looks = is_crowded ? waiter->yield_count : waiter->spin_count;
    for (uint32_t look = 1; look <= looks; look++) {
        if (next_slot(link)) {
            return take(p2p, link, envelope, buffer, bytes, out);
        }
        if (look % LOOKS_PER_PROGRESS == 0 &&
            (atomic_load_explicit(&waiter->alarm, memory_order_relaxed) || p2p_progress(p2p))) {
            return false; /* something else has come: perhaps the message, the long way */
        }
        if (is_crowded) {
            (void)sched_yield();
        } else {
            comm_pause();
        }
    }
    return false;
}
