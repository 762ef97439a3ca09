/* What the groups of one root group have in common: who the ranks are and where, the memory that this host's ranks
 * share, the links to all others, and the thread that watches.
 *
 * The shared segment, made by the first rank of each host:
 *
 *     segment header | a line per local rank (its bell, has it left?) | roster | muster_alloc()'s directory | p2p's
 * rings
 *
 * Lifetime: counted by the groups that use it. Threads: any, where nothing else is said. */
#ifndef COMM_CONTEXT_H
#define COMM_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <muster/store.h>

#include "comm/context/bootstrap.h"
#include "comm/context/kv.h"
#include "comm/context/roster.h"
#include "comm/host/bell.h"
#include "comm/host/memory.h"
#include "comm/host/monitor.h"
#include "comm/host/segment.h"
#include "comm/p2p/p2p.h"
#include "comm/p2p/tls.h"
#include "comm/schedule/choice.h"

struct muster_group;
struct recorder;

/* In the segment, one per rank of the host; written by that rank alone, the bell excepted. */
struct context_line {
    struct comm_bell bell;
    _Alignas(64) _Atomic uint32_t has_left; /* in good order: its end is no failure */
};

/* What is known of a rank of the root group beside the topology. */
enum context_peer_state { CONTEXT_PEER_HERE = 0, CONTEXT_PEER_DEAD, CONTEXT_PEER_LEFT };
struct context_peer {
    _Atomic uint32_t state;
    uint32_t order; /* how many were gone before it; written before the state */
    int32_t pid;    /* of a dead one on another host, where it is known; else 0 */
    int32_t signal; /* that has killed it; 0: none, or not known */
    char *sentence; /* of a dead one: owned, written once before the state; "rank 3 (pid 7 on host a) was killed ..." */
};

struct context {
    const struct context_hooks *hooks;
    uint32_t rank, size;
    struct muster_store *store;         /* the prefixed handle behind kv; owned */
    struct muster_store *meeting_store; /* the one that they meet in; owned */
    struct muster_store *owned_store;   /* the one below it, if it was opened here */
    struct comm_kv_alone *alone;        /* in its place, in a world of one without a store */
    struct comm_kv kv;
    struct bootstrap bootstrap;
    struct context_peer *peers;  /* by root rank */
    _Atomic uint32_t gone_count; /* peers that are not HERE */

    struct segment segment;     /* memory NULL while this rank is alone on its host */
    void *own_memory;           /* then: of the layout above, for one */
    struct context_line *lines; /* per local rank */
    struct roster *roster;
    struct roster_alarm alarm;
    uint32_t next; /* local number of the next process that has not ended; the monitor's thread's, once that runs */
    struct memory *memory;
    struct tls *tls; /* of the links; NULL: none */
    struct p2p *p2p;
    struct monitor *monitor;
    struct recorder *recorder;
    struct choice *choice;             /* MUSTER_CHOICE_FILE; NULL: the built-in table */
    bool may_read_peers;               /* MUSTER_CMA */
    bool logs_calls;                   /* MUSTER_DEBUG=DETAIL */
    int (*interrupted)(void *context); /* the config's */
    void *interrupted_context;
    bool notes_messages;     /* for that, or for the trace */
    _Atomic bool uses_links; /* messages were posted, here or for this process: who waits brings them forward */

    const volatile uint32_t *alive; /* 1; 0 in a child of fork() */
    pthread_mutex_t mutex;          /* over what follows */
    struct muster_group *groups;    /* list of those made from it; the groups link themselves */
    uint32_t group_count;
    uint32_t next_group_number; /* for the ids of groups that this rank leads */
};

/* What the groups of a context are told. Called with the context's mutex held: no group comes or goes meanwhile. */
struct context_hooks {
    void (*peer_gone)(struct context *context, uint32_t root_rank);
    void (*group_notice)(struct context *context, const struct p2p_notice *notice); /* of a group that has failed */
};

struct context_config {
    struct muster_store *store; /* borrowed until the context is freed; or owned, see below. NULL: a world of one */
    bool owns_store;            /* closed with the context (also when creation fails) */
    const char *name;           /* of the root group: keys go under "muster/`name`/`size`-ranks/" */
    uint32_t rank, size;
    bool logs_calls;                   /* debug_start() */
    uint8_t engine_wish, engine_facts; /* struct bootstrap_terms */
    const struct context_hooks *hooks; /* borrowed as long as the context lives */
    int (*interrupted)(void *context); /* muster_group_options; NULL: none */
    void *interrupted_context;
};

/* Meets the other ranks: bootstrap, nothing shared yet. */
int context_create(const struct context_config *config, int64_t deadline_ns, struct context **out);
/* The first rank of a host makes the segment, with the list of its ranks; *out_name is meaningful then only. */
int context_make_segment(struct context *context, int64_t deadline_ns, struct segment_name *out_name);
/* Opens (or keeps) the segment, starts the monitor and the links. name: NULL where the segment is this rank's own or
 * there is none. */
int context_attach(struct context *context, const struct segment_name *name);
/* After that: has the first rank of each host look after the next host, and waits a little until that is so all around
 * it: who leaves early must have been met, or would be taken for dead. */
int context_watch_next_host(struct context *context, struct comm_waiter *waiter, int64_t deadline_ns);
/* After every rank of the host has attached: takes away what this rank put into the store for that, where nobody else
 * will look for it (all ranks run on one host). false: nothing to take away. */
bool context_forget_meeting(const struct context *context);
/* After every rank of the host has attached: its descriptor is not needed any more. */
void context_seal(struct context *context);
/* Leaves in good order and frees. NULL is accepted. In a forked child it does nothing. */
void context_free(struct context *context);

/* Starts to watch neighbours; in context_peers.c. */
int context_watch_neighbours(struct context *context);
/* Hooks of the monitor (a process of this host has ended; somebody here has seen one end) and of the links (they have
 * found out, or have been told); likewise. `argument`: a struct context. */
void context_neighbour_died(void *argument, uint32_t rank, int32_t pid, int wait_status);
void context_hear_alarm(void *argument);
void context_take_notice(void *argument, const struct p2p_notice *notice);

/* Local number of a root rank on this host; UINT32_MAX: it runs elsewhere. */
uint32_t context_local_of(const struct context *context, uint32_t root_rank);
const char *context_host_name(const struct context *context, uint32_t root_rank);
static inline struct comm_bell *context_bell(const struct context *context) {
    return &context->lines[context->bootstrap.local].bell;
}
static inline bool context_is_alive(const struct context *context) {
    return *context->alive == 1;
}

/* Keys of the store: "muster/NAME/" is in front already. What ranks of a host tell each other while a group is made: a
 * status with this thread's detail, or bytes. */
int context_put_result(const struct context *context, const char *key, int status, const void *data, size_t len);
/* Of several ranks that fail, with this status and this thread's detail, all get the status and detail of the first
 * that says so. Without the store's help: one's own. Ranks of other hosts that look for this one's address find its
 * failure instead. */
int context_first_failure(const struct context *context, int status);
/* Waits for what `root_rank`, of this host, puts there. MUSTER_EPEER when it dies before. */
int context_get_result(const struct context *context, const char *key, uint32_t root_rank, int64_t deadline_ns,
                       void *data, size_t len);

#endif
