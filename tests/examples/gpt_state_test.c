/* The snapshots of examples/gpt: names and shapes that files on disks already have. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fail.h" /* before cmocka.h, which has a macro of that name */

#include <cmocka.h>

#include "product.h"
#include "trainer.h"

enum { STEP = 7, SLOTS = 3 };

static char folder[] = "/tmp/muster-gpt-state-XXXXXX";

static struct trainer *make_trainer(void) {
    struct trainer *trainer = allocate(1, sizeof *trainer);
    char program[] = "gpt", *arguments[] = {program, NULL};
    options_read(&trainer->options, 1, arguments);
    trainer->options.snapshot = folder;
    trainer->options.shape.layers = 1;
    trainer->options.shape.heads = 2;
    trainer->options.shape.width = 12;
    trainer->options.shape.context = 8;
    trainer->options.batch = 2;
    trainer_create(trainer);
    return trainer;
}

/* What the first version saved: no curve, and no steps of the optimizer. Element i of tensor n in slot s is
 * 1000 n + i + s / 4. */
struct older {
    char names[256][MUSTER_NAME_MAX];
    struct muster_tensor tensors[256];
    size_t count;
    int64_t numbers[7];
    struct muster_value values[7];
};

static float value_of(size_t number, size_t element, size_t slot) {
    return (float)(1000 * number + element) + (float)slot / 4;
}

static void describe_older(struct older *older, const struct trainer *t, uint8_t *alphabet) {
    static const char *const prefixes[SLOTS] = {"", "optimizer.exp_avg.", "optimizer.exp_avg_sq."};
    static const char *const names[] = {"step", "vocabulary", "context", "layers", "heads", "width", "tied"};
    const struct gpt_shape *shape = &t->options.shape;
    const int64_t numbers[] = {STEP, shape->vocabulary, shape->context, shape->layers, shape->heads, shape->width, 0};
    for (size_t slot = 0; slot < SLOTS; slot++) {
        for (size_t i = 0; i < t->parameters->tensor_count; i++) {
            const struct gpt_tensor *tensor = &t->parameters->tensors[i];
            float *values = allocate(tensor->count, sizeof *values);
            for (size_t j = 0; j < tensor->count; j++) {
                values[j] = value_of(i, j, slot);
            }
            (void)snprintf(older->names[older->count], MUSTER_NAME_MAX, "%s%s", prefixes[slot], tensor->name);
            older->tensors[older->count] =
                (struct muster_tensor){.name = older->names[older->count],
                                       .type = MUSTER_FLOAT32,
                                       .dim_count = tensor->columns == 0 ? 1 : 2,
                                       .shape = {(uint64_t)tensor->rows, (uint64_t)tensor->columns},
                                       .data = values};
            older->count++;
        }
    }
    older->tensors[older->count++] = (struct muster_tensor){
        .name = "alphabet", .type = MUSTER_UINT8, .dim_count = 1, .shape = {256}, .data = alphabet};
    for (size_t i = 0; i < 7; i++) {
        older->numbers[i] = numbers[i];
        older->values[i] = muster_value_integer(names[i], &older->numbers[i]);
    }
}

static void save_older(const struct trainer *t) {
    static struct older older; /* zeroed */
    static uint8_t alphabet[256];
    describe_older(&older, t, alphabet);
    struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(older.tensors, older.count, older.values, 7);
    check(muster_snapshot_save(folder, STEP, &state, NULL), "save");
    for (size_t i = 0; i + 1 < older.count; i++) {
        free(older.tensors[i].data);
    }
}

static void expect_values(const struct trainer *t) {
    const size_t count = t->parameters->tensor_count;
    struct muster_tensor *remembered = allocate(2 * count + 1, sizeof *remembered);
    assert_int_equal(muster_optimizer_tensors(t->optimizer, remembered), MUSTER_OK);
    const int64_t *steps = remembered[2 * count].data;
    for (size_t i = 0; i < count; i++) {
        const float *found[SLOTS] = {t->sharding.ranges[i].data, remembered[2 * i].data, remembered[2 * i + 1].data};
        assert_int_equal(steps[i], STEP);
        for (size_t slot = 0; slot < SLOTS; slot++) {
            for (size_t j = 0; j < t->parameters->tensors[i].count; j++) {
                assert_true(found[slot][j] == value_of(i, j, slot));
            }
        }
    }
    free(remembered);
}

static void free_trainer(struct trainer *trainer) {
    trainer_free(trainer);
    free(trainer);
}

static void the_first_snapshots_still_load(void **state) {
    (void)state;
    struct trainer *first = make_trainer();
    assert_int_equal(first->step, 0);
    save_older(first);
    free_trainer(first);
    struct trainer *second = make_trainer();
    assert_int_equal(second->step, STEP);
    expect_values(second);
    assert_int_equal(second->curve.point_count, 0);
    curve_add(&second->curve, 2.5);
    second->step++;
    trainer_save(second); /* with the curve */
    free_trainer(second);
    struct trainer *third = make_trainer();
    assert_int_equal(third->step, STEP + 1);
    assert_int_equal(third->curve.point_count, 1);
    assert_true(third->curve.points[0] == 2.5);
    free_trainer(third);
}

/* What the snapshots have left. */
static void remove_folder(void) {
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (const struct dirent *entry = NULL; (entry = readdir(listing)) != NULL;) {
        (void)unlinkat(dirfd(listing), entry->d_name, 0);
    }
    (void)closedir(listing);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_snapshots_still_load)};
    product_set_threads();
    assert_non_null(mkdtemp(folder));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_folder();
    return failed;
}
