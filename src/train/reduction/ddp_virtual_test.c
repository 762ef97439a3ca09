/* Data parallel training over virtual ranks: the same bits in every world, of every type; buffers, layouts that change,
 * survivors, and wrong use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/collective.h>
#include <muster/ddp.h>
#include <muster/virtual_ranks.h>

#include "base/testing/parts_test_support.h"
#include "comm/reduce/reduce.h"
#include "train/reduction/ddp_test_support.h"

/* ---- bits ---- */

enum { TENSORS = 7, ELEMENTS_MAX = 20011, VIRTUAL_MOST = 64 };
static const struct {
    const char *name;
    enum muster_type type;
    size_t count;
} tensors[TENSORS] = {{"a", MUSTER_FLOAT32, 300},  {"b", MUSTER_BFLOAT16, 4099}, {"c", MUSTER_FLOAT32, ELEMENTS_MAX},
                      {"d", MUSTER_FLOAT64, 2500}, {"e", MUSTER_FLOAT32, 1},     {"f", MUSTER_FLOAT16, 33},
                      {"g", MUSTER_BFLOAT16, 1000}};
static double data[TENSORS][ELEMENTS_MAX], own[TENSORS][ELEMENTS_MAX], expected[TENSORS][ELEMENTS_MAX];

static void write_element(void *at, enum muster_type type, size_t i, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == MUSTER_FLOAT32) {
        ((float *)at)[i] = value;
    } else if (type == MUSTER_FLOAT64) {
        ((double *)at)[i] = (double)value * 1.1;
    } else if (type == MUSTER_BFLOAT16) {
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
    } else { /* some normal float16 */
        ((uint16_t *)at)[i] = (uint16_t)(0x2000 | (bits & 0x8fff));
    }
}

static void write_gradient(void *at, size_t tensor, uint32_t v, uint32_t step) {
    for (size_t i = 0; i < tensors[tensor].count; i++) {
        write_element(at, tensors[tensor].type, i, gradient_of(v, step, tensor, i));
    }
}

/* The sum of `width` virtual ranks from `begin` on, in `out`, from the root down. */
static void tree(size_t tensor, uint32_t step, uint32_t begin, uint32_t width, uint32_t virtual_ranks, void *out) {
    if (width == 1) {
        write_gradient(out, tensor, begin, step);
        return;
    }
    tree(tensor, step, begin, width / 2, virtual_ranks, out);
    if (begin + width / 2 < virtual_ranks) {
        double *right = malloc(ELEMENTS_MAX * sizeof *right);
        tree(tensor, step, begin + width / 2, width / 2, virtual_ranks, right);
        reduce_pair(tensors[tensor].type, MUSTER_OP_SUM, out, out, right, tensors[tensor].count);
        free(right);
    }
}

static bool is_average(const void *gradient, size_t tensor, uint32_t step, uint32_t virtual_ranks) {
    tree(tensor, step, 0, VIRTUAL_MOST, virtual_ranks, expected[tensor]);
    reduce_finish(tensors[tensor].type, MUSTER_OP_AVERAGE, expected[tensor], tensors[tensor].count, virtual_ranks);
    return same_bits(gradient, expected[tensor], tensors[tensor].count * muster_type_bytes(tensors[tensor].type));
}

static struct muster_ddp *make(struct rank *rank, struct muster_group *group, struct muster_ddp_options *options) {
    struct muster_ddp_parameter parameters[TENSORS];
    struct muster_ddp *ddp = NULL;
    for (size_t i = 0; i < TENSORS; i++) {
        parameters[i] = (struct muster_ddp_parameter){tensors[i].name, tensors[i].type, tensors[i].count, data[i],
                                                      i % 3 == 1 ? own[i] : NULL};
    }
    rank_check_code(rank, muster_ddp_create(group, parameters, TENSORS, NULL, 0, options, &ddp), MUSTER_OK);
    return ddp;
}

