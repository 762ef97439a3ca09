/* What the coordinator's files share: coordinator_member.c keeps the members, coordinator_order.c ranks them,
 * coordinator_news.c words what happens to them, coordinator_end.c ends the job, and coordinator.c decides. */
#ifndef RENDEZVOUS_COORDINATOR_IMPL_H
#define RENDEZVOUS_COORDINATOR_IMPL_H

#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/round/cause.h"
#include "store/wire/hash.h"

/* Where a member stands; each place is a list. */
enum coordinator_place {
    COORDINATOR_ACTIVE, /* in the world; while a round is open: has yet to answer that the world has ended */
    COORDINATOR_DONE_WAITS,
    COORDINATOR_JOINED, /* has a place in the round that is open */
    COORDINATOR_SPARED, /* in the order in which they came */
    COORDINATOR_OUT,    /* takes part in nothing any more: only its connection still stands */
    COORDINATOR_PLACES,
};

struct coordinator_role {
    struct hash_node node; /* key: `name` */
    size_t member_count;   /* freed with the last one */
    uint32_t worker_count; /* of the world that is being ranked: so far, then all */
    uint8_t name[];
};

/* A world that a member has heard of. */
struct coordinator_claim {
    uint64_t round, author;
    uint32_t group_rank; /* COORDINATOR_NO_RANK: it has no part in it */
};

struct coordinator_member {
    struct hash_node node; /* key: `identity` */
    uint64_t identity[2];
    struct coordinator_member *previous, *next; /* in its place's list */
    enum coordinator_place place;
    bool is_returning; /* JOINED, and had a part in the world before */
    bool knows_spared; /* that it has no place: it was told SPARE */
    bool has_failed;   /* a worker, in this world */
    bool owes_answer;  /* was at work when the job failed, and has not said whether a worker of its own had before */
    void *session;     /* the caller's */
    struct coordinator_role *role;
    int64_t pid;
    uint64_t last_round, last_author;
    uint32_t last_group_rank;
    uint8_t claim_count;
    struct coordinator_claim claims[COORDINATOR_PASTS_MAX]; /* other worlds than its last one */
    uint64_t accepted_round;                                /* the last proposal that it has accepted */
    bool is_given_up;                                       /* its loss has been counted */
    bool is_lasting_loss;                                   /* once it has gone it will not come back */
    int64_t works_until_ms; /* at the latest, now that it is lost without a word; 0: it is not */
    uint32_t local_world_size;
    uint32_t base_role_rank;               /* of the world that is being ranked */
    uint32_t group_rank, base_global_rank; /* of the last world that it had a part in */
    uint16_t store_port;
    bool uses_agent_store;
    bool is_host;                              /* serves this coordinator */
    struct kv_slice addr, topology, host_name; /* in `text` */
    uint32_t wished_rank;                      /* COORDINATOR_NO_RANK: none */
    uint8_t text[];
};

struct coordinator_list {
    struct coordinator_member *first, *last;
    size_t count;
};

/* What has changed since the last round closed, as one line; after the end of the job, why it has ended. */
struct coordinator_news {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    size_t len;
    size_t omitted_count; /* sentences that did not fit */
};

/* The failure of the last world that counts. */
struct coordinator_first_failure {
    bool is_known;
    uint64_t identity[2]; /* of its node */
    struct rdzv_death death;
    bool is_complete; /* with last words */
    bool is_untold;   /* the record has changed since the end of the job was told */
    size_t len;       /* of the record; 0: none was told */
    uint8_t record[COORDINATOR_CAUSE_BYTES_MAX];
};

/* A world that the next one has to follow, where there are several endpoints. */
struct coordinator_prior_world {
    struct coordinator_past past; /* of its ranks, only the host's counts */
    uint32_t here_count;          /* of its nodes, those that would take part in the next decision */
    uint32_t accepted_count;      /* and have accepted the proposal */
    uint32_t unaware_count;       /* of the first world's nodes here, those that have not heard of this one */
    uint32_t unaware_accepted_count;
    bool is_apart;         /* who has heard of it has not heard of the first one: so it does not follow that */
    uint32_t gone_count;   /* that never come back, a dead host not among them */
    bool is_host_here;     /* or has been, and is among the gone */
    int64_t since_ms;      /* when the last of its nodes came here */
    int64_t dead_since_ms; /* when its coordinator was known to serve no more */
};

