/* What the rendezvous backends share: the object of rdzv.h and its outbox. Private to this module.
 *
 * Backends never call the agent: they leave messages in the outbox, which a timer of zero delivers from the top of the
 * loop, one at a time. So a callback may call anything, rdzv_free() included. */
#ifndef RENDEZVOUS_BACKEND_H
#define RENDEZVOUS_BACKEND_H

#include "net/loop_clock.h"
#include "rendezvous/failures.h"
#include "rendezvous/rdzv.h"
#include "rendezvous/round/exchange.h"
#include "rendezvous/round/node_name.h"
#include "rendezvous/round/visitors.h"
#include "store/server/kv_guest.h"

#include <muster/status.h>

enum { RDZV_RUN_ID_MAX = 256, RDZV_BARRIER_TIMEOUT_MS = 300000 };

enum rdzv_timer {
    RDZV_TIMER_OUTBOX,
    RDZV_TIMER_WAKE,     /* the machine's */
    RDZV_TIMER_SYNC,     /* the next look at the state */
    RDZV_TIMER_BACKOFF,  /* the next try of a write that failed */
    RDZV_TIMER_REPORT,   /* who is missing */
    RDZV_TIMER_LINGER,   /* the host waits for the others to go */
    RDZV_TIMER_SEARCH,   /* where the coordinator is */
    RDZV_TIMER_LEAVE,    /* the end of asking before leaving */
    RDZV_TIMER_CAUSE,    /* the rest of the failure that counts */
    RDZV_TIMER_ANSWER,   /* this node says whether a worker of its own died before that */
    RDZV_TIMER_HEARING,  /* the others have had their time to say what has failed */
    RDZV_TIMER_NAME,     /* the end of looking up this machine's name */
    RDZV_TIMER_PLACE,    /* an agent whose place another one wants has had its time to answer */
    RDZV_TIMER_FAREWELL, /* people are told that the end of this node has not been heard yet */
    RDZV_TIMER_COUNT,
};

struct rdzv_backend_table {
    size_t nodes_max; /* of one job */
    /* Fills rdzv->state. On failure nothing is left open but what stop() closes. */
    int (*start)(struct rdzv *rdzv);
    void (*join)(struct rdzv *rdzv);
    void (*worker_failed)(struct rdzv *rdzv, const struct rdzv_cause *cause); /* NULL: the others cannot be told */
    void (*ask_cause)(struct rdzv *rdzv); /* is there more of it? rdzv_note_cause() follows. NULL: that comes unasked */
    bool (*preempt)(struct rdzv *rdzv, uint64_t grace_ms, const char *why); /* NULL: the others cannot be told */
    void (*barrier)(struct rdzv *rdzv);
    void (*shutdown)(struct rdzv *rdzv, bool close_job);
    bool settles_cause;              /* this node's own cause is repeated, complete, when it is known to count */
    bool orders_by_name;             /* nodes are, so this machine's full name is looked up before join() */
    bool is_needed_after_failure;    /* shutdown() is called then, too: other nodes may still have to be told */
    void (*stop)(struct rdzv *rdzv); /* closes and frees rdzv->state; NULL accepted */
};

/* The rows of backends.h name them. */
extern const struct rdzv_backend_table rdzv_c10d;
extern const struct rdzv_backend_table rdzv_static;
extern const struct rdzv_backend_table rdzv_native;
extern const struct rdzv_backend_table rdzv_etcd;
extern const struct rdzv_backend_table rdzv_etcd3;
const struct rdzv_backend_table *rdzv_backend_operations(enum rdzv_backend backend);

struct rdzv {
    uv_loop_t *loop;
    struct rdzv_options options; /* its strings are owned */
    uint32_t local_id;
    const struct rdzv_backend_table *backend;
    void *state;             /* the backend's */
    struct resolver *naming; /* this machine's full name is being looked up: nobody joins before */
    bool join_waits;         /* for that */
    uv_timer_t timers[RDZV_TIMER_COUNT];
    struct rdzv_wait {
        uv_timer_cb done;
        int64_t deadline_ms;
    } waits[RDZV_TIMER_COUNT];
    struct loop_clock clock; /* by which others are judged */
    unsigned open_handles;
    bool failed;              /* on_failed is on its way or delivered */
    bool succeeded;           /* this node's workers have: it is done */
    bool is_spare;            /* it has been told so, and no world since */
    struct visitors visitors; /* agents at the same address that cannot take part with this one */
    struct kv_guest guest;    /* of a store that this node hosts, where agents look for a coordinator in vain */
    int64_t waits_since_us, waits_from_ms; /* rdzv_report_start() */
    uv_timer_cb report;
    bool has_reported;
    int64_t spare_since_us; /* people have been told so; 0: they have not */
    bool freed;

    struct rdzv_callbacks callbacks;
    void *ctx;
    bool is_world_held;  /* by rdzv_hold_world() */
    bool is_change_held; /* or has been: what came before it is read first */
    bool has_world, has_change, has_stop, has_spare, has_spare_released, has_failed;
    bool has_barrier_done, has_shutdown_done;
    struct rdzv_world world;
    char master_addr[NET_HOST_MAX];
    enum rdzv_change change;
    char change_why[MUSTER_DETAIL_MAX];
    uint64_t stop_grace_ms;
    char stop_why[MUSTER_DETAIL_MAX];
    char lost[MUSTER_DETAIL_MAX / 2]; /* rdzv_lost() */
    int failed_status;
    char failed_why[MUSTER_DETAIL_MAX];
    struct rdzv_cause cause; /* of the failure that counts; rank and all: see has_cause */
    bool has_cause;
    bool is_cause_reported; /* it stays as it is: rdzv_cause_reported() */
    unsigned cause_looks;
    unsigned causes_on_their_way; /* records of this node's that the store has not answered: another one may count */
    struct failures failures;     /* of backends with a store */
    void (*cause_done)(void *ctx);
    void (*barrier_done)(void *ctx);
    void (*shutdown_done)(void *ctx);
};

