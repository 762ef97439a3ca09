/* What the coordinator's files share: members.c keeps them, order.c ranks them, news.c words what happens to them, and
 * coordinator.c decides. */
#ifndef RENDEZVOUS_COORDINATOR_IMPL_H
#define RENDEZVOUS_COORDINATOR_IMPL_H

#include "rendezvous/coordinator.h"
#include "store/hash.h"

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

struct coordinator_member {
    struct hash_node node; /* key: `identity` */
    uint64_t identity[2];
    struct coordinator_member *previous, *next; /* in its place's list */
    enum coordinator_place place;
    bool veteran;  /* JOINED, and had a part in the world before */
    void *session; /* the caller's */
    struct coordinator_role *role;
    int64_t pid;
    uint64_t last_round;
    uint32_t local_world_size;
    uint32_t base_role_rank; /* of the world that is being ranked */
    uint16_t store_port;
    bool uses_agent_store;
    struct kv_slice addr, topology; /* in `text` */
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

struct coordinator {
    struct coordinator_settings settings;
    coordinator_send_fn *send;
    void *send_ctx;
    enum coordinator_phase phase;
    uint64_t round;
    struct coordinator_list places[COORDINATOR_PLACES];
    size_t veteran_count;
    bool any_done;        /* of the world's members, also if they have gone since */
    int64_t last_call_ms; /* when the last call ends; INT64_MAX: too few have joined */
    struct coordinator_news news;
    struct hash members;               /* by identity */
    struct hash roles;                 /* by name */
    uint64_t worker_count;             /* of all members: so no world can have too many */
    struct coordinator_member **order; /* scratch, owned: room for all members */
    size_t order_capacity;
    char run_id[];
};

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

/* ---- order ---- */

/* -1, 0, 1; runs of digits compare as numbers. */
int coordinator_compare_natural(struct kv_slice a, struct kv_slice b);
/* Puts the joined members into c->order by rank, counts their roles, and tells each its WORLD. Returns the world's
 * size. */
size_t coordinator_order_tell(struct coordinator *c);

/* ---- news ---- */

#define COORDINATOR_WHY_BYTES_MAX ((size_t)256) /* of a reason, where it is part of a sentence */

/* The first bytes of a text; no sequence of UTF-8 is cut through. */
struct kv_slice coordinator_text_clip(struct kv_slice text, size_t max);
/* "; node ADDR (pid PID) WHAT[: WHY]" */
void coordinator_news_add(struct coordinator_news *news, const struct coordinator_member *member, const char *what,
                          struct kv_slice why);
/* Valid until the next call; `out` is its room. */
struct kv_slice coordinator_news_text(const struct coordinator_news *news, char out[COORDINATOR_TEXT_BYTES_MAX]);

#endif
