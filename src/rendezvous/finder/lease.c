/* Who leads, and what it may tell; see lease.h. */
#include "rendezvous/finder/lease.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"

/* ---- what was read ---- */

struct view {
    bool has_leader;
    struct lease_leader leader;
    int64_t leader_epoch; /* its create_revision */
    bool has_world;
    struct lease_world world;
    int64_t world_revision;
};

static bool ends_with(struct kv_slice key, const char *end) {
    size_t len = strlen(end);
    return key.len >= len && memcmp(key.data + key.len - len, end, len) == 0;
}

/* Other keys than these two are none of ours. */
static int read_view(const struct etcd3_reply *reply, struct view *out) {
    int rc = MUSTER_OK;
    *out = (struct view){.has_leader = false};
    for (size_t i = 0; i < reply->pair_count && rc == MUSTER_OK; i++) {
        const struct etcd3_pair *pair = &reply->pairs[i];
        if (ends_with(pair->key, "/leader")) {
            out->has_leader = true;
            out->leader_epoch = pair->create_revision;
            rc = lease_leader_get(pair->value, &out->leader);
        } else if (ends_with(pair->key, "/world")) {
            out->has_world = true;
            out->world_revision = pair->mod_revision;
            rc = lease_world_get(pair->value, &out->world);
        }
        rc = rc ? status_prefix(rc, "etcd's key %.*s", (int)pair->key.len, (const char *)pair->key.data) : rc;
    }
    return rc;
}

/* By an event, or the answer to a fence: others may have overtaken it, so that it tells of growth alone. */
static void raise_revision(struct lease *l, int64_t revision) {
    l->last_revision = revision > l->last_revision ? revision : l->last_revision;
}

/* etcd's revisions only grow, unless what it knew is gone. asked_revision: the last one when this was asked. */
static unsigned note_revision(struct lease *l, int64_t revision, int64_t asked_revision) {
    bool is_older = revision > 0 && revision < asked_revision;
    raise_revision(l, revision);
    if (is_older) { /* what the watch waits for may never come */
        l->former_revision = l->last_revision;
        l->last_revision = l->looked_revision = l->stood_revision = revision;
        l->dead_epoch = l->tried_revision = 0;
        l->has_watch = false;
    }
    return is_older ? LEASE_WARN | LEASE_UNWATCH : 0u;
}

static void note_world(struct lease *l, const struct view *view) {
    l->has_world = view->has_world;
    l->world = view->world;
    l->world_revision = view->has_world ? view->world_revision : 0;
    if (view->has_world && l->world_lease_id == 0) {
        l->world_lease_id = view->world.lease_id;
    }
}

/* ---- losing it ---- */

/* All that was under way ends, and the lease is given back. */
static unsigned drop(struct lease *l) {
    l->old_lease_id = l->lease_id;
    l->lease_id = 0;
    l->epoch = 0;
    l->has_watch = l->is_writing = l->wants_fence = l->is_granting_world = false;
    return LEASE_DROP | (l->old_lease_id ? LEASE_REVOKE_OLD : 0u);
}

/* Another agent leads: what this one knows of worlds is out of date. */
static unsigned depose(struct lease *l) {
    unsigned actions = drop(l);
    l->state = LEASE_IDLE;
    l->serves = false;
    l->world_lease_id = 0; /* the next leader's now, or it expires */
    l->told = (struct coordinator_record){.round = 0};
    return actions | LEASE_DEPOSE | LEASE_NEWS;
}

static unsigned fail(struct lease *l, int status) {
    unsigned actions = drop(l);
    l->state = LEASE_IDLE;
    l->failed_status = status;
    return actions | LEASE_FAILED;
}

unsigned lease_break(struct lease *l, int status) {
    return l->state >= LEASE_CLEANING ? 0 : fail(l, status);
}

/* ---- standing ---- */

static unsigned watch_after(struct lease *l, int64_t revision) {
    if (l->has_watch) {
        return 0;
    }
    l->has_watch = true;
    l->watch_revision = revision + 1;
    return LEASE_WATCH;
}

static unsigned look(struct lease *l) {
    l->looked_revision = l->last_revision;
    return LEASE_LOOK;
}

static unsigned stand(struct lease *l) {
    l->stood_revision = l->last_revision;
    l->state = l->lease_id ? LEASE_STANDING : LEASE_GRANTING;
    return l->lease_id ? LEASE_STAND : LEASE_GRANT;
}