static inline uv_timer_t *rdzv_timer(struct rdzv *rdzv, enum rdzv_timer which) {
    return &rdzv->timers[which];
}

/* Now, by the judge's clock (base/absence.h): for whatever others have to do by a time. */
int64_t rdzv_now_ms(struct rdzv *rdzv);
/* 0: one may be judged who is silent until then; else after how long to ask again. */
int64_t rdzv_left_ms(struct rdzv *rdzv, int64_t deadline_ms);
/* Calls `done` with the timer when others have had so much time: not what this process was away, and after an absence
 * not before what came meanwhile has been read. uv_timer_stop() ends it. */
void rdzv_wait(struct rdzv *rdzv, enum rdzv_timer which, uv_timer_cb done, uint64_t ms);

enum { RDZV_NODES_TEXT_SIZE = 40 };
/* How many make a world: "2 nodes", "1 to 4 nodes". Returns `out`. */
const char *rdzv_nodes_text(const struct rdzv_options *options, char out[RDZV_NODES_TEXT_SIZE]);

/* While this node waits for others (rdzv_waiting.c). `report` tells people whom it waits for, from the timer
 * RDZV_TIMER_REPORT: after 5 s and every 30, and when there is news of others at the address. */
void rdzv_report_start(struct rdzv *rdzv, uv_timer_cb report);
enum { RDZV_WAIT_NOTE_SIZE = 2048 };
/* The end of that line: since when, until when (`limit`, whose name it is), what was not given, who else is there.
 * Returns `out`. */
const char *rdzv_wait_note(struct rdzv *rdzv, int64_t deadline_ms, const char *limit, char out[RDZV_WAIT_NOTE_SIZE]);
/* Another agent of this job speaks the protocol of this number; "0": it is from before there were any. */
void rdzv_agent_speaks(struct rdzv *rdzv, const char *name, struct kv_slice number);
/* Every write to a store that this node hosts. */
void rdzv_store_heard(struct rdzv *rdzv, uint64_t connection, struct kv_slice key, struct kv_slice value);
/* Of such a store: takes whoever looks for a coordinator where there is none. */
struct kv_guest rdzv_guest(struct rdzv *rdzv);

/* Messages to the agent (rdzv_outbox.c): they leave with the next turn of the loop. */
void rdzv_tell_world(struct rdzv *rdzv, uint64_t round, uint32_t rank, uint32_t count,
                     const struct exchange_result *result);
/* The world that has just been told goes out after rdzv_release_world(), or when there is more to tell. */
void rdzv_hold_world(struct rdzv *rdzv);
void rdzv_release_world(struct rdzv *rdzv);
/* The agent is not to be told of it any more, nor of its end: this node joins the next one. */
void rdzv_withdraw_world(struct rdzv *rdzv);
void rdzv_tell_change(struct rdzv *rdzv, enum rdzv_change change, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* As well, but the agent is not told: its workers find out. */
void rdzv_note_lost(struct rdzv *rdzv, const char *why);
void rdzv_tell_stop(struct rdzv *rdzv, uint64_t grace_ms, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void rdzv_tell_spare(struct rdzv *rdzv);
void rdzv_tell_spare_released(struct rdzv *rdzv);

/* This node waits for a place as long as the job lasts: people are told when that begins, and every
 * RDZV_SPARE_REPORT_MS, by the backend's timer. `who`: of whom it is a spare; "". */
enum { RDZV_SPARE_REPORT_MS = 60000 };
/* Between two lines about somebody who is silent. */
enum { RDZV_SILENCE_REPORT_MS = 60000 };
void rdzv_report_spare(struct rdzv *rdzv, const char *who);
void rdzv_report_spare_no_more(struct rdzv *rdzv);

/* This node is the second one of a job of one: MUSTER_ELIMIT, who has the place, and what the user can change. */
int rdzv_refuse_second(const struct rdzv *rdzv, const char *where, const char *holder);
/* With muster_detail() as the reason. Only the first failure is told. */
void rdzv_tell_failed(struct rdzv *rdzv, int status);
/* Whoever holds the rendezvous knows that this node is done. People, and programs that wait for the line, may end it
 * from now on; so the line comes with the answer, not with the question. */
void rdzv_note_done(const struct rdzv *rdzv);
void rdzv_tell_barrier_done(struct rdzv *rdzv);
void rdzv_tell_shutdown_done(struct rdzv *rdzv);

/* The failure that counts (rdzv_cause.c). A round begins: none is known. */
void rdzv_forget_cause(struct rdzv *rdzv);
/* Of this round, as the nodes' store has it. */
void rdzv_note_cause(struct rdzv *rdzv, const struct rdzv_cause *cause);
/* As a value of a key; false: it is none. */
bool rdzv_note_cause_text(struct rdzv *rdzv, struct kv_slice text);
/* A record of this node's is on its way to the store; the store has answered, perhaps with another node's. Reports wait
 * for that. */
void rdzv_cause_sent(struct rdzv *rdzv);
void rdzv_cause_answered(struct rdzv *rdzv, const struct kv_reply *reply);
/* Nothing is on its way any more: all has been answered, or never will be. */
void rdzv_causes_arrived(struct rdzv *rdzv);
/* It ends the job: MUSTER_ECLOSED, with a sentence. */
int rdzv_fail_by_cause(const struct rdzv *rdzv);

#endif
