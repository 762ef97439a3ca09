/* One send or receive, as groups and engines see it. */
#ifndef COMM_MESSAGE_H
#define COMM_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/collective.h>

#include "comm/engine/engine.h"

enum {
    COMM_MESSAGE_OWN_BYTES = 256, /* what an engine keeps of a message */
    COMM_ARRIVED_MAX = 8          /* that are listed */
};

/* In the memory of whoever posts it, where it stays until it has ended. */
struct comm_message {
    bool is_send;
    bool is_blocking; /* its caller does nothing else until it has ended */
    enum muster_type type;
    uint32_t peer; /* rank of the group; of a receive also MUSTER_ANY_RANK, and once it has ended: who has sent it */
    uint32_t tag;
    void *buffer;                                           /* only read by a send */
    size_t bytes;                                           /* of a receive: room, and once it has ended: what came */
    _Alignas(16) unsigned char own[COMM_MESSAGE_OWN_BYTES]; /* the engine's */
};

/* A message that has come, and that nobody has asked for. */
struct comm_arrived {
    uint32_t rank, tag;
};

/* How an engine carries messages. Any thread may call these, several at a time. Functions that are NULL: the engine
 * needs none. */
struct engine_messages {
    /* Starts it. Errors: nothing was started; MUSTER_EPEER, MUSTER_ETIMEOUT, MUSTER_ENOMEM, MUSTER_ESYSTEM, or what the
     * group's failure says. */
    int (*post)(struct engine *engine, struct comm_message *message, int64_t deadline_ns);
    /* Waits for all of them, which have been posted. The first error of any of them, with its detail; MUSTER_ETIMEOUT,
     * without one; or what the group's waiter said. After an error those that have not ended are withdrawn: the engine
     * touches their buffers no more. */
    int (*wait)(struct engine *engine, struct comm_message *const *messages, size_t count, int64_t deadline_ns);
    /* Nobody waits for it any more: afterwards its memory and its buffer may go. A receive is taken back, a send goes
     * on as the engine's own. Waits for the other side as little as the engine can. Errors: it could not go on, and the
     * other side will not hear of that by itself: the group fails. MUSTER_ELIMIT, MUSTER_ENOMEM, MUSTER_ESYSTEM. */
    int (*let_go)(struct engine *engine, struct comm_message *message);
    /* The same with all of them, before the group is freed. */
    void (*let_go_all)(struct engine *engine);
    /* Frees what a message holds that has ended, and that nobody has waited for. The engine may be gone. NULL: nothing.
     */
    void (*forget)(struct comm_message *message);
    /* Has it ended, well or badly? Only looks. */
    bool (*has_ended)(const struct comm_message *message);
    /* Moves what can be moved without blocking. */
    void (*progress)(struct engine *engine);
    /* Nothing moves unless progress() is called: whoever waits for something else as well must not sleep. */
    bool needs_progress;
    /* A neighbour on this host has left the group: nothing more comes from it. */
    void (*peer_left)(struct engine *engine, uint32_t rank);
    /* For the sentence about a receive: the first messages, at most `max`, that wait from the rank that it names, or
     * from any. Returns how many. NULL: not known. */
    size_t (*list_arrived)(struct engine *engine, const struct comm_message *receive, struct comm_arrived *out,
                           size_t max);

    /* Short cuts of blocking calls. send_now: the message has gone; *out_ns: when. false: it takes post(), which also
     * says what is wrong. expect: might the message come soon? If so, *out_ns is the time, and take_now() looks for it
     * for a while: true, it is there, since *out_ns. NULL and false: it takes post(). */
    bool (*send_now)(struct engine *engine, const struct comm_message *message, int64_t *out_ns);
    void *(*expect)(struct engine *engine, const struct comm_message *message, int64_t *out_ns);
    bool (*take_now)(struct engine *engine, struct comm_message *message, void *expected, int64_t *out_ns);
};

#endif