static unsigned find(struct lease *l, const struct lease_place *place, int64_t epoch, int64_t revision) {
    l->state = LEASE_WAITING;
    l->epoch = epoch;
    l->found = *place;
    /* Most are reached at once: to watch is for those that are not. */
    return LEASE_FOUND | (l->has_missed ? watch_after(l, revision) : 0u);
}

unsigned lease_seek(struct lease *l, bool may_lead) {
    l->may_lead = may_lead;
    if (l->serves && l->state < LEASE_CLEANING) { /* its own, also while it has lost the key and stands again */
        l->found = l->self.place;
        return LEASE_FOUND;
    }
    if (l->state != LEASE_IDLE && l->state != LEASE_WAITING) {
        return 0;
    }
    l->state = LEASE_LOOKING;
    return look(l);
}

static bool is_same_place(const struct lease_place *a, const struct lease_place *b) {
    return a->port == b->port && strcmp(a->addr, b->addr) == 0;
}

/* Nobody holds the key, and yet the last leader may serve: it takes the key again. Or nobody listens there any more,
 * which is worth knowing for the next world. Tried once. */
static bool may_be_at_its_place(const struct lease *l, const struct view *view) {
    return view->has_world && view->world_revision != l->tried_revision &&
           view->world.record.author != l->self.identity[0] && !is_same_place(&view->world.place, &l->silent);
}

static bool is_self(const struct lease *l, const struct lease_leader *leader) {
    return leader->identity[0] == l->self.identity[0] && leader->identity[1] == l->self.identity[1] &&
           leader->place.port == l->self.place.port;
}

/* The key is the one that this agent has made. Its revision alone does not say so: an etcd that has lost its data gives
 * it out once more. */
static bool is_own_key(const struct lease *l, const struct view *view) {
    return view->leader_epoch == l->epoch && is_self(l, &view->leader);
}

static unsigned watch_on(struct lease *l, const struct view *view, int64_t revision) {
    if (!view->has_leader) {
        return stand(l);
    }
    return is_own_key(l, view) ? watch_after(l, revision) : depose(l);
}

unsigned lease_looked(struct lease *l, int status, const struct etcd3_reply *reply) {
    struct view view;
    if (l->state != LEASE_LOOKING && l->state != LEASE_LEADING) {
        return 0;
    }
    status = status ? status : read_view(reply, &view);
    if (status != MUSTER_OK) {
        return fail(l, status);
    }
    l->has_reached = true;
    unsigned actions = note_revision(l, reply->revision, l->looked_revision);
    if (l->state == LEASE_LEADING) { /* after a gap */
        return actions | watch_on(l, &view, reply->revision);
    }
    if (view.has_leader && view.leader_epoch == l->dead_epoch) {
        l->epoch = view.leader_epoch;
        return actions | LEASE_EXPIRE;
    }
    if (view.has_leader) {
        return actions | find(l, &view.leader.place, view.leader_epoch, reply->revision);
    }
    if (may_be_at_its_place(l, &view)) {
        l->tried_revision = view.world_revision;
        return actions | find(l, &view.world.place, 0, reply->revision);
    }
    if (!l->may_lead) {
        l->state = LEASE_IDLE;
        return actions | LEASE_NOBODY;
    }
    return actions | stand(l);
}

unsigned lease_expired(struct lease *l, int status, const struct etcd3_reply *reply) {
    (void)reply; /* whether this agent or another one has done it, or the key was another's by then: look again */
    if (l->state != LEASE_LOOKING) {
        return 0;
    }
    return status ? fail(l, status) : look(l);
}

unsigned lease_granted(struct lease *l, int status, const struct etcd3_reply *reply) {
    if (l->state != LEASE_GRANTING) {
        return 0;
    }
    if (status == MUSTER_OK && reply->lease_id == 0) {
        status = status_fail(MUSTER_EPROTOCOL, "etcd has granted a lease without a number");
    }
    if (status != MUSTER_OK) {
        return fail(l, status);
    }
    uint64_t third_ms = reply->ttl_s > 0 ? (uint64_t)reply->ttl_s * 1000 / 3 : UINT64_MAX;
    l->beat_ms = third_ms < l->keep_alive_interval_ms ? third_ms : l->keep_alive_interval_ms;
    l->has_reached = true;
    l->lease_id = reply->lease_id;
    return LEASE_BEAT | stand(l);
}

static unsigned write_next(struct lease *l) {
    if (l->state != LEASE_LEADING || l->is_writing || !l->wants_fence || l->is_granting_world) {
        return 0;
    }
    assert(l->serves);
    if (l->world_lease_id == 0) {
        l->is_granting_world = true;
        return LEASE_GRANT_WORLD;
    }
    l->is_writing = true;
    l->writing = (struct lease_world){.record = l->wanted, .place = l->self.place, .lease_id = l->world_lease_id};
    return LEASE_FENCE;
}

