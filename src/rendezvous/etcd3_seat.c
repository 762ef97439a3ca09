/* What an agent does about its lease, the leader and its letters; see etcd3_seat.h. */
#include "rendezvous/etcd3_seat.h"

#include "base/status.h"

/* ---- losing it, and giving it back ---- */

static unsigned drop_leader(struct etcd3_seat *seat) {
    seat->leads = seat->is_dirty = seat->is_writing = false;
    return ETCD3_SEAT_DROP_LEADER;
}

static unsigned drop_lease(struct etcd3_seat *seat) {
    seat->lease_id = 0;
    seat->has_watch = false;
    return drop_leader(seat) | ETCD3_SEAT_DROP_LEASE;
}

static unsigned finish(struct etcd3_seat *seat) {
    seat->state = ETCD3_SEAT_OVER;
    return drop_lease(seat) | ETCD3_SEAT_ENDED;
}

static unsigned give_back(struct etcd3_seat *seat) {
    int64_t lease_id = seat->lease_id;
    unsigned drop = drop_lease(seat);
    seat->lease_id = lease_id;
    seat->state = ETCD3_SEAT_REVOKING;
    return drop | ETCD3_SEAT_REVOKE;
}

/* The lease is gone, or of no use. */
static unsigned lose_all(struct etcd3_seat *seat, int status) {
    if (seat->state >= ETCD3_SEAT_ENDING) {
        return finish(seat);
    }
    bool was_wanted = seat->state != ETCD3_SEAT_LEASED;
    seat->state = ETCD3_SEAT_OFF;
    seat->lost_status = status;
    return drop_lease(seat) | (was_wanted ? ETCD3_SEAT_LOST : 0u);
}

static unsigned lose_leader(struct etcd3_seat *seat) {
    if (seat->state != ETCD3_SEAT_OPEN) { /* while ending: what it would have to hear is of no use any more */
        return 0;
    }
    seat->state = ETCD3_SEAT_LEASED;
    seat->lost_status = status_fail(MUSTER_ECLOSED, "the node that led the rendezvous is gone, or was given up");
    return drop_leader(seat) | ETCD3_SEAT_LOST;
}

/* With the lease itself gone, or any other trouble. */
static unsigned lose_for(struct etcd3_seat *seat, int status) {
    if (status == MUSTER_ENOENT) {
        status = status_fail(MUSTER_ECLOSED,
                             "this node was given up: its lease in etcd has expired, or etcd has lost its data");
    }
    return lose_all(seat, status);
}

unsigned etcd3_seat_break(struct etcd3_seat *seat, int status) {
    return lose_all(seat, status);
}

/* ---- the lease ---- */

static unsigned stand(struct etcd3_seat *seat) {
    seat->state = ETCD3_SEAT_STANDING;
    return ETCD3_SEAT_STAND;
}

unsigned etcd3_seat_want(struct etcd3_seat *seat) {
    if (seat->state == ETCD3_SEAT_OFF) {
        seat->state = ETCD3_SEAT_GRANTING;
        return ETCD3_SEAT_GRANT;
    }
    return seat->state == ETCD3_SEAT_LEASED ? stand(seat) : 0;
}

unsigned etcd3_seat_granted(struct etcd3_seat *seat, int status, const struct etcd3_reply *reply,
                            const uint64_t identity[2]) {
    if (status == MUSTER_OK && reply->lease_id == 0) {
        status = status_fail(MUSTER_EPROTOCOL, "etcd has granted a lease without a number");
    }
    if (status != MUSTER_OK) {
        return lose_all(seat, status);
    }
    uint64_t third_ms = reply->ttl_s > 0 ? (uint64_t)reply->ttl_s * 1000 / 3 : UINT64_MAX;
    seat->beat_ms = third_ms < seat->keep_alive_interval_ms ? third_ms : seat->keep_alive_interval_ms;
    seat->has_reached = true;
    seat->lease_id = reply->lease_id;
    seat->epoch = seat->deleted_revision = 0;
    seat->identity[0] = identity[0];
    seat->identity[1] = identity[1];
    etcd3_keys_set_identity(&seat->keys, identity);
    return ETCD3_SEAT_BEAT | stand(seat);
}