/* Passes of a step; readiness in an order that differs from the first layout's, so that buckets are rebuilt. */
static int step(struct muster_ddp *ddp, struct muster_group *group, size_t virtual_ranks, uint32_t number) {
    uint32_t first = 0, count = 0;
    int status = muster_virtual_ranks(group, virtual_ranks, &first, &count);
    for (uint32_t v = first; status == MUSTER_OK && v < first + count; v++) {
        status = muster_ddp_begin(ddp);
        for (size_t n = 0; status == MUSTER_OK && n < TENSORS; n++) {
            size_t i = (n * 3 + 2) % TENSORS;
            write_gradient(muster_ddp_gradient(ddp, i), i, v, number);
            status = muster_ddp_ready(ddp, i);
        }
        int finished = muster_ddp_finish(ddp);
        status = status == MUSTER_OK ? finished : status;
    }
    return status;
}

static const uint32_t numbers_of_virtual_ranks[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 64};
enum { NUMBERS = sizeof numbers_of_virtual_ranks / sizeof numbers_of_virtual_ranks[0] };

static int average(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (size_t n = 0; n < NUMBERS; n++) {
        struct muster_ddp_options options = several_buckets();
        options.virtual_ranks = numbers_of_virtual_ranks[n];
        if (options.virtual_ranks < rank->size) {
            continue;
        }
        struct muster_ddp *ddp = make(rank, group, &options);
        for (uint32_t number = 0; number < 3; number++) {
            rank_check_code(rank, step(ddp, group, options.virtual_ranks, number), MUSTER_OK);
            for (size_t i = 0; i < TENSORS; i++) {
                rank_check(rank, is_average(muster_ddp_gradient(ddp, i), i, number, numbers_of_virtual_ranks[n]));
            }
        }
        struct muster_ddp_statistics numbers;
        rank_check_code(rank, muster_ddp_statistics(ddp, &numbers), MUSTER_OK);
        rank_check(rank, numbers.step_count == 3 && numbers.no_sync_count == 0 && numbers.bucket_count > 3);
        muster_ddp_free(ddp);
    }
    muster_group_free(group);
    return 0;
}

static void averages_have_the_same_bits_in_every_world(void **state) {
    (void)state;
    unsigned stride = part_stride("whole_matrix", 3);
    for (uint32_t ranks = 1; ranks <= 8; ranks += stride) {
        ranks_run(ranks, average, NULL);
    }
}

static void and_on_several_hosts(void **state) {
    (void)state;
    struct ranks_options one_each = {.ranks_per_host = 1}, two_each = {.ranks_per_host = 2};
    ranks_run_with(2, average, NULL, &one_each);
    ranks_run_with(3, average, NULL, &two_each);
    ranks_run_with(4, average, NULL, &two_each);
}

/* ---- buffers ---- */

/* Each pass sees what the step began with, and all ranks get what virtual rank 0 leaves. */
static int share_buffers(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    options.virtual_ranks = 5;
    uint32_t first = 0, count = 0;
    static struct model model;
    model_make(rank, group, &options, false, &model);
    rank_check_code(rank, muster_virtual_ranks(group, 5, &first, &count), MUSTER_OK);
    for (uint32_t number = 0; number < 4; number++) {
        for (uint32_t v = first; v < first + count; v++) {
            rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
            rank_check(rank, model.tracked == number && model.running[2] == 2 + 10 * (float)number);
            model.tracked += 1 + v;
            model.running[2] += 10 + (float)v;
            rank_check_code(rank, backward(&model, v, number, 0), MUSTER_OK);
            rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
        }
        rank_check(rank, model.tracked == number + 1 && model.running[2] == 2 + 10 * (float)(number + 1));
    }
    model_free(&model, group);
    return 0;
}

static void buffers_are_those_of_virtual_rank_0(void **state) {
    (void)state;
    for (uint32_t ranks = 1; ranks <= 5; ranks++) {
        ranks_run(ranks, share_buffers, NULL);
    }
}

/* ---- worlds that change ---- */

