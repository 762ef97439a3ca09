/* See trainer.h. */
#include "trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>
#include <muster/snapshot.h>
#include <muster/virtual_ranks.h>

#include "fail.h"
#include "virtual_ranks.h"

enum {
    TIMEOUT_MS = 300000,   /* for any one call, and for all workers to come */
    SHRINK_MS = 10000,     /* how long the survivors of a loss wait for one that does not answer */
    OPTIMIZER_TENSORS = 2, /* remembered of a parameter, at most; and one more in all */
    TENSORS_MAX = NET_PARAMETER_COUNT * (1 + OPTIMIZER_TENSORS) + NET_BUFFER_COUNT + 2,
};

/* ---- Setting up ---- */

/* Under a launcher (muster run, torchrun) the job's group. Without one, a group of this process alone. */
static void join_group(struct trainer *t) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    if (getenv("WORLD_SIZE") != NULL) {
        check(muster_group_create_env(&options, &t->group), "join the group");
    } else {
        struct muster_store_options own = MUSTER_STORE_OPTIONS_INIT;
        own.host = own.bind_host = "127.0.0.1";
        own.is_host = true;
        check(muster_store_open_tcp(&own, &t->store), "make a store");
        check(muster_group_create_store(t->store, 0, 1, &options, &t->group), "make a group of one");
    }
    t->rank = muster_group_rank(t->group);
    t->world = muster_group_size(t->group);
}

/* Adds up over the workers, for --sync-batch-norm. The calls lie in the same order among ddp's on every worker. */
static void join_numbers(void *context, double *numbers, size_t count) {
    struct trainer *t = context;
    if (!t->broken) {
        (void)works(t, muster_all_reduce(t->group, numbers, numbers, count, MUSTER_FLOAT64, MUSTER_OP_SUM, NULL),
                    "add up the statistics of batch normalisation");
    }
}

/* Whose are the parts of a step? */
static void divide(struct trainer *t) {
    const struct options *o = &t->options;
    t->parts = (uint32_t)o->micro_batches;
    t->first_part = t->rank * t->parts;
    t->part_count = t->world * t->parts;
    if (o->virtual_ranks > 0) {
        t->part_count = (uint32_t)o->virtual_ranks;
        check(muster_virtual_ranks(t->group, t->part_count, &t->first_part, &t->parts), "share out the virtual ranks");
    }
}

/* How many images there are in a part of a step. */
static int share_of_batch(const struct trainer *t) {
    int images = t->options.batch / (int)t->part_count;
    return images > 0 ? images : 1;
}

/* The order of the images is that of a job with as many workers as there are parts. */
static void deal_out(struct trainer *t) {
    const struct options *o = &t->options;
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        muster_sampler_free(t->samplers[i]);
        t->samplers[i] = NULL;
    }
    for (uint32_t i = 0; i < t->parts; i++) {
        struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
        options.sample_count = t->train.count;
        options.rank = t->first_part + i;
        options.world_size = t->part_count;
        options.seed = o->seed;
        options.uneven = o->virtual_ranks > 0; /* no image twice; else all have equally many, by padding */
        check(muster_sampler_create(&options, &t->samplers[i]), "make a sampler");
    }
    free(t->indices);
    t->indices = allocate((size_t)share_of_batch(t), sizeof *t->indices);
}

static void make_model(struct trainer *t) {
    const struct options *o = &t->options;
    image_set_read(o->data, "train", &t->train);
    image_set_read(o->data, "t10k", &t->test);
    t->net = net_create(share_of_batch(t), o->normalise, o->seed);
    if (o->synchronise) {
        net_synchronise(t->net, join_numbers, t);
    }
    for (int i = 0; i < NET_PARAMETER_COUNT; i++) {
        if (t->net->parameters[i].count > 0) {
            t->number[i] = t->parameter_count;
            t->parameters[t->parameter_count++] = &t->net->parameters[i];
        }
    }
}

