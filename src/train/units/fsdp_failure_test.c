/* Steps of real ranks in which one does something else than the others: every rank hears of it, with a sentence that
 * names the unit, and none waits in vain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include <muster/collective.h>

#include "train/units/fsdp_impl.h"
#include "train/units/fsdp_mischief_test_support.h"

static bool is_culprit(const struct player *player) {
    return player->rank->rank == CULPRIT;
}

/* Who did it has the one code, and the others another. */
static void expect(struct player *player, int status, int culprits, const char *needle) {
    expect_failure(player, status, is_culprit(player) ? culprits : MUSTER_EABORTED, MUSTER_OK, needle);
}

/* ---- what is refused, and harms nobody ---- */

static void refused(struct player *player, int status, const char *needle) {
    rank_check_code(player->rank, status, MUSTER_EINVAL);
    rank_check(player->rank, strstr(muster_detail(), needle) != NULL);
}

static void misuse_before(struct player *player) {
    struct muster_fsdp *fsdp = player->fsdp;
    struct muster_fsdp_view view;
    double sum;
    refused(player, muster_fsdp_acquire(fsdp, 1, MUSTER_FSDP_FORWARD, &view),
            "no step has been begun (unit 1, unit b)");
    refused(player, muster_fsdp_release(fsdp, 2, MUSTER_FSDP_FORWARD), "no step has been begun (unit 2, unit c)");
    refused(player, muster_fsdp_finish(fsdp), "no step has been begun");
    refused(player, muster_fsdp_begin(fsdp, (enum muster_fsdp_step_kind)9), "no kind of step 9");
    refused(player, muster_fsdp_squared_norm(fsdp, &sum), "no averages");
}

static void misuse_forward(struct player *player) {
    struct muster_fsdp *fsdp = player->fsdp;
    struct muster_fsdp_view view;
    const enum muster_fsdp_pass none = (enum muster_fsdp_pass)7;
    bool stepped;
    refused(player, muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP), "the step before has not been finished");
    refused(player, muster_fsdp_shadow(fsdp, &stepped), "the step before has not been finished");
    refused(player, muster_fsdp_acquire(fsdp, ALIKE, MUSTER_FSDP_FORWARD, &view), "unit 4 of 4");
    refused(player, muster_fsdp_acquire(fsdp, SIZE_MAX, MUSTER_FSDP_BACKWARD, &view), "it has not been registered");
    refused(player, muster_fsdp_release(fsdp, ALIKE, MUSTER_FSDP_FORWARD), "unit 4 of 4");
    refused(player, muster_fsdp_release(fsdp, 1, MUSTER_FSDP_FORWARD),
            "unit 1 (unit b) is released, but has not been acquired in the forward pass");
    refused(player, muster_fsdp_acquire(fsdp, 3, MUSTER_FSDP_BACKWARD, &view),
            "unit 3 (unit d) is acquired in the backward pass more often than in the forward pass (0)");
    refused(player, muster_fsdp_acquire(fsdp, 3, none, &view), "unit 3 (unit d): there is no pass 7");
    refused(player, muster_fsdp_release(fsdp, 3, none), "unit 3 (unit d): there is no pass 7");
}

static void misuse_between(struct player *player) {
    struct muster_fsdp *fsdp = player->fsdp;
    refused(player, muster_fsdp_release(fsdp, 0, MUSTER_FSDP_FORWARD), "unit 0 (unit a) is released, but has not");
    refused(player, muster_fsdp_release(fsdp, 2, MUSTER_FSDP_BACKWARD), "not been acquired in the backward pass");
}

static void misuse_backward(struct player *player, const struct muster_fsdp_view *expected) {
    struct muster_fsdp_view view = *expected;
    refused(player, muster_fsdp_acquire(player->fsdp, 3, MUSTER_FSDP_BACKWARD, &view), "unit 3 (unit d)");
    refused(player, muster_fsdp_release(player->fsdp, 3, MUSTER_FSDP_FORWARD), "unit 3 (unit d) is released, but");
    rank_check(player->rank, view.parameters == expected->parameters); /* written on success alone */
}

static void misuse_afterwards(struct player *player) {
    struct muster_fsdp_view view;
    refused(player, muster_fsdp_acquire(player->fsdp, 3, MUSTER_FSDP_BACKWARD, &view), "its gradients are complete");
    refused(player, muster_fsdp_acquire(player->fsdp, 3, MUSTER_FSDP_FORWARD, &view), "its gradients are complete");
    refused(player, muster_fsdp_release(player->fsdp, 3, MUSTER_FSDP_BACKWARD), "unit 3 (unit d) is released, but");
}

