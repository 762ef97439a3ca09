/* The inside of a group, for the files group*.c, work.c and collective.c.
 *
 * A group's segment, made by the first of its ranks on each host:
 *
 *     segment header | struct group_shared | a struct group_line per local member | the engine's part
 *
 * Who writes what: `news` everybody, a line its own member alone. A group alone on its host has all this in private
 * memory. */
#ifndef COMM_GROUP_IMPL_H
#define COMM_GROUP_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <muster/collective.h>
#include <muster/group.h>
#include <muster/memory.h>
#include <muster/work.h>

#include "base/ticks.h"
#include "comm/context/context.h"
#include "comm/engine/call.h"
#include "comm/engine/call_line.h"
#include "comm/engine/call_time.h"
#include "comm/engine/engine.h"
#include "comm/engine/engine_choice.h"
#include "comm/engine/failure.h"
#include "comm/host/bell.h"
#include "comm/host/segment.h"
#include "comm/p2p/p2p.h"

enum {
    GROUP_SENTENCE_BYTES = 512,
    GROUP_ABORT_REASON_MAX = 200,
    GROUP_TRACED = 8, /* calls whose times are kept for the others' traces */
};

struct group_shared {
    _Alignas(64) _Atomic uint32_t attached; /* how often members have come to a meeting */
    _Alignas(64) _Atomic uint32_t news;     /* raised when a member has left or failed the group */
};

/* What a member tells its neighbours. */
struct group_line {
    struct call_line calls; /* where it is in the group's calls */
    _Atomic uint32_t has_left;
    _Atomic int32_t failed; /* the code with which the member failed the group; after sentence and record */
    char sentence[GROUP_SENTENCE_BYTES];
    struct muster_failure record;          /* of it */
    struct call_time traced[GROUP_TRACED]; /* while it is traced; by number of the call */
};

struct batch;
struct work_queue;

struct muster_group {
    /* Read in every call. */
    struct comm_waiter waiter;         /* of collectives */
    struct comm_waiter message_waiter; /* of sends and receives */
    struct context *context;
    struct engine *engine; /* of collectives and messages; the same on all ranks */
    struct group_shared *shared;
    struct group_line *lines; /* per local member */
    struct group_line *line;  /* this rank's */
    uint64_t sequence;        /* of the last collective begun */
    int64_t timeout_ns;
    uint32_t accumulated;     /* of the next all_reduces; see mark.h */
    uint32_t unit_mark;       /* of the next collectives with a mark: 0, or a unit's number plus one; likewise */
    struct ticks_clock clock; /* of whoever runs collectives: the caller, or the progress thread */
    _Atomic uint32_t news_seen;
    _Atomic uint32_t queued_count; /* calls that the progress thread has not finished */
    _Atomic uintptr_t caller;      /* a place on the stack of the thread that is in a call; 0: none */
    struct batch *coalesced;       /* between begin and end, else NULL */
    void *fused;                   /* shared memory for coalesced calls, once needed */
    struct failure failure;
    _Atomic bool deadline_told;   /* it has passed on another host, while this rank is in a call */
    _Atomic uint32_t left_told;   /* neighbours: group_tell_left() */
    struct failure told;          /* by another host; after calls that this rank may still end */
    _Atomic uint64_t told_spared; /* the number of the last of them */

    enum engine_kind engine_wish;           /* of its options, else of what it was made from */
    const struct muster_group *shrunk_from; /* until it has connected: the failed group, and its ranks that this has */
    const uint32_t *survivors;
    const char *engine_reason; /* static */
    void *stream;              /* of calls from now on; see struct comm_call */
    uint32_t id, rank, size;
    uint32_t *root_ranks; /* per rank */
    uint32_t *hosts;      /* per rank: index of its host in the group */
    uint32_t host_count;
    uint32_t *locals; /* the ranks on this host, rising */
    uint32_t local_count, local;
    uint32_t meetings; /* of them, that this rank has come to */
    char name[MUSTER_GROUP_NAME_MAX];

