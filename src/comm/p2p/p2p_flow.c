/* What a receiver lets its sender do: credit for messages that nobody has asked for yet, and word of one message: that
 * the rest may come, or that all of it has been read; see p2p_impl.h. How the sender obeys is in p2p_send.c. */
#include "base/status.h"
#include "comm/p2p/p2p_impl.h"

/* ---- credit ---- */

bool credit_count(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame) {
    struct p2p_credit *credit = &link->credit[frame->lane];
    credit->came += P2P_HEADER_COST + (frame->flags & WIRE_READABLE ? 0 : frame->payload);
    if (credit->came - credit->taken > P2P_UNEXPECTED_BYTES_MAX) {
        link_fail(p2p, link, MUSTER_EPROTOCOL, "rank %u sends more than it has been given room for",
                  (unsigned)link->peer);
        return false;
    }
    return true;
}

void credit_tell(struct p2p *p2p, struct p2p_link *link, uint8_t lane) {
    struct p2p_credit *credit = &link->credit[lane];
    if (credit->taken - credit->told < P2P_UNEXPECTED_BYTES_MAX / 4 || !link->streams[0]) {
        return; /* the next message carries it */
    }
    credit->told = credit->taken;
    struct wire_frame frame = {.kind = WIRE_CREDIT, .lane = lane, .credit = credit->taken};
    stream_control(p2p, link->streams[0], &frame, NULL);
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
