/* A whole state from one rank to the others, without a disk. */
#include <muster/collective.h>
#include <muster/snapshot.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"

enum { WEIGHTS = 1000, TEXT_BYTES = 32 };

struct everything {
    float weights[WEIGHTS];
    int64_t steps[2];
    int64_t epoch;
    double rate;
    char text[TEXT_BYTES];
    struct muster_tensor tensors[2];
    struct muster_value values[3];
    struct muster_snapshot_state state;
};

static struct everything *describe(uint32_t rank) {
    static struct everything all;
    for (size_t i = 0; i < WEIGHTS; i++) {
        all.weights[i] = (float)(rank * 1000 + i);
    }
    all.steps[0] = all.epoch = rank;
    all.steps[1] = -7;
    all.rate = rank / 8.0;
    (void)snprintf(all.text, sizeof all.text, "%s", rank == 2 ? "of rank two" : "of another");
    all.tensors[0] = (struct muster_tensor){
        .name = "w", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {10, 100}, .data = all.weights};
    all.tensors[1] =
        (struct muster_tensor){.name = "s", .type = MUSTER_INT64, .dim_count = 1, .shape = {2}, .data = all.steps};
    all.values[0] = muster_value_integer("epoch", &all.epoch);
    all.values[1] = muster_value_real("rate", &all.rate);
    all.values[2] = muster_value_text("text", all.text, sizeof all.text);
    all.state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(all.tensors, 2, all.values, 3);
    return &all;
}

static int copy_all(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct everything *all = describe(rank->rank);
    rank_check_code(rank, muster_snapshot_broadcast(group, &all->state, 2), 0);
    rank_check(rank, all->weights[0] == 2000 && all->weights[WEIGHTS - 1] == 2999 && all->steps[0] == 2);
    rank_check(rank, all->epoch == 2 && all->rate == 0.25 && strcmp(all->text, "of rank two") == 0);
    rank_check_code(rank, muster_snapshot_broadcast(group, &all->state, 3), MUSTER_EINVAL);
    /* One rank describes another state, or none at all: all are told, and the group is as good as before. */
    all->tensors[0].shape[0] = rank->rank == 1 ? 5 : 10;
    rank_check_code(rank, muster_snapshot_broadcast(group, &all->state, 0), MUSTER_EMISMATCH);
    all->tensors[0].shape[0] = 10;
    all->values[1].name = rank->rank == 1 ? "ratio" : "rate";
    rank_check_code(rank, muster_snapshot_broadcast(group, &all->state, 0), MUSTER_EMISMATCH);
    all->values[1].name = "rate";
    rank_check_code(rank, muster_snapshot_broadcast(group, rank->rank == 1 ? NULL : &all->state, 0), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "rank 1: ") != NULL);
    all->values[2].room = rank->rank == 1 ? 4 : TEXT_BYTES;
    rank_check_code(rank, muster_snapshot_broadcast(group, &all->state, 0), MUSTER_EINVAL);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void one_ranks_state_becomes_that_of_all(void **state) {
    (void)state;
    ranks_run(3, copy_all, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_ranks_state_becomes_that_of_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