static void make_optimizer(struct trainer *t) {
    const struct options *o = &t->options;
    struct muster_optimizer_parameter list[NET_PARAMETER_COUNT];
    for (size_t i = 0; i < t->parameter_count; i++) {
        const struct net_tensor *p = t->parameters[i];
        list[i] = (struct muster_optimizer_parameter){p->name, p->value, p->count};
    }
    int status = MUSTER_OK;
    if (strcmp(o->optimizer, "sgd") == 0) {
        struct muster_sgd_options options = MUSTER_SGD_OPTIONS_INIT;
        options.learning_rate = o->lr > 0 ? o->lr : 0.01;
        options.momentum = 0.9;
        status = muster_optimizer_create_sgd(list, t->parameter_count, &options, &t->optimizer);
    } else if (strcmp(o->optimizer, "adamw") == 0) {
        struct muster_adamw_options options = MUSTER_ADAMW_OPTIONS_INIT;
        options.learning_rate = o->lr > 0 ? o->lr : 0.001;
        status = muster_optimizer_create_adamw(list, t->parameter_count, &options, &t->optimizer);
    } else {
        struct muster_adadelta_options options = MUSTER_ADADELTA_OPTIONS_INIT;
        options.learning_rate = o->lr > 0 ? o->lr : 0.3;
        status = muster_optimizer_create_adadelta(list, t->parameter_count, &options, &t->optimizer);
    }
    check(status, "make an optimizer");
}

/* Checks that all workers have the same model, and copies rank 0's parameters and buffers to them. */
static void make_ddp(struct trainer *t) {
    struct muster_ddp_parameter list[NET_PARAMETER_COUNT];
    struct muster_ddp_buffer buffers[NET_BUFFER_COUNT];
    for (size_t i = 0; i < t->parameter_count; i++) {
        const struct net_tensor *p = t->parameters[i];
        list[i] = (struct muster_ddp_parameter){p->name, MUSTER_FLOAT32, p->count, p->value, NULL};
    }
    for (size_t i = 0; i < NET_BUFFER_COUNT; i++) {
        const struct net_tensor *b = &t->net->buffers[i];
        buffers[i] = (struct muster_ddp_buffer){b->name, MUSTER_FLOAT32, b->count, b->value};
    }
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    /* dense1 makes up nine tenths of the model and is ready early: its bucket travels while the convolutions are still
     * at work. */
    options.first_bucket_bytes = (size_t)512 << 10;
    options.virtual_ranks = (size_t)t->options.virtual_ranks;
    options.copy_parameters = t->state == NULL; /* else all have the same, which must not be written */
    check(muster_ddp_create(t->group, list, t->parameter_count, buffers, t->options.normalise ? NET_BUFFER_COUNT : 0,
                            &options, &t->ddp),
          "agree on the model");
}

/* ---- What training goes on from ---- */

static struct muster_tensor float_tensor(const struct net_tensor *from) {
    struct muster_tensor tensor = {.name = from->name, .type = MUSTER_FLOAT32, .data = from->value};
    tensor.dim_count = (uint32_t)from->shape_count;
    for (size_t i = 0; i < from->shape_count; i++) {
        tensor.shape[i] = from->shape[i];
    }
    return tensor;
}

