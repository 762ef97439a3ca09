/* Programs that use units in any order, again and again, and hold several at a time: every rank must read what their
 * owners wrote last, and every owner must get the average of what all uses gave. All ranks draw the same programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "train/units/fsdp_mischief_test_support.h"

enum { USES_MAX = 12, HELD_MAX = 3, STEPS = 4, PROGRAMS = 3 };

struct program {
    struct player *player;
    uint64_t chance_state;
    uint32_t version;      /* what owners have written */
    uint32_t uses[ALIKE];  /* since the last STEP */
    size_t held[HELD_MAX]; /* in the order in which they were acquired */
    uint32_t held_count;
};

static uint32_t chance(struct program *program, uint32_t below) {
    program->chance_state ^= program->chance_state << 13;
    program->chance_state ^= program->chance_state >> 7;
    program->chance_state ^= program->chance_state << 17;
    return (uint32_t)((program->chance_state >> 16) % below);
}

/* Exact in bfloat16, too. */
static float value_of(const struct program *program, size_t unit, size_t at) {
    return (float)((program->version * 37 + unit * 11 + at) % 128);
}

/* Where an element of a range is in its unit. */
static size_t place_of(const struct program *program, const struct muster_fsdp_range *range, size_t at) {
    return muster_fsdp_offset(program->player->fsdp, range->parameter) + range->offset + at;
}

/* ---- a use ---- */

static void read_unit(const struct program *program, const void *parameters, size_t unit) {
    for (size_t at = 0; at < ALIKE_COUNT; at++) {
        float expected = value_of(program, unit, at), found = ((const float *)parameters)[at];
        if (found != expected) {
            char said[128];
            (void)snprintf(said, sizeof said, "unit %zu, element %zu: %g, not %g", unit, at, (double)found,
                           (double)expected);
            rank_report(program->player->rank, said);
            rank_check(program->player->rank, found == expected);
        }
    }
}

static void let_go(struct program *program, enum muster_fsdp_pass pass) {
    size_t unit = program->held[0];
    rank_check_code(program->player->rank, muster_fsdp_release(program->player->fsdp, unit, pass), 0);
    program->held_count--;
    for (uint32_t i = 0; i < program->held_count; i++) {
        program->held[i] = program->held[i + 1];
    }
}

static bool holds(const struct program *program, size_t unit) {
    bool found = false;
    for (uint32_t i = 0; i < program->held_count; i++) {
        found = found || program->held[i] == unit;
    }
    return found;
}

static void use(struct program *program, size_t unit, enum muster_fsdp_pass pass) {
    struct rank *rank = program->player->rank;
    struct muster_fsdp_view view;
    uint32_t most = chance(program, HELD_MAX);
    while (program->held_count > most || (pass == MUSTER_FSDP_BACKWARD && holds(program, unit))) {
        let_go(program, pass);
    }
    rank_check_code(rank, muster_fsdp_acquire(program->player->fsdp, unit, pass, &view), 0);
    program->held[program->held_count++] = unit;
    read_unit(program, view.parameters, unit);
    float *gradients = view.gradients;
    for (size_t at = 0; gradients && at < ALIKE_COUNT; at++) {
        gradients[at] = (view.add ? gradients[at] : 0) + (float)((unit + 1) * (rank->rank + 1));
    }
    program->uses[unit] += pass == MUSTER_FSDP_BACKWARD;
}

/* ---- a step ---- */

/* In any order, and backwards. Some units are not used at all, others again and again. */
static void run_part(struct program *program, enum muster_fsdp_step_kind kind) {
    struct rank *rank = program->player->rank;
    struct muster_fsdp *fsdp = program->player->fsdp;
    size_t order[USES_MAX];
    uint32_t count = 1 + chance(program, USES_MAX);
    rank_check_code(rank, muster_fsdp_begin(fsdp, kind), 0);
    for (uint32_t i = 0; i < count; i++) {
        order[i] = chance(program, ALIKE);
        use(program, order[i], MUSTER_FSDP_FORWARD);
    }
    while (program->held_count > 0) {
        let_go(program, MUSTER_FSDP_FORWARD);
    }
    for (uint32_t i = count; kind != MUSTER_FSDP_EVALUATE && i-- > 0;) {
        use(program, order[i], MUSTER_FSDP_BACKWARD);
    }
    while (program->held_count > 0) {
        let_go(program, MUSTER_FSDP_BACKWARD);
    }
    rank_check_code(rank, muster_fsdp_finish(fsdp), 0);
}

static void check_averages(struct program *program) {
    struct rank *rank = program->player->rank;
    float ranks = (float)(rank->size + 1) / 2; /* the average of rank + 1 */
    for (size_t i = 0; i < muster_fsdp_range_count(program->player->fsdp); i++) {
        struct muster_fsdp_range range;
        rank_check_code(rank, muster_fsdp_range(program->player->fsdp, i, &range), 0);
        float expected = (float)(program->uses[range.unit] * (range.unit + 1)) * ranks;
        for (size_t at = 0; at < range.count; at++) {
            rank_check(rank, fabsf(range.gradient[at] - expected) <= 1e-5F * (expected + 1));
        }
    }
    for (size_t unit = 0; unit < ALIKE; unit++) {
        program->uses[unit] = 0;
    }
}

static void write_parts(struct program *program) {
    program->version++;
    for (size_t i = 0; i < muster_fsdp_range_count(program->player->fsdp); i++) {
        struct muster_fsdp_range range;
        rank_check_code(program->player->rank, muster_fsdp_range(program->player->fsdp, i, &range), 0);
        for (size_t at = 0; at < range.count; at++) {
            range.data[at] = value_of(program, range.unit, place_of(program, &range, at));
        }
    }
}

static void run_program(struct player *player, uint64_t seed) {
    static const enum muster_fsdp_step_kind kinds[] = {MUSTER_FSDP_NO_SYNC, MUSTER_FSDP_ACCUMULATE,
                                                       MUSTER_FSDP_EVALUATE};
    struct program program = {.player = player, .chance_state = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15)};
    write_parts(&program);
    for (int step = 0; step < STEPS; step++) {
        for (uint32_t part = chance(&program, 3); part > 0; part--) {
            run_part(&program, kinds[chance(&program, 3)]);
        }
        run_part(&program, MUSTER_FSDP_STEP);
        check_averages(&program);
        write_parts(&program);
    }
}

/* ---- everywhere ---- */

static void run_programs(struct player *player) {
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
        for (uint32_t prefetch = 0; prefetch < 8; prefetch++) {
            muster_fsdp_free(player->fsdp);
            player->options.find_unused = true;
            player->options.prefetch = prefetch / 2;
            player->options.reshard_after_forward = prefetch % 2 == 0;
            rank_check_code(player->rank,
                            muster_fsdp_create(player->group, alike_units, ALIKE, &player->options, &player->fsdp), 0);
            run_program(player, seed * 8 + prefetch);
        }
    }
}

static void any_order_gives_what_it_should(void **state) {
    (void)state;
    play_everywhere(run_programs, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_gives_what_it_should),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
