/* Which message belongs to which receive; see p2p_impl.h.
 *
 * Messages of one sender with equal group, lane and tag are matched in the order in which they were sent, receives in
 * the order in which they were posted. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "comm/engine/call.h"
#include "comm/p2p/p2p_impl.h"

void list_append(struct p2p_list *list, struct p2p_request *request) {
    request->next = NULL;
    request->previous = list->last;
    if (list->last) {
        list->last->next = request;
    } else {
        list->first = request;
    }
    list->last = request;
}

void list_remove(struct p2p_list *list, struct p2p_request *request) {
    if (request->previous) {
        request->previous->next = request->next;
    } else {
        assert(list->first == request);
        list->first = request->next;
    }
    if (request->next) {
        request->next->previous = request->previous;
    } else {
        list->last = request->previous;
    }
    request->next = request->previous = NULL;
}

void list_replace(struct p2p_list *list, const struct p2p_request *request, struct p2p_request *with) {
    *(with->previous ? &with->previous->next : &list->first) = with;
    *(with->next ? &with->next->previous : &list->last) = with;
    assert(with->next == request->next && with->previous == request->previous);
}

struct p2p_request *list_find(const struct p2p_list *list, uint32_t id) {
    struct p2p_request *request = list->first;
    while (request && request->id != id) {
        request = request->next;
    }
    return request;
}

void request_finish(struct p2p *p2p, struct p2p_request *request, int status, const char *detail) {
    if (request->is_adopted) { /* nobody asks how it went */
        p2p->adopted_count--;
        p2p->adopted_bytes -= request->bytes;
        free(request);
        return;
    }
    request->status = status;
    request->detail = detail ? strdup(detail) : NULL; /* without memory the code alone arrives */
    request->state = REQUEST_DONE;
    p2p->completed++;
    atomic_store_explicit(&request->done, 1, memory_order_release);
}

/* ---- the lists of a link ---- */

static void activate(struct p2p *p2p, struct p2p_link *link) {
    link->is_active = true;
    link->previous_active = NULL;
    link->next_active = p2p->active;
    if (p2p->active) {
        p2p->active->previous_active = link;
    }
    p2p->active = link;
    p2p->active_count++;
}

static void deactivate(struct p2p *p2p, struct p2p_link *link) {
    assert(link->is_active && p2p->active_count > 0);
    link->is_active = false;
    if (link->previous_active) {
        link->previous_active->next_active = link->next_active;
    } else {
        p2p->active = link->next_active;
    }
    if (link->next_active) {
        link->next_active->previous_active = link->previous_active;
    }
    p2p->active_count--;
}

void link_put(struct p2p *p2p, struct p2p_link *link, struct p2p_list *list, struct p2p_request *request) {
    list_append(list, request);
    if (link->interest++ == 0) {
        activate(p2p, link);
    }
}

void link_take(struct p2p *p2p, struct p2p_link *link, struct p2p_list *list, struct p2p_request *request) {
    list_remove(list, request);
    assert(link->interest > 0);
    if (--link->interest == 0) {
        deactivate(p2p, link);
    }
}

void arrival_append(struct p2p_link *link, struct p2p_arrival *arrival) {
    arrival->next = NULL;
    arrival->previous = link->arrivals_last;
    if (link->arrivals_last) {
        link->arrivals_last->next = arrival;
    } else {
        link->arrivals = arrival;
    }
    link->arrivals_last = arrival;
}

void arrival_remove(struct p2p_link *link, struct p2p_arrival *arrival) {
    if (arrival->previous) {
        arrival->previous->next = arrival->next;
    } else {
        link->arrivals = arrival->next;
    }
    if (arrival->next) {
        arrival->next->previous = arrival->previous;
    } else {
        link->arrivals_last = arrival->previous;
    }
}

/* ---- matching ---- */

static bool is_for(const struct p2p_request *request, const struct wire_frame *frame) {
    return request->envelope.tag == frame->tag && request->envelope.group == frame->group &&
           request->envelope.lane == frame->lane;
}

static struct p2p_request *first_for(const struct p2p_list *list, const struct wire_frame *frame) {
    struct p2p_request *request = list->first;
    while (request && !is_for(request, frame)) {
        request = request->next;
    }
    return request;
}

/* `id`s rise in the order of posting. */
static bool is_earlier(const struct p2p_request *a, const struct p2p_request *b) {
    return (int32_t)(a->id - b->id) < 0;
}

struct p2p_request *match_message(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame) {
    struct p2p_request *here = first_for(&link->posted, frame);
    struct p2p_request *anybody = p2p->any.first ? first_for(&p2p->any, frame) : NULL;
    if (anybody && (!here || is_earlier(anybody, here))) {
        list_remove(&p2p->any, anybody);
        anybody->envelope.peer = link->peer;
        return anybody;
    }
    if (here) {
        link_take(p2p, link, &link->posted, here);
    }
    return here;
}

