/* What the files of a ddp share: its state, and the steps that they do for each other.
 *
 *   ddp.c          creating, freeing, questions
 *   ddp_step.c     begin, ready, finish
 *   ddp_reduce.c   a bucket's way through the group, and the sentence when it fails
 *   ddp_layout.c   the memory of buckets, and moving gradients from one layout to another
 *   ddp_memory.c   memory of the host or of the GPU
 *   ddp_agree.c    what ranks must have in common: parameters, data, the order of buckets
 *   ddp_uneven.c   ranks that have run out of data
 *   ddp_passes.c   a step's passes, one for each virtual rank of this rank
 *   ddp_virtual.c  sums over virtual ranks, which do not depend on the world
 *   ddp_hook.c     the hooks that compress
 *
 * agreement.h, presence.h, step_clock.h and step_failure.h know nothing of a ddp: other objects whose ranks take steps
 * together use them, too. */
#ifndef TRAIN_DDP_IMPL_H
#define TRAIN_DDP_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/ddp.h>

#include "train/reduction/bucket.h"
#include "train/reduction/presence.h"
#include "train/reduction/step_clock.h"
#include "train/reduction/step_failure.h"
#include "train/reduction/virtual_tree.h"

struct device_kernels;

enum ddp_phase { DDP_IDLE, DDP_NO_SYNC, DDP_STEP };

struct ddp_parameter {
    const char *name; /* in the ddp's own block */
    enum muster_type type;
    size_t count;
    void *data;
    void *own_gradient; /* NULL: it lives in its bucket */
    bool is_ready;      /* in this step */
    bool is_used;       /* ready here, in this step or in no_sync steps before it */
    bool was_used;      /* by any rank, in the last synchronised step */
};

struct ddp_bucket {
    struct bucket_shape shape;
    struct muster_ddp_bucket view; /* for hooks; holds the addresses */
    size_t memory_bytes;           /* with virtual_ranks a multiple of a cache line for each rank */
    uint32_t missing;              /* gradients not ready yet */
    struct muster_work *work;      /* under way; NULL: not, or done when it was started */
    int64_t started_ns, ended_ns;  /* ended: when that was noticed; 0: not yet. For traces */
};

/* A sum of some virtual ranks that comes from a rank, in the order of the tree. */
struct ddp_arrival {
    uint32_t rank, round, additions; /* how often the upper two are added when it has come */
};

/* How the ranks of a group add up over virtual ranks. */
struct ddp_virtual {
    struct virtual_interval own;
    uint32_t slots;  /* sums that wait on this rank, at most */
    uint32_t rounds; /* of exchanging sums; 0: an all_reduce, or nothing, does the same */
    struct ddp_arrival *arrivals;
    uint32_t arrival_count;
    uint8_t *waiting;  /* slots times memory_bytes of the layout; muster_alloc(), with what follows */
    uint8_t *received; /* rounds times memory_bytes: of each bucket, what each rank sent of this rank's slice */
    size_t bytes;
};

/* Where gradients live: one allocation for all buckets, from one group. */
struct ddp_layout {
    struct muster_group *group;
    void *memory;  /* muster_alloc(), or muster_device_alloc() */
    void *scratch; /* the same, of the hook; or NULL */
    bool is_on_device;
    size_t memory_bytes, scratch_bytes, block_bytes;
    struct ddp_bucket *buckets;
    uint32_t bucket_count;
    struct bucket_item *items;  /* one per parameter */
    struct ddp_virtual virtual; /* only with virtual_ranks */
    /* As large as `memory`, on the GPU with find_unused, else NULL: there unused gradients are while zeros stand in
     * their places. On the host that is taken when it is needed; the GPU would have to be waited for. */
    void *kept;
};

/* What is exchanged beside gradients. */
struct ddp_exchange {
    struct muster_group *group;
    uint8_t *staged_buffers; /* all buffers one after the other, each padded to 8 bytes; where they are, or NULL */
    size_t staged_bytes;
    struct presence presence; /* only with uneven_inputs */
    bool is_on_device;        /* staged_buffers */
    /* Only with virtual_ranks: the buffers as they were before the step, and as virtual rank 0 has left them. */
    uint8_t *before, *after;
};

