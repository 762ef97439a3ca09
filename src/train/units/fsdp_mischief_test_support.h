/* For tests of what goes wrong in an fsdp: a small model of units of equal size, steps in which a rank does something
 * else than the others, and the layouts of hosts in which they wait for each other in different groups. */
#ifndef TRAIN_FSDP_MISCHIEF_TEST_SUPPORT_H
#define TRAIN_FSDP_MISCHIEF_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/fsdp.h>

#include "comm/group/ranks_test_support.h"

/* Of equal size, so that only their numbers tell them apart. */
enum { ALIKE = 4, ALIKE_COUNT = 96, CULPRIT = 1 };
extern const struct muster_fsdp_unit alike_units[ALIKE]; /* "unit a" with "a.w" and "a.b" ... "unit d" */
extern const size_t forwards[ALIKE], backwards[ALIKE];

/* A layout of hosts, and a way of sharding. */
struct scene {
    const char *name;
    uint32_t size;
    struct ranks_options ranks;
    enum muster_fsdp_sharding sharding;
    bool gathers; /* between hosts: units are gathered, and ranks wait for each other while they do */
};
enum { SCENES = 6 };
extern const struct scene scenes[SCENES];

/* A rank with its fsdp. */
struct player {
    struct rank *rank;
    const struct scene *scene;
    struct muster_group *group;
    struct muster_fsdp *fsdp;
    struct muster_fsdp_options options;
};

/* What a rank does. Between player_begin() and player_end(). */
typedef void mischief(struct player *player);
/* Runs it on all ranks of a scene, each with its fsdp made. set: changes the options; or NULL. */
void play(const struct scene *scene, mischief *function, void (*set)(struct muster_fsdp_options *options));
void play_everywhere(mischief *function, void (*set)(struct muster_fsdp_options *options));

/* One use of a unit: in the backward pass all gradients are `value`. */
int use_unit_alike(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass, float value);
/* Uses the units in that order. */
int pass_alike(struct muster_fsdp *fsdp, const size_t order[ALIKE], enum muster_fsdp_pass pass);
/* A whole step, in these orders. */
int step_alike(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind, const size_t forward[ALIKE],
               const size_t backward[ALIKE]);

/* Meets all ranks without a call on the group. `mark` rises. */
void meet_all(struct rank *rank, uint32_t mark);
/* The last call has failed with one of two codes, with a sentence that has `needle` in it; waits until all ranks have
 * come here, so that none hears of it because another has left. */
void expect_failure(struct player *player, int status, int expected, int or_expected, const char *needle);

#endif