    struct segment segment; /* memory NULL: alone on its host */
    void *own_memory;
    pthread_mutex_t examine_mutex;
    struct work_queue *queue; /* NULL until a call asks for a handle */
    uint32_t child_count;     /* subsets and splits so far */
    uint32_t shrink_count;
    _Atomic uint32_t holder_count;        /* group_hold() */
    bool is_freed;                        /* and is here for them alone */
    struct muster_group *next, *previous; /* of the context */
};

/* ---- group_make.c: a group from a list of root ranks ---- */

/* MUSTER_EINVAL for callers that cannot use it: with NULL, and in a forked child. Any thread. */
int group_refuse(const struct muster_group *group);
static inline int group_check(const struct muster_group *group) {
    return __builtin_expect(group && context_is_alive(group->context), 1) ? 0 : group_refuse(group);
}

/* Allocates, and computes places. ranks: root ranks, this process's among them; copied, as is the name. */
int group_prepare(struct context *context, const uint32_t *ranks, uint32_t rank_count, const char *name,
                  int64_t timeout_ns, struct muster_group **out);
/* A number for a group that this rank is the first to know of: unique among all groups of the context, since it has the
 * rank in it. MUSTER_ELIMIT. */
int group_new_id(struct context *context, uint32_t *out);
/* First local member: makes the segment. */
int group_make_segment(struct muster_group *group, struct segment_name *out_name);
static inline bool group_leads_host(const struct muster_group *group) {
    return group->local == 0;
}
/* Opens the segment (name: NULL where it is one's own or there is none), makes the engine and puts the group into the
 * context's list. Waits for nobody. */
int group_attach(struct muster_group *group, const struct segment_name *name);
/* group_engine.c. What this process wishes: options are the caller's. MUSTER_EINVAL. */
int group_engine_wish(const struct muster_group_options *options, enum engine_kind *out);
/* What it knows for the choice. */
uint8_t group_engine_facts(enum engine_kind wish);
/* Before the other ranks are met: will the engine be MPI, or could it? */
bool group_engine_may_be_mpi(enum engine_kind wish);
/* Can the engine carry out calls of a smaller group after a failure? If not, MUSTER_EUNSUPPORTED at once: the others
 * need not meet. */
int group_engine_may_shrink(const struct muster_group *group);
/* Chooses and makes the engine of a group that has its segment, and its waiters. Waits for nobody. MUSTER_ENOMEM,
 * MUSTER_ESYSTEM, MUSTER_EUNSUPPORTED. */
int group_make_engine(struct muster_group *group, void *segment_part);
size_t group_engine_segment_bytes(uint32_t local_count);
/* After all members have attached, on all hosts: has the engines of all members set themselves up together. */
int group_connect_engine(struct muster_group *group, int64_t deadline_ns);
/* Fails a group whose engine could not be set up, with this thread's detail. Returns the code, with that. */
int group_fail_setup(struct muster_group *group, int code);

/* Waits until all local members have attached. Where the members agree in another way that all have, call
 * group_attached() instead. */
int group_meet(struct muster_group *group, int64_t deadline_ns);
/* Waits until all local members have met and called this. */
int group_meet_again(struct muster_group *group, int64_t deadline_ns);
/* All members have attached: the segment's name is needed no more. */
void group_attached(struct muster_group *group);
/* Frees what there is; says nothing to anybody. The context stays; true: it has no other group, and is the caller's to
 * free. Of several threads that free groups, one is told so. */
bool group_dispose(struct muster_group *group);

/* ---- group_threads.c: one thread at a time ---- */

int group_refuse_thread(const struct muster_group *group, const char *operation);
int group_blame_threads(struct muster_group *group);

/* Around a caller's collective. `here`: an address of its stack frame, which no other thread can have meanwhile. Plain
 * loads and stores, since short calls are measured by this: two threads may both get in within some nanoseconds of
 * each other. The one that came first finds that out when it leaves, and the group has failed. */
