/* State in memory goes to other owners when the world changes: lives of different ranks, on hosts that join or have
 * other numbers of ranks, go on at the step that was committed last, with the bits of all tensors; where hosts are
 * lost, at the step that was copied last. Lives are of the same processes, which hold the memory themselves; those that
 * a life does not need keep what they had, which gets old. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "base/fnv.h"
#include "base/status.h"
#include "base/str.h"
#include "base/testing/parts_test_support.h"
#include "train/memory/holder.h"
#include "train/units/fsdp_parts.h"
#include "train/units/fsdp_snapshot_test_support.h"

enum { HOSTS = 3, EACH = 2, RANKS = HOSTS * EACH, WORLDS_MAX = 8, STEPS = 2 };

/* A bit for each rank that takes part: ranks 2h and 2h + 1 are on host h. */
#define RANK(number) (1u << (number))

/* Where a rank is killed while a state moves. */
enum point {
    NOWHERE,
    WHILE_IT_GETS,    /* it has not got its part */
    BEFORE_ITS_LABEL, /* it has, and does not say so */
    BEFORE_IT_DROPS,  /* the old memory, which others do */
    POINTS
};

struct world {
    uint32_t ranks;
    enum muster_fsdp_sharding sharding;
    uint64_t copies_every;
    uint32_t lost;           /* ranks whose memory is gone when it begins */
    int back;                /* so many steps, or ANEW */
    enum point dies;         /* in the middle of keeping: then no step is made */
    uint32_t victim;         /* rank of the test */
    const char *has_no_room; /* the victim: for new memory of this sort beside the old */
};
enum { ANEW = 99 };

/* What a life needs to know. */
struct life {
    const struct world *world;
    int64_t from;
    bool is_victim, is_after_death; /* the life before was one of a death */
};

static struct added added;
static uint64_t digests[64]; /* of each step, as it was committed; on ranks that were there */

/* ---- a death ---- */

static enum point dies;             /* where this rank does */
static struct muster_group *living; /* the others hear of it by this group */

int __real_muster_all_to_all_v(struct muster_group *group, const void *send, const size_t *send_counts, void *receive,
                               const size_t *receive_counts, enum muster_type type, struct muster_work **work);
int __wrap_muster_all_to_all_v(struct muster_group *group, const void *send, const size_t *send_counts, void *receive,
                               const size_t *receive_counts, enum muster_type type, struct muster_work **work);
void __real_commit_table_label(struct commit_table *table, uint32_t writer, uint32_t copy, int64_t step);
void __wrap_commit_table_label(struct commit_table *table, uint32_t writer, uint32_t copy, int64_t step);
int __real_segment_check_room(size_t bytes, const char *label);
int __wrap_segment_check_room(size_t bytes, const char *label);
int __real_holder_drop(struct holder *holder, const char *name);
int __wrap_holder_drop(struct holder *holder, const char *name);

static void die(void) {
    if (muster_group_status(living) == MUSTER_OK) {
        muster_group_abort(living, "a test's death");
    }
}

int __wrap_muster_all_to_all_v(struct muster_group *group, const void *send, const size_t *send_counts, void *receive,
                               const size_t *receive_counts, enum muster_type type, struct muster_work **work) {
    if (dies == WHILE_IT_GETS) {
        die();
        return MUSTER_EABORTED;
    }
    return __real_muster_all_to_all_v(group, send, send_counts, receive, receive_counts, type, work);
}

void __wrap_commit_table_label(struct commit_table *table, uint32_t writer, uint32_t copy, int64_t step) {
    if (dies == BEFORE_ITS_LABEL) {
        die();
        return;
    }
    __real_commit_table_label(table, writer, copy, step);
}

int __wrap_holder_drop(struct holder *holder, const char *name) {
    if (dies == BEFORE_IT_DROPS) {
        die();
        return MUSTER_EABORTED;
    }
    return __real_holder_drop(holder, name);
}

/* ---- lack of room ---- */

static const char *full; /* until the next look */