struct muster_ddp {
    struct muster_ddp_options options; /* options.hook points to `hook`, or is NULL */
    struct muster_ddp_hook hook;
    struct ddp_parameter *parameters;
    uint32_t parameter_count;
    struct muster_ddp_buffer *buffers; /* names likewise */
    uint32_t buffer_count;
    uint32_t *ready_order; /* of the first synchronised step; also the order that was agreed */
    uint32_t ready_count;
    uint8_t *used; /* a byte per parameter, reduced over the ranks; only with find_unused */
    size_t block_bytes;

    struct muster_group *group;
    struct ddp_layout *layout;
    struct ddp_exchange exchange;
    bool is_on_device, has_device_buffers; /* parameters and gradients; buffers */
    struct device_kernels *kernels;        /* on the GPU, for what computes with gradients; else NULL */

    enum ddp_phase phase;
    uint32_t next_bucket;         /* the first that is not started */
    uint32_t active_count;        /* ranks that have data, in this step */
    uint32_t accumulated;         /* no_sync steps since the last synchronised one */
    uint32_t source;              /* whose buffers are broadcast: the lowest of them */
    uint32_t order_source;        /* whose ready_order counts: the lowest that had data in the step that gave it */
    bool is_rebuild_due;          /* a first synchronised step has given an order */
    bool is_rebuilt;              /* or will not be */
    bool is_broadcast_due;        /* the last step was no no_sync one */
    uint32_t pass;                /* virtual ranks of this rank that are done, in this step */
    struct virtual_stack waiting; /* their sums */
    uint32_t last_additions;      /* once the last one's gradients are there */
    struct step_failure failure;
    struct step_clock clock; /* of begin, ready, finish and shadow */
    struct muster_ddp_statistics numbers;
};

/* ---- ddp_layout.c ---- */

/* Buckets in memory of `group`, zeroed, for gradients that become ready in that order. NULL: the order of registration
 * backwards, which is roughly that of a backward pass. */
int ddp_layout_create(const struct muster_ddp *ddp, struct muster_group *group, const uint32_t *order,
                      struct ddp_layout **out);
/* NULL is accepted. */
void ddp_layout_free(struct ddp_layout *layout);
/* Takes `layout` in place of the present one, moving the gradients, and frees that. On failure all is as before. */
int ddp_layout_replace(struct muster_ddp *ddp, struct ddp_layout *layout);
/* The place of a gradient in its bucket. */
void *ddp_layout_gradient(const struct ddp_layout *layout, uint32_t parameter);

/* ---- ddp_memory.c: `on_device`: memory of the group's GPU, and the work is given to the group's stream ---- */

/* Finds out where the model is: all of it in one memory, for which the group and the options are made? MUSTER_EINVAL,
 * MUSTER_EUNSUPPORTED. */
int ddp_memory_find(struct muster_ddp *ddp, struct muster_group *group);
/* On the GPU: acquires kernels for `user`, which computes with gradients; NULL: nobody does, and *out is NULL. */
int ddp_memory_prepare(const struct muster_ddp *ddp, struct muster_group *group, const char *user,
                       struct device_kernels **out);
/* data[i] /= divisor, where gradients are. */
int ddp_memory_divide(const struct muster_ddp *ddp, enum muster_type type, void *data, size_t count, uint32_t divisor);
/* Zeroed. */
int ddp_memory_allocate(struct muster_group *group, bool on_device, size_t bytes, void **out);
/* Waits until the stream has done what it has been given so far, so that memory may be freed. false, with a warning:
 * the GPU does not come to it, and memory is to be left to it. Leaves the detail alone. Always true on the host. */
bool ddp_memory_is_idle(struct muster_group *group, bool on_device);
/* NULL is accepted. */
void ddp_memory_free(struct muster_group *group, bool on_device, void *memory);
int ddp_memory_copy(struct muster_group *group, bool on_device, void *to, const void *from, size_t bytes);
int ddp_memory_clear(struct muster_group *group, bool on_device, void *memory, size_t bytes);
/* Room for gradients that are set aside, where gradients are; one at a time. */
int ddp_memory_keep(const struct muster_ddp *ddp, size_t bytes, void **out);
void ddp_memory_let_go(const struct muster_ddp *ddp, void *memory);

/* ---- ddp_hook.c ---- */

/* Is it one of the library's? Its context is the ddp. */
bool ddp_hook_narrows(const struct muster_ddp_hook *hook);

