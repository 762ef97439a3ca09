/* A judge of the coordinator for its simulation: sees every message that reaches or leaves the coordinator and every
 * connection that ends, keeps its own plain account of them, and says what is wrong after each event.
 *
 * It knows the rules of coordinator.h, but none of its code: it counts again from scratch each time. */
#ifndef RENDEZVOUS_COORDINATOR_JUDGE_TEST_SUPPORT_H
#define RENDEZVOUS_COORDINATOR_JUDGE_TEST_SUPPORT_H

#include "rendezvous/coordinator/coordinator.h"

enum {
    JUDGE_CHARGES_MAX = 4096,
    JUDGE_CONNECTIONS_MAX = 8192,
    JUDGE_NODES_MAX = 48,
    JUDGE_MESSAGES_MAX = 4 /* a member and round */
};

/* What a node is, in numbers: the strings of its JOIN are made from them. */
struct judge_nature {
    int topology, host, role; /* ranks follow the first two, then the pid */
    int64_t pid;
    uint64_t identity;
    uint32_t workers;
};

/* A connection as the coordinator must see it. */
struct judge_connection {
    struct judge_nature nature;
    bool present;      /* has joined, and has not gone or been refused */
    bool gone;         /* has gone or been refused */
    bool wants;        /* has joined, and has no world yet */
    bool is_returning; /* wants, and comes from the last world */
    bool is_spare;     /* has been told so */
    bool is_let_in;    /* has been told so, since */
    uint64_t spare_order;
    bool is_member; /* of the last world */
    bool answered;  /* since: has joined anew, or is done */
    bool failed, done, told_change;
    bool let_go; /* told that nothing more will come */
    unsigned message_count;
};

struct judge {
    uint32_t min_nodes, max_nodes;
    int64_t last_call_timeout_ms;
    bool last_call_given;
    struct coordinator_limits limits;
    bool limits_spares;
    uint32_t max_spares;
    int64_t now_ms; /* set before each event */
    struct judge_connection connections[JUDGE_CONNECTIONS_MAX];
    size_t connection_count;
    size_t first; /* those before it have gone */
    uint64_t round, spare_order;
    size_t world_size, done_count; /* of the last world */
    bool any_done, closed;
    bool has_reason; /* to form the world again */
    bool is_broken;  /* the last world, and it has been charged for */
    bool keeps_out;  /* somebody for whom it may not be broken */
    struct judge_account {
        uint32_t count;
        int64_t at_ms[JUDGE_CHARGES_MAX];
    } accounts[COORDINATOR_CHARGE_COUNT];
    int64_t enough_since_ms; /* INT64_MAX: too few */
    struct {
        struct judge_connection *to;
        struct coordinator_world world;
        int master_host;             /* -1: not an address of ours */
    } worlds[JUDGE_CONNECTIONS_MAX]; /* told by this event */
    size_t world_count;
    const struct judge_connection *by_rank[JUDGE_NODES_MAX]; /* of the world that is being looked at */
    unsigned messages_most;
    const char *violation; /* the first one; NULL: none. Static */
};

/* Before the coordinator hears of it. */
void judge_joins(struct judge *judge, size_t connection, const struct judge_nature *nature, uint64_t last_round);
void judge_says(struct judge *judge, size_t connection, enum coordinator_kind kind);
void judge_goes(struct judge *judge, size_t connection, bool has_left);
/* While it speaks. */
void judge_told(struct judge *judge, size_t connection, const struct coordinator_message *message);
/* After each event. */
void judge_check(struct judge *judge, const struct coordinator_view *view, int64_t now_ms);

#endif