int __wrap_segment_check_room(size_t bytes, const char *label) {
    if (full && strcmp(label, full) == 0) {
        full = NULL;
        return status_fail(MUSTER_ENOMEM, "a test has no room for %zu bytes", bytes);
    }
    return __real_segment_check_room(bytes, label);
}

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

/* Whatever has been started is whole. */
static void await_copy(struct rank *rank, const struct muster_fsdp *fsdp) {
    struct muster_fsdp_copy_statistics numbers;
    do {
        (void)poll(NULL, 0, 1);
        rank_check_code(rank, muster_fsdp_copy_statistics(fsdp, &numbers), 0);
        rank_check(rank, numbers.failed == 0);
    } while (numbers.completed < numbers.started);
}

static void commit_step(struct rank *rank, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, int64_t step) {
    added_init(&added, step);
    rank_check_code(rank, muster_fsdp_commit(fsdp, step, &added.state), 0);
    await_copy(rank, fsdp);
    digests[step] = digest_of(rank, fsdp, optimizer);
}

static int keep(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                struct muster_optimizer *optimizer) {
    const struct life *life = job->context;
    struct muster_fsdp_keep_options options = MUSTER_FSDP_KEEP_OPTIONS_INIT;
    int64_t step = 99;
    options.copies_every = life->world->copies_every;
    added_init(&added, 0);
    added.alphabet[0] = '\0';
    if (life->world->dies != NOWHERE) {
        living = fsdp->mesh.group;
        dies = life->is_victim ? life->world->dies : NOWHERE;
        int status = muster_fsdp_keep(fsdp, optimizer, &added.state, &options, &step);
        rank_check(rank, !life->is_victim || status != MUSTER_OK);
        dies = NOWHERE;
        return 1;
    }
    full = life->is_victim ? life->world->has_no_room : NULL;
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, &options, &step), 0);
    rank_check(rank, step == life->from);
    bool is_copy = life->world->lost != 0 && step >= 0;
    bool has_no_room = strstr(muster_fsdp_keep_note(fsdp), "there is no room to move the state of step 2") != NULL;
    rank_check(rank, has_no_room == (life->world->back == ANEW && life->world->has_no_room));
    rank_check(rank, full == NULL);
    bool says_so = strstr(muster_fsdp_keep_note(fsdp), "of the copies on peer hosts") != NULL;
    rank_check(rank, says_so == is_copy || life->is_after_death);
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
static void live(struct rank *rank, struct muster_group *all, const struct world *world, int64_t from,
                 bool is_after_death) {
    struct muster_group *group = join(rank, all, world->ranks);
    struct rank inner = *rank;
    struct job job = JOB_INIT;
    const struct life life = {world, from, rank->rank == world->victim, is_after_death};
    job.options.sharding = world->sharding;
    job.prepare = keep;
    job.after_step = commit;
    job.conclude = leave;
    job.context = &life;
    job.first_step = from < 0 ? 0 : (uint32_t)from;
    job.steps = job.first_step + STEPS;
    if (group) {
        inner.rank = muster_group_rank(group);
        inner.size = muster_group_size(group);
        job_run(&inner, &job, group);
    }
    muster_group_free(group);
    rank_check_code(rank,
                    muster_broadcast(all, digests, sizeof digests / sizeof digests[0], MUSTER_UINT64,
                                     (uint32_t)__builtin_ctz(world->ranks), NULL),
                    0);
}

/* As if its host had been lost. */
static void forget(struct rank *rank) {
    const char *host = getenv("MUSTER_HOST_ID");
    struct holder *holder = NULL;
    char name[64];
    rank_check_code(rank, holder_open(&holder), 0);
    for (size_t i = 0; i < 2; i++) {
        const char *ending = i == 0 ? "" : "+";
        (void)str_format(name, sizeof name, "training/rank 0%s", ending);
        rank_check_code(rank, holder_drop(holder, name), 0);
        (void)str_format(name, sizeof name, "training/host %s%s", host, ending);
        rank_check_code(rank, holder_drop(holder, name), 0);
        (void)str_format(name, sizeof name, "training/peer %s 0%s", host, ending);
        rank_check_code(rank, holder_drop(holder, name), 0);
    }
    holder_close(holder);
}

