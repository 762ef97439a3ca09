/* What p2p knows of groups and of the dead: which call a group is in, which groups and peers have failed, and the
 * notices by which all processes of the job learn it; see p2p_impl.h.
 *
 * A notice travels over every link there is. Each process acts on the first about a subject and passes it on, so that
 * it ends when all have it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "comm/engine/call.h"
#include "comm/p2p/p2p_impl.h"

#define CALL_MASK ((UINT32_C(1) << (64 - P2P_TAG_CALL_SHIFT)) - 1)

/* ---- groups ---- */

/* Where the id's entry is, or would be: linear probing from a multiplicative hash (Knuth, vol. 3, 6.4). */
static struct p2p_group *find_place(struct p2p_group *groups, uint32_t count, uint32_t id) {
    uint32_t at = id * UINT32_C(2654435769) & (count - 1);
    while (groups[at].is_used && groups[at].id != id) {
        at = (at + 1) & (count - 1);
    }
    return &groups[at];
}

struct p2p_group *p2p_group_find(const struct p2p *p2p, uint32_t id) {
    struct p2p_group *group = p2p->group_count > 0 ? find_place(p2p->groups, p2p->group_count, id) : NULL;
    return group && group->is_used ? group : NULL;
}

static bool grow(struct p2p *p2p) {
    uint32_t count = p2p->group_count > 0 ? 2 * p2p->group_count : 16;
    struct p2p_group *grown = calloc(count, sizeof *grown);
    if (!grown) {
        return false;
    }
    for (uint32_t i = 0; i < p2p->group_count; i++) {
        if (p2p->groups[i].is_used) {
            *find_place(grown, count, p2p->groups[i].id) = p2p->groups[i];
        }
    }
    free(p2p->groups);
    p2p->groups = grown;
    p2p->group_count = count;
    return true;
}

struct p2p_group *p2p_group_get(struct p2p *p2p, uint32_t id) {
    struct p2p_group *group = p2p_group_find(p2p, id);
    if (group) {
        return group;
    }
    if (p2p->groups_used >= P2P_GROUPS_MAX || (2 * (p2p->groups_used + 1) > p2p->group_count && !grow(p2p))) {
        return NULL;
    }
    group = find_place(p2p->groups, p2p->group_count, id);
    group->id = id;
    group->is_used = true;
    p2p->groups_used++;
    return group;
}

/* The numbers in tags count modulo 2^24: half of them are at or before a call, half after it. */
bool p2p_group_refuses(const struct p2p_group *group, uint8_t lane, uint64_t tag) {
    bool is_spared = lane == P2P_COLLECTIVES && group->spared > 0 &&
                     ((group->spared - (tag >> P2P_TAG_CALL_SHIFT)) & CALL_MASK) <= CALL_MASK / 2;
    return group->has_failed && !is_spared;
}

/* Ends the requests of one list that belong to the group, but for those of calls that it spares. */
static void fail_list(struct p2p *p2p, struct p2p_list *list, const struct p2p_group *group) {
    struct p2p_request *next;
    for (struct p2p_request *request = list->first; request; request = next) {
        next = request->next;
        if (request->envelope.group == group->id &&
            p2p_group_refuses(group, request->envelope.lane, request->envelope.tag)) {
            request_withdraw(p2p, request);
            request_finish(p2p, request, group->code, group->sentence);
        }
    }
}

static void fail_link_requests(struct p2p *p2p, struct p2p_link *link, const struct p2p_group *group) {
    struct p2p_list *lists[] = {&link->queue[0], &link->queue[1], &link->offered, &link->cleared,
                                &link->posted,   &link->filling,  &link->reading};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        fail_list(p2p, lists[i], group);
    }
}

static void drop_arrivals(struct p2p *p2p, uint32_t id) {
    for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
        if (p2p->links[peer]) {
            arrivals_drop(p2p, p2p->links[peer], id);
        }
    }
}

