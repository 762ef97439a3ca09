/* What training goes on from, as a snapshot. See state.h and trainer.h. */
#include "state.h"

#include <stdlib.h>

#include "fail.h"
#include "trainer.h"

size_t state_describe(const struct gpt_parameters *list, float *const *units, struct muster_tensor *out) {
    size_t count = 0;
    for (int unit = 0; unit < list->unit_count; unit++) {
        const struct gpt_unit *u = &list->units[unit];
        for (size_t i = 0; i < u->tensor_count; i++, count++) {
            const struct gpt_tensor *tensor = &u->tensors[i];
            out[count] = (struct muster_tensor){.name = tensor->name,
                                                .type = MUSTER_FLOAT32,
                                                .dim_count = tensor->columns == 0 ? 1 : 2,
                                                .shape = {(uint64_t)tensor->rows, (uint64_t)tensor->columns},
                                                .data = units[unit] + tensor->offset};
        }
    }
    return count;
}

/* ---- The trainer's ---- */

/* The numbers that say what model it is and how far it has come, as a snapshot holds them. */
struct numbers {
    int64_t step, vocabulary, context, layers, heads, width, tied;
};
enum { NUMBERS = sizeof(struct numbers) / sizeof(int64_t) };

static void describe_numbers(struct numbers *numbers, struct muster_value values[NUMBERS]) {
    values[0] = muster_value_integer("step", &numbers->step);
    values[1] = muster_value_integer("vocabulary", &numbers->vocabulary);
    values[2] = muster_value_integer("context", &numbers->context);
    values[3] = muster_value_integer("layers", &numbers->layers);
    values[4] = muster_value_integer("heads", &numbers->heads);
    values[5] = muster_value_integer("width", &numbers->width);
    values[6] = muster_value_integer("tied", &numbers->tied);
}

static struct muster_tensor describe_alphabet(struct alphabet *alphabet) {
    return (struct muster_tensor){
        .name = "alphabet", .type = MUSTER_UINT8, .dim_count = 1, .shape = {TEXT_BYTES}, .data = alphabet->characters};
}

/* What AdamW remembers of each parameter has the parameter's shape. Returns how many. *steps: of each parameter; they
 * are as many as the trainer's, so that a snapshot need not hold them. */
static size_t describe_optimizer(struct trainer *t, struct muster_tensor *out, int64_t **steps) {
    enum { EACH = 2 };
    const size_t count = EACH * t->parameters->tensor_count;
    struct muster_tensor *tensors = allocate(count + 1, sizeof *tensors);
    if (muster_optimizer_tensor_count(t->optimizer) != count + 1) {
        fail("the optimizer remembers something else than AdamW does");
    }
    check(muster_optimizer_tensors(t->optimizer, tensors), "describe the optimizer");
    for (size_t i = 0; i < count; i++) {
        const struct gpt_tensor *parameter = &t->parameters->tensors[i / EACH];
        out[i] = tensors[i];
        out[i].dim_count = parameter->columns == 0 ? 1 : 2;
        out[i].shape[0] = (uint64_t)parameter->rows;
        out[i].shape[1] = (uint64_t)parameter->columns;
    }
    *steps = tensors[count].data;
    free(tensors);
    return count;
}

/* All of it. The list is allocated, and freed by done_state(). */
struct state {
    struct numbers numbers;
    struct muster_value values[NUMBERS + CURVE_VALUES];
    struct muster_tensor *tensors;
    size_t tensor_count;
    int64_t *steps; /* the optimizer's */
};

static void init_state(struct state *state, struct trainer *t) {
    const struct gpt_shape *shape = &t->options.shape;
    state->numbers = (struct numbers){t->step,      shape->vocabulary, shape->context, shape->layers,
                                      shape->heads, shape->width,      shape->tied};
    describe_numbers(&state->numbers, state->values);
    state->tensors = allocate(3 * t->parameters->tensor_count + 2, sizeof *state->tensors);
    struct muster_tensor *next = state->tensors;
    next += state_describe(t->parameters, t->sharding.resident.parameters, next);
    next += describe_optimizer(t, next, &state->steps);
    *next++ = describe_alphabet(&t->alphabet);
    curve_describe(&t->curve, next++, state->values + NUMBERS); /* last: load() may leave it out */
    state->tensor_count = (size_t)(next - state->tensors);
}

static void done_state(struct state *state) {
    free(state->tensors);
}

static struct muster_snapshot_state snapshot_of(const struct state *state) {
    return (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(state->tensors, state->tensor_count, state->values,
                                                               NUMBERS + CURVE_VALUES);
}

/* Rank 0 saves; all ranks have the same state, and wait until it is on the disk. */
void trainer_save(struct trainer *trainer) {
    if (trainer->options.snapshot == NULL) {
        return;
    }
    struct state state;
    init_state(&state, trainer);
    struct muster_snapshot_state snapshot = snapshot_of(&state);
    check(muster_snapshot_save_group(trainer->group, trainer->rank == 0, trainer->options.snapshot, trainer->step,
                                     &snapshot, NULL),
          "save a snapshot");
    done_state(&state);
}

/* Those of the first versions had no curve: it begins anew. */
static int load(struct trainer *t, const struct state *state) {
    struct muster_snapshot_state snapshot = snapshot_of(state);
    int status = muster_snapshot_load_group(t->group, t->options.snapshot, &snapshot, &t->found);
    if (status == MUSTER_EINVAL) {
        snapshot.tensor_count -= 1;
        snapshot.value_count -= CURVE_VALUES;
        status = muster_snapshot_load_group(t->group, t->options.snapshot, &snapshot, &t->found);
    }
    return status;
}

/* The newest whole snapshot that any rank sees, on all ranks. */
bool trainer_load(struct trainer *trainer) {
    if (trainer->options.snapshot == NULL) {
        return false;
    }
    struct state state;
    init_state(&state, trainer);
    int status = load(trainer, &state);
    if (status != MUSTER_ENOENT) {
        check(status, "load the newest snapshot");
        trainer->step = state.numbers.step;
        for (size_t i = 0; i < trainer->parameters->tensor_count; i++) {
            state.steps[i] = state.numbers.step;
        }
    }
    done_state(&state);
    return status != MUSTER_ENOENT;
}

void trainer_load_shape(struct trainer *trainer) {
    struct numbers numbers;
    struct muster_value values[NUMBERS];
    struct muster_tensor alphabet = describe_alphabet(&trainer->alphabet);
    describe_numbers(&numbers, values);
    struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(&alphabet, 1, values, NUMBERS);
    if (trainer->options.snapshot == NULL) {
        fail("--sample-only needs --snapshot: a folder with a trained model");
    }
    check(muster_snapshot_load_group(trainer->group, trainer->options.snapshot, &state, &trainer->found),
          "load the newest snapshot");
    struct gpt_shape *shape = &trainer->options.shape;
    shape->vocabulary = (int)numbers.vocabulary;
    shape->context = (int)numbers.context;
    shape->layers = (int)numbers.layers;
    shape->heads = (int)numbers.heads;
    shape->width = (int)numbers.width;
    shape->tied = numbers.tied != 0;
    trainer->alphabet.count = shape->vocabulary;
}
