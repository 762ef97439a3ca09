/* Optimizers against recorded PyTorch values (optimizer_values.h), and what a snapshot of one carries over. */
#include <muster/optimizer.h>

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/optimizers/optimizer_values.h"

enum { COUNT = 24, PARTS = 3 };

/* As optimizer_values.py makes them; all are multiples of 1/128. */
static void fill_parameter(float *p) {
    for (int i = 0; i < COUNT; i++) {
        p[i] = (float)((i * 37 + 11) % 101 - 50) / 64;
    }
}

static void fill_gradient(float *g, int step) {
    for (int i = 0; i < COUNT; i++) {
        g[i] = (float)((i * 53 + step * 29) % 97 - 48) / 128;
    }
}

/* The cases of optimizer_values.py, for any list of parameters. */
static int create(const char *name, const struct muster_optimizer_parameter *list, size_t count,
                  struct muster_optimizer **out) {
    struct muster_sgd_options sgd = MUSTER_SGD_OPTIONS_INIT;
    struct muster_adadelta_options adadelta = MUSTER_ADADELTA_OPTIONS_INIT;
    struct muster_adam_options adam = MUSTER_ADAM_OPTIONS_INIT;
    struct muster_adamw_options adamw = MUSTER_ADAMW_OPTIONS_INIT;
    sgd.learning_rate = 0.1;
    sgd.weight_decay = strcmp(name, "sgd_decay") == 0 || strcmp(name, "sgd_nesterov") == 0 ? 0.01 : 0;
    sgd.momentum = strcmp(name, "sgd_momentum") == 0 || strcmp(name, "sgd_nesterov") == 0 ? 0.9 : 0;
    sgd.nesterov = strcmp(name, "sgd_nesterov") == 0;
    if (strcmp(name, "sgd_damped") == 0) {
        sgd.learning_rate = 0.05, sgd.momentum = 0.8, sgd.dampening = 0.3, sgd.weight_decay = 0.1;
    }
    if (strcmp(name, "adadelta_other") == 0) {
        adadelta.learning_rate = 0.3, adadelta.rho = 0.95, adadelta.epsilon = 1e-5, adadelta.weight_decay = 0.05;
    }
    if (strcmp(name, "adam_other") == 0) {
        adam.learning_rate = 0.02, adam.beta1 = 0.8, adam.beta2 = 0.95, adam.epsilon = 1e-6, adam.weight_decay = 0.1;
    }
    if (strcmp(name, "adamw_other") == 0) {
        adamw.learning_rate = 0.02, adamw.beta1 = 0.8, adamw.beta2 = 0.95, adamw.epsilon = 1e-6;
        adamw.weight_decay = 0.1;
    }
    if (strncmp(name, "sgd", 3) == 0) {
        return muster_optimizer_create_sgd(list, count, &sgd, out);
    }
    if (strncmp(name, "adadelta", 8) == 0) {
        return muster_optimizer_create_adadelta(list, count, &adadelta, out);
    }
    if (strcmp(name, "adam") == 0 || strcmp(name, "adam_other") == 0) {
        return muster_optimizer_create_adam(list, count, &adam, out);
    }
    return muster_optimizer_create_adamw(list, count, &adamw, out);
}

/* One array as three parameters of 1, 16 and 7 elements, so that lists, loops and their remainders take part. */
struct split {
    float p[COUNT], g[COUNT];
    struct muster_optimizer_parameter list[PARTS];
    const float *gradients[PARTS];
};

static void split_init(struct split *s) {
    static const size_t begins[PARTS + 1] = {0, 1, 17, COUNT};
    static const char *const names[] = {"one", "sixteen", "seven"};
    for (size_t i = 0; i < PARTS; i++) {
        s->list[i] = (struct muster_optimizer_parameter){names[i], s->p + begins[i], begins[i + 1] - begins[i]};
        s->gradients[i] = s->g + begins[i];
    }
    fill_parameter(s->p);
}