/* One rank does all that; the step goes on as if it had not. */
static void misuse(struct player *player) {
    struct muster_fsdp *fsdp = player->fsdp;
    struct rank *rank = player->rank;
    struct muster_fsdp_view view;
    for (int step = 0; step < 2; step++) {
        if (is_culprit(player) && step == 0) {
            misuse_before(player);
        }
        rank_check_code(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP), 0);
        if (is_culprit(player)) {
            misuse_forward(player);
        }
        rank_check_code(rank, pass_alike(fsdp, forwards, MUSTER_FSDP_FORWARD), 0);
        if (is_culprit(player)) {
            misuse_between(player);
        }
        rank_check_code(rank, muster_fsdp_acquire(fsdp, 3, MUSTER_FSDP_BACKWARD, &view), 0);
        if (is_culprit(player)) {
            misuse_backward(player, &view);
        }
        memset(view.gradients, 0, ALIKE_COUNT * sizeof(float));
        rank_check_code(rank, muster_fsdp_release(fsdp, 3, MUSTER_FSDP_BACKWARD), 0);
        if (is_culprit(player)) {
            misuse_afterwards(player);
        }
        for (size_t unit = 3; unit-- > 0;) {
            rank_check_code(rank, use_unit_alike(fsdp, unit, MUSTER_FSDP_BACKWARD, 1), 0);
        }
        rank_check_code(rank, muster_fsdp_finish(fsdp), 0);
    }
    rank_check_code(rank, muster_barrier(player->group, NULL), 0);
}

static void misuse_is_refused_and_harms_nobody(void **state) {
    (void)state;
    play_everywhere(misuse, NULL);
}

static void evaluate_backwards(struct player *player) {
    struct muster_fsdp_view view;
    rank_check_code(player->rank, muster_fsdp_begin(player->fsdp, MUSTER_FSDP_EVALUATE), 0);
    rank_check_code(player->rank, pass_alike(player->fsdp, forwards, MUSTER_FSDP_FORWARD), 0);
    refused(player, muster_fsdp_acquire(player->fsdp, 2, MUSTER_FSDP_BACKWARD, &view), "EVALUATE (unit 2, unit c)");
    rank_check_code(player->rank, muster_fsdp_finish(player->fsdp), 0);
}

static void an_evaluation_has_no_backward_pass(void **state) {
    (void)state;
    play_everywhere(evaluate_backwards, NULL);
}

/* ---- what ends the step for all ---- */

static void keep_a_unit(struct player *player) {
    struct muster_fsdp *fsdp = player->fsdp;
    struct muster_fsdp_view view;
    int status = muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP);
    status = status ? status : pass_alike(fsdp, forwards, MUSTER_FSDP_FORWARD);
    for (size_t unit = ALIKE; status == 0 && unit-- > 1;) {
        status = use_unit_alike(fsdp, unit, MUSTER_FSDP_BACKWARD, 1);
    }
    status = status ? status : muster_fsdp_acquire(fsdp, 0, MUSTER_FSDP_BACKWARD, &view);
    if (status == 0 && !is_culprit(player)) {
        memset(view.gradients, 0, ALIKE_COUNT * sizeof(float));
        status = muster_fsdp_release(fsdp, 0, MUSTER_FSDP_BACKWARD);
    }
    status = status ? status : muster_fsdp_finish(fsdp);
    expect(player, status, MUSTER_EINVAL, "unit 0 (unit a) has not been released");
    rank_check(player->rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP) == status); /* it says so again */
    rank_check(player->rank, strstr(muster_detail(), "unit 0 (unit a) has not been released") != NULL);
}

static void a_unit_that_is_held_ends_the_step_for_all(void **state) {
    (void)state;
    play_everywhere(keep_a_unit, NULL);
}

static void forget_a_unit(struct player *player) {
    int status = muster_fsdp_begin(player->fsdp, MUSTER_FSDP_STEP);
    status = status ? status : pass_alike(player->fsdp, forwards, MUSTER_FSDP_FORWARD);
    for (size_t unit = ALIKE; status == 0 && unit-- > 0;) {
        if (!(is_culprit(player) && unit == 0)) {
            status = use_unit_alike(player->fsdp, unit, MUSTER_FSDP_BACKWARD, 1);
        }
    }
    status = status ? status : muster_fsdp_finish(player->fsdp);
    expect(player, status, MUSTER_EINVAL, "rank 1 has not the gradients of unit 0 (unit a)");
}

static void missing_gradients_end_the_step_for_all(void **state) {
    (void)state;
    play_everywhere(forget_a_unit, NULL);
}

