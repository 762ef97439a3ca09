/* Data parallel training by real ranks: the bits of the averages, whatever the order of readiness; accumulation,
 * buffers, unused parameters, uneven inputs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <muster/ddp.h>

#include "comm/group/ranks_test_support.h"
#include "train/reduction/ddp_test_support.h"

/* ---- averages ---- */

struct plan {
    bool with_own_gradients, each_its_order, one_bucket;
};

static int train(struct rank *rank, void *argument) {
    const struct plan *plan = argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    options.bucket_bytes = plan->one_bucket ? (size_t)1 << 20 : options.bucket_bytes;
    options.first_bucket_bytes = plan->one_bucket ? (size_t)1 << 20 : options.first_bucket_bytes;
    static struct model model;
    model_make(rank, group, &options, plan->with_own_gradients, &model);
    rank_check(rank, model.tracked == 0 && model.running[3] == 3);
    float expected[PARAMETERS][COUNT_MAX]; /* rank 0's first parameters, and then the same training in one process */
    for (size_t i = 0; i < PARAMETERS; i++) {
        for (size_t at = 0; at < model_counts[i]; at++) {
            expected[i][at] = gradient_of(50, 0, i, at);
        }
    }
    uint32_t all = (1U << rank->size) - 1;
    for (uint32_t step = 0; step < 20; step++) {
        uint32_t turn = plan->each_its_order ? rank->rank + step % 3 : step % 3;
        rank_check_code(rank, step_run(&model, rank->rank, step, turn), MUSTER_OK);
        check_averages(rank, &model, all, rank->size, step);
        model_descend(&model);
        for (size_t i = 0; i < PARAMETERS; i++) {
            for (size_t at = 0; at < model_counts[i]; at++) {
                expected[i][at] -= 0.125F * average_of(rank->size, all, rank->size, step, i, at);
            }
            rank_check(rank, same_sums(expected[i], model.data[i], model_counts[i]));
        }
    }
    struct muster_ddp_statistics numbers;
    muster_ddp_statistics(model.ddp, &numbers);
    rank_check(rank, numbers.step_count == 20 && (numbers.bucket_count == 1) == plan->one_bucket);
    rank_check(rank, numbers.reduced_bytes == 20 * sizeof(float) * (7 + 300 + 1 + 64 + 1000 + 33));
    rank_check(rank, numbers.communication_ns > 0 && numbers.communication_ns <= numbers.elapsed_ns);
    model_free(&model, group);
    return 0;
}

static void equals_one_process_bit_for_bit(void **state) {
    (void)state;
    struct plan plans[] = {{false, false, false}, {true, false, false}, {false, true, false}, {true, true, true}};
    for (uint32_t size = 1; size <= 4; size++) {
        for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
            ranks_run(size, train, &plans[i]);
        }
    }
    if (ranks_wished_size() > 4) {
        ranks_run(ranks_wished_size(), train, &plans[2]);
    }
}

/* With more than two ranks the order of additions between hosts is the schedule's: here only agreement is asked. */
static int train_across_hosts(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    static struct model model;
    model_make(rank, group, &options, true, &model);
    for (uint32_t step = 0; step < 5; step++) {
        rank_check_code(rank, step_run(&model, rank->rank, step, rank->rank), MUSTER_OK);
        if (rank->size == 2) {
            check_averages(rank, &model, 3, 2, step);
        }
        model_descend(&model);
        check_agreement(rank, &model, group);
    }
    model_free(&model, group);
    return 0;
}

static void hosts_apart(void **state) {
    (void)state;
    struct ranks_options one_each = {.ranks_per_host = 1}, two_each = {.ranks_per_host = 2};
    ranks_run_with(2, train_across_hosts, NULL, &one_each);
    ranks_run_with(4, train_across_hosts, NULL, &two_each);
}

/* ---- accumulation ---- */

static int accumulate(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    static struct model model;
    model_make(rank, group, &options, true, &model);
    for (uint32_t step = 0; step < 9; step++) {
        bool is_synchronised = step % 3 == 2;
        rank_check_code(rank, (is_synchronised ? muster_ddp_begin : muster_ddp_begin_no_sync)(model.ddp), MUSTER_OK);
        for (size_t i = 0; i < PARAMETERS; i++) {
            float *gradient = muster_ddp_gradient(model.ddp, i);
            for (size_t at = 0; at < model_counts[i]; at++) {
                gradient[at] += gradient_of(rank->rank, step, i, at);
            }
            rank_check_code(rank, muster_ddp_ready(model.ddp, i), MUSTER_OK);
        }
        rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
        for (size_t i = 0; is_synchronised && i < PARAMETERS; i++) {
            const float *gradient = muster_ddp_gradient(model.ddp, i);
            for (size_t at = 0; at < model_counts[i]; at++) {
                float sums[2];
                for (uint32_t other = 0; other < 2; other++) {
                    sums[other] = 0 + gradient_of(other, step - 2, i, at);
                    sums[other] += gradient_of(other, step - 1, i, at);
                    sums[other] += gradient_of(other, step, i, at);
                }
                float expected = (sums[0] + sums[1]) / 2;
                rank_check(rank, same_bits(&gradient[at], &expected, sizeof expected));
            }
        }
        if (is_synchronised) {
            muster_ddp_zero_gradients(model.ddp);
        }
    }
    model_free(&model, group);
    return 0;
}