static inline bool group_enter(struct muster_group *group, uintptr_t here) {
    if (__builtin_expect(atomic_load_explicit(&group->caller, memory_order_relaxed) != 0, 0)) {
        return false; /* group_refuse_thread() */
    }
    atomic_store_explicit(&group->caller, here, memory_order_relaxed);
    return true;
}
static inline int group_leave(struct muster_group *group, uintptr_t here, int code) {
    if (__builtin_expect(atomic_load_explicit(&group->caller, memory_order_relaxed) != here, 0)) {
        return group_blame_threads(group);
    }
    atomic_store_explicit(&group->caller, 0, memory_order_relaxed);
    return code;
}

/* Nanoseconds that can be added to any time of the clock without an overflow. */
static inline int64_t group_timeout_ns(int64_t timeout_ms) {
    int64_t most_ms = INT64_MAX / 4 / CLOCK_NS_PER_MS;
    return (timeout_ms < most_ms ? timeout_ms : most_ms) * CLOCK_NS_PER_MS;
}
/* The store at which they meet, which rank 0 serves. group_create.c. */
int group_open_store(const char *host, uint16_t port, uint32_t rank, uint32_t size,
                     const struct muster_group_options *options, struct muster_store **out);
/* The root group of `size` ranks on a store that was opened for it, closed with it (or now, on failure); NULL: a world
 * of one rank. group_create.c. */
int group_create_root(struct muster_store *store, uint32_t rank, uint32_t size,
                      const struct muster_group_options *options, int64_t deadline_ns, struct muster_group **out);
/* Fills *options from those of the caller, of whatever version (NULL: the defaults), and checks them. */
int group_options_read(const struct muster_group_options *given, struct muster_group_options *options);
/* The encoded form of a segment's name. */
enum { GROUP_SEGMENT_NAME_BYTES = 24 };
void group_encode_segment_name(const struct segment_name *name, uint8_t out[GROUP_SEGMENT_NAME_BYTES]);
void group_decode_segment_name(const uint8_t in[GROUP_SEGMENT_NAME_BYTES], struct segment_name *out);

/* ---- group_watch.c: what goes wrong ---- */

/* What the asker is about to do. */
enum group_need {
    GROUP_NEED_STATUS,  /* nothing: muster_group_status() */
    GROUP_NEED_BEGIN,   /* begin a collective, or a message: everybody must be there */
    GROUP_NEED_CALL,    /* go on with a collective: members that have finished it are not needed any more */
    GROUP_NEED_MESSAGE, /* go on with a message */
    GROUP_NEED_REASON   /* explain why a call has failed: whoever is gone may be it */
};
/* 0, or what the group has failed with, found out now or before; with the sentence as detail. Any thread. */
int group_examine(struct muster_group *group, enum group_need need);
/* A call or a message has ended with `code`: if a death may be the reason, fails the group by it. A link that broke is
 * asked about once, after the monitor and the links have said who has died. A library may notice a death by an error of
 * the system before the monitor does, which is given a second then. Returns the code to tell if no death is known. */
int group_seek_reason(struct muster_group *group, int code, enum group_need need);
/* Before a message: MUSTER_EGROUP if the group has failed, what fails it now, or 0. */
int group_check_message(struct muster_group *group);
/* What the groups of a context do when a peer is gone, or another host tells that a group has failed. */
extern const struct context_hooks group_context_hooks;
/* Fails the group: here (first wins), in the eyes of the neighbours, and of all other hosts. Wakes everybody. record:
 * who is to blame (group and call are filled in here), NULL: nobody. Returns the code of the failure that won, its
 * sentence and record as this thread's. Any thread. */
int group_fail(struct muster_group *group, int code, const char *sentence, const struct muster_failure *record);
/* The same at this rank's own wish. reason: NULL: none given. */
void group_abort(struct muster_group *group, const char *reason);
/* Tells the other hosts. After a death, calls that this rank has finished are spared: it has given all that others need
 * in them. */
