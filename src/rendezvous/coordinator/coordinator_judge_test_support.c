/* What must hold of a coordinator; see the header. */
#include "rendezvous/coordinator/coordinator_judge_test_support.h"

#include <stdlib.h>
#include <string.h>

static void must(struct judge *judge, bool holds, const char *violation) {
    if (!holds && !judge->violation) {
        judge->violation = violation;
    }
}

/* ---- what is said ---- */

/* Has the connection still to say that it has heard of the end of its world? */
static bool is_unresolved(const struct judge_connection *c) {
    return c->present && c->is_member && !c->answered;
}

static size_t count_unresolved(const struct judge *judge) {
    size_t count = 0;
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        count += is_unresolved(&judge->connections[i]);
    }
    return count;
}

struct sums {
    size_t unresolved, wanting, spares, returning_count;
    size_t holding; /* places of the world: members at work, and done ones that wait */
};

static struct sums count_all(const struct judge *judge) {
    struct sums sums = {.unresolved = count_unresolved(judge)};
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        const struct judge_connection *c = &judge->connections[i];
        bool wants = c->present && c->wants && !c->let_go;
        sums.wanting += wants;
        sums.spares += wants && c->is_spare;
        sums.returning_count += wants && c->is_returning;
        sums.holding += c->present && c->is_member && !c->wants && !c->let_go;
    }
    return sums;
}

/* Somebody is done, and nobody of the last world is left who could go on. */
static bool is_done(const struct judge *judge, size_t unresolved, size_t returning_count) {
    return judge->any_done && unresolved == 0 && returning_count == 0;
}

static void count_message(struct judge *judge, struct judge_connection *c) {
    c->message_count++;
    judge->messages_most = c->message_count > judge->messages_most ? c->message_count : judge->messages_most;
    must(judge, c->message_count <= JUDGE_MESSAGES_MAX, "a member costs more than 4 messages in a round");
}

static uint32_t count_charges(const struct judge *judge, enum coordinator_charge charge) {
    const struct judge_account *account = &judge->accounts[charge];
    uint32_t count = 0;
    for (uint32_t i = 0; i < account->count; i++) {
        count += judge->limits.window_ms == 0 || judge->now_ms - account->at_ms[i] < judge->limits.window_ms;
    }
    return count;
}

/* What ends a world is charged, once; and the job, when that was once too often. */
static void charge(struct judge *judge, enum coordinator_charge charge) {
    struct judge_account *account = &judge->accounts[charge];
    if (judge->round == 0 || judge->is_broken || judge->closed) {
        return;
    }
    must(judge, account->count < JUDGE_CHARGES_MAX, "charges without end");
    account->at_ms[account->count % JUDGE_CHARGES_MAX] = judge->now_ms;
    account->count++;
    judge->is_broken = judge->has_reason = true;
    judge->closed = judge->limits.is_limited[charge] && count_charges(judge, charge) > judge->limits.allowed[charge];
}

static bool is_there(const struct judge *judge, uint64_t identity) {
    bool found = false;
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        found |= judge->connections[i].present && judge->connections[i].nature.identity == identity;
    }
    return found;
}

/* A newcomer breaks the world up if there is a place for it, and if that is still allowed. */
static void look_at_newcomer(struct judge *judge, const struct judge_nature *nature) {
    if (judge->round == 0 || judge->is_broken || judge->any_done || is_there(judge, nature->identity) ||
        count_all(judge).holding >= judge->max_nodes) {
        return;
    }
    if (judge->limits.is_limited[COORDINATOR_CHARGE_CHANGE] &&
        count_charges(judge, COORDINATOR_CHARGE_CHANGE) >= judge->limits.allowed[COORDINATOR_CHARGE_CHANGE]) {
        judge->keeps_out = true;
    } else {
        charge(judge, COORDINATOR_CHARGE_CHANGE);
    }
}

void judge_joins(struct judge *judge, size_t connection, const struct judge_nature *nature, uint64_t last_round) {
    struct judge_connection *c = &judge->connections[connection];
    if (!c->present) {
        look_at_newcomer(judge, nature);
        *c = (struct judge_connection){.nature = *nature, .present = true, .wants = true};
        judge->connection_count = connection + 1 > judge->connection_count ? connection + 1 : judge->connection_count;
        count_message(judge, c);
    } else if (is_unresolved(c) && !c->let_go && last_round == judge->round) {
        c->answered = c->wants = c->is_returning = true;
        charge(judge, COORDINATOR_CHARGE_CHANGE);
        count_message(judge, c);
    }
}

