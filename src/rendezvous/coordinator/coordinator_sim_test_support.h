/* What the parts of the coordinator's simulation share: its events in virtual time, and the network between agents and
 * coordinator. Connections delay what they carry, in order, as TCP does; they break, and the two sides notice at
 * different times. */
#ifndef RENDEZVOUS_COORDINATOR_SIM_TEST_SUPPORT_H
#define RENDEZVOUS_COORDINATOR_SIM_TEST_SUPPORT_H

#include "rendezvous/coordinator/coordinator_judge_test_support.h"

enum { SIM_EVENTS_MAX = 4096 };

/* X(name) */
#define SIM_EVENT_TABLE(X)                                                                                             \
    X(START)      /* a new agent on this node */                                                                       \
    X(CONNECT)    /* a living agent tries again */                                                                     \
    X(TO_AGENT)   /* a message arrives */                                                                              \
    X(TO_HOST)    /* likewise, at the coordinator */                                                                   \
    X(AGENT_LOST) /* the agent sees that its connection has ended */                                                   \
    X(HOST_LOST)  /* likewise, the coordinator */                                                                      \
    X(TICK)       /* the coordinator wanted to be woken */                                                             \
    X(FAIL)       /* a worker here */                                                                                  \
    X(STOPPED)    /* all workers here have ended: join */                                                              \
    X(REJOIN)     /* unasked */                                                                                        \
    X(REPEAT)     /* joins again while it waits for the answer */                                                      \
    X(FINISH)     /* all workers here have succeeded */                                                                \
    X(LEAVE)                                                                                                           \
    X(CLOSE)                                                                                                           \
    X(CRASH)                                                                                                           \
    X(BREAK) /* its connection */                                                                                      \
    X(CALM)  /* from now on nothing goes wrong, and workers succeed */

enum sim_kind {
#define SIM_EVENT_ENUM(name) SIM_##name,
    SIM_EVENT_TABLE(SIM_EVENT_ENUM)
#undef SIM_EVENT_ENUM
};

struct sim_event {
    int64_t at_ms;
    uint64_t order; /* ties are broken by age */
    enum sim_kind kind;
    size_t index;                       /* of the node, or of the connection */
    uint64_t token;                     /* node: the agent's life. TICK: which wake-up */
    struct coordinator_message message; /* TO_*: without its strings */
};

enum sim_state { SIM_ABSENT, SIM_WAITS, SIM_RUNS, SIM_STOPS, SIM_IS_DONE };

struct sim_node {
    enum sim_state state;
    uint64_t life;
    size_t connection;
    uint64_t last_round;
    struct coordinator_charges charges; /* as the last WORLD told them */
    struct judge_nature nature;
};

struct sim_connection {
    size_t node;
    struct judge_nature nature; /* of the agent that has made it */
    struct coordinator_node hello;
    char addr[16], topology[16];
    struct coordinator_member *member;
    bool broken, agent_has_closed, host_has_lost;
    int64_t to_agent_ms, to_host_ms; /* when the last message arrives: none overtakes it */
};

struct sim {
    uint64_t seed, random, order, step, wake_token;
    int64_t now_ms, wake_ms;
    bool calm, trace;
    struct coordinator *coordinator;
    uint32_t min_nodes, max_nodes;
    int delay_ms; /* of most messages, at most */
    bool has_topology;
    struct sim_event *heap; /* by time, then order */
    size_t event_count;
    struct sim_node nodes[JUDGE_NODES_MAX];
    size_t node_count;
    struct sim_connection *connections;
    size_t connection_count;
    struct judge judge;
};

const char *sim_kind_name(enum sim_kind kind);

/* Prints the seed and the step that replay it, and exits. */
void sim_violated(const struct sim *sim, const char *what) __attribute__((noreturn));

uint64_t sim_draw(struct sim *sim, uint64_t below);
int64_t sim_draw_ms(struct sim *sim, int64_t below);

/* `message` may be NULL; its strings are not kept. */
void sim_post_at(struct sim *sim, int64_t at_ms, enum sim_kind kind, size_t index, uint64_t token,
                 const struct coordinator_message *message);
/* For the agent that lives on the node now, not for a later one. */
void sim_post(struct sim *sim, int64_t delay_ms, enum sim_kind kind, size_t node);
bool sim_next_event(struct sim *sim, struct sim_event *out);

/* The coordinator speaks: a coordinator_send_fn; `session` is a struct sim_connection. */
void sim_on_send(void *ctx, void *session, const struct coordinator_message *message);
/* The agent speaks: a JOIN says what it knows now. */
void sim_say(struct sim *sim, struct sim_node *node, enum coordinator_kind kind);
/* The agent has closed its side, or died: the coordinator learns of it after all that was sent before, or, when the
 * host died with the agent (`silently`), much later. */
void sim_hang_up(struct sim *sim, struct sim_node *node, bool silently);
void sim_break(struct sim *sim, size_t connection);
/* A connection of its own for the agent on this node; it joins. */
void sim_connect(struct sim *sim, size_t on);

#endif
