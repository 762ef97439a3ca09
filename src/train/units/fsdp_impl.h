/* What the files of an fsdp share: its state, and the steps that they do for each other.
 *
 *   fsdp.c            creating, freeing, questions
 *   fsdp_failure.c    a failure, of which all ranks are to hear
 *   fsdp_model.c      the list of units as it was given: checked, copied, compared between ranks
 *   fsdp_values.c     the memory of the parameters, and their first values
 *   fsdp_step.c       begin, acquire, release, finish
 *   fsdp_gather.c     units gathered from other hosts
 *   fsdp_buffers.c    memory for whole units' gradients
 *   fsdp_reduce.c     a unit's gradients on their way to their owners
 *   fsdp_hook.c       the same by a hook
 *   fsdp_virtual.c    the same over virtual ranks, and the rounds of such a step (fsdp_virtual.h)
 *   fsdp_uneven.c     ranks that have run out of data
 *   fsdp_order.c      the order in which the others use units then
 *   fsdp_optimizer.c  ranges, the optimizer on them, norm
 *   fsdp_memory.c     what is resident, and what will be
 *   fsdp_keep.c       a state that outlives its processes; fsdp_kept.c what steps ask of it
 *   fsdp_copies.c, fsdp_copied.c  copies of it on peer hosts
 *   fsdp_moves.c      parts of it that come from memory of another world
 *   fsdp_background.c, fsdp_background_start.c  checkpoints of it while training goes on
 *   fsdp_parts.c      what a rank has, as a checkpoint describes it
 *   fsdp_snapshot.c   the tensors of a snapshot (fsdp_snapshot.h); fsdp_save.c, fsdp_load.c
 *
 * unit_layout.h says where parameters are and who has which part, mesh.h which ranks form rows and columns. */
#ifndef TRAIN_FSDP_IMPL_H
#define TRAIN_FSDP_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/fsdp.h>
#include <muster/work.h>

#include "train/commit/copies.h"
#include "train/layout/mesh.h"
#include "train/layout/unit_layout.h"
#include "train/memory/state_region.h"
#include "train/reduction/presence.h"
#include "train/reduction/step_clock.h"
#include "train/reduction/step_failure.h"

enum fsdp_phase {
    FSDP_IDLE,
    FSDP_BEGUN, /* within a step */
    FSDP_READY, /* after a whole step: gradients are there for the optimizer */
};

/* Memory for the gradients of one unit, and for what they become on their way. */
struct fsdp_buffer {
    void *gradients; /* muster_alloc(); NULL: none */
    void *converted; /* the same, if the gradients travel as another type */
    void *scratch;   /* the same, of the hook, or for what comes with virtual ranks; or NULL */
    bool is_taken;
};

enum fsdp_stage {
    FSDP_AWAITED,    /* its gradients are not complete */
    FSDP_COMPLETE,   /* but not its turn yet, or the last of the step: finish() reduces it */
    FSDP_SCATTERING, /* in the reduce_scatter of its row or of all ranks */
    FSDP_SUMMING,    /* hybrid sharding: in the all_reduce of its column */
    FSDP_REDUCED,
};

struct fsdp_unit {
    const char *name;
    uint32_t first, item_count;
    /* In this step. */
    uint32_t forward_count, backward_count; /* acquired, released */
    uint32_t held, backward_held;           /* now: in all, and in the backward pass */
    enum fsdp_stage stage;
    bool has_gradients; /* in its buffer: of this step, or of NO_SYNC steps before it */
    struct fsdp_buffer *buffer;
    struct muster_work *work;
    int64_t started_ns;
    /* Between hosts. */
    struct fsdp_slot *slot;
};

/* Memory for one gathered unit, shared by the row. */
struct fsdp_slot {
    struct state_region region;
    uint32_t unit;                            /* UINT32_MAX: none */
    struct muster_work *works[UNIT_SEGMENTS]; /* of its gather */
    bool is_ready;                            /* the whole row has it */
    uint64_t released;                        /* number of the row's barriers when it was last released */
    uint64_t used;                            /* when it was acquired last, for choosing the oldest */
    int64_t started_ns;
};

/* In which order units are acquired: as far as this step has come, that of this step, then that of the step before. */
struct fsdp_order {
    uint32_t *units;
    size_t count, room, position;
    bool is_known; /* this step has been like the one before so far */
};

/* What an optimizer remembers. */
struct fsdp_state {
    struct fsdp_state *next;
    const struct muster_optimizer *optimizer; /* may have been freed */
    struct state_region region;
};

/* The shape of a parameter. */
struct fsdp_dims {
    uint32_t count;
    uint64_t sizes[MUSTER_TENSOR_DIMS_MAX];
};

struct fsdp_copies; /* fsdp_copies.c */