bool p2p_group_fail(struct p2p *p2p, const struct p2p_notice *notice) {
    struct p2p_group *group = p2p_group_get(p2p, notice->subject);
    if (!group || (group->has_failed && group->spared <= notice->spared)) {
        return false;
    }
    if (!group->has_failed) {
        group->code = notice->code;
        group->blamed = notice->blamed;
        group->sentence = strdup(notice->sentence);
    }
    group->has_failed = p2p->has_failures = true;
    group->spared = notice->spared;
    struct p2p_link *next;
    for (struct p2p_link *link = p2p->active; link; link = next) {
        next = link->next_active;
        fail_link_requests(p2p, link, group);
    }
    fail_list(p2p, &p2p->any, group);
    drop_arrivals(p2p, notice->subject);
    return true;
}

bool p2p_group_is_over(const struct p2p *p2p, const struct wire_frame *frame) {
    bool may_be = p2p->has_failures || p2p->has_ended_groups;
    const struct p2p_group *group = may_be ? p2p_group_find(p2p, frame->group) : NULL;
    return group && (group->has_ended || p2p_group_refuses(group, frame->lane, frame->tag));
}

/* The caller's memory goes. A peer may still make a call that contradicts one of this process's. */
static void keep_name(struct p2p_group *group) {
    group->kept_name = group->info.name && !group->kept_name ? strdup(group->info.name) : group->kept_name;
    group->info = (struct p2p_group_info){.id = group->id, .name = group->kept_name};
}

void p2p_end_group(struct p2p *p2p, uint32_t id, const uint32_t *members, uint32_t member_count) {
    p2p_lock(p2p);
    struct p2p_group *group = p2p_group_get(p2p, id);
    if (group) { /* without memory its messages stay, and take their sender's room */
        group->has_ended = p2p->has_ended_groups = true;
        keep_name(group);
        drop_arrivals(p2p, id);
        left_forget(p2p, id);
        left_tell_members(p2p, group, members, member_count);
    }
    if (p2p->blocked) {
        (void)p2p_flush_blocked(p2p); /* credit: perhaps nobody waits */
    }
    p2p_unlock(p2p);
}

/* ---- calls that contradict each other ---- */

/* A call that this process has made, or makes. */
struct known_call {
    uint64_t number, fingerprint; /* of none: 0 */
};

char *p2p_name_member(const struct p2p *p2p, uint32_t id, uint32_t peer, char out[P2P_MEMBER_NAME_MAX]) {
    const struct p2p_group *group = p2p_group_find(p2p, id);
    uint32_t count = group ? group->info.member_count : 0, rank = 0;
    while (rank < count && group->info.members[rank] != peer) {
        rank++;
    }
    if (rank == count) {
        (void)str_format(out, P2P_MEMBER_NAME_MAX, "root rank %u", (unsigned)peer);
    } else if (rank == peer) {
        (void)str_format(out, P2P_MEMBER_NAME_MAX, "rank %u", (unsigned)peer);
    } else {
        (void)str_format(out, P2P_MEMBER_NAME_MAX, "rank %u (root rank %u)", (unsigned)rank, (unsigned)peer);
    }
    return out;
}

/* The peer makes this call with another fingerprint. */
static void contradiction(struct p2p *p2p, const struct p2p_group *group, struct known_call ours, uint32_t peer,
                          uint64_t theirs) {
    char our_call[128], their_call[128], we[P2P_MEMBER_NAME_MAX], they[P2P_MEMBER_NAME_MAX];
    const char *name = group->info.name ? group->info.name : "";
    struct p2p_notice notice = {
        .kind = P2P_NOTICE_GROUP_FAILED, .subject = group->id, .origin = p2p->config.rank, .code = MUSTER_EMISMATCH};
    notice.blamed.number = peer + 1;
    (void)str_format(notice.sentence, sizeof notice.sentence, "call %llu of group '%s' is %s on %s, but %s on %s%s",
                     (unsigned long long)ours.number, name,
                     comm_fingerprint_format(ours.fingerprint, our_call, sizeof our_call),
                     p2p_name_member(p2p, group->id, p2p->config.rank, we),
                     comm_fingerprint_format(theirs, their_call, sizeof their_call),
                     p2p_name_member(p2p, group->id, peer, they), comm_fingerprints_remark(ours.fingerprint, theirs));
    if (p2p_group_fail(p2p, &notice)) {
        notice_forward(p2p, &notice, NULL);
        notice_report(p2p, &notice);
    }
}