static void train(struct muster_optimizer *optimizer, struct split *s, int from, int to) {
    for (int step = from; step <= to; step++) {
        fill_gradient(s->g, step);
        muster_optimizer_step(optimizer, s->gradients);
    }
}

/* Each step rounds a few times where PyTorch may fuse an operation: up to about 4 roundings of half a unit in the last
 * place of |p| < 2 (2^-23) apart in a step, which add up over the steps. An error in a formula is thousands of times
 * larger. Adam divides by sqrt(v), which multiplies the error of the first steps; twice as much for it. */
static void values_are_those_of_pytorch(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof recorded / sizeof recorded[0]; c++) {
        struct split s;
        struct muster_optimizer *optimizer = NULL;
        split_init(&s);
        assert_int_equal(create(recorded[c].name, s.list, PARTS, &optimizer), 0);
        bool is_adam = strcmp(recorded[c].name, "adam") == 0 || strcmp(recorded[c].name, "adamw") == 0;
        if (is_adam && recorded[c].steps == 30) {
            assert_true(muster_optimizer_learning_rate(optimizer) == 1e-3);
            muster_optimizer_set_learning_rate(optimizer, 0.01);
        }
        train(optimizer, &s, 1, recorded[c].steps);
        float tolerance = 4 * 0x1p-24F * 2 * (float)recorded[c].steps, worst = 0;
        for (int i = 0; i < COUNT; i++) {
            float off = fabsf(s.p[i] - recorded[c].values[i]);
            worst = off > worst ? off : worst;
        }
        if (!(worst <= tolerance)) {
            fail_msg("%s after %d steps: off by %g, tolerated %g", recorded[c].name, recorded[c].steps, (double)worst,
                     (double)tolerance);
        }
        muster_optimizer_free(optimizer);
    }
}

/* Whatever the alignment and the place in a list, an element's result has the same bits. */
static void an_element_does_not_depend_on_its_neighbours(void **state) {
    (void)state;
    static const char *const names[] = {"sgd", "sgd_nesterov", "adadelta_other", "adamw_other"};
    for (size_t c = 0; c < 4; c++) {
        struct split whole, shifted;
        struct muster_optimizer *first = NULL, *second = NULL;
        split_init(&whole);
        split_init(&shifted);
        whole.list[0] = (struct muster_optimizer_parameter){"all", whole.p, COUNT};
        assert_int_equal(create(names[c], whole.list, 1, &first), 0);
        assert_int_equal(create(names[c], shifted.list, PARTS, &second), 0);
        train(first, &whole, 1, 20);
        train(second, &shifted, 1, 20);
        assert_memory_equal(whole.p, shifted.p, sizeof whole.p);
        muster_optimizer_free(first);
        muster_optimizer_free(second);
    }
}

/* Copies what is remembered, as a snapshot does: by the names and shapes of the tensors. */
static void copy_memory(struct muster_optimizer *from, struct muster_optimizer *to) {
    struct muster_tensor out[2 * PARTS + 1], in[2 * PARTS + 1];
    size_t count = muster_optimizer_tensor_count(from);
    assert_int_equal(muster_optimizer_tensor_count(to), count);
    muster_optimizer_tensors(from, out);
    muster_optimizer_tensors(to, in);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(out[i].name, in[i].name);
        assert_true(out[i].type == in[i].type && out[i].dim_count == 1 && out[i].shape[0] == in[i].shape[0]);
        memcpy(in[i].data, out[i].data, out[i].shape[0] * muster_type_bytes(out[i].type));
    }
}

static void a_resumed_run_has_the_same_bits(void **state) {
    (void)state;
    static const char *const names[] = {"sgd", "sgd_damped", "adadelta", "adam_other", "adamw"};
    for (size_t c = 0; c < 5; c++) {
        struct split s, resumed;
        struct muster_optimizer *first = NULL, *second = NULL;
        split_init(&s);
        split_init(&resumed);
        assert_int_equal(create(names[c], s.list, PARTS, &first), 0);
        assert_int_equal(create(names[c], resumed.list, PARTS, &second), 0);
        train(first, &s, 1, 7);
        memcpy(resumed.p, s.p, sizeof s.p);
        copy_memory(first, second);
        train(first, &s, 8, 15);
        train(second, &resumed, 8, 15);
        assert_memory_equal(s.p, resumed.p, sizeof s.p);
        muster_optimizer_free(first);
        muster_optimizer_free(second);
    }
}