/* Has all of it come that says where the message may be read? If not, no other of the link is behind it, and it finds
 * the receive when it is whole (arrival_offered()). */
static bool is_whole_or_data(const struct p2p_arrival *arrival) {
    return !(arrival->frame.flags & WIRE_READABLE) || arrival->have == arrival->frame.payload;
}

static struct p2p_arrival *earliest_of(struct p2p_link *link, const struct p2p_request *request) {
    struct p2p_arrival *arrival = link->arrivals;
    while (arrival && !(is_for(request, &arrival->frame) && is_whole_or_data(arrival))) {
        arrival = arrival->next;
    }
    return arrival;
}

struct p2p_arrival *match_receive(struct p2p *p2p, struct p2p_link *link, const struct p2p_request *request) {
    struct p2p_arrival *found = NULL;
    if (link) {
        found = earliest_of(link, request);
    } else {
        for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
            struct p2p_link *other = p2p->links[peer];
            struct p2p_arrival *theirs = other && other->arrivals ? earliest_of(other, request) : NULL;
            if (theirs && (!found || theirs->ticket < found->ticket)) {
                found = theirs;
            }
        }
    }
    if (found) {
        arrival_remove(found->link, found);
    }
    return found;
}

size_t p2p_list_arrived(struct p2p *p2p, uint32_t group, uint32_t peer, struct p2p_arrived *out, size_t max) {
    size_t count = 0;
    p2p_lock(p2p);
    for (uint32_t from = 0; from < p2p->config.size; from++) {
        const struct p2p_link *link = peer == P2P_ANY_PEER || peer == from ? p2p->links[from] : NULL;
        const struct p2p_arrival *arrival = link ? link->arrivals : NULL;
        for (; arrival && count < max; arrival = arrival->next) {
            if (arrival->frame.group == group && arrival->frame.lane == P2P_MESSAGES) {
                out[count++] = (struct p2p_arrived){from, arrival->frame.tag};
            }
        }
    }
    p2p_unlock(p2p);
    return count;
}

/* Parts of a collective: the group's call is named by whoever made it. */
static void describe_parts(const struct p2p *p2p, const struct p2p_request *request, const struct wire_frame *frame,
                           uint32_t peer, char *out, size_t max) {
    char we[P2P_MEMBER_NAME_MAX], they[P2P_MEMBER_NAME_MAX], ours[128], theirs[128];
    (void)p2p_name_member(p2p, frame->group, p2p->config.rank, we);
    (void)p2p_name_member(p2p, frame->group, peer, they);
    if (request->envelope.fingerprint != frame->fingerprint) {
        (void)str_format(out, max, "%s makes %s, %s makes %s%s", they,
                         comm_fingerprint_format(frame->fingerprint, theirs, sizeof theirs), we,
                         comm_fingerprint_format(request->envelope.fingerprint, ours, sizeof ours),
                         comm_fingerprints_remark(request->envelope.fingerprint, frame->fingerprint));
        return;
    }
    (void)str_format(out, max, "%s expects %zu bytes from %s, which sends %llu", we, request->bytes, they,
                     (unsigned long long)frame->bytes);
}

static void describe_messages(const struct p2p *p2p, const struct p2p_request *request, const struct wire_frame *frame,
                              uint32_t peer, char *out, size_t max) {
    if (request->envelope.fingerprint != frame->fingerprint) {
        (void)str_format(out, max, "rank %u sends elements of %s, rank %u expects elements of %s", (unsigned)peer,
                         muster_type_name((enum muster_type)frame->fingerprint), (unsigned)p2p->config.rank,
                         muster_type_name((enum muster_type)request->envelope.fingerprint));
        return;
    }
    (void)str_format(out, max, "rank %u sends a message of %llu bytes, rank %u has room for %zu", (unsigned)peer,
                     (unsigned long long)frame->bytes, (unsigned)p2p->config.rank, request->bytes);
}

bool match_fits(struct p2p *p2p, struct p2p_request *request, const struct wire_frame *frame, uint32_t peer) {
    char sentence[P2P_SENTENCE_MAX];
    bool is_collective = request->envelope.lane == P2P_COLLECTIVES;
    bool fits = request->envelope.fingerprint == frame->fingerprint &&
                (frame->bytes == request->bytes || (!is_collective && frame->bytes < request->bytes));
    if (!fits) {
        (is_collective ? describe_parts : describe_messages)(p2p, request, frame, peer, sentence, sizeof sentence);
        request_finish(p2p, request, MUSTER_EMISMATCH, sentence);
    }
    return fits;
}