/* The call of which a tag has told the lowest bits of the number; it may be too early, or too long ago, to know it. */
static struct known_call call_of(const struct p2p_group *group, uint64_t tag) {
    uint32_t low = (uint32_t)(tag >> P2P_TAG_CALL_SHIFT);
    if (group->fingerprint != 0 && (group->call & CALL_MASK) == low) {
        return (struct known_call){group->call, group->fingerprint};
    }
    for (uint32_t i = 0; i < P2P_CALLS_KEPT && group->fingerprint != 0; i++) {
        if (group->past_fingerprints[i] != 0 && (group->past_calls[i] & CALL_MASK) == low) {
            return (struct known_call){group->past_calls[i], group->past_fingerprints[i]};
        }
    }
    return (struct known_call){0, 0};
}

bool p2p_group_contradicts(struct p2p *p2p, const struct p2p_link *link, const struct wire_frame *frame) {
    const struct p2p_group *group = p2p_group_find(p2p, frame->group);
    struct known_call ours = group ? call_of(group, frame->tag) : (struct known_call){0, 0};
    if (ours.fingerprint == 0 || ours.fingerprint == frame->fingerprint) {
        return false;
    }
    contradiction(p2p, group, ours, link->peer, frame->fingerprint);
    return true;
}

static bool is_of_call(uint64_t tag, uint64_t call) {
    return tag >> P2P_TAG_CALL_SHIFT == (call & CALL_MASK);
}

/* Is the message of a later call than `call`? Numbers go round. */
static bool is_later(const struct wire_frame *frame, uint64_t call) {
    uint32_t ahead = ((uint32_t)(frame->tag >> P2P_TAG_CALL_SHIFT) - (uint32_t)call) & CALL_MASK;
    return ahead != 0 && ahead <= CALL_MASK / 2;
}

/* Messages of the call that have come before it. A peer makes the calls of a group one after the other, so its messages
 * of this call come before those of later ones, of which there may be thousands when it runs ahead. */
static void check_arrivals(struct p2p *p2p, const struct p2p_group *group) {
    const struct known_call ours = {group->call, group->fingerprint};
    for (struct p2p_stream *stream = p2p->open; stream; stream = stream->next_open) {
        const struct p2p_arrival *arrival = stream->index == 0 ? stream->link->arrivals : NULL;
        for (; arrival; arrival = arrival->next) {
            const struct wire_frame *frame = &arrival->frame;
            if (frame->lane != P2P_COLLECTIVES || frame->group != group->id) {
                continue;
            }
            if (is_later(frame, ours.number)) {
                break;
            }
            if (is_of_call(frame->tag, ours.number) && frame->fingerprint != ours.fingerprint) {
                contradiction(p2p, group, ours, stream->link->peer, frame->fingerprint);
                return;
            }
        }
    }
}

void p2p_group_hears(struct p2p *p2p, const struct p2p_link *link, const struct wire_frame *frame) {
    struct p2p_group *group = p2p_group_get(p2p, frame->group);
    if (group && !p2p_group_contradicts(p2p, link, frame)) {
        group->told_call = (uint32_t)(frame->tag >> P2P_TAG_CALL_SHIFT);
        group->told_fingerprint = frame->fingerprint;
        group->told_by = link->peer;
    }
}

void p2p_tell_call(struct p2p *p2p, uint32_t id, uint32_t peer) {
    p2p_lock(p2p);
    struct p2p_link *link = p2p->links[peer];
    const struct p2p_group *group = p2p_group_find(p2p, id);
    if (group && group->fingerprint != 0 && link && link->state == LINK_OPEN && link->streams[0]) {
        struct wire_frame frame = {.kind = WIRE_CALL,
                                   .lane = P2P_COLLECTIVES,
                                   .group = id,
                                   .credit = link->credit[P2P_COLLECTIVES].taken,
                                   .tag = P2P_TAG(group->call, 0),
                                   .fingerprint = group->fingerprint};
        link->credit[P2P_COLLECTIVES].told = frame.credit;
        stream_control(p2p, link->streams[0], &frame, NULL);
        (void)p2p_flush_blocked(p2p);
    }
    p2p_unlock(p2p);
}