unsigned etcd3_seat_beaten(struct etcd3_seat *seat, int status, const struct etcd3_reply *reply) {
    status = status == MUSTER_OK && reply->ttl_s <= 0 ? MUSTER_ENOENT : status;
    return status == MUSTER_OK ? 0 : lose_for(seat, status);
}

/* ---- the leader's key ---- */

/* etcd's revisions only grow, unless what it knew is gone; the lease is a new one then. Later answers may be overtaken
 * by the watch. */
static unsigned check_revision(struct etcd3_seat *seat, int64_t revision) {
    bool is_older = seat->epoch == 0 && revision < seat->last_revision;
    if (is_older || revision > seat->last_revision) {
        seat->former_revision = seat->last_revision;
        seat->last_revision = revision;
    }
    return is_older ? ETCD3_SEAT_WARN : 0u;
}

static unsigned watch_after(struct etcd3_seat *seat, int64_t revision) {
    if (seat->has_watch) {
        return 0;
    }
    seat->has_watch = true;
    seat->watch_revision = revision + 1;
    return ETCD3_SEAT_WATCH;
}

unsigned etcd3_seat_stood(struct etcd3_seat *seat, int status, const struct etcd3_reply *reply) {
    if (status == MUSTER_OK && !reply->has_succeeded && reply->pair_count == 0) {
        status = status_fail(MUSTER_EPROTOCOL, "etcd says of a key that it exists, and that it does not");
    }
    if (status != MUSTER_OK) {
        return lose_for(seat, status);
    }
    unsigned actions = check_revision(seat, reply->revision);
    seat->epoch = reply->has_succeeded ? reply->revision : reply->pairs[0].create_revision;
    actions |= watch_after(seat, reply->revision);
    if (seat->deleted_revision > seat->epoch) { /* it has gone meanwhile */
        return actions | stand(seat);
    }
    seat->leads = reply->has_succeeded || kv_slice_equal(reply->pairs[0].value, kv_slice_text(seat->keys.identity));
    etcd3_mail_done(&seat->mail);
    etcd3_mail_init(&seat->mail, (uint64_t)seat->epoch, true);
    seat->state = ETCD3_SEAT_OPEN;
    return actions | (seat->leads ? ETCD3_SEAT_LEAD : 0u) | ETCD3_SEAT_OPENED;
}

unsigned etcd3_seat_deposed(struct etcd3_seat *seat, int status) {
    if (status != MUSTER_ECLOSED) {
        return lose_all(seat, status);
    }
    return seat->state == ETCD3_SEAT_ENDING ? give_back(seat) : lose_leader(seat);
}

/* ---- events ---- */

static unsigned hear_of_leader(struct etcd3_seat *seat, const struct etcd3_pair *pair) {
    if (pair->is_deleted) {
        seat->deleted_revision = pair->mod_revision;
    }
    bool is_other = pair->is_deleted ? pair->mod_revision > seat->epoch : pair->create_revision > seat->epoch;
    return is_other ? lose_leader(seat) : 0;
}

static unsigned open_letter(struct etcd3_seat *seat, struct kv_slice value, struct etcd3_letter *letter) {
    struct etcd3_letter opened;
    int status = etcd3_letter_open(value, &opened);
    if (status == MUSTER_OK && opened.epoch != (uint64_t)seat->epoch) {
        return 0;
    }
    status = status ? status : etcd3_mail_receive(&seat->mail, &opened);
    if (status != MUSTER_OK) {
        return lose_all(seat, status_prefix(status, "etcd's key %s", seat->keys.to));
    }
    *letter = opened;
    return 0;
}

unsigned etcd3_seat_hear(struct etcd3_seat *seat, const struct etcd3_pair *pair, struct etcd3_letter *letter) {
    *letter = (struct etcd3_letter){.epoch = 0};
    seat->last_revision = pair->mod_revision > seat->last_revision ? pair->mod_revision : seat->last_revision;
    if (kv_slice_equal(pair->key, kv_slice_text(seat->keys.leader))) {
        return hear_of_leader(seat, pair);
    }
    bool is_letter = kv_slice_equal(pair->key, kv_slice_text(seat->keys.to)) && !pair->is_deleted;
    return is_letter && seat->state == ETCD3_SEAT_OPEN ? open_letter(seat, pair->value, letter) : 0;
}

