/* See sharding.h. What concerns fsdp alone is in sharding_fsdp.c. */
#include "sharding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/checkpoint.h>

#include "fail.h"
#include "sharding_fsdp.h"

/* ---- Setting up ---- */

static enum sharding_kind choose(const struct sharding_choice *choice, uint32_t ranks) {
    enum sharding_kind kind = choice->kind;
    if (choice->virtual_ranks > 0 && kind == SHARDING_NONE) {
        fail("--virtual-ranks needs --sharding=ddp, fsdp or hybrid: they add up over virtual ranks");
    }
    if (choice->virtual_ranks > 0) {
        return kind == SHARDING_AUTO ? SHARDING_DDP : kind; /* in one process, too */
    }
    if (kind == SHARDING_NONE && ranks > 1) {
        fail("--sharding=none is for one process; here are %u, which would learn apart", ranks);
    }
    return kind != SHARDING_AUTO ? kind : ranks > 1 ? SHARDING_DDP : SHARDING_NONE;
}

void sharding_init(struct sharding *sharding, const struct sharding_choice *choice, struct muster_group *group,
                   const struct gpt_parameters *list, const struct first_values *first) {
    *sharding = (struct sharding){.choice = *choice, .group = group, .list = list};
    sharding->choice.kind = choose(choice, muster_group_size(group));
    bool is_fsdp = sharding_is_fsdp(&sharding->choice);
    if (choice->bfloat16 && !is_fsdp) {
        fail("--bf16 needs --sharding=fsdp or hybrid");
    }
    if (is_fsdp) {
        sharding_fsdp_init(sharding, first);
        return;
    }
    resident_init(&sharding->resident, list);
    resident_fill(&sharding->resident, first);
    sharding->gradients = allocate(list->tensor_count, sizeof *sharding->gradients);
}

void sharding_done(struct sharding *sharding) {
    muster_state_free(sharding->state);
    muster_fsdp_free(sharding->fsdp);
    free(sharding->wide[0]);
    free(sharding->wide[1]);
    muster_ddp_free(sharding->ddp);
    resident_done(&sharding->resident);
    free(sharding->gradients);
}

void sharding_make_optimizer(struct sharding *sharding, const struct muster_optimizer_group *groups,
                             struct muster_optimizer **out) {
    const struct gpt_parameters *list = sharding->list;
    if (sharding->fsdp != NULL) {
        sharding_fsdp_make_optimizer(sharding, groups, out);
        return;
    }
    struct muster_optimizer_range *ranges = allocate(list->tensor_count, sizeof *ranges), *next = ranges;
    for (int unit = 0; unit < list->unit_count; unit++) {
        for (size_t i = 0; i < list->units[unit].tensor_count; i++) {
            const struct gpt_tensor *tensor = &list->units[unit].tensors[i];
            *next++ =
                (struct muster_optimizer_range){tensor->name, sharding->resident.parameters[unit] + tensor->offset,
                                                tensor->count, tensor->decays ? SHARDING_DECAYS : SHARDING_KEEPS};
        }
    }
    check(muster_optimizer_create(ranges, list->tensor_count, groups, SHARDING_GROUPS, out), "make an optimizer");
    free(ranges);
}

/* ---- ddp ---- */

/* The backward pass is done with a unit: ddp may send it while the pass goes on. */
static void unit_complete(void *context, int unit) {
    struct sharding *sharding = context;
    check(muster_ddp_ready(sharding->ddp, (size_t)unit), "average gradients");
}

enum { BUCKET_BYTES = 1 << 20 };

/* A unit is one parameter of the ddp, whose gradients live in a bucket. Units are ready in the same order in every
 * step, which is that of the first layout: buckets need not be rebuilt, and gradients never move. Buckets are small:
 * all but small blocks travel as soon as they are complete, and the last bucket, beside which nothing is computed,
 * holds little more than the embedding. */
static void make_ddp(struct sharding *sharding) {
    struct resident *resident = &sharding->resident;
    const int count = resident->list->unit_count;
    struct muster_ddp_parameter *units = allocate((size_t)count, sizeof *units);
    char(*names)[32] = allocate((size_t)count, sizeof *names);
    for (int unit = 0; unit < count; unit++) {
        (void)snprintf(names[unit], sizeof names[unit], "unit %d", unit);
        units[unit] = (struct muster_ddp_parameter){
            names[unit], MUSTER_FLOAT32, resident->list->units[unit].float_count, resident->parameters[unit], NULL};
    }
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    options.rebuild = false;
    options.virtual_ranks = (size_t)sharding->choice.virtual_ranks;
    options.copy_parameters = sharding->state == NULL; /* else they are equal, and committed: not to be written */
    options.bucket_bytes = options.first_bucket_bytes = BUCKET_BYTES;
    check(muster_ddp_create(sharding->group, units, (size_t)count, NULL, 0, &options, &sharding->ddp),
          "agree on the model");
    for (int unit = 0; unit < count; unit++) {
        resident->gradients[unit] = muster_ddp_gradient(sharding->ddp, (size_t)unit);
    }
    resident->complete = unit_complete;
    resident->context = sharding;
    free(names);
    free(units);
}