static void no_sync_accumulates(void **state) {
    (void)state;
    ranks_run(2, accumulate, NULL);
}

/* ---- buffers ---- */

static int share_buffers(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (int broadcast = 0; broadcast < 2; broadcast++) {
        struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
        options.broadcast_buffers = broadcast;
        static struct model model;
        model_make(rank, group, &options, false, &model);
        for (uint32_t step = 0; step < 3; step++) {
            model.tracked = 100 * (int64_t)step + rank->rank;
            model.running[4] = (float)rank->rank;
            rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
            rank_check(rank, model.tracked == 100 * (int64_t)step + (broadcast ? 0 : rank->rank));
            rank_check(rank, model.running[4] == (broadcast ? 0 : (float)rank->rank));
            rank_check_code(rank, backward(&model, rank->rank, step, 0), MUSTER_OK);
            rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
        }
        muster_ddp_free(model.ddp);
    }
    muster_group_free(group);
    return 0;
}

static void buffers_are_those_of_rank_0(void **state) {
    (void)state;
    ranks_run(3, share_buffers, NULL);
}

/* ---- unused parameters ---- */

/* Rank 0 uses all but 1 and 3, rank 1 all but 0, 1 and 2. */
static bool uses(uint32_t rank, size_t parameter) {
    return parameter != 1 && (rank == 0 ? parameter != 3 : parameter != 0 && parameter != 2);
}

static int leave_unused(struct rank *rank, void *argument) {
    const bool *with_own_gradients = argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    options.find_unused = true;
    static struct model model;
    model_make(rank, group, &options, *with_own_gradients, &model);
    for (uint32_t step = 0; step < 3; step++) {
        ((float *)muster_ddp_gradient(model.ddp, 1))[7] = 3.25F + (float)rank->rank;
        rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
        for (size_t i = 0; i < PARAMETERS; i++) {
            float *gradient = muster_ddp_gradient(model.ddp, i);
            for (size_t at = 0; uses(rank->rank, i) && at < model_counts[i]; at++) {
                gradient[at] = gradient_of(rank->rank, step, i, at);
            }
            if (uses(rank->rank, i)) {
                rank_check_code(rank, muster_ddp_ready(model.ddp, i), MUSTER_OK);
            }
        }
        rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
        for (size_t i = 0; i < PARAMETERS; i++) {
            rank_check(rank, muster_ddp_was_used(model.ddp, i) == (i != 1));
            const float *gradient = muster_ddp_gradient(model.ddp, i);
            for (size_t at = 0; i != 1 && at < model_counts[i]; at++) {
                float expected = average_of(2, (uint32_t)(uses(0, i) | uses(1, i) << 1), 2, step, i, at);
                rank_check(rank, gradient[at] == expected);
            }
        }
        rank_check(rank, ((float *)muster_ddp_gradient(model.ddp, 1))[7] == 3.25F + (float)rank->rank);
    }
    model_free(&model, group);
    return 0;
}

static void unused_parameters_take_part_with_zeros(void **state) {
    (void)state;
    bool with_own_gradients = false;
    ranks_run(2, leave_unused, &with_own_gradients);
    with_own_gradients = true;
    ranks_run(2, leave_unused, &with_own_gradients);
}

/* ---- uneven inputs ---- */

struct uneven {
    uint32_t batches[3];
    bool divide_by_active, find_unused, with_own_gradients;
};

