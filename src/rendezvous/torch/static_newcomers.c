/* On node rank 0 of a static job: agents that come with a rank that another one has.
 *
 * The other one may be healthy, and then its workers must not be disturbed; or its host has vanished without a word,
 * and the newcomer is to take its place. Only it can tell. So it is asked, through the word that all nodes watch, while
 * the newcomer waits. If it answers, the newcomer is refused with its name. If its connection ends, or it is silent too
 * long, the newcomer has the place.
 *
 * A question reaches all nodes. The next one is asked when the answers to the one before are there, for all who have
 * come meanwhile, so that agents of a whole second job are not a question each. */
#include "rendezvous/torch/static_newcomers.h"

#include <stdio.h>

#include "base/log.h"
#include "rendezvous/torch/static_keys.h"

enum { NAME_MAX_SIZE = 160 };

/* One that watches will say that it is here, if it has not done so yet. */
static bool is_connected(const struct static_host *h, uint32_t rank) {
    return (h->agents[rank].is_known && h->agents[rank].connection != 0) ||
           (h->watchers[rank].is_known && h->watchers[rank].connection != 0);
}

static void set_stage(struct static_host *h, uint32_t rank, enum static_newcomer_stage stage) {
    struct static_newcomer *newcomer = &h->newcomers[rank];
    h->newcomer_count += stage != STATIC_NEWCOMER_NONE;
    h->newcomer_count -= newcomer->stage != STATIC_NEWCOMER_NONE;
    newcomer->stage = stage;
}

/* Is it still to be decided whether it gets the place? */
static bool waits(const struct static_host *h, uint32_t rank) {
    return h->newcomers[rank].stage == STATIC_NEWCOMER_WAITS || h->newcomers[rank].stage == STATIC_NEWCOMER_ASKED;
}

static void swap(const struct static_host *h, struct static_peer *now, struct static_peer *next, uint32_t rank) {
    uint64_t before = now[rank].connection;
    static_peers_set(now, h->round.count, rank, next[rank].connection);
    static_peers_set(next, h->round.count, rank, before);
}

/* Who is replaced keeps its connections, on which it is told should it come back. */
static void let_in(struct static_host *h, uint32_t rank) {
    swap(h, h->agents, h->new_agents, rank);
    swap(h, h->watchers, h->new_watchers, rank);
    static_round_came(&h->round, rank);
    set_stage(h, rank, STATIC_NEWCOMER_LET_IN);
}

bool static_newcomers_come(struct static_host *h, uint32_t rank, uint64_t connection, uint64_t number) {
    if (number <= 1) { /* it does not wait */
        return true;
    }
    if (waits(h, rank) && number < h->newcomers[rank].number) {
        return false; /* what the later one is told, it is told as well */
    }
    h->newcomers[rank].number = number;
    static_peers_set(h->new_agents, h->round.count, rank, connection);
    set_stage(h, rank, STATIC_NEWCOMER_WAITS);
    static_newcomers_promote(h, rank);
    return false;
}

void static_newcomers_watch(struct static_host *h, uint32_t rank, uint64_t connection) {
    static_peers_set(h->new_watchers, h->round.count, rank, connection);
}

void static_newcomers_stays(struct static_host *h, uint32_t rank, uint64_t connection, struct kv_slice answer) {
    char name[NAME_MAX_SIZE];
    int64_t number = static_number_and_rest(answer, name, sizeof name);
    bool is_its = static_peers_rank_of(h->agents, h->round.count, connection) == (int64_t)rank;
    if (is_its && h->newcomers[rank].stage == STATIC_NEWCOMER_ASKED && number == (int64_t)h->newcomers[rank].number) {
        set_stage(h, rank, STATIC_NEWCOMER_REFUSED);
    }
}

void static_newcomers_promote(struct static_host *h, uint32_t rank) {
    if (waits(h, rank) && !is_connected(h, rank)) {
        let_in(h, rank);
    }
}