/* ---- ddp_agree.c ---- */

/* All ranks of `group` registered the same? Collective. */
int ddp_agree_model(const struct muster_ddp *ddp, struct muster_group *group);
/* The parameters and buffers of the group's rank 0 to all. Collective. */
int ddp_agree_data(const struct muster_ddp *ddp, struct ddp_exchange *exchange);
int ddp_agree_buffers(const struct muster_ddp *ddp, struct ddp_exchange *exchange, uint32_t source);
/* Sorts the buckets by the order of readiness on `source`. Collective. */
int ddp_agree_order(struct muster_ddp *ddp, uint32_t source);
/* presence_agree(), and keeps active_count and source for the step. Only with uneven_inputs. Collective. */
int ddp_agree_presence(struct muster_ddp *ddp, enum presence_step own, enum presence_step *out_step);
/* Copies all buffers to `memory`, which is laid out as staged_buffers, or from there. */
int ddp_agree_stage(const struct muster_ddp *ddp, struct muster_group *group, uint8_t *memory);
int ddp_agree_unstage(const struct muster_ddp *ddp, struct muster_group *group, const uint8_t *memory);
int ddp_exchange_create(const struct muster_ddp *ddp, struct muster_group *group, struct ddp_exchange *out);
void ddp_exchange_free(struct ddp_exchange *exchange);

/* ---- ddp_step.c ---- */

/* 0, or why the ddp makes no steps any more: it has failed, or its group has been freed. */
int ddp_step_status(const struct muster_ddp *ddp);
/* What every rank does before a step: order of buckets, buffers. */
int ddp_step_prepare(struct muster_ddp *ddp, bool is_synchronised);

/* What gradients held that nobody computed on this rank: in the bucket their places hold zeros for a while. */
struct ddp_aside {
    uint8_t *memory; /* one after the other; NULL: nothing; ddp_memory_let_go() */
    size_t bytes;
};

/* Parameters that never became ready: an error, or zeros (or what no_sync steps left) in their place, until
 * ddp_step_end(). aside->memory is to be let go of after that. */
int ddp_step_settle(struct muster_ddp *ddp, struct ddp_aside *aside);
/* Reduces what is left of a synchronised step, and gives gradients to who owns them. */
int ddp_step_end(struct muster_ddp *ddp, const struct ddp_aside *aside);

/* ---- ddp_virtual.c: with virtual_ranks ---- */

/* Fills in layout->virtual; arrivals: room for as many as there are virtual ranks. */
void ddp_virtual_plan(const struct muster_ddp *ddp, const struct muster_group *group, struct ddp_arrival *arrivals,
                      struct ddp_virtual *out);
/* What is in the buckets waits from now on, after `additions` of the sums below place `top` to it. */
void ddp_virtual_wait(struct muster_ddp *ddp, uint32_t top, uint32_t additions);
/* A bucket of the last pass is complete here: gives it, with what waits, to the group. */
int ddp_virtual_start(struct muster_ddp *ddp, struct ddp_bucket *bucket, struct muster_work **work);
/* The group is done with it: makes it the average. */
int ddp_virtual_complete(struct muster_ddp *ddp, struct ddp_bucket *bucket);

/* ---- ddp_passes.c: with virtual_ranks ---- */

/* Is this the pass after which the step ends? */
bool ddp_pass_is_last(const struct muster_ddp *ddp);
/* Each pass finds the buffers as the step did. */
void ddp_pass_begin(struct muster_ddp *ddp);
/* The end of one that is not the last. */
void ddp_pass_end(struct muster_ddp *ddp);
/* The gradients have been averaged: the buffers become those of virtual rank 0, on all ranks. */
int ddp_pass_end_last(struct muster_ddp *ddp);

/* ---- ddp_reduce.c ---- */

/* Forgets the last step. */
void ddp_reduce_reset(struct muster_ddp *ddp);
/* Starts the buckets that are complete and whose turn it is, but for the last bucket of all. */
int ddp_reduce_advance(struct muster_ddp *ddp);
/* Reduces what is left (every gradient is in its bucket), and waits for all. */
int ddp_reduce_finish(struct muster_ddp *ddp);
/* Waits for what is under way, whatever comes of it. */
void ddp_reduce_drain(struct muster_ddp *ddp);

#endif