void judge_says(struct judge *judge, size_t connection, enum coordinator_kind kind) {
    struct judge_connection *c = &judge->connections[connection];
    if (!c->present || c->let_go) {
        return;
    }
    if (kind == COORDINATOR_CLOSE) {
        judge->closed = true;
    } else if (is_unresolved(c)) {
        count_message(judge, c);
        if (kind == COORDINATOR_FAILED) {
            c->failed = true;
            charge(judge, COORDINATOR_CHARGE_FAILURE);
        }
        if (kind == COORDINATOR_DONE) {
            c->done = c->answered = judge->any_done = true;
            judge->done_count++;
            c->let_go = c->told_change; /* it knows already that it can go */
        }
    }
}

void judge_goes(struct judge *judge, size_t connection, bool has_left) {
    struct judge_connection *c = &judge->connections[connection];
    bool had_a_part = is_unresolved(c);
    c->present = c->wants = c->is_returning = false;
    c->gone = true;
    if (had_a_part && !is_done(judge, count_unresolved(judge), count_all(judge).returning_count)) {
        charge(judge, has_left ? COORDINATOR_CHARGE_PREEMPTION : COORDINATOR_CHARGE_CHANGE);
    }
    while (judge->first < judge->connection_count && judge->connections[judge->first].gone &&
           !judge->connections[judge->first].is_member) {
        judge->first++;
    }
}

/* ---- what is told ---- */

/* Those who want a world, less the places that the open round has for them, or that are free in the one that runs. */
static size_t count_without_place(const struct judge *judge) {
    struct sums sums = count_all(judge);
    bool is_open = judge->round == 0 || judge->is_broken;
    size_t places = judge->max_nodes - (is_open ? sums.unresolved : sums.holding);
    return sums.wanting > places ? sums.wanting - places : 0;
}

static bool is_refusal_right(const struct judge *judge, const struct judge_connection *c) {
    bool is_second = judge->max_nodes == 1 && !judge->limits_spares && count_without_place(judge) > 0;
    bool right = judge->closed || is_second || (judge->limits_spares && count_without_place(judge) > judge->max_spares);
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        const struct judge_connection *other = &judge->connections[i];
        right |= other != c && other->present && other->nature.identity == c->nature.identity;
    }
    return right;
}

static int host_of(struct kv_slice addr) {
    char text[16] = "";
    if (addr.len < 5 || addr.len >= sizeof text || memcmp(addr.data, "host", 4) != 0) {
        return -1;
    }
    memcpy(text, addr.data + 4, addr.len - 4);
    return (int)strtol(text, NULL, 10);
}

static bool are_equal(const struct judge *judge, const struct coordinator_charges *charges) {
    return charges->failures == judge->accounts[COORDINATOR_CHARGE_FAILURE].count &&
           charges->changes == judge->accounts[COORDINATOR_CHARGE_CHANGE].count &&
           charges->preemptions == judge->accounts[COORDINATOR_CHARGE_PREEMPTION].count;
}

static void told_world(struct judge *judge, struct judge_connection *c, const struct coordinator_world *world) {
    must(judge, c->wants && !c->done, "a world for somebody who does not want one");
    must(judge, are_equal(judge, &world->charges), "a world tells other charges than there were");
    judge->worlds[judge->world_count].to = c;
    judge->worlds[judge->world_count].world = *world;
    judge->worlds[judge->world_count++].master_host = host_of(world->master_addr);
    c->message_count = 0;
    count_message(judge, c);
}

static void told_change(struct judge *judge, struct judge_connection *c) {
    must(judge, c->is_member && !c->wants && !c->failed, "a change for somebody who knows of it");
    must(judge, !c->told_change, "a change is told twice");
    c->told_change = true;
    c->let_go = c->done;
    count_message(judge, c);
}

void judge_told(struct judge *judge, size_t connection, const struct coordinator_message *message) {
    struct judge_connection *c = &judge->connections[connection];
    must(judge, c->present, "a message to somebody who has gone");
    must(judge, !c->let_go, "a message to somebody who was let go");
    switch (message->kind) {
    case COORDINATOR_WORLD:
        told_world(judge, c, &message->world);
        break;
    case COORDINATOR_CHANGE:
        told_change(judge, c);
        break;
    case COORDINATOR_ALL_DONE:
        must(judge, c->done && count_unresolved(judge) == 0, "ALL_DONE, and not all are done");
        c->let_go = true;
        count_message(judge, c);
        break;
    case COORDINATOR_CLOSED:
        c->let_go = true;
        break;
    case COORDINATOR_REFUSED:
        must(judge, is_refusal_right(judge, c), "refused without a reason");
        judge_goes(judge, connection, false);
        break;
    case COORDINATOR_SPARE:
        must(judge, c->wants && !c->is_spare, "a spare that cannot be one");
        c->is_spare = true;
        must(judge, !judge->limits_spares || count_without_place(judge) <= judge->max_spares,
             "more spares than wanted");
        c->spare_order = ++judge->spare_order;
        count_message(judge, c);
        break;
    case COORDINATOR_LET_IN: /* it stays one in this account until it has a world: their order is looked at then */
        must(judge, c->wants && c->is_spare && !c->is_let_in, "somebody is let in who was no spare");
        c->is_let_in = true;
        break;
    default:
        must(judge, false, "a message that is not the coordinator's");
        break;
    }
}

