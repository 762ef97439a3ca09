/* Ranks that have freed a group while their links go on, for other groups: nothing of that group comes from them any
 * more, and whoever waits for it learns that at once; see p2p_impl.h.
 *
 * Over a connection, LEFT says so behind all messages; who has no connection to a member yet says it when there is one.
 * A neighbour's place in the group's segment says so, too, and whoever sees it tells p2p (p2p_peer_left()), which then
 * takes all that the neighbour has written before.
 *
 * Nor does anybody take what is sent to them: a send that has not been asked for ends with the same sentence. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/p2p/p2p_impl.h"

/* Members of freed groups who could not be told yet, over all groups; of more, the time-out tells. */
enum { UNTOLD_MAX = 1 << 20 };

static void say_left(struct p2p *p2p, struct p2p_stream *stream, uint32_t id) {
    struct wire_frame frame = {.kind = WIRE_LEFT, .group = id};
    stream_control(p2p, stream, &frame, NULL);
}

/* ---- this process leaves ---- */

static void keep_untold(struct p2p *p2p, struct p2p_group *group, uint32_t peer, uint32_t room) {
    if (p2p->untold_count >= UNTOLD_MAX) {
        return;
    }
    if (!group->untold) {
        group->untold = malloc(room * sizeof *group->untold);
    }
    if (group->untold) {
        group->untold[group->untold_count++] = peer;
        p2p->untold_count++;
    }
}

void left_tell_members(struct p2p *p2p, struct p2p_group *group, const uint32_t *members, uint32_t member_count) {
    for (uint32_t i = 0; i < member_count; i++) {
        uint32_t peer = members[i];
        const struct p2p_link *link = p2p->links[peer];
        bool is_neighbour = rings_local(p2p, peer) != UINT32_MAX;
        if (peer == p2p->config.rank) {
            continue;
        }
        if (link && link->state == LINK_OPEN && link->streams[0]) {
            say_left(p2p, link->streams[0], group->id);
        } else if (!is_neighbour && (!link || link->state < LINK_OPEN)) {
            keep_untold(p2p, group, peer, member_count);
        }
    }
}

void left_tell_new(struct p2p *p2p, struct p2p_stream *stream) {
    for (uint32_t i = 0; i < p2p->group_count && p2p->untold_count > 0 && stream->io; i++) {
        struct p2p_group *group = &p2p->groups[i];
        for (uint32_t at = 0; at < group->untold_count; at++) {
            if (group->untold[at] == stream->link->peer) {
                group->untold[at] = group->untold[--group->untold_count];
                p2p->untold_count--;
                say_left(p2p, stream, group->id);
                break;
            }
        }
    }
}

/* ---- a peer leaves ---- */

bool link_has_left(const struct p2p_link *link, uint32_t id) {
    bool has = link->state == LINK_LEFT || (link->state == LINK_NEW && link->said_goodbye);
    for (uint32_t i = 0; !has && i < link->left_count; i++) {
        has = link->left[i] == id;
    }
    return has;
}

char *left_describe(const struct p2p *p2p, const struct p2p_link *link, char out[P2P_SENTENCE_MAX]) {
    char peer[P2P_PEER_NAME_MAX];
    (void)str_format(out, P2P_SENTENCE_MAX, "%s has left: it has freed its group", link_peer_name(p2p, link, peer));
    return out;
}

/* Without memory those who wait now learn it, and those who come later wait. */
static void note_left(struct p2p_link *link, uint32_t id) {
    if (link->left_count == link->left_max) {
        uint32_t max = link->left_max > 0 ? 2 * link->left_max : 8;
        uint32_t *left = realloc(link->left, max * sizeof *left);
        if (!left) {
            return;
        }
        link->left = left;
        link->left_max = max;
    }
    link->left[link->left_count++] = id;
}

/* Ends those of the list that are of the group, but for those of its collectives where `spares_calls`. */
static void end_requests(struct p2p *p2p, struct p2p_list *list, uint32_t id, bool spares_calls, const char *sentence) {
    struct p2p_request *next;
    for (struct p2p_request *request = list->first; request; request = next) {
        next = request->next;
        bool is_spared = request->state == REQUEST_FLOWING || (spares_calls && request->envelope.lane != P2P_MESSAGES);
        if (request->envelope.group == id && !is_spared) {
            request_withdraw(p2p, request);
            request_finish(p2p, request, MUSTER_EPEER, sentence);
        }
    }
}

void link_leaves_group(struct p2p *p2p, struct p2p_link *link, uint32_t id) {
    char sentence[P2P_SENTENCE_MAX];
    (void)left_describe(p2p, link, sentence);
    struct p2p_list *sends[] = {&link->queue[P2P_MESSAGES], &link->offered, &link->cleared};
    for (size_t i = 0; i < sizeof sends / sizeof *sends; i++) {
        end_requests(p2p, sends[i], id, true, sentence);
    }
    const struct p2p_group *group = p2p_group_find(p2p, id);
    if ((group && group->has_ended) || link_has_left(link, id)) {
        return;
    }
    note_left(link, id);
    end_requests(p2p, &link->posted, id, false, sentence);
    left_check_any(p2p);
}

bool left_by_all(const struct p2p *p2p, const struct p2p_envelope *envelope, char out[P2P_SENTENCE_MAX]) {
    const struct p2p_link *last = NULL;
    for (uint32_t i = 0; i < envelope->member_count; i++) {
        uint32_t peer = envelope->members[i];
        const struct p2p_link *link = p2p->links[peer];
        if (peer != p2p->config.rank && !(link && link_has_left(link, envelope->group))) {
            return false;
        }
        last = peer != p2p->config.rank ? link : last;
    }
    if (last) {
        char peer[P2P_PEER_NAME_MAX];
        (void)str_format(out, P2P_SENTENCE_MAX, "%s has left%s: it has freed its group",
                         link_peer_name(p2p, last, peer), envelope->member_count > 2 ? ", as all others have" : "");
    }
    return last != NULL;
}

void left_check_any(struct p2p *p2p) {
    char sentence[P2P_SENTENCE_MAX];
    struct p2p_request *next;
    for (struct p2p_request *request = p2p->any.first; request; request = next) {
        next = request->next;
        if (left_by_all(p2p, &request->envelope, sentence)) {
            list_remove(&p2p->any, request);
            request_finish(p2p, request, MUSTER_EPEER, sentence);
        }
    }
}

void left_forget(struct p2p *p2p, uint32_t id) {
    for (struct p2p_request *request = p2p->any.first; request; request = request->next) {
        if (request->envelope.group == id) {
            request->envelope.member_count = 0; /* never waited for; its list may go now */
        }
    }
    for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
        struct p2p_link *link = p2p->links[peer];
        for (uint32_t i = 0; link && i < link->left_count; i++) {
            if (link->left[i] == id) {
                link->left[i] = link->left[--link->left_count];
                break;
            }
        }
    }
}

void p2p_peer_left(struct p2p *p2p, uint32_t id, uint32_t peer) {
    p2p_lock(p2p);
    struct p2p_link *link = link_entry(p2p, peer);
    if (link && !link_has_left(link, id)) {
        (void)rings_progress(p2p); /* opens the link, if the peer has used it */
        link_read_out(p2p, link);
        link_leaves_group(p2p, link, id);
    }
    p2p_unlock(p2p);
}