/* A process has ended that was here: the next one on its machine comes from nowhere else, if it comes soon. */
struct coordinator_end {
    uint32_t address_hash;
    int64_t ended_ms;
};

/* A node of the last world that was lost without a word. */
struct coordinator_absent {
    uint64_t identity[2];
    int64_t works_until_ms;
};

#define COORDINATOR_ABSENT_MAX ((size_t)64)    /* of more it is not known when one comes back */
#define COORDINATOR_ENDS_MAX ((size_t)64)      /* more are forgotten, the oldest first */
#define COORDINATOR_DONE_AWAY_MAX ((size_t)64) /* of more it is not known that they are done until they come again */

struct coordinator_prior_worlds {
    struct coordinator_prior_world list[COORDINATOR_PASTS_MAX]; /* by round; the first may be confirmed, the others are
                                                                 * not: any of them may have been told */
    size_t count;
    uint64_t full_round;   /* there were more, up to this one: no world can follow them all; 0: there were not */
    bool is_own;           /* the first one is this coordinator's own, and confirmed */
    int64_t since_ms;      /* when the last node came, whichever, or no other coordinator served any more */
    uint64_t known_round;  /* the highest that anybody here has heard of, and that was told */
    uint64_t heard_round;  /* the highest that was proposed at least; 0, or lower: no later than known_round */
    bool none_else_serves; /* as coordinator_note_others() has said */
    struct coordinator_end ends[COORDINATOR_ENDS_MAX];
    size_t end_count;
    uint64_t last_told_round; /* by this coordinator, ever; 0: none */
};

enum { COORDINATOR_TURNED_AWAY_SIZE = 384 };

struct coordinator {
    struct coordinator_settings settings;
    coordinator_send_fn *send;
    void *send_ctx;
    enum coordinator_phase phase;
    uint64_t round;
    size_t world_size; /* of that round */
    int64_t ended_ms;  /* while another one is open: when it ended */
    struct coordinator_list places[COORDINATOR_PLACES];
    size_t returning_count;
    bool has_told;               /* a world, or proposed one, ever */
    uint64_t proposed_round;     /* what is to be accepted now; 0: nothing */
    int64_t proposed_ms;         /* when something was proposed last; 0: never */
    bool leads;                  /* with places.is_leased: worlds may be formed */
    int64_t led_ms;              /* since then */
    uint64_t fenced_round;       /* the last one whose record stands; 0: none */
    size_t accepted_count;       /* of those who have joined */
    size_t accepted_spare_count; /* of spares */
    uint64_t lost_count;         /* members that have gone and may be elsewhere, ever */
    size_t host_count;           /* 0: the node that serves this coordinator is no member, and may be elsewhere */
    struct coordinator_absent absent[COORDINATOR_ABSENT_MAX];
    size_t absent_count;
    int64_t stopped_ms;                               /* when those have stopped that are not among them */
    bool is_stopping;                                 /* a node is taken away: no more rounds */
    int64_t stop_by_ms;                               /* then: when everything has to have ended */
    bool any_done;                                    /* of the world's members, also if they have gone since */
    size_t done_count;                                /* how many */
    struct coordinator_news done_news;                /* who */
    uint64_t done_away[COORDINATOR_DONE_AWAY_MAX][2]; /* of these, who may come again, and is counted already */
    size_t done_away_count;
    bool is_host_done; /* the node that serves this coordinator: its end is no loss */
    struct coordinator_first_failure failure;
    bool has_failed;       /* the job, once it is over */
    size_t owing_count;    /* then: members that owe an answer */
    bool asks_others;      /* there were any to be asked */
    int64_t answers_by_ms; /* who has not answered by then is awaited no longer; 0: not known yet */
    int64_t last_call_ms;  /* when the last call ends; INT64_MAX: too few have joined */
    int64_t settled_ms;    /* when all that time had brought was done */
    struct coordinator_news news;
    struct coordinator_prior_worlds prior;
    struct coordinator_budget budget;
    enum coordinator_charge last_charge; /* of the round that is open, once one has closed */
    struct hash members;                 /* by identity */
    struct hash roles;                   /* by name */
    uint64_t worker_count;               /* of all members: so no world can have too many */
    struct coordinator_member **order;   /* scratch, owned: room for all members */
    size_t order_capacity;
    size_t world_node_count, world_worker_count;    /* of the last round that closed */
    char turned_away[COORDINATOR_TURNED_AWAY_SIZE]; /* the last agent that belongs to no job of this one's; "": none */
    size_t engine_len;                              /* of its rank 0; 0: not told */
    uint8_t engine[COORDINATOR_ENGINE_BYTES_MAX];
    char run_id[];
};