/* The highest rank leaves after step 1, in the middle of its passes of step 2: the others do that step again. */
static int shrink(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL), *smaller = NULL;
    struct muster_ddp_options options = several_buckets();
    options.virtual_ranks = 7;
    struct muster_ddp *ddp = make(rank, group, &options);
    rank_check_code(rank, step(ddp, group, 7, 0), MUSTER_OK);
    if (rank->rank == 2) {
        rank_check_code(rank, muster_ddp_begin(ddp), MUSTER_OK);
        _exit(0); /* without a word */
    }
    rank_check(rank, step(ddp, group, 7, 1) != MUSTER_OK);
    rank_check_code(rank, muster_group_shrink(group, 30000, &smaller), MUSTER_OK);
    rank_check_code(rank, muster_ddp_rebind(ddp, smaller), MUSTER_OK);
    muster_group_free(group);
    for (uint32_t number = 1; number < 3; number++) {
        rank_check_code(rank, step(ddp, smaller, 7, number), MUSTER_OK);
        for (size_t i = 0; i < TENSORS; i++) {
            rank_check(rank, is_average(muster_ddp_gradient(ddp, i), i, number, 7));
        }
    }
    muster_ddp_free(ddp);
    muster_group_free(smaller);
    return 0;
}

static void survivors_take_over_virtual_ranks(void **state) {
    (void)state;
    struct ranks_options served = {.use_tcp = true};
    ranks_run_with(3, shrink, NULL, &served);
}

/* ---- wrong use ---- */

static int try_options(struct muster_group *group, const struct muster_ddp_options *options) {
    static float parameter[4];
    const struct muster_ddp_parameter one = {"p", MUSTER_FLOAT32, 4, parameter, NULL};
    struct muster_ddp *ddp = NULL;
    int status = muster_ddp_create(group, &one, 1, NULL, 0, options, &ddp);
    muster_ddp_free(ddp);
    return status;
}

static int misuse(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    options.virtual_ranks = 1;
    rank_check_code(rank, try_options(group, &options), MUSTER_EINVAL); /* fewer than ranks */
    options.virtual_ranks = MUSTER_VIRTUAL_RANKS_MAX + 1;
    rank_check_code(rank, try_options(group, &options), MUSTER_EINVAL);
    options.virtual_ranks = 4;
    options.uneven_inputs = true;
    rank_check_code(rank, try_options(group, &options), MUSTER_EINVAL);
    options.uneven_inputs = false;
    options.find_unused = true;
    rank_check_code(rank, try_options(group, &options), MUSTER_EINVAL);
    options.find_unused = false;
    options.hook = muster_ddp_hook_bfloat16();
    rank_check_code(rank, try_options(group, &options), MUSTER_EINVAL);
    options.hook = NULL;
    options.virtual_ranks = 4 + rank->rank;
    rank_check_code(rank, try_options(group, &options), MUSTER_EMISMATCH);
    rank_check(rank, strstr(muster_detail(), "virtual_ranks") != NULL);
    options.virtual_ranks = 4;
    struct muster_ddp *ddp = make(rank, group, &options);
    rank_check_code(rank, muster_barrier(group, NULL), MUSTER_OK); /* both have it before one aborts the group */
    rank_check_code(rank, muster_ddp_begin_no_sync(ddp), MUSTER_EINVAL);
    rank_check_code(rank, muster_ddp_begin(ddp), MUSTER_OK);
    rank_check_code(rank, muster_ddp_ready(ddp, 1), MUSTER_OK);
    rank_check_code(rank, muster_ddp_finish(ddp), MUSTER_EINVAL); /* also in a pass that is not the last */
    rank_check(rank, strstr(muster_detail(), "has no gradient in this step for a, c, d") != NULL);
    muster_ddp_free(ddp);
    muster_group_free(group);
    return 0;
}

static void wrong_use(void **state) {
    (void)state;
    ranks_run(2, misuse, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_have_the_same_bits_in_every_world),
        cmocka_unit_test(and_on_several_hosts),
        cmocka_unit_test(buffers_are_those_of_virtual_rank_0),
        cmocka_unit_test(survivors_take_over_virtual_ranks),
        cmocka_unit_test(wrong_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
