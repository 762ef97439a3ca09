/* See trainer.h. Snapshots are in state.c. */
#include "trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include <muster/collective.h>
#include <muster/trace.h>
#include <muster/virtual_ranks.h>

#include "fail.h"

enum { TIMEOUT_MS = 300000 }; /* for any one call, and for all ranks to come */

/* ---- One step ---- */

/* Clips the gradients and makes the optimizer's step. Returns their norm before that. */
static double update_parameters(struct trainer *t) {
    double norm = sqrt(sharding_squared_norm(&t->sharding)), rate = 0;
    if (!isfinite(norm)) {
        fail("step %" PRId64 ": the gradients are no numbers any more; a lower --lr may help", t->step + 1);
    }
    check(muster_schedule_rate(&t->schedule, t->step, &rate), "compute the learning rate");
    check(muster_optimizer_set_learning_rate(t->optimizer, rate), "set the learning rate");
    sharding_step(&t->sharding, t->optimizer, muster_clip_scale(norm, t->options.clip));
    return norm;
}

/* The mean over the batch. */
static double mean_loss(struct trainer *t) {
    size_t virtual_ranks = (size_t)t->options.sharding.virtual_ranks;
    double sum = 0;
    int status = MUSTER_OK;
    if (virtual_ranks == 0) {
        status = muster_all_reduce(t->group, t->losses, &sum, 1, MUSTER_FLOAT64, MUSTER_OP_SUM, NULL);
    } else if (sharding_is_fsdp(&t->options.sharding)) {
        status = muster_virtual_turns_sum(t->group, virtual_ranks, t->losses, &sum, 1, MUSTER_FLOAT64);
    } else {
        status = muster_virtual_sum(t->group, virtual_ranks, t->losses, &sum, 1, MUSTER_FLOAT64);
    }
    check(status, "add up the losses");
    return sum;
}

/* Forward pass over a share of a batch. Returns the mean loss. */
static double forward(struct trainer *t, const struct share *share, const struct text_draw *draw,
                      const struct gpt_dropout *dropout) {
    const int length = t->options.shape.context;
    text_batch(&t->text, draw, share->count, length, t->tokens, t->targets);
    gpt_forward(t->model, t->tokens, share->count, length, dropout);
    return gpt_loss(t->model, t->targets);
}

/* Both passes. Random numbers belong to sequences, not to ranks. Returns the mean loss. */
static double both_passes(struct trainer *t, const struct share *share) {
    const uint64_t seed = (uint64_t)t->options.seed, step = (uint64_t)t->step, first = (uint64_t)share->first;
    const struct text_draw draw = {TEXT_TRAIN, seed, step, first};
    const struct gpt_dropout dropout = {seed, step, first};
    sharding_begin(&t->sharding);
    muster_trace_begin("forward");
    double loss = forward(t, share, &draw, &dropout);
    muster_trace_end();
    muster_trace_begin("backward");
    gpt_backward(t->model, share->weight);
    sharding_finish(&t->sharding);
    muster_trace_end();
    return loss;
}

double trainer_step(struct trainer *trainer, double *norm) {
    struct trainer *t = trainer;
    for (uint32_t i = 0; i < t->share_count; i++) {
        t->losses[i] = both_passes(t, &t->shares[i]) * t->shares[i].part;
    }
    muster_trace_begin("optimizer");
    *norm = update_parameters(t);
    muster_trace_end();
    t->step++;
    double mean = mean_loss(t);
    curve_add(&t->curve, mean);
    trainer_commit(t);
    return mean;
}

double trainer_evaluate(struct trainer *trainer) {
    enum { BATCHES = 8 };
    struct trainer *t = trainer;
    sharding_begin_evaluation(&t->sharding);
    for (uint32_t n = 0; n < t->share_count_most; n++) { /* ranks gather parameters together, equally often */
        const struct share *share = &t->shares[n % t->share_count];
        double loss = 0;
        for (uint64_t i = 0; i < BATCHES; i++) {
            const struct text_draw draw = {TEXT_TEST, (uint64_t)t->options.seed, i, (uint64_t)share->first};
            loss += forward(t, share, &draw, NULL) / BATCHES;
        }
        t->losses[n % t->share_count] = loss * share->part;
    }
    sharding_finish_evaluation(&t->sharding);
    return mean_loss(t);
}

/* ---- All of it ---- */

/* Under a launcher (muster run, torchrun) the job's group. Without one, a group of this process alone. */
static void join_group(struct trainer *t) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    check(muster_group_create_env(&options, &t->group), "join the group");
    t->rank = muster_group_rank(t->group);
    t->world = muster_group_size(t->group);
}

static struct share share_of(int batch, uint32_t rank, uint32_t world) {
    int64_t first = (int64_t)batch * rank / world, end = (int64_t)batch * (rank + 1) / world;
    double part = (double)(end - first) / batch;
    return (struct share){(int)first, end > first ? (int)(end - first) : 1, part, (float)(part * world)};
}