/* Everything that training goes on from, in `tensors` and `values`. */
#define SNAPSHOT_VALUES (5 + CURVE_VALUES)
static struct muster_snapshot_state describe_state(struct trainer *t, struct muster_tensor tensors[TENSORS_MAX],
                                                   struct muster_value values[SNAPSHOT_VALUES]) {
    struct progress *p = &t->progress;
    size_t count = 0;
    for (size_t i = 0; i < t->parameter_count; i++) {
        tensors[count++] = float_tensor(t->parameters[i]);
    }
    for (size_t i = 0; t->options.normalise && i < NET_BUFFER_COUNT; i++) {
        tensors[count++] = float_tensor(&t->net->buffers[i]);
    }
    muster_optimizer_tensors(t->optimizer, tensors + count);
    count += muster_optimizer_tensor_count(t->optimizer);
    values[0] = muster_value_integer("epoch", &p->epoch);
    values[1] = muster_value_integer("consumed", &p->consumed);
    values[2] = muster_value_integer("steps", &p->steps);
    values[3] = muster_value_real("accuracy", &p->accuracy);
    values[4] = muster_value_optional_integer("virtual_ranks", &p->virtual_ranks); /* snapshots once had none */
    curve_describe(&p->curve, &tensors[count++], values + 5);
    return (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(tensors, count, values, SNAPSHOT_VALUES);
}

/* ---- State that outlives the workers ---- */

/* What the optimizer does not write: statistics, progress and curve. */
static struct muster_snapshot_state describe_extra(struct trainer *t, struct muster_tensor tensors[TENSORS_MAX],
                                                   struct muster_value values[SNAPSHOT_VALUES]) {
    size_t optimizers = muster_optimizer_tensor_count(t->optimizer), count = 0;
    struct muster_snapshot_state state = describe_state(t, tensors, values);
    for (size_t i = t->parameter_count; i < state.tensor_count; i++) {
        if (i == state.tensor_count - 1 || i < state.tensor_count - 1 - optimizers) {
            tensors[count++] = tensors[i];
        }
    }
    state.tensor_count = count;
    return state;
}

/* False: there is nothing of earlier workers. */
static bool keep_state(struct trainer *t) {
    struct muster_tensor tensors[TENSORS_MAX];
    struct muster_value values[SNAPSHOT_VALUES];
    struct muster_snapshot_state extra = describe_extra(t, tensors, values);
    const struct muster_state_block block = {t->net->values, net_parameter_floats(t->net)};
    int64_t step = -1;
    int status = muster_state_create(t->group, t->optimizer, &block, 1, &extra, NULL, &t->state, &step);
    if (status == MUSTER_ENOMEM && muster_group_status(t->group) == MUSTER_OK) {
        if (t->rank == 0) {
            printf("the state is not kept in memory: %s\n", muster_detail());
        }
        return false;
    }
    check(status, "keep the state");
    net_move(t->net, muster_state_block_data(t->state, 0));
    return step >= 0;
}

void trainer_commit(struct trainer *t) {
    struct muster_tensor tensors[TENSORS_MAX];
    struct muster_value values[SNAPSHOT_VALUES];
    if (t->state != NULL) {
        struct muster_snapshot_state extra = describe_extra(t, tensors, values);
        check(muster_state_commit(t->state, t->progress.steps, &extra), "commit the state");
        net_move(t->net, muster_state_block_data(t->state, 0));
    }
}

/* ---- Snapshots ---- */

/* Rank 0 saves; all ranks have the same state, the running statistics included (share_buffers()). */
void trainer_save(struct trainer *t) {
    struct muster_tensor tensors[TENSORS_MAX];
    struct muster_value values[SNAPSHOT_VALUES];
    if (t->options.snapshot != NULL) {
        struct muster_snapshot_state state = describe_state(t, tensors, values);
        (void)works(
            t, muster_snapshot_save_group(t->group, t->rank == 0, t->options.snapshot, t->progress.steps, &state, NULL),
            "save a snapshot");
    }
}

/* The newest whole snapshot that any worker sees, on all workers. False: there is none. */
static bool load_snapshot(struct trainer *t) {
    struct muster_tensor tensors[TENSORS_MAX];
    struct muster_value values[SNAPSHOT_VALUES];
    struct muster_snapshot_found found = {.step = 0};
    int status = MUSTER_ENOENT;
    if (t->options.snapshot != NULL) {
        struct muster_snapshot_state state = describe_state(t, tensors, values);
        status = muster_snapshot_load_group(t->group, t->options.snapshot, &state, &found);
    }
    if (status != MUSTER_ENOENT) {
        check(status, "load the newest snapshot");
    }
    if (t->rank == 0 && found.passed_over > 0) {
        printf("%s\n", found.note);
    }
    return status != MUSTER_ENOENT;
}

/* From what earlier workers of this job had in memory, from a snapshot, or from scratch. With --shrink survivors share
 * what they have. */
static void find_state(struct trainer *t) {
    const char *source = NULL;
    bool keeps = !t->options.forget && !t->options.shrink && muster_state_outlives();
    t->is_unsaved = keeps && keep_state(t);
    if (t->is_unsaved) {
        source = "memory";
    } else {
        source = load_snapshot(t) ? "the snapshot" : NULL;
    }
    check_virtual_ranks(t->progress.virtual_ranks, t->options.virtual_ranks, t->options.changes_virtual_ranks);
    t->progress.virtual_ranks = t->options.virtual_ranks;
    if (!t->is_unsaved) {
        trainer_commit(t);
    }
    if (t->rank == 0 && source != NULL) {
        printf("from %s of epoch %" PRId64 ", step %" PRId64 ": ", source, t->progress.epoch, t->progress.steps);
    } else if (t->rank == 0) {
        printf("from scratch: ");
    }
    if (t->rank == 0) {
        printf("%zu images to train on, %zu to test\n", t->train.count, t->test.count);
    }
    if (t->rank == 0 && t->state != NULL) {
        printf("kept in memory for restarts: %.1f MiB more for each worker\n",
               (double)muster_state_bytes(t->state) / 2 / (1 << 20));
    }
}

/* ---- When a worker is lost ---- */

bool works(struct trainer *t, int status, const char *what) {
    if (status == MUSTER_OK) {
        return true;
    }
    if (!t->options.shrink || muster_group_status(t->group) == MUSTER_OK) {
        check(status, what);
    }
    if (!t->broken) {
        (void)fprintf(stderr, "rank %u: cannot %s: %s\n", t->rank, what, muster_detail());
    }
    t->broken = true;
    return false;
}

/* Everything that a snapshot would hold, from rank 0: one worker may be a step ahead of another. */
static bool share_state(struct trainer *t) {
    struct muster_tensor tensors[TENSORS_MAX];
    struct muster_value values[SNAPSHOT_VALUES];
    struct muster_snapshot_state state = describe_state(t, tensors, values);
    int status = MUSTER_OK;
    for (size_t i = 0; i < state.tensor_count && status == MUSTER_OK; i++) {
        size_t count = 1;
        for (uint32_t j = 0; j < tensors[i].dim_count; j++) {
            count *= (size_t)tensors[i].shape[j];
        }
        status = muster_broadcast(t->group, tensors[i].data, count, tensors[i].type, 0, NULL);
    }
    for (size_t i = 0; i < state.value_count && status == MUSTER_OK; i++) { /* integers and reals, of 8 bytes */
        status = muster_broadcast(t->group, values[i].data, 8, MUSTER_UINT8, 0, NULL);
    }
    return works(t, status, "share the state of training");
}

void trainer_shrink(struct trainer *t) {
    struct muster_group *bound = t->group; /* ddp's, until it has the new one */
    do {                                   /* another may be lost meanwhile */
        struct muster_group *failed = t->group;
        check(muster_group_shrink(failed, SHRINK_MS, &t->group), "go on without the workers that are lost");
        if (failed != bound) {
            muster_group_free(failed);
        }
        t->broken = false;
        t->rank = muster_group_rank(t->group);
        t->world = muster_group_size(t->group);
    } while (!share_state(t) || !works(t, muster_ddp_rebind(t->ddp, t->group), "agree on the model"));
    muster_group_free(bound);
    divide(t);
    deal_out(t);
    net_resize(t->net, share_of_batch(t));
    if (t->rank == 0) {
        printf("%u worker%s left: going on in epoch %" PRId64 ", after step %" PRId64 "\n", t->world,
               t->world > 1 ? "s" : "", t->progress.epoch + 1, t->progress.steps);
    } else {
        t->sums = (struct sums){0, 0, 0}; /* what counts of the epoch so far is rank 0's, like the rest */
    }
    trainer_save(t);
}

/* ---- All of it ---- */

void trainer_create(struct trainer *t) {
    t->progress.curve = (struct curve)CURVE_INIT;
    t->progress.virtual_ranks = t->options.virtual_ranks;
    join_group(t);
    divide(t);
    make_model(t);
    deal_out(t);
    make_optimizer(t);
}

void trainer_resume(struct trainer *t) {
    find_state(t);
    make_ddp(t);
}

void trainer_free(struct trainer *t) {
    muster_ddp_free(t->ddp);
    muster_state_free(t->state);
    muster_optimizer_free(t->optimizer);
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        muster_sampler_free(t->samplers[i]);
    }
    muster_group_free(t->group);
    muster_store_close(t->store);
    net_free(t->net);
    image_set_free(&t->train);
    image_set_free(&t->test);
    free(t->indices);
}