/* A state that outlives its processes. */
struct fsdp_kept {
    struct copies *copies;
    struct fsdp_copies *peers;          /* on other hosts; NULL: none are made */
    struct muster_optimizer *optimizer; /* whose state is in them */
    uint64_t description;               /* state_hash() of all that is kept */
    uint64_t steps_at_commit;           /* numbers.step_count at the last commit */
};

struct background;
struct fsdp_virtual;
struct snapshot_io;

struct muster_fsdp {
    struct muster_fsdp_options options; /* its hook: `hook`, or NULL */
    struct muster_ddp_hook hook;
    struct fsdp_unit *units;
    uint32_t unit_count, parameter_count;
    const char **parameter_names;
    struct fsdp_dims *parameter_dims;
    uint32_t *learning; /* numbers of the parameters that learn */
    uint32_t learning_count;
    uint32_t unit_learning_count; /* units that have such a parameter */
    size_t block_bytes;           /* of this struct and its lists */

    struct mesh mesh;
    struct unit_layout *layout;
    struct state_region values; /* float32: what this host stores of every unit. Part of a copy, if it is kept */
    struct state_region copy;   /* bfloat16: the same, if that is computed with */
    struct fsdp_state *states;
    struct fsdp_kept *kept;         /* NULL: the state ends with its processes */
    struct background *background;  /* NULL: no checkpoint was started */
    const struct snapshot_io *disk; /* for those; NULL: the system's */
    float *shard;                   /* this rank's part of the averages, of all units; malloc'd */
    size_t *shard_at;               /* per unit: where it begins, in elements */
    size_t shard_count;
    size_t *counts; /* for a call with counts per rank: room for all ranks */
    uint8_t *met;   /* for a barrier of the row: a byte of each of its ranks */

    struct fsdp_buffer *buffers; /* one for each unit that learns; most have no memory */
    uint32_t *queue;             /* units whose gradients are under way, in order */
    uint32_t queue_begin, queue_end;
    uint32_t complete_count; /* units that learn and are complete, in this step */
    uint32_t next_in_order;  /* with find_unused: units from here on are complete or under way */

    struct fsdp_slot **slots;
    uint32_t slot_count, slot_room;
    uint64_t row_barriers, acquire_count;
    struct fsdp_virtual *virtual; /* NULL: without virtual_ranks */
    struct fsdp_order orders[2];  /* of steps with a backward pass, and of others */
    bool values_changed;          /* since units were gathered */

    enum fsdp_phase phase;
    bool backward_has_begun;
    enum muster_fsdp_step_kind kind;
    uint32_t accumulated;  /* NO_SYNC steps since the last that sent */
    bool adds_to_shard;    /* an ACCUMULATE step has left averages there */
    uint32_t active_count; /* ranks that have data */
    struct presence presence;
    struct step_failure failure;
    struct step_clock clock;
    struct muster_fsdp_statistics numbers;
    size_t gradient_bytes, gradient_peak_bytes;
};

static inline const struct unit_shape *fsdp_shape(const struct muster_fsdp *fsdp, uint32_t unit) {
    return &fsdp->layout->units[unit];
}

static inline bool fsdp_learns(const struct muster_fsdp *fsdp, uint32_t unit) {
    return fsdp_shape(fsdp, unit)->counts[UNIT_LEARNS] > 0;
}

/* Are units gathered from other hosts? Else the memory of the host has them all. */
static inline bool fsdp_gathers(const struct muster_fsdp *fsdp) {
    return fsdp->layout->stride > 1;
}

/* ---- fsdp_failure.c ---- */

/* Remembers a failure and lets all ranks know, in whatever group they wait. What comes back is the first failure. */
int fsdp_fail(struct muster_fsdp *fsdp, int code);
/* The same of what the ranks of the program's group were to agree on: a mismatch is known to all of them. */
int fsdp_fail_unagreed(struct muster_fsdp *fsdp, int code);

/* ---- fsdp_model.c ---- */

/* Checks and copies the list: everything of *out that does not depend on the group. */
int fsdp_model_create(const struct muster_fsdp_unit *units, size_t unit_bytes, size_t unit_count,
                      size_t parameter_bytes, const struct muster_fsdp_options *options, struct muster_fsdp **out,
                      struct unit_item **out_items);
/* All ranks registered the same? Collective. */
int fsdp_model_agree(const struct muster_fsdp *fsdp, const struct unit_item *items, struct muster_group *group);

/* ---- fsdp_values.c ---- */