void sharding_start(struct sharding *sharding) {
    const struct gpt_parameters *list = sharding->list;
    if (sharding->fsdp != NULL) {
        return;
    }
    if (sharding->choice.kind == SHARDING_DDP) {
        make_ddp(sharding);
    } else {
        resident_own_gradients(&sharding->resident);
    }
    const float **next = sharding->gradients;
    for (int unit = 0; unit < list->unit_count; unit++) {
        for (size_t i = 0; i < list->units[unit].tensor_count; i++) {
            *next++ = sharding->resident.gradients[unit] + list->units[unit].tensors[i].offset;
        }
    }
}

/* ---- A step ---- */

struct gpt_memory sharding_memory(struct sharding *sharding) {
    return sharding->fsdp != NULL ? sharding_fsdp_memory(sharding) : resident_memory(&sharding->resident);
}

void sharding_begin(struct sharding *sharding) {
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_begin(sharding->fsdp, MUSTER_FSDP_STEP), "begin a step");
    } else if (sharding->ddp != NULL) {
        check(muster_ddp_begin(sharding->ddp), "begin a step");
    }
}

void sharding_finish(struct sharding *sharding) {
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_finish(sharding->fsdp), "average gradients");
    } else if (sharding->ddp != NULL) {
        check(muster_ddp_finish(sharding->ddp), "average gradients");
    }
}

void sharding_begin_evaluation(struct sharding *sharding) {
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_begin(sharding->fsdp, MUSTER_FSDP_EVALUATE), "begin a forward pass");
    }
}

void sharding_finish_evaluation(struct sharding *sharding) {
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_finish(sharding->fsdp), "finish a forward pass");
    }
}

/* With virtual ranks: what any number of ranks with parts of the gradients would say. */
static double exact_squared_norm(const struct sharding *sharding) {
    const struct gpt_parameters *list = sharding->list;
    size_t *counts = allocate(list->tensor_count, sizeof *counts), *next = counts;
    double sum = 0;
    for (int unit = 0; unit < list->unit_count; unit++) {
        for (size_t i = 0; i < list->units[unit].tensor_count; i++) {
            *next++ = list->units[unit].tensors[i].count;
        }
    }
    check(muster_exact_squared_norm(NULL, sharding->gradients, counts, list->tensor_count, &sum), "measure gradients");
    free(counts);
    return sum;
}

/* Unit by unit: the gaps hold zeros. */
static double resident_squared_norm(const struct sharding *sharding) {
    double sum = 0;
    for (int unit = 0; unit < sharding->list->unit_count; unit++) {
        const float *const gradients = sharding->resident.gradients[unit];
        double squares = 0;
        check(muster_squared_norm(NULL, &gradients, &sharding->list->units[unit].float_count, 1, &squares),
              "measure gradients");
        sum += squares;
    }
    return sum;
}

double sharding_squared_norm(struct sharding *sharding) {
    double squares = 0;
    if (sharding->fsdp == NULL) {
        return sharding->choice.virtual_ranks > 0 ? exact_squared_norm(sharding) : resident_squared_norm(sharding);
    }
    check(muster_fsdp_squared_norm(sharding->fsdp, &squares), "measure gradients");
    return squares;
}

void sharding_step(struct sharding *sharding, struct muster_optimizer *optimizer, double gradient_scale) {
    struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    options.gradient_scale = gradient_scale;
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_step(sharding->fsdp, optimizer, gradient_scale), "change the parameters");
    } else if (sharding->state != NULL) {
        check(muster_state_step(sharding->state, sharding->gradients, &options), "change the parameters");
    } else {
        check(muster_optimizer_step_into(optimizer, sharding->gradients, &options), "change the parameters");
    }
}

/* ---- State that outlives the processes ---- */

/* The parameters are elsewhere after each commit. */
static void follow(struct sharding *sharding) {
    float *at = muster_state_block_data(sharding->state, 0);
    for (int unit = 0; unit < sharding->list->unit_count; unit++) {
        sharding->resident.parameters[unit] = at;
        at += sharding->list->units[unit].float_count;
    }
}