int p2p_begin_call(struct p2p *p2p, const struct p2p_group_info *info, uint64_t call, uint64_t fingerprint) {
    uint32_t id = info->id;
    p2p_lock(p2p);
    struct p2p_group *group = p2p_group_get(p2p, id);
    int code =
        group ? 0
              : status_fail(MUSTER_ELIMIT, "no memory for group %u, or over %d groups", (unsigned)id, P2P_GROUPS_MAX);
    if (group) {
        if (group->fingerprint != 0) {
            group->past_calls[group->past_at] = group->call;
            group->past_fingerprints[group->past_at] = group->fingerprint;
            group->past_at = (group->past_at + 1) % P2P_CALLS_KEPT;
        }
        group->info = *info;
        group->call = call;
        group->fingerprint = fingerprint;
        check_arrivals(p2p, group);
        group = p2p_group_find(p2p, id); /* telling others of it may have brought news of other groups */
        if (group->told_fingerprint != 0 && group->told_call == (call & CALL_MASK) &&
            group->told_fingerprint != fingerprint) {
            contradiction(p2p, group, (struct known_call){call, fingerprint}, group->told_by, group->told_fingerprint);
            group = p2p_group_find(p2p, id);
        }
        if (p2p_group_refuses(group, P2P_COLLECTIVES, P2P_TAG(call, 0))) {
            code = status_fail(group->code, "%s", group->sentence ? group->sentence : muster_strerror(group->code));
        }
    }
    p2p_unlock(p2p);
    return code;
}

/* ---- notices ---- */

void notice_report(struct p2p *p2p, const struct p2p_notice *notice) {
    struct pending_notice *pending = p2p->config.notice ? malloc(sizeof *pending) : NULL;
    if (pending) { /* without memory the context learns it from the requests that have failed */
        pending->next = NULL;
        pending->notice = *notice;
        *p2p->notices_end = pending;
        p2p->notices_end = &pending->next;
    }
}

static void send_notice(struct p2p *p2p, struct p2p_stream *stream, const struct p2p_notice *notice) {
    size_t length = strlen(notice->sentence);
    struct wire_frame frame = {.kind = WIRE_NOTICE,
                               .payload = (uint32_t)length,
                               .group = notice->subject,
                               .tag = notice->origin | (uint64_t)(uint32_t)notice->code << 32,
                               .fingerprint = notice->blamed.number | (uint64_t)(uint32_t)notice->blamed.pid << 32,
                               .bytes = notice->kind,
                               .number = notice->spared};
    stream_control(p2p, stream, &frame, notice->sentence);
    p2p->owes_notices = true; /* written before the lock is released */
}

void notices_write(struct p2p *p2p) {
    while (p2p->owes_notices) { /* writing may bring others */
        p2p->owes_notices = false;
        (void)p2p_flush_blocked(p2p);
    }
}

void notice_tell_all(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_notice notice = {.origin = p2p->config.rank};
    for (uint32_t i = 0; i < p2p->group_count && p2p->has_failures && stream->io; i++) {
        const struct p2p_group *group = &p2p->groups[i];
        if (group->has_failed) {
            notice.kind = P2P_NOTICE_GROUP_FAILED;
            notice.subject = group->id;
            notice.code = group->code;
            notice.spared = group->spared;
            notice.blamed = group->blamed;
            (void)str_format(notice.sentence, sizeof notice.sentence, "%s", group->sentence ? group->sentence : "");
            send_notice(p2p, stream, &notice);
        }
    }
    notice.spared = 0;
    for (uint32_t peer = 0; peer < p2p->config.size && p2p->has_failures && stream->io; peer++) {
        const struct p2p_link *link = p2p->is_dead[peer] ? p2p->links[peer] : NULL;
        if (link) {
            notice.kind = P2P_NOTICE_PEER_DEAD;
            notice.subject = peer;
            notice.code = MUSTER_EPEER;
            notice.blamed = link->blamed;
            (void)str_format(notice.sentence, sizeof notice.sentence, "%s", link->sentence ? link->sentence : "");
            send_notice(p2p, stream, &notice);
        }
    }
}

