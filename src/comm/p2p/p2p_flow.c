/* What a receiver lets its sender do: credit for messages that nobody has asked for yet, and word of one message: that
 * the rest may come, or that all of it has been read; see p2p_impl.h. How the sender obeys is in p2p_send.c. */
#include "base/status.h"
#include "comm/p2p/p2p_impl.h"

/* ---- credit ----
 *
 * What a receiver has taken it tells with its own frames, or when it has come to a quarter of the room. That is too
 * late for a sender who has filled the room with messages that nobody asks for, but for less than that quarter: both
 * would wait. So before a process waits, it tells those whose room is full, as far as they know (credit_tell_owed()).
 */

static bool is_owed(const struct p2p_credit *credit) {
    return credit->taken != credit->told && credit->came - credit->told > P2P_UNEXPECTED_BYTES_MAX - P2P_HEADER_COST;
}

bool credit_count(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame) {
    struct p2p_credit *credit = &link->credit[frame->lane];
    credit->came += P2P_HEADER_COST + (frame->flags & WIRE_READABLE ? 0 : frame->payload);
    if (credit->came - credit->taken > P2P_UNEXPECTED_BYTES_MAX) {
        link_fail(p2p, link, MUSTER_EPROTOCOL, "rank %u sends more than it has been given room for",
                  (unsigned)link->peer);
        return false;
    }
    p2p->owes_credit = p2p->owes_credit || is_owed(credit);
    return true;
}

static void tell(struct p2p *p2p, struct p2p_link *link, uint8_t lane) {
    struct p2p_credit *credit = &link->credit[lane];
    credit->told = credit->taken;
    struct wire_frame frame = {.kind = WIRE_CREDIT, .lane = lane, .credit = credit->taken};
    stream_control(p2p, link->streams[0], &frame, NULL);
}

void credit_tell(struct p2p *p2p, struct p2p_link *link, uint8_t lane) {
    struct p2p_credit *credit = &link->credit[lane];
    if (credit->taken - credit->told >= P2P_UNEXPECTED_BYTES_MAX / 4 && link->streams[0]) {
        tell(p2p, link, lane);
        return;
    } /* else the next message carries it */
    p2p->owes_credit = p2p->owes_credit || is_owed(credit);
}

bool credit_tell_owed(struct p2p *p2p) {
    bool has_told = false;
    p2p->owes_credit = false;
    for (struct p2p_stream *stream = p2p->open; stream; stream = stream->next_open) {
        for (uint8_t lane = 0; stream->index == 0 && lane < P2P_LANE_COUNT; lane++) {
            if (is_owed(&stream->link->credit[lane])) {
                tell(p2p, stream->link, lane);
                has_told = true;
            }
        }
    }
    return has_told;
}

void credit_give_back(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame) {
    bool readable = frame->flags & WIRE_READABLE;
    link->credit[frame->lane].taken += P2P_HEADER_COST + (readable ? 0 : frame->payload);
    credit_tell(p2p, link, frame->lane);
}

/* ---- word of one message ---- */

void link_send_clear(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame, uint32_t id,
                     uint64_t offset) {
    struct wire_frame clear = {.kind = WIRE_CLEAR,
                               .lane = frame->lane,
                               .credit = link->credit[frame->lane].taken,
                               .tag = offset,
                               .fingerprint = id,
                               .number = frame->number};
    link->credit[frame->lane].told = clear.credit;
    if (link->streams[0]) {
        stream_control(p2p, link->streams[0], &clear, NULL);
    }
}

void link_send_finished(struct p2p *p2p, struct p2p_link *link, uint8_t lane, uint32_t id) {
    struct wire_frame frame = {.kind = WIRE_FINISHED, .lane = lane, .credit = link->credit[lane].taken, .number = id};
    link->credit[lane].told = frame.credit;
    stream_control(p2p, link->streams[0], &frame, NULL);
}