static inline size_t coordinator_count_of(const struct coordinator *c, enum coordinator_place place) {
    return c->places[place].count;
}

/* ---- members ---- */

/* For the first JOIN of a connection: a member in place OUT. MUSTER_ECONNECT (the identity is there already),
 * MUSTER_ELIMIT, MUSTER_EPROTOCOL, MUSTER_ENOMEM. */
int coordinator_member_new(struct coordinator *c, const struct coordinator_node *node, void *session,
                           struct coordinator_member **out);
/* For a later JOIN: takes its numbers. MUSTER_EPROTOCOL (another node than before), MUSTER_ELIMIT; nothing is changed
 * then. */
int coordinator_member_update(struct coordinator *c, struct coordinator_member *member,
                              const struct coordinator_node *node);
void coordinator_member_move(struct coordinator *c, struct coordinator_member *member, enum coordinator_place place);
void coordinator_member_free(struct coordinator *c, struct coordinator_member *member);

/* ---- a world before (coordinator_prior_world.c) ---- */

bool coordinator_knows(const struct coordinator_member *member, const struct coordinator_past *world);
/* Its rank in that world; COORDINATOR_NO_RANK: it had no part in it, as far as it knows. */
uint32_t coordinator_rank_in(const struct coordinator_member *member, const struct coordinator_past *world);
bool coordinator_has_part(const struct coordinator_member *member, const struct coordinator_past *world);
/* It was in `first`, and has not heard of `world`. */
bool coordinator_is_unaware(const struct coordinator_member *member, const struct coordinator_past *world,
                            const struct coordinator_past *first);
/* What is proposed now. */
bool coordinator_has_accepted(const struct coordinator *c, const struct coordinator_member *member);
/* All nodes that the job can have, and those who are here, or (`only_accepted`, here and below) have accepted, too. */
uint64_t coordinator_count_all(const struct coordinator *c);
uint64_t coordinator_count_here(const struct coordinator *c, bool only_accepted);
/* No two worlds of the minimum can be at a time. */
bool coordinator_excludes_others(const struct coordinator *c);
/* Its nodes that can still come, here or elsewhere, with those who are here; and without. */
size_t coordinator_prior_world_electors(const struct coordinator_prior_world *p);
size_t coordinator_prior_world_missing(const struct coordinator_prior_world *p);
bool coordinator_prior_world_is_majority(const struct coordinator *c, const struct coordinator_prior_world *p,
                                         size_t count);
/* Enough are here, time aside. */
bool coordinator_prior_world_can_follow(const struct coordinator *c, const struct coordinator_prior_world *p,
                                        bool only_accepted);
/* It was never told, and will not be. */
bool coordinator_prior_world_has_failed(const struct coordinator *c, const struct coordinator_prior_world *p,
                                        bool only_accepted);
/* By when everybody of it who has not come has stopped; INT64_MIN: there is nobody to wait for. */
int64_t coordinator_prior_world_stopped_ms(const struct coordinator *c, const struct coordinator_prior_world *p);

/* ---- quorum (coordinator_prior_worlds.c: what is known; coordinator_quorum.c: what follows): all of it without effect
 * where there is one endpoint ---- */

bool coordinator_has_rivals(const struct coordinator *c);
/* A node has joined (its member has its place by now), or says more of itself: not `is_new`. */
void coordinator_quorum_learn(struct coordinator *c, struct coordinator_member *member,
                              const struct coordinator_node *node, bool is_new, int64_t now_ms);