/* Returns the most sequences of a share. */
static int make_shares(struct trainer *t) {
    uint32_t first = t->rank, stride = 1, all = t->world;
    int most = 0;
    t->share_count = 1;
    if (t->options.sharding.virtual_ranks > 0) {
        all = (uint32_t)t->options.sharding.virtual_ranks;
        check(sharding_is_fsdp(&t->options.sharding)
                  ? muster_virtual_turns(t->group, all, &first, &stride, &t->share_count)
                  : muster_virtual_ranks(t->group, all, &first, &t->share_count),
              "share out the virtual ranks");
    }
    t->share_count_most = sharding_is_fsdp(&t->options.sharding) ? (all + t->world - 1) / t->world : t->share_count;
    t->shares = allocate(t->share_count, sizeof *t->shares);
    t->losses = allocate(t->share_count, sizeof *t->losses);
    for (uint32_t i = 0; i < t->share_count; i++) {
        t->shares[i] = share_of(t->options.batch, first + i * stride, all);
        most = t->shares[i].count > most ? t->shares[i].count : most;
    }
    return most;
}

/* minGPT's two groups. */
static void make_optimizer(struct trainer *t) {
    const struct options *o = &t->options;
    struct muster_adamw_options decays = MUSTER_ADAMW_OPTIONS_INIT;
    decays.beta1 = o->beta1;
    decays.beta2 = o->beta2;
    decays.weight_decay = o->weight_decay;
    struct muster_adamw_options keeps = decays;
    keeps.weight_decay = 0;
    const struct muster_optimizer_group groups[SHARDING_GROUPS] = {
        [SHARDING_DECAYS] = {.adamw = &decays}, [SHARDING_KEEPS] = {.adamw = &keeps}};
    sharding_make_optimizer(&t->sharding, groups, &t->optimizer);
}

/* The rate rises to the full one, and then falls along a cosine to a tenth of it. */
static void make_schedule(struct trainer *t) {
    const struct options *o = &t->options;
    t->schedule = (struct muster_schedule)MUSTER_SCHEDULE_INIT;
    t->schedule.kind = MUSTER_SCHEDULE_COSINE;
    t->schedule.learning_rate = o->learning_rate;
    t->schedule.learning_rate_min = 0.1 * o->learning_rate;
    t->schedule.warmup_steps = o->warm_up;
    t->schedule.warmup_start = o->warm_up > 0 ? 1 / (double)o->warm_up : 1;
    t->schedule.total_steps = o->steps > o->warm_up ? o->steps : o->warm_up + 1;
}

static void make_model(struct trainer *t) {
    const struct gpt_shape *shape = &t->options.shape;
    int sequences = make_shares(t);
    size_t tokens = (size_t)sequences * (size_t)shape->context;
    t->parameters = gpt_parameters_create(shape);
    sharding_init(&t->sharding, &t->options.sharding, t->group, t->parameters,
                  &(struct first_values){t->options.weights, (uint64_t)t->options.seed});
    struct gpt_memory memory = sharding_memory(&t->sharding);
    t->model = gpt_create(shape, t->parameters, sequences, &memory);
    make_optimizer(t);
    make_schedule(t);
    t->tokens = allocate(tokens, sizeof *t->tokens);
    t->targets = allocate(tokens, sizeof *t->targets);
}

void trainer_create(struct trainer *trainer) {
    struct options *o = &trainer->options;
    trainer->curve = (struct curve)CURVE_INIT;
    join_group(trainer);
    if (o->samples_only && o->snapshot != NULL) {
        trainer_load_shape(trainer);
        alphabet_read(&trainer->alphabet, o->vocabulary);
    } else {
        text_read(&trainer->text, o->data, o->vocabulary, o->shape.context);
        trainer->alphabet = trainer->text.alphabet;
        o->shape.vocabulary = trainer->alphabet.count;
    }
    if (o->samples_only) {
        o->batch = 1;
        o->sharding.virtual_ranks = 0;
    }
    make_model(trainer);
    bool keeps = !o->forgets && !o->samples_only && muster_state_outlives();
    if (!keeps || !trainer_keep(trainer)) {
        (void)trainer_load(trainer);
        trainer_commit(trainer);
    }
    sharding_start(&trainer->sharding);
}

void trainer_free(struct trainer *trainer) {
    gpt_free(trainer->model);
    muster_optimizer_free(trainer->optimizer);
    sharding_done(&trainer->sharding);
    gpt_parameters_free(trainer->parameters);
    alphabet_done(&trainer->alphabet);
    text_free(&trainer->text);
    free(trainer->shares);
    free(trainer->losses);
    free(trainer->tokens);
    free(trainer->targets);
    muster_group_free(trainer->group);
}