static bool is_same_world(const struct lease_world *a, const struct lease_world *b) {
    return a->record.round == b->record.round && a->record.author == b->record.author && a->lease_id == b->lease_id;
}

/* A coordinator that has served until now goes on only if nobody has written a world since. Not told by the revision:
 * an etcd that has lost its data gives it out once more. */
static bool is_superseded(const struct lease *l, const struct view *view) {
    return l->serves && view->has_world && view->world.record.author != l->self.identity[0] &&
           !(l->has_world && is_same_world(&view->world, &l->world));
}

static unsigned lead(struct lease *l, const struct view *view, int64_t epoch) {
    bool was_serving = l->serves;
    if (is_superseded(l, view)) {
        return depose(l);
    }
    if (was_serving && !view->has_world && l->told.round > 0 && !l->wants_fence) { /* etcd has lost it */
        l->wanted = l->told;
        l->wants_fence = true;
        l->world_lease_id = 0;
    }
    note_world(l, view);
    l->state = LEASE_LEADING;
    l->serves = true;
    l->epoch = epoch;
    l->has_watch = false; /* that of a follower, or of the time before */
    return LEASE_UNWATCH | (was_serving ? 0u : LEASE_LEAD) | watch_after(l, epoch) | write_next(l);
}

unsigned lease_stood(struct lease *l, int status, const struct etcd3_reply *reply) {
    struct view view;
    if (l->state != LEASE_STANDING) {
        return 0;
    }
    if (status == MUSTER_ENOENT) { /* the lease has expired */
        l->lease_id = 0;
        return stand(l);
    }
    status = status ? status : read_view(reply, &view);
    if (status == MUSTER_OK && !reply->has_succeeded && !view.has_leader) {
        status = status_fail(MUSTER_EPROTOCOL, "etcd says of a key that it exists, and that it does not");
    }
    if (status != MUSTER_OK) {
        return fail(l, status);
    }
    unsigned actions = note_revision(l, reply->revision, l->stood_revision);
    if (reply->has_succeeded) {
        return actions | lead(l, &view, reply->revision);
    }
    if (is_self(l, &view.leader)) { /* the answer to an earlier try was lost */
        return actions | lead(l, &view, view.leader_epoch);
    }
    if (l->serves) {
        return actions | depose(l);
    }
    actions |= drop(l) | LEASE_DEPOSE;
    return actions | find(l, &view.leader.place, view.leader_epoch, reply->revision);
}

/* ---- leading ---- */

unsigned lease_beaten(struct lease *l, bool is_worlds, int status, const struct etcd3_reply *reply) {
    bool is_gone = status == MUSTER_ENOENT || (status == MUSTER_OK && reply->ttl_s <= 0);
    if (!is_gone || l->state >= LEASE_CLEANING) {
        return 0; /* other trouble is told when something has to be written */
    }
    if (is_worlds) {
        l->world_lease_id = 0;
        if (l->told.round > 0 && !l->wants_fence) {
            l->wanted = l->told;
            l->wants_fence = true;
        }
        return write_next(l);
    }
    l->lease_id = 0;
    if (l->state != LEASE_LEADING) {
        return 0; /* whoever stands is told by that */
    }
    return stand(l);
}

unsigned lease_world_granted(struct lease *l, int status, const struct etcd3_reply *reply) {
    assert(l->is_granting_world); /* who drops it cancels the request */
    l->is_granting_world = false;
    if (status == MUSTER_OK && reply->lease_id == 0) {
        status = status_fail(MUSTER_EPROTOCOL, "etcd has granted a lease without a number");
    }
    if (status != MUSTER_OK) {
        return fail(l, status);
    }
    l->world_lease_id = reply->lease_id;
    return write_next(l);
}

unsigned lease_fence(struct lease *l, const struct coordinator_record *record) {
    l->wanted = *record;
    l->wants_fence = true;
    return write_next(l);
}

static unsigned wrote(struct lease *l, int64_t revision) {
    assert(l->serves && !l->is_writing && l->writing.record.round > 0);
    l->world_revision = revision;
    l->has_world = true;
    l->world = l->writing;
    bool is_told = l->told.round == l->writing.record.round; /* again: nobody waits for it */
    l->told = l->writing.record;
    if (l->wanted.round != l->writing.record.round) {
        return write_next(l);
    }
    l->wants_fence = false;
    return is_told ? 0u : LEASE_FENCED;
}