static void give_a_nan(struct player *player) {
    int status = muster_fsdp_begin(player->fsdp, MUSTER_FSDP_STEP);
    status = status ? status : pass_alike(player->fsdp, forwards, MUSTER_FSDP_FORWARD);
    for (size_t unit = ALIKE; status == 0 && unit-- > 0;) {
        float value = is_culprit(player) && unit == 2 ? NAN : 1;
        status = use_unit_alike(player->fsdp, unit, MUSTER_FSDP_BACKWARD, value);
    }
    status = status ? status : muster_fsdp_finish(player->fsdp);
    expect(player, status, MUSTER_EINVAL,
           "gradients of unit 2 (unit c): rank 1: element 0 of the gradient of c.w is infinite or no number");
}

static void check_finite(struct muster_fsdp_options *options) {
    options->check_finite = true;
}

static void a_nan_ends_the_step_for_all(void **state) {
    (void)state;
    play_everywhere(give_a_nan, check_finite);
}

/* ---- other orders ---- */

static void go_back_in_another_order(struct player *player) {
    static const size_t swapped[ALIKE] = {3, 1, 2, 0};
    int status = step_alike(player->fsdp, MUSTER_FSDP_STEP, forwards, is_culprit(player) ? swapped : backwards);
    expect_failure(player, status, MUSTER_EMISMATCH, MUSTER_EABORTED, "unit ");
}

static void another_order_backwards_is_told(void **state) {
    (void)state;
    play_everywhere(go_back_in_another_order, NULL);
}

/* The last two: one is left to finish(). */
static void end_in_another_order(struct player *player) {
    static const size_t swapped[ALIKE] = {3, 2, 0, 1};
    int status = step_alike(player->fsdp, MUSTER_FSDP_STEP, forwards, is_culprit(player) ? swapped : backwards);
    expect_failure(player, status, MUSTER_EMISMATCH, MUSTER_EABORTED, "unit ");
}

static void another_order_at_the_end_is_told(void **state) {
    (void)state;
    play_everywhere(end_in_another_order, NULL);
}

/* Where units are gathered, ranks must gather the same at the same time. Elsewhere nothing is exchanged. */
static void go_in_another_order(struct player *player) {
    static const size_t swapped[ALIKE] = {1, 0, 2, 3};
    int status = step_alike(player->fsdp, MUSTER_FSDP_STEP, is_culprit(player) ? swapped : forwards, backwards);
    if (player->scene->gathers) {
        expect_failure(player, status, MUSTER_EMISMATCH, MUSTER_EABORTED, "unit ");
    } else {
        rank_check_code(player->rank, status, 0);
    }
}

static void another_order_forwards_is_told_where_units_are_gathered(void **state) {
    (void)state;
    play_everywhere(go_in_another_order, NULL);
}

/* The second rank of each host: those who gather together agree, those who share the memory do not. */
static void go_in_another_order_by_columns(struct player *player) {
    static const size_t swapped[ALIKE] = {1, 0, 2, 3};
    bool is_other = muster_group_local_rank(player->group) == 1;
    rank_check_code(player->rank, step_alike(player->fsdp, MUSTER_FSDP_STEP, forwards, backwards), 0);
    int status = step_alike(player->fsdp, MUSTER_FSDP_STEP, is_other ? swapped : forwards, backwards);
    expect_failure(player, status, MUSTER_EMISMATCH, MUSTER_EABORTED, "unit ");
}

static void another_order_of_a_column_is_told(void **state) {
    (void)state;
    play(&scenes[1], go_in_another_order_by_columns, NULL);
    play(&scenes[2], go_in_another_order_by_columns, NULL);
}

/* ---- units that one rank does not use ---- */

static void check_average(struct player *player, const struct muster_fsdp_range *range) {
    float size = (float)player->rank->size, value = (float)(range->unit + 1);
    float expected = range->unit < player->rank->size ? value * (size - 1) / size : value;
    for (size_t i = 0; i < range->count; i++) {
        rank_check(player->rank, fabsf(range->gradient[i] - expected) < 1e-5F);
    }
}

/* Rank r does without unit r. The others' gradients are averaged with zeros. */
static void skip_one(struct player *player) {
    struct muster_fsdp *fsdp = player->fsdp;
    for (int step = 0; step < 2; step++) {
        int status = muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP);
        for (size_t i = 0; status == 0 && i < (size_t)2 * ALIKE; i++) {
            size_t unit = i < ALIKE ? i : (size_t)2 * ALIKE - 1 - i;
            enum muster_fsdp_pass pass = i < ALIKE ? MUSTER_FSDP_FORWARD : MUSTER_FSDP_BACKWARD;
            status = unit == player->rank->rank ? 0 : use_unit_alike(fsdp, unit, pass, (float)(unit + 1));
        }
        status = status ? status : muster_fsdp_finish(fsdp);
        rank_check_code(player->rank, status, 0);
        for (size_t i = 0; i < muster_fsdp_range_count(fsdp); i++) {
            struct muster_fsdp_range range;
            rank_check_code(player->rank, muster_fsdp_range(fsdp, i, &range), 0);
            check_average(player, &range);
        }
    }
}