int64_t sharding_keep(struct sharding *sharding, struct muster_optimizer *optimizer,
                      const struct muster_snapshot_state *extra) {
    const struct muster_state_block block = {sharding->resident.memory[0], sharding->list->float_count};
    struct muster_fsdp_keep_options options = MUSTER_FSDP_KEEP_OPTIONS_INIT;
    options.copies_every = (uint64_t)sharding->choice.copies_every;
    int64_t step = -1;
    int status = sharding->fsdp != NULL
                     ? muster_fsdp_keep(sharding->fsdp, optimizer, extra, &options, &step)
                     : muster_state_create(sharding->group, optimizer, &block, 1, extra, NULL, &sharding->state, &step);
    if (status == MUSTER_ENOMEM && muster_group_status(sharding->group) == MUSTER_OK) {
        if (muster_group_rank(sharding->group) == 0) {
            printf("the state is not kept in memory: %s\n", muster_detail());
        }
        return -1;
    }
    check(status, "keep the state");
    sharding->is_kept = true;
    if (sharding->state != NULL) {
        follow(sharding);
        resident_give_up(&sharding->resident);
    }
    return step;
}

size_t sharding_kept_bytes(const struct sharding *sharding) {
    struct muster_fsdp_memory memory = {.kept_bytes = 0};
    if (sharding->state != NULL) {
        return muster_state_bytes(sharding->state) / 2;
    }
    if (sharding->is_kept) {
        check(muster_fsdp_memory(sharding->fsdp, &memory), "measure the memory");
    }
    return memory.kept_bytes;
}

bool sharding_makes_copies(const struct sharding *sharding) {
    struct muster_fsdp_memory memory = {.peer_bytes = 0};
    if (sharding->fsdp != NULL && sharding->is_kept) {
        check(muster_fsdp_memory(sharding->fsdp, &memory), "measure the memory");
    }
    return memory.peer_bytes > 0;
}

void sharding_hand_over(struct sharding *sharding) {
    int status = muster_fsdp_hand_over(sharding->fsdp);
    if (status == MUSTER_ECONNECT) { /* the others go on from an older copy */
        fprintf(stderr, "what is committed has no copy: %s\n", muster_detail());
        return;
    }
    check(status, "hand over the state");
}

void sharding_commit(struct sharding *sharding, int64_t step, const struct muster_snapshot_state *extra) {
    if (sharding->fsdp != NULL && sharding->is_kept) {
        check(muster_fsdp_commit(sharding->fsdp, step, extra), "commit the state");
    } else if (sharding->is_kept) {
        check(muster_state_commit(sharding->state, step, extra), "commit the state");
        follow(sharding);
    }
}

/* ---- Snapshots ---- */

/* All of it, for a rank that has all. Returns the tensors, which are allocated. */
static struct muster_tensor *describe(const struct sharding *sharding, struct muster_optimizer *optimizer,
                                      const struct muster_snapshot_state *extra, struct muster_snapshot_state *out) {
    size_t remembered = muster_optimizer_tensor_count(optimizer);
    struct muster_tensor *tensors =
        allocate(sharding->list->tensor_count + remembered + extra->tensor_count, sizeof *tensors);
    size_t count = resident_describe(sharding->list, sharding->resident.parameters, tensors);
    check(muster_optimizer_tensors(optimizer, tensors + count), "describe the optimizer");
    count += remembered;
    memcpy(tensors + count, extra->tensors, extra->tensor_count * sizeof *tensors);
    *out = *extra;
    out->tensors = tensors;
    out->tensor_count += count;
    return tensors;
}

/* The same as a checkpoint describes it. */
static struct muster_checkpoint_state as_checkpoint(const struct muster_snapshot_state *state) {
    return (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(state->tensors, state->tensor_count, NULL, 0,
                                                                   state->values, state->value_count);
}

/* What is committed, while training goes on. */
static void save_committed(struct sharding *sharding, struct muster_optimizer *optimizer, const char *folder,
                           const struct muster_snapshot_state *extra, bool is_last) {
    struct muster_background_options options = MUSTER_BACKGROUND_OPTIONS_INIT;
    options.must_start = is_last;
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_start_checkpoint(sharding->fsdp, folder, extra, &options, NULL), "start a checkpoint");
    } else {
        struct muster_snapshot_state all;
        struct muster_tensor *tensors = describe(sharding, optimizer, extra, &all);
        check(muster_state_start_checkpoint(sharding->state, sharding->group, folder, &all, &options, NULL),
              "start a checkpoint");
        free(tensors);
    }
    if (is_last) {
        check(sharding->fsdp != NULL ? muster_fsdp_wait_checkpoint(sharding->fsdp)
                                     : muster_state_wait_checkpoint(sharding->state),
              "save a checkpoint");
    }
}