/* Why not? The world's key is another one than was thought, or the leader's. */
static unsigned fence_failed(struct lease *l, const struct view *view) {
    if (!view->has_leader) {
        return stand(l);
    }
    if (!is_own_key(l, view)) {
        return depose(l);
    }
    if (view->has_world && is_same_world(&view->world, &l->writing)) { /* the answer to an earlier try was lost */
        return wrote(l, view->world_revision);
    }
    if (is_superseded(l, view)) {
        return depose(l);
    }
    note_world(l, view);
    return write_next(l);
}

unsigned lease_fenced(struct lease *l, int status, const struct etcd3_reply *reply) {
    struct view view;
    assert(l->is_writing); /* who drops it cancels the request */
    l->is_writing = false;
    if (l->state != LEASE_LEADING) { /* written again, if it is wanted, once the key is */
        return 0;
    }
    if (status == MUSTER_ENOENT) { /* the lease of the world's key has expired */
        l->world_lease_id = 0;
        return write_next(l);
    }
    status = status ? status : read_view(reply, &view);
    if (status != MUSTER_OK) {
        return fail(l, status);
    }
    raise_revision(l, reply->revision);
    return reply->has_succeeded ? wrote(l, reply->revision) : fence_failed(l, &view);
}

unsigned lease_abdicate(struct lease *l) {
    return l->serves && l->state < LEASE_CLEANING ? depose(l) : 0;
}

/* ---- following ---- */

unsigned lease_joined(struct lease *l) {
    l->joined = l->found;
    l->has_missed = false;
    if (l->serves || l->state != LEASE_WAITING) {
        return 0;
    }
    l->state = LEASE_IDLE;
    bool has_watch = l->has_watch;
    l->has_watch = false;
    return has_watch ? LEASE_UNWATCH : 0u;
}

unsigned lease_missed(struct lease *l, enum lease_miss why) {
    /* What was never reached may be behind a firewall that refuses: its job is not to be ended by that. */
    if (why == LEASE_REFUSED && l->epoch > 0 && !l->serves && is_same_place(&l->found, &l->joined)) {
        l->dead_epoch = l->epoch;
    }
    l->has_missed = true;
    l->silent = why == LEASE_SILENT ? l->found : l->silent;
    l->state = l->state == LEASE_WAITING ? LEASE_IDLE : l->state;
    return 0;
}

unsigned lease_heard(struct lease *l, const struct etcd3_pair *pair) {
    raise_revision(l, pair->mod_revision);
    bool is_ours = !pair->is_deleted && pair->create_revision == l->epoch;
    bool is_old = pair->is_deleted ? pair->mod_revision < l->epoch : pair->create_revision < l->epoch;
    if (!ends_with(pair->key, "/leader") || is_ours || is_old) {
        return 0;
    }
    if (l->state == LEASE_LEADING) {
        return pair->is_deleted ? stand(l) : depose(l);
    }
    return l->state == LEASE_IDLE || l->state == LEASE_WAITING ? LEASE_NEWS : 0u;
}

unsigned lease_gap(struct lease *l) {
    l->has_watch = false;
    if (l->state == LEASE_LEADING) {
        return look(l);
    }
    return l->state == LEASE_IDLE || l->state == LEASE_WAITING ? LEASE_NEWS : 0u;
}

/* ---- the end ---- */

static unsigned end(struct lease *l) {
    l->state = LEASE_OVER;
    return LEASE_ENDED;
}

unsigned lease_end(struct lease *l, bool is_over) {
    bool leads = l->state == LEASE_LEADING;
    int64_t lease_id = l->lease_id, epoch = l->epoch;
    l->is_over = is_over && leads;
    (void)drop(l);
    l->lease_id = lease_id;
    l->epoch = epoch;
    if (lease_id == 0) {
        return LEASE_DROP | end(l);
    }
    l->state = l->is_over ? LEASE_CLEANING : LEASE_REVOKING;
    return LEASE_DROP | (l->is_over ? LEASE_CLEAN : LEASE_REVOKE);
}

unsigned lease_cleaned(struct lease *l) {
    l->state = LEASE_REVOKING;
    return LEASE_REVOKE;
}

unsigned lease_revoked(struct lease *l) {
    return l->state == LEASE_REVOKING ? end(l) : 0;
}

/* ---- life ---- */

void lease_init(struct lease *l, const uint64_t identity[2], uint64_t keep_alive_interval_ms) {
    *l = (struct lease){.self = {.identity = {identity[0], identity[1]}},
                        .keep_alive_interval_ms = keep_alive_interval_ms};
}