/* What a counted member says of itself is about to change, or has changed: -1, 1. */
void coordinator_quorum_weigh(struct coordinator *c, const struct coordinator_member *member, int by);
/* A member has another place now. */
void coordinator_quorum_moved(struct coordinator *c, struct coordinator_member *member, enum coordinator_place from);
/* A member is about to be freed, or needs not be waited for. */
void coordinator_quorum_lost(struct coordinator *c, struct coordinator_member *member);
/* It is freed now. */
void coordinator_quorum_note_end(struct coordinator *c, const struct coordinator_member *member, int64_t now_ms);
/* A member has got a place in the round that is open. */
void coordinator_quorum_count(struct coordinator *c, struct coordinator_member *member);
/* It was in the first of the worlds that the next one has to follow. */
bool coordinator_quorum_is_elector(const struct coordinator *c, const struct coordinator_member *member);
/* Nodes of the worlds before that have not come yet, and have places kept for them. */
size_t coordinator_quorum_awaited(const struct coordinator *c, int64_t now_ms);
bool coordinator_quorum_awaits(const struct coordinator *c, const struct coordinator_node *node, int64_t now_ms);
/* This coordinator's own world has ended, and a majority of it is here, or has yet to answer: the next one will be
 * formed here, unless it dies. */
bool coordinator_quorum_holds(const struct coordinator *c);
/* Is the job over if all who are here are done? Else it may go on elsewhere. */
bool coordinator_quorum_can_end(const struct coordinator *c);
/* May a world be formed of those who have joined, if all of them accept? */
bool coordinator_quorum_allows(const struct coordinator *c, int64_t now_ms);
/* Asks all of them, and those who count beside them. */
void coordinator_quorum_propose(struct coordinator *c, uint64_t round, int64_t now_ms);
void coordinator_quorum_accepted(struct coordinator *c, struct coordinator_member *member, uint64_t round);
/* With places.is_leased, in place of asking: its record is to be written. */
void coordinator_quorum_fence(struct coordinator *c, uint64_t round, int64_t now_ms);
/* `record` is the last world of the leader before. */
void coordinator_quorum_recall(struct coordinator *c, const struct coordinator_record *record, int64_t now_ms);
/* All have accepted who have to, or its record stands. */
bool coordinator_quorum_is_accepted(const struct coordinator *c, int64_t now_ms);
/* This coordinator has closed a round of `size`; its members are ACTIVE. */
void coordinator_quorum_closed(struct coordinator *c, size_t size, uint32_t host_rank);
#define COORDINATOR_QUORUM_TEXT_SIZE 256
/* Why not, in words. Returns `out`. */
const char *coordinator_quorum_explain(const struct coordinator *c, int64_t now_ms,
                                       char out[COORDINATOR_QUORUM_TEXT_SIZE]);
/* When that may change by itself; INT64_MAX: not. */
int64_t coordinator_quorum_wake_ms(const struct coordinator *c);
uint64_t coordinator_quorum_next_round(const struct coordinator *c, uint64_t last);
/* No world can follow without the nodes that work now: they may run on without a coordinator. */
bool coordinator_quorum_needs_all(const struct coordinator *c);

/* ---- the stop of the whole job ---- */

/* Tells all who take part; those without workers are let go, spares as well. */
void coordinator_stop_begin(struct coordinator *c, uint64_t grace_ms, int64_t now_ms);
/* A member of a world comes, and brings the stop of that, or is to hear of it. One from an earlier world than this
 * coordinator's own brings none: the job has gone on without that node. */
bool coordinator_stop_concerns(const struct coordinator *c, const struct coordinator_node *node);
/* Then: its member, new, gets its place, and is told. */
void coordinator_stop_join(struct coordinator *c, struct coordinator_member *member,
                           const struct coordinator_node *node, int64_t now_ms);
/* All have ended, or cannot come any more. */
bool coordinator_stop_is_over(const struct coordinator *c, int64_t now_ms);
/* In coordinator.c: it has no part in anything that follows. Where it counts for a next world, it does so until it has
 * really gone. */
void coordinator_let_go(struct coordinator *c, struct coordinator_member *member,
                        const struct coordinator_message *message);