static int64_t next_step(int64_t step, int back) {
    int64_t committed = (step < 0 ? 0 : step) + STEPS;
    return back == ANEW ? -1 : committed - back;
}

/* Ends with a world of ranks 0. */
static int live_in_worlds(struct rank *rank, void *argument) {
    const struct world *worlds = argument;
    struct muster_group *all = rank_group(rank, NULL);
    int64_t step = -1;
    for (size_t i = 0; worlds[i].ranks != 0; i++) {
        if (worlds[i].lost >> rank->rank & 1) {
            forget(rank);
        }
        bool has_trained = i > 0 && worlds[i - 1].dies == NOWHERE;
        step = has_trained ? next_step(step, worlds[i].back) : step;
        live(rank, all, &worlds[i], step, i > 0 && !has_trained);
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
    const struct world worlds[] = {
        {.ranks = HOST_0},       {.ranks = HOST_0 | HOST_1}, {.ranks = ONE_EACH}, {.ranks = EVERYBODY},
        {.ranks = UNEVEN_HOSTS}, {.ranks = EVERYBODY},       {.ranks = ONE_EACH}, {.ranks = 0}};
    run(worlds);
}

static void the_kind_of_sharding_changes(void **state) {
    (void)state;
    const struct world worlds[] = {{.ranks = HOST_0 | HOST_1},
                                   {.ranks = HOST_0 | HOST_1, .sharding = MUSTER_FSDP_HYBRID},
                                   {.ranks = RANK(0)},
                                   {.ranks = EVERYBODY, .sharding = MUSTER_FSDP_HYBRID},
                                   {.ranks = ONE_EACH, .sharding = MUSTER_FSDP_HYBRID},
                                   {.ranks = RANK(0) | RANK(2)},
                                   {.ranks = 0}};
    run(worlds);
}

/* Whoever dies wherever while a state moves: the old world, the new one and another one find all of it. */
static void a_death_leaves_the_old_or_the_new(void **state) {
    (void)state;
    const uint32_t victims[] = {0, 2, 4}, next[] = {HOST_0 | HOST_1, ONE_EACH, EVERYBODY};
    unsigned stride = part_stride("whole_matrix", 2);
    for (int point = WHILE_IT_GETS; point < POINTS; point++) {
        for (size_t victim = 0; victim < sizeof victims / sizeof *victims; victim++) {
            /* Who was nowhere before has nothing to drop. */
            bool is_new = point == BEFORE_IT_DROPS && victims[victim] == 4;
            for (size_t i = 0; !is_new && i < sizeof next / sizeof *next; i += stride) {
                const struct world worlds[] = {
                    {.ranks = HOST_0 | HOST_1},
                    {.ranks = ONE_EACH, .dies = (enum point)point, .victim = victims[victim]},
                    {.ranks = next[i]},
                    {.ranks = EVERYBODY},
                    {.ranks = 0}};
                run(worlds);
            }
        }
    }
}

static void a_death_leaves_the_copies_or_the_new(void **state) {
    (void)state;
    const uint32_t next[] = {RANK(0) | RANK(2), HOST_0 | HOST_1, EVERYBODY};
    unsigned stride = part_stride("whole_matrix", 2);
    for (int point = WHILE_IT_GETS; point < POINTS; point++) {
        for (uint32_t victim = 0; victim <= 2; victim += 2) {
            for (size_t i = 0; i < sizeof next / sizeof *next; i += stride) {
                const struct world worlds[] = {{.ranks = ONE_EACH, .copies_every = 1},
                                               {.ranks = RANK(0) | RANK(2),
                                                .copies_every = 1,
                                                .lost = HOST_2,
                                                .dies = (enum point)point,
                                                .victim = victim},
                                               {.ranks = next[i], .copies_every = 1},
                                               {.ranks = EVERYBODY, .copies_every = 1},
                                               {.ranks = 0}};
                run(worlds);
            }
        }
    }
}

/* The job begins anew, as it did before shards could move; but old copies just go before new ones are made. */
static void without_room_nothing_moves(void **state) {
    (void)state;
    static const char committed[] = "the committed state", copied[] = "copies on peer hosts";
    const struct world worlds[] = {{.ranks = HOST_0 | HOST_1},
                                   {.ranks = ONE_EACH, .has_no_room = committed, .victim = 2, .back = ANEW},
                                   {.ranks = EVERYBODY},
                                   {.ranks = 0}};
    run(worlds);
    const struct world copies[] = {{.ranks = HOST_0 | HOST_1, .copies_every = 1},
                                   {.ranks = ONE_EACH, .copies_every = 1, .has_no_room = copied, .victim = 2},
                                   {.ranks = RANK(0) | RANK(2), .copies_every = 1, .lost = HOST_2},
                                   {.ranks = 0}};
    run(copies);
}

static void hosts_are_lost_that_had_copies_elsewhere(void **state) {
    (void)state;
    const struct world pairs[] = {{.ranks = HOST_0 | HOST_1, .copies_every = 1},
                                  {.ranks = HOST_0, .copies_every = 1, .lost = HOST_1},
                                  {.ranks = HOST_0 | HOST_2, .copies_every = 1},
                                  {.ranks = HOST_2, .copies_every = 1, .lost = HOST_0},
                                  {.ranks = EVERYBODY, .copies_every = 1},
                                  {.ranks = HOST_0 | HOST_1, .copies_every = 1, .lost = HOST_2},
                                  {.ranks = ONE_EACH, .copies_every = 1},
                                  {.ranks = RANK(0) | RANK(4), .copies_every = 1, .lost = HOST_1},
                                  {.ranks = RANK(4), .copies_every = 1, .lost = HOST_0},
                                  {.ranks = ONE_EACH, .copies_every = 1},
                                  {.ranks = HOST_1 | HOST_2, .copies_every = 1, .lost = HOST_0},
                                  {.ranks = 0}};
    run(pairs);
}

/* Of two steps in each life the first one is copied. */
static void steps_that_were_not_copied_are_made_again(void **state) {
    (void)state;
    const struct world worlds[] = {{.ranks = ONE_EACH, .copies_every = 9},
                                   {.ranks = RANK(0) | RANK(2), .copies_every = 9, .lost = HOST_2, .back = STEPS},
                                   {.ranks = EVERYBODY, .copies_every = 9},
                                   {.ranks = HOST_0 | HOST_2, .copies_every = 9, .lost = HOST_1, .back = STEPS - 1},
                                   {.ranks = 0}};
    run(worlds);
}

/* A host comes back with memory of steps that the others have made again. */
static void what_is_old_is_not_mixed_with_the_new(void **state) {
    (void)state;
    const struct world worlds[] = {{.ranks = ONE_EACH},
                                   {.ranks = RANK(0) | RANK(2), .back = ANEW},
                                   {.ranks = RANK(0) | RANK(2), .back = 0},
                                   {.ranks = EVERYBODY},
                                   {.ranks = ONE_EACH, .lost = HOST_0, .back = ANEW},
                                   {.ranks = 0}};
    run(worlds);
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_join_and_numbers_of_ranks_change),
        cmocka_unit_test(the_kind_of_sharding_changes),
        cmocka_unit_test(a_death_leaves_the_old_or_the_new),
        cmocka_unit_test(a_death_leaves_the_copies_or_the_new),
        cmocka_unit_test(without_room_nothing_moves),
        cmocka_unit_test(hosts_are_lost_that_had_copies_elsewhere),
        cmocka_unit_test(steps_that_were_not_copied_are_made_again),
        cmocka_unit_test(what_is_old_is_not_mixed_with_the_new),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
