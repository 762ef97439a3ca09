/* What carries out the collectives of a group. A group knows its engine by this table alone; which engine it is,
 * nothing above can tell but by its name.
 *
 * An engine belongs to one group of one process. Calls of the table come from one thread at a time, but for abort(),
 * and in the same order on all ranks. The group has checked, sized and fingerprinted a call, and books it; the engine
 * sees calls that are valid. It never speaks to the user: it returns a code with its detail, and the group makes the
 * sentence. */
#ifndef COMM_ENGINE_H
#define COMM_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/engine/call.h"

struct device;
struct engine;
struct engine_messages;

/* Of start() and test(). Negative: the call has failed. */
enum { ENGINE_DONE = 0, ENGINE_UNDER_WAY = 1 };

/* How the members of a group agree on something for an engine: calls of all of them, in the same order. A failure is
 * the group's. */
struct engine_talk {
    int (*greatest)(void *context, int32_t own, int32_t *out); /* of all members' numbers */
    int (*tell)(void *context, void *bytes, size_t count);     /* rank 0's bytes go to all */
    void *context;
};

/* Functions that are NULL: the engine needs none, or has nothing to say. */
struct engine_table {
    const char *name; /* "muster", "mpi", "nccl", "solo": for logs and for people who choose */

    /* Sets the engine up together with all other members of the group, which have attached. Called once, before the
     * first call; blocks until the deadline at most. It gives up, with a detail, when the group's waiter says so, and
     * whatever it has begun is then left alone by free(). MUSTER_EUNSUPPORTED: this engine cannot serve this group. */
    int (*connect)(struct engine *engine, int64_t deadline_ns);

    /* Starts call `number`; its buffers and arrays are borrowed until it has ended. ENGINE_DONE: it has been carried
     * out. ENGINE_UNDER_WAY: test() will tell. Errors: MUSTER_EMISMATCH, MUSTER_ETIMEOUT (without a detail: the group
     * knows the call), MUSTER_EPEER, MUSTER_ENOMEM, MUSTER_ESYSTEM, what the group's waiter said. After an error the
     * engine can only be asked and freed, and touches no buffer any more. */
    int (*start)(struct engine *engine, const struct comm_call *call, uint64_t number, int64_t deadline_ns);
    /* Looks after the call that is under way for about `patience_ns` (how, is the engine's choice), and says what has
     * become of it. */
    int (*test)(struct engine *engine, int64_t patience_ns);
    /* Gives up the call that is under way. When it returns, the engine touches no buffer any more. */
    void (*abort)(struct engine *engine);

    /* A member has died; `death` says which one, and how. From the monitor's thread: must not block. */
    void (*member_died)(struct engine *engine, const char *death);
    /* The group has failed with `code`, whether a call is under way or not. Any thread. */
    void (*group_failed)(struct engine *engine, int code);

    /* Memory that calls are fastest with: zeroed, aligned to 64 bytes. MUSTER_ENOMEM, MUSTER_ELIMIT, MUSTER_ESYSTEM. */
    int (*allocate)(struct engine *engine, size_t bytes, void **out);
    void (*release)(struct engine *engine, void *memory); /* NULL is accepted */

    /* Of engines that also take memory that this process cannot read and write (a GPU's); others have none of these
     * rows. Is the buffer there? NULL is not. Any thread. */
    bool (*is_foreign)(const struct engine *engine, const void *buffer);
    /* Could this call be started? MUSTER_EINVAL; nothing has happened then. */
    int (*check)(const struct engine *engine, const struct comm_call *call);
    /* Of a call that is started later, by another thread: notes in it how far the caller's stream has been given work,
     * so that it waits for no more than that. MUSTER_ENOMEM, MUSTER_ESYSTEM. Any thread. */
    int (*note)(struct engine *engine, struct comm_call *call);
    /* The call has ended, or is not made. Any thread. */
    void (*forget)(struct engine *engine, struct comm_call *call);
    /* Behind whose work so far each message begins (a call has its own: call.h); NULL: the default stream. Any thread.
     */
    void (*set_stream)(struct engine *engine, void *stream);
    /* Such memory, zeroed. Any thread. MUSTER_ENOMEM, MUSTER_ESYSTEM. */
    int (*allocate_foreign)(struct engine *engine, size_t bytes, void **out);
    void (*release_foreign)(struct engine *engine, void *memory); /* NULL is accepted */
    /* The GPU whose memory that is; borrowed from the engine. */
    const struct device *(*device)(const struct engine *engine);

    /* Of engines for which a new group costs less if it comes from another one. By all members of this engine's group,
     * which works, before those of the new groups connect theirs: sets up `child`, the engine of the new group that
     * this rank is in (of the same kind; NULL: in none), or leaves it to connect(). On all members the same of both.
     * family: the same for the members of a new group, and no other; place: the rank in it. talk: of this group.
     * timeout_ns: of each part of it. An error: this group has failed, or is to fail. */
    int (*derive)(struct engine *engine, struct engine *child, uint32_t family, uint32_t place,
                  const struct engine_talk *talk, int64_t timeout_ns);

    /* About the last call, for sentences, traces and logs. Did it still wait for something of `rank`, on another host?
     * How many steps has local rank `local` taken? By which algorithm; NULL: there was nothing to do. When had the
     * first message of another host come; 0: not known. */
    bool (*awaits)(const struct engine *engine, uint32_t rank);
    uint64_t (*steps)(const struct engine *engine, uint32_t local);
    const char *(*algorithm)(const struct engine *engine);
    int64_t (*arrived_ns)(const struct engine *engine);

    /* It does not notice by itself that a rank of another host, which a call needs, is gone: the group fails the call
     * when it hears of the death. */
    bool needs_news_of_hosts;

    const struct engine_messages *messages; /* sends and receives (message.h); NULL: a group of one has none */

    void (*free)(struct engine *engine); /* no call is under way; NULL is no engine */
};

/* The first member of each engine's own struct. */
struct engine {
    const struct engine_table *table;
};

static inline bool engine_awaits(const struct engine *engine, uint32_t rank) {
    return engine->table->awaits && engine->table->awaits(engine, rank);
}

static inline uint64_t engine_steps(const struct engine *engine, uint32_t local) {
    return engine->table->steps ? engine->table->steps(engine, local) : 0;
}

static inline const char *engine_algorithm(const struct engine *engine) {
    return engine->table->algorithm ? engine->table->algorithm(engine) : NULL;
}

static inline int64_t engine_arrived_ns(const struct engine *engine) {
    return engine->table->arrived_ns ? engine->table->arrived_ns(engine) : 0;
}

static inline bool engine_is_foreign(const struct engine *engine, const void *buffer) {
    return engine->table->is_foreign && engine->table->is_foreign(engine, buffer);
}

static inline int engine_check(const struct engine *engine, const struct comm_call *call) {
    return engine->table->check ? engine->table->check(engine, call) : 0;
}

static inline int engine_note(struct engine *engine, struct comm_call *call) {
    return engine->table->note ? engine->table->note(engine, call) : 0;
}

static inline void engine_forget(struct engine *engine, struct comm_call *call) {
    if (call->noted) {
        engine->table->forget(engine, call);
    }
}

static inline void engine_free(struct engine *engine) {
    if (engine) {
        engine->table->free(engine);
    }
}

#endif