void group_spread(struct muster_group *group, int code, const char *sentence, const struct muster_failure *record);
/* Wakes this process's callers in the group. */
void group_alarm(struct muster_group *group);
/* Neighbours that have freed the group: the links are to know that nothing more comes from them. Any thread. */
void group_tell_left(struct muster_group *group);
/* The hooks of the waiters. woken: aborts the group if the program says that it was interrupted. */
int group_call_stopped(void *argument);
int group_message_stopped(void *group);
bool group_idle(void *group);
void group_woken(void *argument);

/* Parts of sentences: "rank 3 (root rank 5)"; "barrier (call 17 of group 'world', begun 0.250 s ago)"; "; its last call
 * was 16, barrier, which it had finished" ("" of ranks elsewhere). */
int group_name_rank(const struct muster_group *group, uint32_t rank, char *out, size_t max);
void group_describe_own_call(const struct muster_group *group, char *out, size_t max);
void group_describe_last_call(const struct muster_group *group, uint32_t rank, char *out, size_t max);
/* The line of a rank of this host; NULL: it runs elsewhere. */
const struct group_line *group_line_of(const struct muster_group *group, uint32_t rank);

/* ---- group_failure.c ---- */

/* Into a failure's record: who it was, by the number in the group, or in the root group (which may be none of the
 * group's). */
void group_blame(const struct muster_group *group, uint32_t rank, struct muster_failure *failure);
void group_blame_root(const struct muster_group *group, uint32_t root_rank, struct muster_failure *failure);
/* Cause, group, and the call that this rank is in. Of one missing rank, where it runs. */
void group_record_place(const struct muster_group *group, int code, struct muster_failure *failure);

/* ---- group_late.c ---- */

/* Before the group is freed: warns if a call differed from a neighbour's, and none has waited for that neighbour since.
 * Both may have been roots of the last broadcast, say. */
void group_look_back(const struct muster_group *group);

/* Fails the group because of a call that has ended with `code`, with a sentence that says who is missing, or made which
 * other call. Returns what the caller is to get. */
int group_call_failed(struct muster_group *group, int code, int64_t timeout_ns);

/* Appends "; rank 2 (pid 7 on host a) is stopped by a signal" for the ranks of this host that something keeps from
 * running, to the text of `used` bytes, and the ranks to the missing ones of the record (NULL: there is none); the
 * text's new length. */
size_t group_tell_held(const struct muster_group *group, char *out, size_t used, size_t max,
                       struct muster_failure *record);

/* ---- group_run.c ---- */

/* Runs one collective in this thread. timeout_ns: its deadline; queued_ns: when it was asked for, 0: now. */
int group_run(struct muster_group *group, const struct comm_call *call, int64_t timeout_ns, int64_t queued_ns);

/* ---- group_trace.c: only while this process is traced ---- */

/* Notes that this rank begins the call, for the others' traces; the time. */
int64_t group_trace_begin(struct muster_group *group, uint64_t sequence);
void group_trace_end(struct muster_group *group, const struct comm_call *call, uint64_t sequence, int64_t begin_ns,
                     int64_t queued_ns, int status);

/* A message that has ended, for the trace and the log; only with context->notes_messages. */
struct message_note {
    const struct muster_group *group;
    enum comm_operation operation;
    enum muster_type type;
    uint32_t peer; /* of a receive that has taken one: the sender; else as the call said */
    uint32_t tag;
    size_t count;
    int64_t begin_ns;
    int status;
};
void group_note_message(const struct message_note *note);

/* Is there reason to look closer before a call begins? */
static inline bool group_is_uneasy(struct muster_group *group) {
    return atomic_load_explicit(&group->waiter.alarm, memory_order_relaxed) != 0 ||
           atomic_load_explicit(&group->shared->news, memory_order_relaxed) !=
               atomic_load_explicit(&group->news_seen, memory_order_relaxed);
}

/* ---- work.c: calls that return a handle ---- */

/* Queues a collective for the progress thread. */
int work_submit(struct muster_group *group, const struct comm_call *call, struct muster_work **out);
/* The same, and waits. */
int work_run(struct muster_group *group, const struct comm_call *call, int64_t timeout_ns);
/* Ends the thread. */
void work_queue_free(struct muster_group *group);

#endif
