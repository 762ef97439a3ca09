/* State in memory goes to other owners when the world changes: lives of different ranks, on hosts that join or have
 * other numbers of ranks, go on at the step that was committed last, with the bits of all tensors. Lives are of the
 * same processes, which hold the memory themselves; those that a life does not need keep what they had, which gets old.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "base/fnv.h"
#include "train/units/fsdp_parts.h"
#include "train/units/fsdp_snapshot_test_support.h"

enum { HOSTS = 3, EACH = 2, RANKS = HOSTS * EACH, WORLDS_MAX = 8, STEPS = 2 };

/* A bit for each rank that takes part: ranks 2h and 2h + 1 are on host h. */
#define RANK(number) (1u << (number))

struct world {
    uint32_t ranks;
    enum muster_fsdp_sharding sharding;
};

static struct added added;
static uint64_t digests[64]; /* of each step, as it was committed; on ranks that were there */

/* ---- the bits of a state ---- */

static uint64_t hash_element(size_t tensor, uint64_t index, const float *value) {
    uint64_t hash = fnv_bytes(FNV_BEGIN, &tensor, sizeof tensor);
    return fnv_bytes(fnv_bytes(hash, &index, sizeof index), value, sizeof *value);
}

/* The same in every world: a sum over all elements of all tensors. */
static uint64_t digest_of(struct rank *rank, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer) {
    struct fsdp_table table;
    struct fsdp_parts parts;
    int64_t sum = 0;
    rank_check_code(rank, fsdp_table_init(&table, fsdp, optimizer, &added.state), 0);
    rank_check_code(rank, fsdp_parts_init(&parts, &table, fsdp_parts_are_saved_by(&fsdp->mesh)), 0);
    for (size_t i = 0; i < parts.state.chunk_count; i++) {
        const struct muster_checkpoint_chunk *chunk = &parts.chunks[i];
        for (uint64_t at = 0; at < chunk->count; at++) {
            sum += (int64_t)(hash_element(chunk->tensor, chunk->first + at, (const float *)chunk->data + at) >> 16);
        }
    }
    rank_check_code(rank, muster_all_reduce(fsdp->mesh.group, &sum, &sum, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    fsdp_parts_done(&parts);
    fsdp_table_done(&table);
    return (uint64_t)sum;
}

/* ---- hooks ---- */

static void commit_step(struct rank *rank, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, int64_t step) {
    added_init(&added, step);
    rank_check_code(rank, muster_fsdp_commit(fsdp, step, &added.state), 0);
    digests[step] = digest_of(rank, fsdp, optimizer);
}

static int keep(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                struct muster_optimizer *optimizer) {
    int64_t step = 99, wanted = *(const int64_t *)job->context;
    added_init(&added, 0);
    added.alphabet[0] = '\0';
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, NULL, &step), 0);
    rank_check(rank, step == wanted);
    if (step < 0) {
        commit_step(rank, fsdp, optimizer, 0);
        return 0;
    }
    rank_check(rank, added.step == step && added.marks[4] == step && strcmp(added.alphabet, "abc") == 0);
    rank_check(rank, digest_of(rank, fsdp, optimizer) == digests[step]);
    return 0;
}

static int commit(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                  struct muster_optimizer *optimizer) {
    (void)job;
    commit_step(rank, fsdp, optimizer, added.step + 1);
    return 0;
}

static int leave(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                 struct muster_optimizer *optimizer) {
    (void)rank, (void)job, (void)fsdp, (void)optimizer;
    return 1;
}

/* ---- lives ---- */

static struct muster_group *join(struct rank *rank, struct muster_group *all, uint32_t ranks) {
    struct muster_group *some = NULL;
    bool is_in = ranks >> rank->rank & 1;
    rank_check_code(rank, muster_group_split(all, is_in ? 0 : -1, (int32_t)rank->rank, NULL, &some), 0);
    return some;
}

/* Steps of one world, from `from`. */
static void live(struct rank *rank, struct muster_group *all, const struct world *world, int64_t from) {
    struct muster_group *group = join(rank, all, world->ranks);
    struct rank inner = *rank;
    struct job job = JOB_INIT;
    job.options.sharding = world->sharding;
    job.prepare = keep;
    job.after_step = commit;
    job.conclude = leave;
    job.context = &from;
    job.first_step = from < 0 ? 0 : (uint32_t)from;
    job.steps = job.first_step + STEPS;
    if (group) {
        inner.rank = muster_group_rank(group);
        inner.size = muster_group_size(group);
        job_run(&inner, &job, group);
    }
    muster_group_free(group);
    rank_check_code(rank, muster_broadcast(all, digests, sizeof digests / sizeof digests[0], MUSTER_UINT64, 0, NULL),
                    0);
}

/* Ends with a world of ranks 0. */
static int live_in_worlds(struct rank *rank, void *argument) {
    const struct world *worlds = argument;
    struct muster_group *all = rank_group(rank, NULL);
    int64_t step = -1;
    for (size_t i = 0; worlds[i].ranks != 0; i++) {
        live(rank, all, &worlds[i], step);
        step = (step < 0 ? 0 : step) + STEPS;
    }
    muster_group_free(all);
    return 0;
}

static void run(const struct world *worlds) {
    const struct ranks_options hosts = {.ranks_per_host = EACH};
    ranks_run_with(RANKS, live_in_worlds, (void *)(uintptr_t)worlds, &hosts);
}

/* ---- tests ---- */

enum {
    HOST_0 = RANK(0) | RANK(1),
    HOST_1 = RANK(2) | RANK(3),
    HOST_2 = RANK(4) | RANK(5),
    ONE_EACH = RANK(0) | RANK(2) | RANK(4),
    UNEVEN_HOSTS = HOST_0 | RANK(2) | RANK(4),
    EVERYBODY = HOST_0 | HOST_1 | HOST_2,
};

static void hosts_join_and_numbers_of_ranks_change(void **state) {
    (void)state;
    const struct world worlds[] = {{HOST_0, MUSTER_FSDP_FULL},       {HOST_0 | HOST_1, MUSTER_FSDP_FULL},
                                   {ONE_EACH, MUSTER_FSDP_FULL},     {EVERYBODY, MUSTER_FSDP_FULL},
                                   {UNEVEN_HOSTS, MUSTER_FSDP_FULL}, {EVERYBODY, MUSTER_FSDP_FULL},
                                   {ONE_EACH, MUSTER_FSDP_FULL},     {0, MUSTER_FSDP_FULL}};
    run(worlds);
}

static void the_kind_of_sharding_changes(void **state) {
    (void)state;
    const struct world worlds[] = {{HOST_0 | HOST_1, MUSTER_FSDP_FULL},
                                   {HOST_0 | HOST_1, MUSTER_FSDP_HYBRID},
                                   {RANK(0), MUSTER_FSDP_FULL},
                                   {EVERYBODY, MUSTER_FSDP_HYBRID},
                                   {ONE_EACH, MUSTER_FSDP_HYBRID},
                                   {RANK(0) | RANK(2), MUSTER_FSDP_FULL},
                                   {0, MUSTER_FSDP_FULL}};
    run(worlds);
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_join_and_numbers_of_ranks_change),
        cmocka_unit_test(the_kind_of_sharding_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