/* The first process of a host, to which other hosts talk, tells all of its own, and they tell it. Rings are made for
 * that if need be: neighbours may have had nothing to say to each other until now. */
static void open_star(struct p2p *p2p) {
    const struct p2p_config *config = &p2p->config;
    if (!p2p->rings || config->neighbour_count == config->size || p2p->is_leaving) {
        return;
    }
    for (uint32_t local = 0; local < (config->local == 0 ? config->neighbour_count : 1); local++) {
        uint32_t peer = config->neighbours[local].peer;
        struct p2p_link *link = peer != config->rank && !p2p->is_dead[peer] ? link_entry(p2p, peer) : NULL;
        if (link && link->state == LINK_NEW) {
            (void)rings_open(p2p, link);
        }
    }
}

void notice_forward(struct p2p *p2p, const struct p2p_notice *notice, const struct p2p_link *from) {
    open_star(p2p);
    for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
        struct p2p_link *link = p2p->links[peer];
        if (!link || link == from || link->state == LINK_FAILED) {
            continue;
        }
        /* All of them: data may be in the way on one, and what is told must be before a goodbye on any. */
        struct p2p_stream *ways[] = {link->streams[0], link->watches[0], link->watches[1]};
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            if (ways[i] && ways[i]->io && !ways[i]->said_goodbye) {
                send_notice(p2p, ways[i], notice);
            }
        }
    }
}

/* Marks what the notice says. false: it is known already, or makes no sense. */
static bool apply(struct p2p *p2p, const struct p2p_notice *notice) {
    if (notice->kind == P2P_NOTICE_GROUP_FAILED) {
        return notice->code < 0 && p2p_group_fail(p2p, notice);
    }
    if (notice->kind != P2P_NOTICE_PEER_DEAD || notice->subject >= p2p->config.size ||
        notice->subject == p2p->config.rank || p2p->is_dead[notice->subject]) {
        return false;
    }
    struct p2p_link *link = link_entry(p2p, notice->subject);
    if (link && link->said_goodbye) {
        return false; /* that is why somebody could not reach it any more */
    }
    p2p->is_dead[notice->subject] = 1;
    p2p->has_failures = true;
    if (link) {
        link->blamed = notice->blamed;
        link_bury(p2p, link, notice->sentence);
    }
    return true;
}

void notice_take(struct p2p *p2p, struct p2p_link *from, const struct p2p_notice *notice) {
    if (!apply(p2p, notice)) {
        return;
    }
    notice_forward(p2p, notice, from);
    struct p2p_link *link = notice->kind == P2P_NOTICE_PEER_DEAD ? p2p->links[notice->subject] : NULL;
    if (link && link->is_dying) {
        link->owes_notice = true;
        link->told_by = notice->origin;
    } else {
        notice_report(p2p, notice);
    }
}

void peer_found_dead(struct p2p *p2p, uint32_t peer, int code, const char *sentence) {
    if (p2p->is_ending) {
        return;
    }
    struct p2p_notice notice = {
        .kind = P2P_NOTICE_PEER_DEAD, .subject = peer, .origin = p2p->config.rank, .code = code};
    (void)str_format(notice.sentence, sizeof notice.sentence, "%s", sentence);
    notice_take(p2p, NULL, &notice);
}

void p2p_spread(struct p2p *p2p, const struct p2p_notice *notice) {
    p2p_lock(p2p);
    if (apply(p2p, notice)) {
        notice_forward(p2p, notice, NULL);
    }
    p2p_unlock(p2p);
}
