/* A copy of this rank's share goes to a peer, and that of another comes: what the thread does, and when it begins. */
#include <muster/collective.h>

#include "train/peers/peer_copies_impl.h"
#include "train/state/checksum.h"

/* Training goes first: for the processor by the thread's priority, on the links because little is under way at a time.
 */
enum { PIECE_BYTES = 1 << 20 };

static size_t piece_of(size_t bytes, size_t at) {
    size_t left = at < bytes ? bytes - at : 0;
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

/* A piece out and a piece in at the same time, on all ranks as often. */
static int exchange(struct peer_copies *copies, const char *own, size_t own_bytes, char *others, size_t others_bytes) {
    size_t most = copies->room;
    int status = MUSTER_OK;
    for (size_t at = 0; status == MUSTER_OK && at < most; at += PIECE_BYTES) {
        copies->sends[copies->server] = piece_of(own_bytes, at);
        copies->receives[copies->served] = piece_of(others_bytes, at);
        status = muster_all_to_all_v(copies->group, own + (at < own_bytes ? at : 0), copies->sends,
                                     others + (at < others_bytes ? at : 0), copies->receives, MUSTER_UINT8, NULL);
    }
    copies->sends[copies->server] = copies->receives[copies->served] = 0;
    return status;
}

int peer_copy(struct peer_copies *copies) {
    const uint32_t ranks[PEER_SHARES] = {muster_group_rank(copies->group), copies->served};
    struct peer_slot *slot = &copies->table->slots[copies->next_slot];
    atomic_store_explicit(&slot->step, PEER_NOTHING, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    void *shares[PEER_SHARES];
    for (uint32_t i = 0; i < PEER_SHARES; i++) {
        shares[i] = peer_share(copies, copies->next_slot, i);
        slot->parts[i] = copies->part_of[ranks[i]];
        slot->bytes[i] = copies->bytes[slot->parts[i]];
    }
    copies->options.collect(copies->options.context, shares[0]);
    peer_thread_has_read(copies);
    int status = exchange(copies, shares[0], slot->bytes[0], shares[1], slot->bytes[1]);
    if (status == MUSTER_OK) {
        for (uint32_t i = 0; i < PEER_SHARES; i++) {
            slot->sums[i] = checksum_of(shares[i], slot->bytes[i]);
        }
        slot->life = copies->life;
        slot->seal = peer_slot_seal(slot, copies->step);
        atomic_thread_fence(memory_order_seq_cst);
        atomic_store_explicit(&slot->step, copies->step, memory_order_release);
        copies->next_slot = PEER_SLOTS - 1 - copies->next_slot;
    }
    return status;
}

int peer_copies_start(struct peer_copies *copies, int64_t step, int (*prepare)(void *context), bool *out_started) {
    int64_t busy = peer_thread_is_busy(copies);
    int status = muster_all_reduce(copies->options.group, &busy, &busy, 1, MUSTER_INT64, MUSTER_OP_MAX, NULL);
    *out_started = false;
    if (status == MUSTER_OK && busy != 0) {
        peer_thread_skip(copies);
        return MUSTER_OK;
    }
    status = status ? status : prepare(copies->options.context);
    if (status == MUSTER_OK) {
        peer_thread_hand_over(copies, step);
        *out_started = true;
    }
    return status;
}