/* ---- a round that has closed ---- */

static bool comes_before(const struct judge_nature *a, const struct judge_nature *b) {
    if (a->topology != b->topology) {
        return a->topology < b->topology;
    }
    return a->host != b->host ? a->host < b->host : a->pid < b->pid;
}

static void check_ranks(struct judge *judge) {
    size_t count = judge->world_count;
    const struct coordinator_world *first = &judge->worlds[0].world;
    must(judge, first->round > judge->round, "a second world for a round");
    must(judge, count >= judge->min_nodes && count <= judge->max_nodes, "a world of the wrong size");
    must(judge, count <= JUDGE_NODES_MAX, "a world of more members than there are");
    const struct judge_connection **by_rank = judge->by_rank;
    memset(judge->by_rank, 0, sizeof judge->by_rank);
    for (size_t i = 0; i < count && !judge->violation; i++) {
        const struct coordinator_world *world = &judge->worlds[i].world;
        must(judge,
             world->round == first->round && world->group_world_size == count &&
                 world->global_world_size == first->global_world_size,
             "members disagree on the world");
        must(judge, world->group_rank < count && !by_rank[world->group_rank], "ranks are not dense and unique");
        by_rank[world->group_rank < count ? world->group_rank : 0] = judge->worlds[i].to;
    }
    for (size_t i = 1; i < count && !judge->violation; i++) {
        must(judge, comes_before(&by_rank[i - 1]->nature, &by_rank[i]->nature), "ranks are not in order");
        for (size_t k = 0; k < i; k++) {
            must(judge, by_rank[k]->nature.identity != by_rank[i]->nature.identity, "a member is there twice");
        }
    }
}

/* Of the first `end` ranks; -1: of any role. */
static uint32_t count_workers(const struct judge *judge, size_t end, int role) {
    uint32_t sum = 0;
    for (size_t i = 0; i < end; i++) {
        const struct judge_nature *nature = &judge->by_rank[i]->nature;
        sum += role < 0 || nature->role == role ? nature->workers : 0;
    }
    return sum;
}

static void check_workers(struct judge *judge) {
    size_t count = judge->world_count;
    for (size_t i = 0; i < count && !judge->violation; i++) {
        const struct coordinator_world *world = &judge->worlds[i].world;
        int role = judge->worlds[i].to->nature.role;
        must(judge,
             world->global_world_size == count_workers(judge, count, -1) &&
                 world->base_global_rank == count_workers(judge, world->group_rank, -1) &&
                 world->role_world_size == count_workers(judge, count, role) &&
                 world->base_role_rank == count_workers(judge, world->group_rank, role),
             "workers are counted wrongly");
        must(judge, judge->worlds[i].master_host == judge->by_rank[0]->nature.host, "the master is not rank 0");
    }
}

static bool is_in_world(const struct judge *judge, const struct judge_connection *c) {
    bool found = false;
    for (size_t i = 0; i < judge->world_count; i++) {
        found |= judge->worlds[i].to == c;
    }
    return found;
}

/* Was this the time to close, and are they the right ones? */
static void check_closing(struct judge *judge, int64_t now_ms) {
    size_t returning_count = 0;
    uint64_t spare_in_last = 0, spare_out_first = UINT64_MAX;
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        const struct judge_connection *c = &judge->connections[i];
        bool in = is_in_world(judge, c);
        must(judge, !is_unresolved(c), "the round has closed without a member that has not answered");
        returning_count += c->is_returning;
        if (c->wants && !in) {
            must(judge, c->is_spare && judge->world_count == judge->max_nodes, "somebody who wants in is left out");
            must(judge, !c->is_let_in, "somebody who was let in is left out");
            spare_out_first = c->spare_order < spare_out_first ? c->spare_order : spare_out_first;
        } else if (in && c->is_spare) {
            must(judge, c->is_let_in, "a spare has a world, and was not let in");
            spare_in_last = c->spare_order > spare_in_last ? c->spare_order : spare_in_last;
        }
    }
    must(judge, spare_in_last < spare_out_first, "spares are let in out of order");
    must(judge, returning_count > 0 || !judge->any_done, "a new world of a job that is done");
    if ((returning_count == 0 || judge->last_call_given) && judge->world_count < judge->max_nodes) {
        must(judge,
             judge->enough_since_ms != INT64_MAX && now_ms - judge->enough_since_ms >= judge->last_call_timeout_ms,
             "the round has closed before the end of the last call");
    }
}