static void memory_is_named_after_the_parameters(void **state) {
    (void)state;
    struct split s;
    struct muster_optimizer *optimizer = NULL;
    struct muster_tensor tensors[2 * PARTS + 1];
    split_init(&s);
    assert_int_equal(create("adadelta", s.list, PARTS, &optimizer), 0);
    assert_int_equal(muster_optimizer_tensor_count(optimizer), 2 * PARTS + 1);
    muster_optimizer_tensors(optimizer, tensors);
    assert_string_equal(tensors[0].name, "optimizer.square_avg.one");
    assert_string_equal(tensors[1].name, "optimizer.acc_delta.one");
    assert_string_equal(tensors[5].name, "optimizer.acc_delta.seven");
    assert_string_equal(tensors[6].name, "optimizer.steps");
    assert_int_equal(tensors[5].shape[0], 7);
    assert_int_equal((uintptr_t)tensors[3].data % 64, 0);
    train(optimizer, &s, 1, 2);
    s.gradients[1] = NULL; /* a parameter without a gradient stays, and so does what is remembered of it */
    float before = s.p[5];
    train(optimizer, &s, 3, 3);
    assert_true(s.p[5] == before && ((const int64_t *)tensors[6].data)[0] == 3 &&
                ((const int64_t *)tensors[6].data)[1] == 2);
    muster_optimizer_free(optimizer);
    assert_int_equal(create("sgd", s.list, PARTS, &optimizer), 0);
    assert_int_equal(muster_optimizer_tensor_count(optimizer), 0);
    muster_optimizer_free(optimizer);
    muster_optimizer_free(NULL);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    struct split s;
    struct muster_optimizer *optimizer = NULL;
    struct muster_sgd_options sgd = MUSTER_SGD_OPTIONS_INIT;
    struct muster_adadelta_options adadelta = MUSTER_ADADELTA_OPTIONS_INIT;
    struct muster_adamw_options adamw = MUSTER_ADAMW_OPTIONS_INIT;
    split_init(&s);
    sgd.nesterov = true;
    assert_int_equal(muster_optimizer_create_sgd(s.list, PARTS, &sgd, &optimizer), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "nesterov needs a momentum"));
    sgd = (struct muster_sgd_options)MUSTER_SGD_OPTIONS_INIT;
    sgd.learning_rate = (double)NAN;
    assert_int_equal(muster_optimizer_create_sgd(s.list, PARTS, &sgd, &optimizer), MUSTER_EINVAL);
    adadelta.rho = 1.5;
    assert_int_equal(muster_optimizer_create_adadelta(s.list, PARTS, &adadelta, &optimizer), MUSTER_EINVAL);
    struct muster_adam_options adam = MUSTER_ADAM_OPTIONS_INIT;
    adam.beta1 = -0.1;
    assert_int_equal(muster_optimizer_create_adam(s.list, PARTS, &adam, &optimizer), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "Adam with"));
    adamw.beta2 = 1;
    assert_int_equal(muster_optimizer_create_adamw(s.list, PARTS, &adamw, &optimizer), MUSTER_EINVAL);
    assert_int_equal(muster_optimizer_create_adamw(s.list, 0, NULL, &optimizer), MUSTER_ELIMIT);
    s.list[1].data = NULL;
    assert_int_equal(muster_optimizer_create_adamw(s.list, PARTS, NULL, &optimizer), MUSTER_EINVAL);
    assert_null(optimizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_pytorch),
        cmocka_unit_test(an_element_does_not_depend_on_its_neighbours),
        cmocka_unit_test(a_resumed_run_has_the_same_bits),
        cmocka_unit_test(memory_is_named_after_the_parameters),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