static int run_out_of_data(struct rank *rank, void *argument) {
    const struct uneven *uneven = argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    options.uneven_inputs = true;
    options.divide_by_active = uneven->divide_by_active;
    options.find_unused = uneven->find_unused;
    static struct model model;
    model_make(rank, group, &options, uneven->with_own_gradients, &model);
    uint32_t longest = 0, last = 0;
    for (uint32_t other = 0; other < 3; other++) {
        longest = uneven->batches[other] > longest ? uneven->batches[other] : longest;
    }
    while (uneven->batches[last] < longest) {
        last++;
    }
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        uint32_t steps = 0;
        for (bool stepped = true; stepped; steps += stepped) {
            uint32_t present = 0, active = 0;
            for (uint32_t other = 0; other < 3; other++) {
                present |= (uint32_t)(steps < uneven->batches[other]) << other;
                active += steps < uneven->batches[other];
            }
            if (steps < uneven->batches[rank->rank]) {
                rank_check_code(rank, step_run(&model, rank->rank, 100 * epoch + steps, rank->rank), MUSTER_OK);
                model.tracked = 10 * (int64_t)(100 * epoch + steps) + rank->rank; /* after the forward pass */
            } else {
                rank_check_code(rank, muster_ddp_shadow(model.ddp, &stepped), MUSTER_OK);
            }
            if (stepped) {
                check_averages(rank, &model, present, uneven->divide_by_active ? active : 3, 100 * epoch + steps);
                model_descend(&model);
            }
        }
        rank_check(rank, steps == longest);
        check_agreement(rank, &model, group);
        /* Everybody has the buffers of the lowest rank that was in the last step. */
        rank_check(rank, model.tracked == (longest > 0 ? 10 * (int64_t)(100 * epoch + longest - 1) + last : 0));
    }
    model_free(&model, group);
    return 0;
}

static void uneven_inputs_end_together(void **state) {
    (void)state;
    struct uneven cases[] = {
        {{3, 5, 4}, false, false, false}, {{3, 5, 4}, true, false, true}, {{0, 2, 6}, false, true, true},
        {{4, 4, 4}, true, false, false},  {{1, 0, 0}, true, true, false}, {{0, 0, 0}, false, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ranks_run(3, run_out_of_data, &cases[i]);
    }
}

/* Rank 0 has no batch in the first epoch, so it only shadows the step that gives the order of buckets; in the second it
 * is the lowest rank that has data. */
static int miss_the_first_step(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    options.uneven_inputs = true;
    static struct model model;
    model_make(rank, group, &options, false, &model);
    for (uint32_t bind = 0; bind < 2; bind++) {
        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            bool stepped = true;
            if (epoch > 0 || rank->rank > 0) {
                rank_check_code(rank, step_run(&model, rank->rank, epoch, 1), MUSTER_OK);
            } else {
                rank_check_code(rank, muster_ddp_shadow(model.ddp, &stepped), MUSTER_OK);
                rank_check(rank, stepped);
            }
            check_averages(rank, &model, epoch > 0 ? 7 : 6, 3, epoch);
            rank_check_code(rank, muster_ddp_shadow(model.ddp, &stepped), MUSTER_OK);
            rank_check(rank, !stepped);
        }
        rank_check_code(rank, muster_ddp_rebind(model.ddp, group), MUSTER_OK);
    }
    model_free(&model, group);
    return 0;
}

static void buckets_get_the_order_of_a_rank_that_had_data(void **state) {
    (void)state;
    ranks_run(3, miss_the_first_step, NULL);
}

static int mix_kinds_of_step(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    options.uneven_inputs = true;
    static struct model model;
    model_make(rank, group, &options, false, &model);
    /* Rank 1 is out; the others accumulate once and then synchronise: one step for it. */
    bool stepped = true;
    if (rank->rank == 1) {
        rank_check_code(rank, muster_ddp_shadow(model.ddp, &stepped), MUSTER_OK);
        rank_check(rank, stepped);
    } else {
        rank_check_code(rank, muster_ddp_begin_no_sync(model.ddp), MUSTER_OK);
        rank_check_code(rank, backward(&model, rank->rank, 0, 0), MUSTER_OK);
        rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
        rank_check_code(rank, step_run(&model, rank->rank, 1, 0), MUSTER_OK);
    }
    check_averages(rank, &model, 5, 3, 1);
    /* One that accumulates while another synchronises is told. */
    int status = rank->rank == 0 ? muster_ddp_begin(model.ddp) : muster_ddp_begin_no_sync(model.ddp);
    rank_check_code(rank, status, MUSTER_EMISMATCH);
    rank_check(rank, strstr(muster_detail(), "rank 0 begins a step with synchronisation, rank 1 one without") != NULL);
    model_free(&model, group);
    return 0;
}

static void shadows_follow_accumulation(void **state) {
    (void)state;
    ranks_run(3, mix_kinds_of_step, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_one_process_bit_for_bit),
        cmocka_unit_test(hosts_apart),
        cmocka_unit_test(no_sync_accumulates),
        cmocka_unit_test(buffers_are_those_of_rank_0),
        cmocka_unit_test(unused_parameters_take_part_with_zeros),
        cmocka_unit_test(uneven_inputs_end_together),
        cmocka_unit_test(buckets_get_the_order_of_a_rank_that_had_data),
        cmocka_unit_test(shadows_follow_accumulation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