static void find_unused(struct muster_fsdp_options *options) {
    options->find_unused = true;
}

static void every_rank_may_skip_another_unit_where_none_is_gathered(void **state) {
    (void)state;
    for (size_t i = 0; i < SCENES; i++) {
        if (!scenes[i].gathers) {
            play(&scenes[i], skip_one, find_unused);
        }
    }
}

/* ---- other steps ---- */

static void begin_another_kind(struct player *player) {
    enum muster_fsdp_step_kind kind = is_culprit(player) ? MUSTER_FSDP_ACCUMULATE : MUSTER_FSDP_STEP;
    int status = step_alike(player->fsdp, kind, forwards, backwards);
    expect_failure(player, status, MUSTER_EMISMATCH, MUSTER_EMISMATCH,
                   "rank 1 begins a step ACCUMULATE, rank 0 a step STEP");
    /* All know of it, so the group is as good as before. */
    muster_fsdp_free(player->fsdp);
    rank_check_code(player->rank,
                    muster_fsdp_create(player->group, alike_units, ALIKE, &player->options, &player->fsdp), 0);
    rank_check_code(player->rank, step_alike(player->fsdp, MUSTER_FSDP_STEP, forwards, backwards), 0);
}

/* The second time one has gone on without a reduction, and the others have not. */
static void accumulate_more(struct player *player) {
    static const enum muster_fsdp_step_kind others[] = {MUSTER_FSDP_NO_SYNC, MUSTER_FSDP_EVALUATE};
    enum muster_fsdp_step_kind kind = others[is_culprit(player) ? 0 : 1];
    int status = step_alike(player->fsdp, kind, forwards, backwards);
    expect_failure(player, status, MUSTER_EMISMATCH, MUSTER_EMISMATCH,
                   "rank 1 begins a step NO_SYNC, rank 0 a step EVALUATE");
    rank_check(player->rank, step_alike(player->fsdp, kind, forwards, backwards) == MUSTER_EMISMATCH);
}

/* A rank whose own count differs: as if it had made another step. */
static void count_otherwise(struct player *player) {
    rank_check_code(player->rank, step_alike(player->fsdp, MUSTER_FSDP_NO_SYNC, forwards, backwards), 0);
    player->fsdp->accumulated += is_culprit(player) ? 2 : 0;
    int status = step_alike(player->fsdp, MUSTER_FSDP_STEP, forwards, backwards);
    expect_failure(player, status, MUSTER_EMISMATCH, MUSTER_EMISMATCH,
                   "rank 1 has made 3 steps NO_SYNC since the last that sent, rank 0 1");
}

static void add_otherwise(struct player *player) {
    rank_check_code(player->rank, step_alike(player->fsdp, MUSTER_FSDP_STEP, forwards, backwards), 0);
    player->fsdp->adds_to_shard = is_culprit(player);
    int status = step_alike(player->fsdp, MUSTER_FSDP_STEP, forwards, backwards);
    expect_failure(player, status, MUSTER_EMISMATCH, MUSTER_EMISMATCH,
                   "rank 1 and rank 0: one has made steps ACCUMULATE, the other none");
}

static void other_steps_are_told(void **state) {
    (void)state;
    play_everywhere(begin_another_kind, NULL);
    play_everywhere(accumulate_more, NULL);
    play_everywhere(count_otherwise, NULL);
    play_everywhere(add_otherwise, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misuse_is_refused_and_harms_nobody),
        cmocka_unit_test(an_evaluation_has_no_backward_pass),
        cmocka_unit_test(a_unit_that_is_held_ends_the_step_for_all),
        cmocka_unit_test(missing_gradients_end_the_step_for_all),
        cmocka_unit_test(a_nan_ends_the_step_for_all),
        cmocka_unit_test(another_order_backwards_is_told),
        cmocka_unit_test(another_order_at_the_end_is_told),
        cmocka_unit_test(another_order_forwards_is_told_where_units_are_gathered),
        cmocka_unit_test(another_order_of_a_column_is_told),
        cmocka_unit_test(every_rank_may_skip_another_unit_where_none_is_gathered),
        cmocka_unit_test(other_steps_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