/* Memory for the parameters, with their first values. Collective. */
int fsdp_values_create(struct muster_fsdp *fsdp);
/* Rounds this rank's parts into the bfloat16 copy, if there is one. */
void fsdp_values_round(struct muster_fsdp *fsdp);
/* This rank's part of a segment in `region`, which holds what the host stores. */
static inline size_t fsdp_own_at(const struct muster_fsdp *fsdp, uint32_t unit, enum unit_segment segment) {
    return unit_layout_stored_at(fsdp->layout, unit, segment, fsdp->mesh.column);
}
static inline const struct unit_part *fsdp_own_part(const struct muster_fsdp *fsdp, uint32_t unit,
                                                    enum unit_segment segment) {
    return unit_layout_part(fsdp->layout, unit, segment, fsdp->mesh.part);
}

/* ---- fsdp_gather.c ---- */

/* All ranks have begun a step. Units that were gathered may not be what they were. */
void fsdp_gather_begin(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind);
/* Before the end of a step: waits for what is under way. */
int fsdp_gather_end(struct muster_fsdp *fsdp);
/* The unit's parameters, in the memory of the row: gathers them and waits, and begins to gather those that come next.
 */
int fsdp_gather_acquire(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass, const void **out);
void fsdp_gather_release(struct muster_fsdp *fsdp, uint32_t unit);
/* Waits for what is under way, whatever comes of it, and frees the memory. */
void fsdp_gather_free(struct muster_fsdp *fsdp);

/* ---- fsdp_buffers.c ---- */

/* Is there one that no unit has? */
bool fsdp_buffer_is_free(const struct muster_fsdp *fsdp);
/* Gives the unit a buffer: one that is free, or a new one. */
int fsdp_buffer_take(struct muster_fsdp *fsdp, uint32_t unit);
void fsdp_buffer_give(struct muster_fsdp *fsdp, uint32_t unit);
void fsdp_buffers_free(struct muster_fsdp *fsdp);

/* ---- fsdp_reduce.c ---- */

/* Forgets the last step. */
void fsdp_reduce_reset(struct muster_fsdp *fsdp);
/* The unit's gradients are complete: starts their reduction when its turn has come. */
int fsdp_reduce_complete(struct muster_fsdp *fsdp, uint32_t unit);
/* The forward pass is over: units that it did not use take part with zeros. */
int fsdp_reduce_unused(struct muster_fsdp *fsdp);
/* Looks after what is under way, without waiting. */
int fsdp_reduce_advance(struct muster_fsdp *fsdp);
/* A buffer for the unit's gradients. Waits for a reduction where that is to free one. */
int fsdp_reduce_take_buffer(struct muster_fsdp *fsdp, uint32_t unit);
/* Reduces what is left, and waits for all. */
int fsdp_reduce_finish(struct muster_fsdp *fsdp);
/* Waits for what is under way, whatever comes of it. */
void fsdp_reduce_drain(struct muster_fsdp *fsdp);

/* ---- fsdp_hook.c ---- */

int fsdp_hook_check(const struct muster_fsdp *fsdp);
/* Gives the unit's gradients to the hook; it->work: under way, or NULL. */
int fsdp_hook_start(struct muster_fsdp *fsdp, uint32_t unit);
/* When that is done: the averages are in the buffer. */
int fsdp_hook_finish(struct muster_fsdp *fsdp, uint32_t unit);

/* ---- fsdp_optimizer.c ---- */

/* What an optimizer of this fsdp remembers, MUSTER_OK; any other optimizer: MUSTER_EINVAL. */
int fsdp_optimizer_find(const struct muster_fsdp *fsdp, const struct muster_optimizer *optimizer,
                        const struct fsdp_state **out);

/* ---- fsdp_order.c ---- */

/* May a rank that has data acquire the unit now? Those without gather in one order. */
int fsdp_order_check_use(const struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass);
/* Has it used all that they gathered? */
int fsdp_order_check_end(const struct muster_fsdp *fsdp);

/* ---- fsdp_optimizer.c ---- */

/* The optimizer works on this rank's parts of the parameters, and remembers in `states`. */
int fsdp_optimizer_place(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                         const struct state_region *states);

/* ---- fsdp_kept.c ---- */

/* MUSTER_EINVAL: what the optimizer wrote has not been committed. */
int fsdp_keep_check_begin(const struct muster_fsdp *fsdp);
bool fsdp_keep_has_committed(const struct muster_fsdp *fsdp);
/* MUSTER_EINVAL: the state is committed, and must not be written by a load. */
int fsdp_keep_check_load(const struct muster_fsdp *fsdp);
/* The optimizer's step from the committed copy into the other one. */
int fsdp_keep_step(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, const float *const *gradients,
                   const struct muster_optimizer_step_options *options);
void fsdp_keep_end(struct muster_fsdp *fsdp);

/* ---- fsdp_step.c ---- */

/* A step of which the ranks have agreed who has data. */
int fsdp_step_open(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind);
int fsdp_step_close(struct muster_fsdp *fsdp);

#endif