bool sharding_saves(const struct sharding *sharding, struct muster_background_statistics *out) {
    *out = (struct muster_background_statistics){.started = 0};
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_background_statistics(sharding->fsdp, out), "count checkpoints");
    } else if (sharding->state != NULL) {
        check(muster_state_background_statistics(sharding->state, out), "count checkpoints");
    }
    return out->started > 0;
}

static void save_parts(struct sharding *sharding, struct muster_optimizer *optimizer, const char *folder, int64_t step,
                       const struct muster_snapshot_state *extra, bool is_last) {
    if (sharding->is_kept) {
        save_committed(sharding, optimizer, folder, extra, is_last);
        return;
    }
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_save_checkpoint(sharding->fsdp, optimizer, folder, step, extra, NULL), "save a checkpoint");
        return;
    }
    struct muster_snapshot_state all;
    struct muster_tensor *tensors = describe(sharding, optimizer, extra, &all);
    struct muster_checkpoint_state state = as_checkpoint(&all);
    check(muster_checkpoint_save(sharding->group, folder, step, &state, NULL), "save a checkpoint");
    free(tensors);
}

static int load_parts(struct sharding *sharding, struct muster_optimizer *optimizer, const char *folder,
                      const struct muster_snapshot_state *extra, struct muster_checkpoint_found *found) {
    if (sharding->fsdp != NULL) {
        return muster_fsdp_load_newest_checkpoint(sharding->fsdp, optimizer, folder, extra, NULL, found);
    }
    struct muster_snapshot_state all;
    struct muster_tensor *tensors = describe(sharding, optimizer, extra, &all);
    struct muster_checkpoint_state state = as_checkpoint(&all);
    int status = muster_checkpoint_load_newest(sharding->group, folder, &state, NULL, found);
    free(tensors);
    return status;
}

void sharding_save(struct sharding *sharding, struct muster_optimizer *optimizer, const char *folder, int64_t step,
                   const struct muster_snapshot_state *extra, bool is_last) {
    bool saves = muster_group_rank(sharding->group) == 0;
    if (sharding->choice.parts) {
        save_parts(sharding, optimizer, folder, step, extra, is_last);
        return;
    }
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_save(sharding->fsdp, optimizer, saves, folder, step, extra, NULL), "save a snapshot");
        return;
    }
    struct muster_snapshot_state state;
    struct muster_tensor *tensors = describe(sharding, optimizer, extra, &state);
    check(muster_snapshot_save_group(sharding->group, saves, folder, step, &state, NULL), "save a snapshot");
    free(tensors);
}

bool sharding_load(struct sharding *sharding, struct muster_optimizer *optimizer, const char *folder,
                   const struct muster_snapshot_state *extra, struct muster_snapshot_found *found) {
    struct muster_checkpoint_found parts;
    int status = sharding->choice.parts ? load_parts(sharding, optimizer, folder, extra, &parts) : MUSTER_ENOENT;
    if (status == MUSTER_OK) {
        found->passed_over = parts.passed_over;
        memcpy(found->note, parts.note, sizeof found->note);
        return true;
    }
    if (status != MUSTER_ENOENT) {
        check(status, "load the newest checkpoint");
    }
    if (sharding->fsdp != NULL) {
        status = muster_fsdp_load_newest(sharding->fsdp, optimizer, folder, extra, found);
    } else {
        struct muster_snapshot_state state;
        struct muster_tensor *tensors = describe(sharding, optimizer, extra, &state);
        status = muster_snapshot_load_group(sharding->group, folder, &state, found);
        free(tensors);
    }
    if (status != MUSTER_ENOENT) {
        check(status, "load the newest snapshot");
    }
    return status != MUSTER_ENOENT;
}

double sharding_waited(const struct sharding *sharding) {
    struct muster_ddp_statistics ddp = {.communication_ns = 0};
    struct muster_fsdp_statistics fsdp = {.communication_ns = 0};
    if (sharding->ddp != NULL) {
        check(muster_ddp_statistics(sharding->ddp, &ddp), "measure the communication");
    }
    if (sharding->fsdp != NULL) {
        check(muster_fsdp_statistics(sharding->fsdp, &fsdp), "measure the communication");
    }
    return (double)(ddp.communication_ns + fsdp.communication_ns) * 1e-9;
}
