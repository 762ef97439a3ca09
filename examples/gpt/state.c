/* What training goes on from, as a snapshot. See trainer.h. */
#include "trainer.h"

#include <stdlib.h>

#include "fail.h"
#include "virtual_ranks.h"

/* The numbers that say what model it is and how far it has come, as a snapshot holds them. */
struct numbers {
    int64_t step, vocabulary, context, layers, heads, width, tied;
    int64_t virtual_ranks; /* a snapshot of a program that did not save it: what it was before the load */
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
    values[7] = muster_value_optional_integer("virtual_ranks", &numbers->virtual_ranks);
}

static struct muster_tensor describe_alphabet(struct alphabet *alphabet) {
    return (struct muster_tensor){
        .name = "alphabet", .type = MUSTER_UINT8, .dim_count = 1, .shape = {TEXT_BYTES}, .data = alphabet->characters};
}

/* What is not the model's nor the optimizer's. */
struct extra {
    struct numbers numbers;
    struct muster_value values[NUMBERS + CURVE_VALUES];
    struct muster_tensor tensors[2];
};

static struct muster_snapshot_state describe_extra(struct extra *extra, struct trainer *t) {
    const struct gpt_shape *shape = &t->options.shape;
    extra->numbers = (struct numbers){
        .step = t->step,
        .vocabulary = shape->vocabulary,
        .context = shape->context,
        .layers = shape->layers,
        .heads = shape->heads,
        .width = shape->width,
        .tied = shape->tied,
        .virtual_ranks = t->options.sharding.virtual_ranks,
    };
    describe_numbers(&extra->numbers, extra->values);
    extra->tensors[0] = describe_alphabet(&t->alphabet);
    curve_describe(&t->curve, &extra->tensors[1], extra->values + NUMBERS);
    return (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(extra->tensors, 2, extra->values,
                                                               NUMBERS + CURVE_VALUES);
}

void trainer_save(struct trainer *trainer, bool is_last) {
    struct extra extra;
    if (trainer->options.snapshot != NULL) {
        struct muster_snapshot_state state = describe_extra(&extra, trainer);
        sharding_save(&trainer->sharding, trainer->optimizer, trainer->options.snapshot, trainer->step, &state,
                      is_last);
    }
}

/* The model alone does not depend on it: text may be written whatever it was. */
static void check_numbers(const struct trainer *t, const struct numbers *loaded) {
    const struct options *o = &t->options;
    check_virtual_ranks(loaded->virtual_ranks, o->sharding.virtual_ranks, o->changes_virtual_ranks || o->samples_only);
}

/* The newest whole snapshot that any rank sees, on all ranks. */
bool trainer_load(struct trainer *trainer) {
    struct extra extra;
    if (trainer->options.snapshot == NULL) {
        return false;
    }
    struct muster_snapshot_state state = describe_extra(&extra, trainer);
    bool is_there =
        sharding_load(&trainer->sharding, trainer->optimizer, trainer->options.snapshot, &state, &trainer->found);
    check_numbers(trainer, &extra.numbers);
    trainer->step = is_there ? extra.numbers.step : 0;
    return is_there;
}

bool trainer_keep(struct trainer *trainer) {
    struct extra extra;
    struct muster_snapshot_state state = describe_extra(&extra, trainer);
    int64_t step = sharding_keep(&trainer->sharding, trainer->optimizer, &state);
    check_numbers(trainer, &extra.numbers);
    trainer->from_memory = step >= 0;
    trainer->step = step >= 0 ? step : 0;
    return trainer->from_memory;
}

void trainer_commit(struct trainer *trainer) {
    struct extra extra;
    struct muster_snapshot_state state = describe_extra(&extra, trainer);
    sharding_commit(&trainer->sharding, trainer->step, &state);
}

void trainer_load_shape(struct trainer *trainer) {
    struct numbers numbers = {0};
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
