/* The recorder behind muster/trace.h: what comm and train put into this process's Chrome trace.
 *
 * One recorder a process (a trace is a process's), which starts itself when MUSTER_TRACE names a folder. Events are
 * composed into one buffer of TRACE_BUFFER_BYTES under a lock and written when it is full, when its first event is
 * TRACE_FLUSH_MS old, by trace_flush(), and at exit. Calls never fail and never block but for a write() to the file.
 * Any thread. Times are clock_monotonic_ns().
 *
 * Collectives are recorded by group_trace.c, buckets by train/ddp_reduce.c.
 *
 * The lanes of the file: one per thread (marks of the program, trace_span()), one per group (its collectives, which run
 * one after the other), and free-floating spans that may overlap (trace_async(): buckets; trace_message()). */
#ifndef COMM_TRACE_H
#define COMM_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <muster/trace.h>

enum {
    TRACE_BUFFER_BYTES = 65536,
    TRACE_FLUSH_MS = 100,
    TRACE_LANES_MAX = 256, /* of groups; the collectives of further ones share the last lane */
};
/* Of one file. When it is reached the trace ends with an instant that says so. */
#define TRACE_FILE_BYTES_MAX (INT64_C(1) << 30)

/* 0: not looked at the environment yet, 1: off, 2: on. Read by trace_enabled() alone. */
extern _Atomic int trace_state;
bool trace_start(void);

/* Is anything recorded? A load and a branch once that has been settled. */
static inline bool trace_enabled(void) {
    int state = atomic_load_explicit(&trace_state, memory_order_acquire);
    return state == 2 || (state == 0 && trace_start());
}

/* Who this process is; without it RANK and WORLD_SIZE of the environment count. */
void trace_rank(uint32_t rank, uint32_t world_size);

/* One finished call on a group. Strings are borrowed during the call; NULL or 0 leaves an optional one out.
 * The span is shown on the group's lane, with two parts inside it: "wait" from begin to transfer (for the other ranks
 * to arrive), "transfer" from there to the end. */
struct trace_collective {
    const char *name;      /* "all_reduce" */
    const char *group;     /* what it is called everywhere: equal on its ranks, different from every other group's */
    uint64_t sequence;     /* of the group: under the same number all ranks made the same call */
    bool is_synchronizing; /* no rank can end it before every rank has begun it: true of barrier, all_reduce,
                            * all_gather, reduce_scatter and all_to_all, not of rooted calls and scans. Clocks are
                            * compared by it */
    const char *type;      /* "float32" */
    uint64_t count;        /* elements of one buffer */
    uint64_t bytes;        /* of one buffer */
    const char *algorithm; /* optional */
    const char *peer;      /* optional: for rooted calls, "root 0" */
    int64_t queued_ns;     /* optional: when the program called, if the call ran later on the progress thread */
    int64_t begin_ns;      /* when this rank began to run it */
    int64_t transfer_ns;   /* when the last of those it needs had arrived; 0: not known, no parts are shown */
    int64_t end_ns;
    int status; /* its result */
};
void trace_collective(const struct trace_collective *mark);

/* One finished send or receive, with strings as above. Messages overlap: viewers lay them under each other. */
struct trace_message {
    const char *name;  /* "send", "receive" */
    const char *group; /* as in struct trace_collective */
    const char *peer;  /* "to 3", "from 0" */
    uint32_t tag;
    const char *type;
    uint64_t count, bytes;
    int64_t begin_ns; /* when the program asked for it */
    int64_t end_ns;   /* when the program had waited for it */
    int status;
};
void trace_message(const struct trace_message *mark);

/* One finished piece of work of this thread, for its lane. `category` ("ddp", "comm") is what viewers filter by; `key`
 * (a plain word) and `value` are one argument to show, key NULL for none. */
void trace_span(const char *name, const char *category, int64_t begin_ns, int64_t end_ns, const char *key,
                int64_t value);

/* The same for work that overlaps other work of its kind, such as DDP's buckets ("bucket 3", from its last gradient's
 * arrival to its reduced sum): viewers lay such spans under each other. */
void trace_async(const char *name, const char *category, int64_t begin_ns, int64_t end_ns, const char *key,
                 int64_t value);

/* A number over time, drawn as a curve ("images/s"). */
void trace_counter(const char *name, int64_t at_ns, double value);

/* Writes what is in the buffer. 0, or MUSTER_ESYSTEM, without a detail, when the trace was given up: the failure that
 * made the caller flush keeps its sentence. */
int trace_flush(void);

#endif