static void take_world(struct judge *judge) {
    judge->round = judge->worlds[0].world.round;
    judge->any_done = judge->has_reason = judge->is_broken = judge->keeps_out = false;
    judge->world_size = judge->world_count;
    judge->done_count = 0;
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        struct judge_connection *c = &judge->connections[i];
        c->is_member = is_in_world(judge, c);
        c->answered = c->failed = c->told_change = c->is_returning = false;
        c->wants &= !c->is_member;
        c->is_spare &= !c->is_member;
        c->is_let_in &= !c->is_member;
    }
    judge->world_count = 0;
}

/* ---- after every event ---- */

/* The world stands: nobody of it is missing, nobody outside waits for a place that is free. */
static void check_running(struct judge *judge, const struct sums *sums) {
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        const struct judge_connection *c = &judge->connections[i];
        if (c->is_member) {
            must(judge, c->present || c->done, "a departure is forgotten");
            must(judge, !c->failed, "a failure is forgotten");
            must(judge, !c->wants, "a member that has joined anew is forgotten");
            must(judge, !c->told_change, "the world stands after a change");
        }
    }
    must(judge, sums->spares == sums->wanting, "somebody waits and is no spare");
    must(judge, sums->wanting == 0 || sums->holding == judge->max_nodes || judge->any_done || judge->keeps_out,
         "a spare waits for a place that is free");
}

/* A round is open: all know, and it is open for a reason. */
static void check_forming(struct judge *judge, const struct sums *sums, const struct coordinator_view *view,
                          int64_t now_ms) {
    must(judge, judge->round == 0 || judge->has_reason, "a world is broken up without a reason");
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        const struct judge_connection *c = &judge->connections[i];
        must(judge, !is_unresolved(c) || c->told_change || c->failed, "a member was not told of the change");
        must(judge, !(c->present && c->done) || c->let_go, "a member that is done was not let go");
    }
    size_t places = judge->max_nodes - sums->unresolved;
    size_t joined = sums->wanting < places ? sums->wanting : places;
    must(judge, view->joined_count == joined && view->spare_count == sums->wanting - joined,
         "places are not given to those who want them");
    if (joined < judge->min_nodes) {
        judge->enough_since_ms = INT64_MAX;
        return;
    }
    judge->enough_since_ms = judge->enough_since_ms == INT64_MAX ? now_ms : judge->enough_since_ms;
    /* In the millisecond in which the last call ends, the tick may be still to come. */
    bool wants_time = (sums->returning_count == 0 || judge->last_call_given) && joined < judge->max_nodes &&
                      now_ms - judge->enough_since_ms <= judge->last_call_timeout_ms;
    must(judge, sums->unresolved > 0 || wants_time, "the round does not close");
}

/* The round that is open needs those who are done. (Who was told that the job is over has wanted in as well.) */
static bool lacks_the_done(const struct judge *judge) {
    size_t left = judge->world_size - judge->done_count;
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        const struct judge_connection *c = &judge->connections[i];
        left += c->present && c->wants && !c->is_returning;
    }
    return judge->is_broken && judge->done_count > 0 && left < judge->min_nodes;
}

static void check_over(struct judge *judge) {
    judge->closed = true;
    for (size_t i = judge->first; i < judge->connection_count; i++) {
        const struct judge_connection *c = &judge->connections[i];
        must(judge, !c->present || c->let_go, "somebody was not told that the job is over");
    }
}

void judge_check(struct judge *judge, const struct coordinator_view *view, int64_t now_ms) {
    if (judge->world_count > 0) {
        check_ranks(judge);
        if (!judge->violation) {
            check_workers(judge);
            check_closing(judge, now_ms);
            take_world(judge);
        }
        judge->enough_since_ms = INT64_MAX;
    }
    struct sums sums = count_all(judge);
    bool done = is_done(judge, sums.unresolved, sums.returning_count);
    must(judge, are_equal(judge, &view->charges), "another charge than there was reason for");
    must(judge, (view->phase == COORDINATOR_OVER) == (judge->closed || done || lacks_the_done(judge)),
         "the job ends at the wrong time");
    must(judge, view->round == judge->round, "another round than was told");
    if (view->phase == COORDINATOR_OVER) {
        check_over(judge);
    } else if (view->phase == COORDINATOR_RUNNING) {
        check_running(judge, &sums);
    } else {
        check_forming(judge, &sums, view, now_ms);
    }
}
