/* See fsdp_mischief_test_support.h. */
#include "train/units/fsdp_mischief_test_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIKE_PARAMETERS(letter)                                                                                       \
    (const struct muster_fsdp_parameter[]) {                                                                           \
        {.name = letter ".w", .count = 80}, {                                                                          \
            .name = letter ".b", .count = 16                                                                           \
        }                                                                                                              \
    }
const struct muster_fsdp_unit alike_units[ALIKE] = {{"unit a", ALIKE_PARAMETERS("a"), 2},
                                                    {"unit b", ALIKE_PARAMETERS("b"), 2},
                                                    {"unit c", ALIKE_PARAMETERS("c"), 2},
                                                    {"unit d", ALIKE_PARAMETERS("d"), 2}};
const size_t forwards[ALIKE] = {0, 1, 2, 3}, backwards[ALIKE] = {3, 2, 1, 0};

static const uint32_t crossed[4] = {0, 1, 0, 1};
const struct scene scenes[SCENES] = {
    {"one host", 3, {0}, MUSTER_FSDP_FULL, false},
    {"two hosts", 4, {.ranks_per_host = 2}, MUSTER_FSDP_FULL, true},
    {"two hosts, crossed", 4, {.host_of = crossed}, MUSTER_FSDP_FULL, true},
    {"a host a rank", 3, {.ranks_per_host = 1}, MUSTER_FSDP_FULL, true},
    {"hybrid", 4, {.ranks_per_host = 2}, MUSTER_FSDP_HYBRID, false},
    {"hybrid, a host a rank", 3, {.ranks_per_host = 1}, MUSTER_FSDP_HYBRID, false},
};

int use_unit_alike(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass, float value) {
    struct muster_fsdp_view view;
    int status = muster_fsdp_acquire(fsdp, unit, pass, &view);
    for (size_t i = 0; status == 0 && view.gradients && i < ALIKE_COUNT; i++) {
        float *gradients = view.gradients;
        gradients[i] = (view.add ? gradients[i] : 0) + value;
    }
    return status ? status : muster_fsdp_release(fsdp, unit, pass);
}

int pass_alike(struct muster_fsdp *fsdp, const size_t order[ALIKE], enum muster_fsdp_pass pass) {
    int status = 0;
    for (size_t i = 0; status == 0 && i < ALIKE; i++) {
        status = use_unit_alike(fsdp, order[i], pass, (float)(order[i] + 1));
    }
    return status;
}

int step_alike(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind, const size_t forward[ALIKE],
               const size_t backward[ALIKE]) {
    int status = muster_fsdp_begin(fsdp, kind);
    status = status ? status : pass_alike(fsdp, forward, MUSTER_FSDP_FORWARD);
    status = status || kind == MUSTER_FSDP_EVALUATE ? status : pass_alike(fsdp, backward, MUSTER_FSDP_BACKWARD);
    return status ? status : muster_fsdp_finish(fsdp);
}

void meet_all(struct rank *rank, uint32_t mark) {
    rank_mark(rank, mark);
    for (uint32_t other = 0; other < rank->size; other++) {
        rank_await(rank, other, mark);
    }
}

enum { MARK_MADE = 1, MARK_HEARD = RANK_MARKS_MAX - 1 };

void expect_failure(struct player *player, int status, int expected, int or_expected, const char *needle) {
    rank_report(player->rank, status ? muster_detail() : "no failure");
    rank_check(player->rank, status != MUSTER_OK);
    rank_check(player->rank, status == expected || status == or_expected);
    rank_check(player->rank, strstr(muster_detail(), needle) != NULL);
    meet_all(player->rank, MARK_HEARD);
}

struct play {
    const struct scene *scene;
    mischief *function;
    void (*set)(struct muster_fsdp_options *options);
};

static int body(struct rank *rank, void *argument) {
    const struct play *given = argument;
    struct player player = {.rank = rank, .scene = given->scene, .options = MUSTER_FSDP_OPTIONS_INIT};
    player.options.sharding = given->scene->sharding;
    if (given->set) {
        given->set(&player.options);
    }
    player.group = rank_group(rank, NULL);
    rank_check_code(rank, muster_fsdp_create(player.group, alike_units, ALIKE, &player.options, &player.fsdp), 0);
    meet_all(rank, MARK_MADE); /* an abort would end their creating, too */
    given->function(&player);
    muster_fsdp_free(player.fsdp);
    muster_group_free(player.group);
    return 0;
}

void play(const struct scene *scene, mischief *function, void (*set)(struct muster_fsdp_options *options)) {
    struct play given = {scene, function, set};
    ranks_run_with(scene->size, body, &given, &scene->ranks);
}

void play_everywhere(mischief *function, void (*set)(struct muster_fsdp_options *options)) {
    for (size_t i = 0; i < SCENES; i++) {
        play(&scenes[i], function, set);
    }
}