bool etcd3_seat_next(struct etcd3_seat *seat, struct etcd3_letter *letter, struct coordinator_message *message,
                     unsigned *actions) {
    int status = MUSTER_OK;
    *actions = 0;
    if (seat->state != ETCD3_SEAT_OPEN) { /* since the last one */
        return false;
    }
    bool has_one = etcd3_mail_next(&seat->mail, letter, message, &status);
    if (status != MUSTER_OK) {
        *actions = lose_all(seat, status_prefix(status, "etcd's key %s", seat->keys.to));
    }
    return has_one;
}

unsigned etcd3_seat_miss(struct etcd3_seat *seat) {
    seat->has_watch = false;
    if (seat->state == ETCD3_SEAT_STANDING || seat->state >= ETCD3_SEAT_ENDING) {
        return 0; /* what is under way says it, or nobody needs it */
    }
    return ETCD3_SEAT_LOOK;
}

unsigned etcd3_seat_looked(struct etcd3_seat *seat, int status, const struct etcd3_reply *reply) {
    if (status != MUSTER_OK) {
        return lose_all(seat, status);
    }
    unsigned watch = watch_after(seat, reply->revision);
    return watch | (reply->has_succeeded ? 0u : lose_leader(seat));
}

/* ---- letters ---- */

static unsigned write_letter(struct etcd3_seat *seat) {
    if (seat->is_writing || !seat->is_dirty) {
        return 0;
    }
    seat->is_dirty = false;
    seat->is_writing = true;
    return ETCD3_SEAT_WRITE;
}

int etcd3_seat_send(struct etcd3_seat *seat, const struct coordinator_message *message, unsigned *actions) {
    *actions = 0;
    if (seat->state != ETCD3_SEAT_OPEN) {
        return status_fail(MUSTER_ECLOSED, "no node leads the rendezvous");
    }
    int rc = etcd3_mail_add(&seat->mail, message);
    if (rc == MUSTER_OK) {
        seat->is_dirty = true;
        *actions = write_letter(seat);
    }
    return rc;
}

/* ---- the end ---- */

static bool may_give_back(const struct etcd3_seat *seat, bool is_leader_quiet) {
    return seat->state == ETCD3_SEAT_ENDING && !seat->is_writing && !seat->is_dirty && is_leader_quiet;
}

unsigned etcd3_seat_written(struct etcd3_seat *seat, int status, bool is_leader_quiet) {
    seat->is_writing = false;
    if (status != MUSTER_OK) {
        return lose_for(seat, status);
    }
    unsigned again = write_letter(seat);
    return may_give_back(seat, is_leader_quiet) ? give_back(seat) : again;
}

unsigned etcd3_seat_quiet(struct etcd3_seat *seat) {
    return may_give_back(seat, true) ? give_back(seat) : 0;
}

unsigned etcd3_seat_end(struct etcd3_seat *seat, bool is_leader_quiet) {
    bool has_more_to_do = seat->state == ETCD3_SEAT_OPEN;
    seat->state = ETCD3_SEAT_ENDING;
    if (seat->lease_id == 0) { /* nothing is there; from the loop, as everything */
        seat->state = ETCD3_SEAT_OVER;
        seat->linger_ms = 0;
        return drop_lease(seat) | ETCD3_SEAT_LINGER;
    }
    if (has_more_to_do && !may_give_back(seat, is_leader_quiet)) {
        seat->linger_ms = ETCD3_LINGER_MAX_MS;
        return ETCD3_SEAT_LINGER;
    }
    return give_back(seat);
}

unsigned etcd3_seat_lingered(struct etcd3_seat *seat) {
    return seat->state == ETCD3_SEAT_ENDING ? give_back(seat) : finish(seat);
}

unsigned etcd3_seat_revoked(struct etcd3_seat *seat) {
    return finish(seat);
}

/* ---- life ---- */

void etcd3_seat_init(struct etcd3_seat *seat, const struct etcd3_keys *keys, uint64_t keep_alive_interval_ms) {
    *seat = (struct etcd3_seat){.keys = *keys, .keep_alive_interval_ms = keep_alive_interval_ms};
    etcd3_mail_init(&seat->mail, 0, true);
}

void etcd3_seat_done(struct etcd3_seat *seat) {
    etcd3_mail_done(&seat->mail);
}
