/* See trainer.h. Snapshots are in state.c. */
#include "trainer.h"

#include <math.h>
#include <stdlib.h>

#include "fail.h"
#include "floats.h"

/* ---- One step ---- */

double trainer_learning_rate(const struct trainer *trainer) {
    const struct options *o = &trainer->options;
    const double least = 0.1 * o->learning_rate;
    if (trainer->step < o->warm_up) {
        return o->learning_rate * (double)(trainer->step + 1) / (double)o->warm_up;
    }
    int64_t left = o->steps - o->warm_up;
    double done = left > 0 ? (double)(trainer->step - o->warm_up) / (double)left : 1;
    return least + (o->learning_rate - least) * 0.5 * (1 + cos(M_PI * fmin(done, 1)));
}

/* Only matrices of linear layers decay (minGPT's two groups). */
static void update_parameters(struct trainer *t, double gradient_scale) {
    struct resident *r = &t->resident;
    struct adamw_step step = {.learning_rate = trainer_learning_rate(t), .gradient_scale = gradient_scale};
    t->adamw.steps++;
    for (int unit = 0; unit < t->parameters->unit_count; unit++) {
        const struct gpt_unit *u = &t->parameters->units[unit];
        for (size_t i = 0; i < u->tensor_count; i++) {
            size_t at = resident_at(r, unit, i);
            step.weight_decay = u->tensors[i].decays ? t->options.weight_decay : 0;
            adamw_update(&t->adamw, &step, u->tensors[i].count, r->parameters + at, r->gradients + at, t->mean + at,
                         t->square + at);
        }
    }
}

/* As torch.nn.utils.clip_grad_norm_ does; the optimizer multiplies. */
static double clipping_scale(double norm, double norm_max) {
    return norm > norm_max ? norm_max / (norm + 1e-6) : 1;
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
    gpt_backward(t->model);
    *norm = gradient_norm(t->parameters->float_count, t->resident.gradients);
    update_parameters(t, clipping_scale(*norm, t->options.clip));
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

static void make_model(struct trainer *t) {
    const struct gpt_shape *shape = &t->options.shape;
    size_t tokens = (size_t)t->options.batch * (size_t)shape->context;
    t->parameters = gpt_parameters_create(shape);
    resident_init(&t->resident, t->parameters);
    struct gpt_memory memory = resident_memory(&t->resident);
    t->model = gpt_create(shape, t->parameters, t->options.batch, &memory);
    t->adamw = (struct adamw){t->options.beta1, t->options.beta2, 1e-8, 0};
    t->mean = floats_allocate(t->parameters->float_count);
    t->square = floats_allocate(t->parameters->float_count);
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
    free(trainer->mean);
    free(trainer->square);
    free(trainer->tokens);
    free(trainer->targets);
}