bool static_newcomers_lost(struct static_host *h, uint64_t connection) {
    int64_t rank = static_peers_rank_of(h->new_agents, h->round.count, connection);
    if (rank < 0) {
        return false;
    }
    static_peers_set(h->new_agents, h->round.count, (uint32_t)rank, 0);
    if (waits(h, (uint32_t)rank)) {
        set_stage(h, (uint32_t)rank, STATIC_NEWCOMER_NONE);
    }
    return true;
}

bool static_newcomers_keep(const struct static_host *h, uint64_t connection) {
    return static_peers_rank_of(h->new_agents, h->round.count, connection) >= 0 ||
           static_peers_rank_of(h->new_watchers, h->round.count, connection) >= 0;
}

bool static_host_awaits_answers(const struct static_host *h) {
    bool awaits = false;
    for (uint32_t rank = 0; h->newcomer_count > 0 && rank < h->round.count && !awaits; rank++) {
        awaits = h->newcomers[rank].stage == STATIC_NEWCOMER_ASKED;
    }
    return awaits;
}

void static_host_give_up_silent(struct static_host *h) {
    for (uint32_t rank = 0; rank < h->round.count; rank++) {
        if (h->newcomers[rank].stage == STATIC_NEWCOMER_ASKED) {
            log_warning("the agent of node rank %u does not answer: another one takes its place", rank);
            let_in(h, rank);
        }
    }
}

/* ---- what is told ---- */

void static_host_set(struct static_host *h, const char *name, const char *value) {
    char key[STATIC_KEY_MAX] = "/"; /* of the wire */
    (void)str_format(key + 1, sizeof key - 1, "%s%s", h->prefix, name);
    if (kv_server_set(h->server, kv_slice_text(key), kv_slice_text(value)) != MUSTER_OK) {
        log_warning("the other nodes cannot be told: %s", muster_detail());
    }
}

static void set_numbered(struct static_host *h, const char *family, uint32_t rank, const char *value) {
    char name[64];
    (void)snprintf(name, sizeof name, "%s%u", family, rank);
    static_host_set(h, name, value);
}

/* "3", or "3 NAME" with the name that the one that stays has told. */
static void tell_verdict(struct static_host *h, uint32_t rank, bool is_refused) {
    char value[NAME_MAX_SIZE + 32], name[NAME_MAX_SIZE] = "", key[STATIC_KEY_MAX];
    struct kv_slice answer;
    (void)str_format(key, sizeof key, "/%s" STATIC_KEY_STAYS "%u", h->prefix, rank);
    if (is_refused && kv_server_get(h->server, kv_slice_text(key), &answer)) {
        (void)static_number_and_rest(answer, name, sizeof name);
    }
    (void)str_format(value, sizeof value, "%llu%s%s", (unsigned long long)h->newcomers[rank].number,
                     is_refused ? " " : "", name);
    set_numbered(h, STATIC_KEY_PLACE, rank, value);
    set_stage(h, rank, STATIC_NEWCOMER_NONE);
}

static void ask(struct static_host *h, uint32_t rank) {
    char number[24];
    (void)str_format(number, sizeof number, "%llu", (unsigned long long)h->newcomers[rank].number);
    set_numbered(h, STATIC_KEY_ASKED, rank, number);
    set_stage(h, rank, STATIC_NEWCOMER_ASKED);
}

void static_newcomers_act(struct static_host *h) {
    bool may_ask = !static_host_awaits_answers(h), asks = false;
    for (uint32_t rank = 0; h->newcomer_count > 0 && rank < h->round.count; rank++) {
        enum static_newcomer_stage stage = h->newcomers[rank].stage;
        if (stage == STATIC_NEWCOMER_LET_IN || stage == STATIC_NEWCOMER_REFUSED) {
            tell_verdict(h, rank, stage == STATIC_NEWCOMER_REFUSED);
        } else if (stage == STATIC_NEWCOMER_WAITS && may_ask) {
            ask(h, rank);
            asks = true;
        }
    }
    h->asked += asks;
}