/* ---- nodes that were lost without a word (coordinator_absent.c) ---- */

void coordinator_absent_note(struct coordinator *c, const struct coordinator_member *member);
/* The node has come back. */
void coordinator_absent_returned(struct coordinator *c, const struct coordinator_node *node);
/* When the workers of all have ended; 0: there are none. */
int64_t coordinator_absent_stopped_ms(const struct coordinator *c);

/* ---- order ---- */

/* -1, 0, 1; runs of digits compare as numbers. */
int coordinator_compare_natural(struct kv_slice a, struct kv_slice b);
/* Puts the joined members into c->order by rank. Returns how many there are. */
size_t coordinator_order_rank(struct coordinator *c);
/* Puts the joined members into c->order by rank, counts their roles, and tells each its WORLD; `text`: what has
 * changed. Returns the world's size. */
size_t coordinator_order_tell(struct coordinator *c, int64_t lease_ms, struct kv_slice text);
/* Group rank of the node that serves this coordinator, among the first `count` of c->order; COORDINATOR_NO_RANK. */
uint32_t coordinator_order_host(const struct coordinator *c, size_t count);

/* ---- news ---- */

#define COORDINATOR_WHY_BYTES_MAX ((size_t)256) /* of a reason, where it is part of a sentence */

/* The first bytes of a text; no sequence of UTF-8 is cut through. */
struct kv_slice coordinator_text_clip(struct kv_slice text, size_t max);
/* "; node ADDR (pid PID) WHAT[: WHY]" */
void coordinator_news_add(struct coordinator_news *news, const struct coordinator_member *member, const char *what,
                          struct kv_slice why);
/* Valid until the next call; `out` is its room. */
struct kv_slice coordinator_news_text(const struct coordinator_news *news, char out[COORDINATOR_TEXT_BYTES_MAX]);

/* ---- the end of the job (coordinator_end.c) ---- */

/* `why` is for those who still wanted something of it, and for those who come too late. */
void coordinator_end_job(struct coordinator *c, struct kv_slice why, bool has_failed);
/* All of a place hear it, and have no part in anything that follows. */
void coordinator_end_let_go(struct coordinator *c, enum coordinator_place place,
                            const struct coordinator_message *message);
/* A member of the last world is done. */
void coordinator_end_note_done(struct coordinator *c, const struct coordinator_member *member);
/* One that is done, and waits for the others, is lost. */
void coordinator_end_lost_done(struct coordinator *c, const struct coordinator_member *member);
/* Ends the job if the nodes that are done leave too few for the round that is open. True: it has. */
bool coordinator_end_without_done(struct coordinator *c);
/* The node that serves this coordinator is done: its members run on when it goes. */
void coordinator_end_tell_host_done(const struct coordinator *c);
/* A round begins, or nothing is known any more: what is said above of the last world counts no longer. */
void coordinator_end_forget(struct coordinator *c);
/* The member will say nothing more of its workers. */
void coordinator_end_answered(struct coordinator *c, struct coordinator_member *member, int64_t now_ms);
/* The job is over: once all have answered, or their time has passed, the cause is told as it stands. */
void coordinator_end_settle(struct coordinator *c, int64_t now_ms);
int64_t coordinator_end_wake_ms(const struct coordinator *c);

/* ---- coordinator.c, for the others ---- */

void coordinator_settle(struct coordinator *c, int64_t now_ms);
/* The world is no longer the right one: opens a round, unless one is open. `knows` (may be NULL) need not be told. */
void coordinator_begin_change(struct coordinator *c, enum coordinator_change change, enum coordinator_charge charged,
                              const struct coordinator_member *knows, int64_t now_ms);
void coordinator_let_in(struct coordinator *c, struct coordinator_member *member);
/* It waits for a place from now on: unlike for others, as long as the job lasts. */
void coordinator_tell_spare(const struct coordinator *c, struct coordinator_member *member);
/* With the thread's status detail as the reason. */
void coordinator_refuse(const struct coordinator *c, void *session, int status);
bool coordinator_has_free_place(const struct coordinator *c, int64_t now_ms);
size_t coordinator_count_taken(const struct coordinator *c, int64_t now_ms);

#endif
