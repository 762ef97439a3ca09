/* Copies of a sharded state on peer hosts: each rank sends its share of a committed step to a rank of another host, in
 * the gaps of training, so that the job can go on without a host.
 *
 * Each rank has memory that its agent holds (train/memory/holder.h), with two slots for its own share and that of the
 * rank that it serves (peer_labels.h). A thread of low priority copies the rank's share into the slot that is not the
 * newest, sends it, receives the other's, and then labels the slot. The next copy begins when all ranks have agreed
 * that no thread is at work: so all have the generation before. A death at any instant leaves a generation that is
 * whole on all ranks, once there was one (peer_model_test tries all orders).
 *
 * What protects it: its addresses are nobody else's; each share has a checksum, which is compared before it is used; a
 * label names the life of the job beside the step. What is in a share is the caller's business.
 *
 * Calls belong to one thread, the program's, but for what is said of the statistics. */
#ifndef TRAIN_PEER_COPIES_H
#define TRAIN_PEER_COPIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>

struct peer_copies_options {
    const char *name;           /* of the state among those that agents hold; equal in later lives of the job */
    struct muster_group *group; /* borrowed as long as the copies live */
    uint64_t fingerprint;       /* of the state, equal on all ranks */
    uint32_t part;              /* this rank's; as many parts as ranks */
    size_t share_bytes;         /* its share's size */
    /* The step that all go on from: a generation of it, or an older one, may stay. PEER_NOTHING: what is there is given
     * up. Equal on all ranks. */
    int64_t most;
    /* In the thread: this rank's share of what was committed, into `to`. */
    void (*collect)(void *context, void *to);
    void *context;
};

struct peer_copies;
struct peer_finds; /* peer_find.h */

/* May these ranks copy? False: a host has more than half of them. */
bool peer_copies_are_possible(const struct muster_group *group);

/* Takes memory of an earlier life of this world, or makes it beside what has been found and is needed. Collective;
 * blocks. Where a host has no room for it, or the agent does not answer, all ranks get the code, and the group goes on.
 * MUSTER_ENOMEM, MUSTER_ESYSTEM, MUSTER_ECONNECT, MUSTER_ETIMEOUT. */
int peer_copies_open(const struct peer_copies_options *options, struct peer_finds *finds, struct peer_copies **out);

/* All ranks have committed what they go on from: other generations are dropped, and copies may be made. Collective. */
int peer_copies_settle(struct peer_copies *copies);
/* Under which this rank's memory is held. */
const char *peer_copies_name(const struct peer_copies *copies);

/* Copies the state of `step` if no thread of any rank is at work; else all ranks skip it. Collective: one short
 * all_reduce. prepare: on this rank, before its thread starts. */
int peer_copies_start(struct peer_copies *copies, int64_t step, int (*prepare)(void *context), bool *out_started);

/* Waits until the thread does not read what was committed. */
void peer_copies_await_read(struct peer_copies *copies);

/* Waits until no copy is under way on this rank. */
void peer_copies_await(struct peer_copies *copies);

struct peer_numbers {
    uint64_t started, completed, failed, skipped;
    int64_t step;         /* of the newest generation that this rank has whole; PEER_NOTHING: none */
    int64_t completed_ns; /* when, on the monotonic clock; 0: in an earlier life */
};
/* Any thread. */
void peer_copies_numbers(struct peer_copies *copies, struct peer_numbers *out);

size_t peer_copies_bytes(const struct peer_copies *copies);

/* Waits for what is under way, or with `aborts` ends it. The memory stays held. NULL is accepted. */
void peer_copies_close(struct peer_copies *copies, bool aborts);

#endif
