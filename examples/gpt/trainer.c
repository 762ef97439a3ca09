/* See trainer.h. Snapshots are in state.c. */
#include "trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "fail.h"

/* ---- One step ---- */

/* Clips the gradients and makes the optimizer's step. Returns their norm before that. */
static double update_parameters(struct trainer *t) {
    const size_t count = t->parameters->float_count;
    const float *const gradients = t->resident.gradients[0]; /* of all units */
    struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    double squares = 0, rate = 0;
    check(muster_squared_norm(NULL, &gradients, &count, 1, &squares), "measure the gradients");
    double norm = sqrt(squares);
    if (!isfinite(norm)) {
        fail("step %" PRId64 ": the gradients are no numbers any more; a lower --lr may help", t->step + 1);
    }
    options.gradient_scale = muster_clip_scale(norm, t->options.clip);
    check(muster_schedule_rate(&t->schedule, t->step, &rate), "compute the learning rate");
    check(muster_optimizer_set_learning_rate(t->optimizer, rate), "set the learning rate");
    check(muster_optimizer_step_into(t->optimizer, t->gradients, &options), "change the parameters");
    return norm;
}

double trainer_step(struct trainer *trainer, double *norm) {
    struct trainer *t = trainer;
    int batch = t->options.batch, length = t->options.shape.context;
    uint64_t seed = (uint64_t)t->options.seed, step = (uint64_t)t->step;
    struct text_draw draw = {TEXT_TRAIN, seed, step, 0};
    struct gpt_dropout dropout = {seed, step, 0};
    text_batch(&t->text, &draw, batch, length, t->tokens, t->targets);
    gpt_forward(t->model, t->tokens, batch, length, &dropout);
    double loss = gpt_loss(t->model, t->targets);
    gpt_backward(t->model, 1);
    *norm = update_parameters(t);
    t->step++;
    return loss;
}

double trainer_evaluate(struct trainer *trainer) {
    enum { BATCHES = 8 };
    struct trainer *t = trainer;
    int batch = t->options.batch, length = t->options.shape.context;
    double loss = 0;
    for (uint64_t i = 0; i < BATCHES; i++) {
        struct text_draw draw = {TEXT_TEST, (uint64_t)t->options.seed, i, 0};
        text_batch(&t->text, &draw, batch, length, t->tokens, t->targets);
        gpt_forward(t->model, t->tokens, batch, length, NULL);
        loss += gpt_loss(t->model, t->targets) / BATCHES;
    }
    return loss;
}

/* ---- All of it ---- */

/* minGPT's two groups: matrices of linear layers decay, everything else does not. */
static void make_optimizer(struct trainer *t) {
    enum { DECAYS, KEEPS, GROUPS };
    const struct options *o = &t->options;
    const size_t count = t->parameters->tensor_count;
    struct muster_optimizer_range *ranges = allocate(count, sizeof *ranges), *next = ranges;
    t->gradients = allocate(count, sizeof *t->gradients);
    for (int unit = 0; unit < t->parameters->unit_count; unit++) {
        const struct gpt_unit *u = &t->parameters->units[unit];
        for (size_t i = 0; i < u->tensor_count; i++, next++) {
            const struct gpt_tensor *tensor = &u->tensors[i];
            *next = (struct muster_optimizer_range){tensor->name, t->resident.parameters[unit] + tensor->offset,
                                                    tensor->count, tensor->decays ? DECAYS : KEEPS};
            t->gradients[next - ranges] = t->resident.gradients[unit] + tensor->offset;
        }
    }
    struct muster_adamw_options decays = MUSTER_ADAMW_OPTIONS_INIT;
    decays.beta1 = o->beta1;
    decays.beta2 = o->beta2;
    decays.weight_decay = o->weight_decay;
    struct muster_adamw_options keeps = decays;
    keeps.weight_decay = 0;
    const struct muster_optimizer_group groups[GROUPS] = {[DECAYS] = {.adamw = &decays}, [KEEPS] = {.adamw = &keeps}};
    check(muster_optimizer_create(ranges, count, groups, GROUPS, &t->optimizer), "make an optimizer");
    free(ranges);
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
    size_t tokens = (size_t)t->options.batch * (size_t)shape->context;
    t->parameters = gpt_parameters_create(shape);
    resident_init(&t->resident, t->parameters);
    resident_own_gradients(&t->resident);
    struct gpt_memory memory = resident_memory(&t->resident);
    t->model = gpt_create(shape, t->parameters, t->options.batch, &memory);
    make_optimizer(t);
    make_schedule(t);
    t->tokens = allocate(tokens, sizeof *t->tokens);
    t->targets = allocate(tokens, sizeof *t->targets);
}

void trainer_create(struct trainer *trainer) {
    struct options *o = &trainer->options;
    if (o->samples_only) {
        trainer_load_shape(trainer);
        o->batch = 1;
    } else {
        text_read(&trainer->text, o->data, o->shape.context);
        trainer->alphabet = trainer->text.alphabet;
        o->shape.vocabulary = trainer->alphabet.count;
    }
    make_model(trainer);
    if (!trainer_load(trainer)) {
        resident_fill(&trainer->resident, (uint64_t)o->seed);
    }
}

void trainer_free(struct trainer *trainer) {
    gpt_free(trainer->model);
    resident_done(&trainer->resident);
    gpt_parameters_free(trainer->parameters);
    text_free(&trainer->text);
    muster_optimizer_free(trainer->optimizer);
    free(trainer->gradients);
    free(trainer->tokens);
    free(trainer->targets);
}
