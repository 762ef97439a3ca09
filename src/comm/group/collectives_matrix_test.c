/* Every collective x type x reduction, through the public interface, among real processes: groups of 1 to 5 ranks on
 * one host and on several, with and without shared memory, with algorithms forced by a table; blocking, coalesced,
 * and with handles, several at a time; in place; buffers private, from muster_alloc(), or different from rank to rank.
 * Each reduction is made twice, in different ways, and must give the same bits, on all ranks.
 *
 *     collectives_matrix_test [ROUNDS [SEED]]
 *
 * One round (the default) meets each triple once per group; what else there is is drawn. Under the thread sanitizer a
 * group meets a third of them, each group another: threads do the same for every type. A failure prints the seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <muster/muster.h>

#include "base/fnv.h"
#include "base/str.h"
#include "base/testing/parts_test_support.h"
#include "comm/group/matrix_test_support.h"
#include "comm/group/ranks_test_support.h"
#include "comm/schedule/choice.h"

enum {
    SLOTS = 3,             /* calls under way at a time */
    BYTES_MAX = 96 * 1024, /* of a buffer; now and then LARGE_BYTES_MAX */
    LARGE_BYTES_MAX = 2 * 1024 * 1024,
    PAD_BYTES = 128,
    CANARY = 0xC5,
    TRIPLES_PER_BATCH_MAX = SLOTS
};
static uint64_t rounds = 1, seed = 20240601;
static unsigned shares; /* a group does one of so many shares of the batches */

/* One world: argument of the ranks. */
struct world {
    const char *name;
    uint64_t number, seed;
    bool without_shared_memory;
    const char *choice_file; /* NULL: the built-in table */
};

/* One call of one rank. */
struct slot {
    struct matrix_case *c;
    char *memory;         /* private and shared arenas have SLOTS parts of this form: */
    char *send, *receive; /* within; for calls in place one within the other */
    size_t receive_bytes;
    bool in_place;
    struct muster_work *work;
};

struct bench { /* what a rank works with */
    struct rank *rank;
    struct muster_group *group;
    char *arenas[2]; /* private, shared */
    uint64_t random; /* the same on all ranks */
    const struct world *world;
};

static const size_t slot_bytes = 2 * (size_t)LARGE_BYTES_MAX + 8 * (size_t)PAD_BYTES;

static bool may_be_in_place(const struct matrix_case *c, uint32_t rank) {
    bool is_rooted = c->operation == MATRIX_REDUCE || c->operation == MATRIX_GATHER || c->operation == MATRIX_SCATTER;
    bool is_first = c->operation == MATRIX_EXSCAN && rank == 0; /* it receives nothing */
    return !is_first && !(is_rooted && rank != c->root) && !(c->operation == MATRIX_ALL_TO_ALL && c->has_counts);
}

/* Lays the buffers out, at an offset of a few elements, and fills them. */
static void slot_fill(struct bench *bench, struct slot *slot, bool in_place, size_t shift) {
    const struct matrix_case *c = slot->c;
    uint32_t me = bench->rank->rank;
    size_t width = muster_type_bytes(c->type), own = matrix_begin(c, me) * width;
    size_t send_bytes = matrix_send_count(c, me) * width;
    slot->receive_bytes = matrix_receive_count(c, me) * width;
    slot->in_place = in_place && may_be_in_place(c, me);
    memset(slot->memory, CANARY, send_bytes + PAD_BYTES + shift * width);
    slot->send = slot->memory + PAD_BYTES + shift * width;
    slot->receive = slot->memory + LARGE_BYTES_MAX + 3 * (size_t)PAD_BYTES + shift * width;
    memset(slot->receive - PAD_BYTES, CANARY, slot->receive_bytes + 2 * (size_t)PAD_BYTES);
    if (slot->in_place && (c->operation == MATRIX_SCATTER || c->operation == MATRIX_REDUCE_SCATTER)) {
        slot->receive = slot->send + own;
    } else if (slot->in_place && (c->operation == MATRIX_ALL_GATHER || c->operation == MATRIX_GATHER)) {
        slot->send = slot->receive + own;
    } else if (slot->in_place || c->operation == MATRIX_BROADCAST) {
        slot->send = slot->receive;
    }
    matrix_fill(c, me, slot->send);
}

static int call_with_counts(struct muster_group *group, struct slot *slot, uint32_t me, struct muster_work **work) {
    const struct matrix_case *c = slot->c;
    size_t receive_counts[MATRIX_RANKS_MAX];
    for (uint32_t from = 0; from < c->size; from++) {
        receive_counts[from] = c->counts[from][me];
    }
    switch (c->operation) {
    case MATRIX_ALL_GATHER:
        return muster_all_gather_v(group, slot->send, slot->receive, c->counts[0], c->type, work);
    case MATRIX_GATHER:
        return muster_gather_v(group, slot->send, slot->receive, c->counts[0], c->type, c->root, work);
    case MATRIX_SCATTER:
        return muster_scatter_v(group, slot->send, slot->receive, c->counts[0], c->type, c->root, work);
    case MATRIX_REDUCE_SCATTER:
        return muster_reduce_scatter_v(group, slot->send, slot->receive, c->counts[0], c->type, c->reduction, work);
    default:
        return muster_all_to_all_v(group, slot->send, c->counts[me], slot->receive, receive_counts, c->type, work);
    }
}

static int call(struct muster_group *group, struct slot *slot, uint32_t me, struct muster_work **work) {
    const struct matrix_case *c = slot->c;
    if (c->has_counts) {
        return call_with_counts(group, slot, me, work);
    }
    switch (c->operation) {
    case MATRIX_ALL_REDUCE:
        return muster_all_reduce(group, slot->send, slot->receive, c->count, c->type, c->reduction, work);
    case MATRIX_REDUCE:
        return muster_reduce(group, slot->send, me == c->root ? slot->receive : NULL, c->count, c->type, c->reduction,
                             c->root, work);
    case MATRIX_REDUCE_SCATTER:
        return muster_reduce_scatter(group, slot->send, slot->receive, c->count, c->type, c->reduction, work);
    case MATRIX_SCAN:
        return muster_scan(group, slot->send, slot->receive, c->count, c->type, c->reduction, work);
    case MATRIX_EXSCAN:
        return muster_exscan(group, slot->send, me > 0 ? slot->receive : NULL, c->count, c->type, c->reduction, work);
    case MATRIX_BROADCAST:
        return muster_broadcast(group, slot->receive, c->count, c->type, c->root, work);
    case MATRIX_ALL_GATHER:
        return muster_all_gather(group, slot->send, slot->receive, c->count, c->type, work);
    case MATRIX_GATHER:
        return muster_gather(group, slot->send, slot->receive, c->count, c->type, c->root, work);
    case MATRIX_SCATTER:
        return muster_scatter(group, slot->send, slot->receive, c->count, c->type, c->root, work);
    default:
        return muster_all_to_all(group, slot->send, slot->receive, c->count, c->type, work);
    }
}

static _Noreturn void complain(struct bench *bench, const struct slot *slot, const char *what) {
    (void)fprintf(stderr, "rank %u, %s, seed %" PRIu64 ": %s%s: %s\n", bench->rank->rank, bench->world->name,
                  bench->world->seed, matrix_describe(slot->c), slot->in_place ? ", in place" : "", what);
    rank_failed(bench->rank, __FILE__, __LINE__, "a right result");
}

static int64_t hash_of(const struct slot *slot) {
    return (int64_t)fnv_bytes(FNV_BEGIN, slot->receive, slot->receive_bytes);
}

static void slot_check(struct bench *bench, const struct slot *slot, bool is_known) {
    const char *wrong = is_known ? NULL : matrix_check(slot->c, bench->rank->rank, slot->receive);
    bool is_whole = !slot->in_place || slot->receive == slot->memory + LARGE_BYTES_MAX;
    for (size_t i = 0; !wrong && !slot->in_place && is_whole && i < PAD_BYTES; i++) {
        if ((unsigned char)slot->receive[-1 - (ptrdiff_t)i] != CANARY ||
            (unsigned char)slot->receive[slot->receive_bytes + i] != CANARY) {
            wrong = "something is written beside the result";
        }
    }
    if (wrong) {
        complain(bench, slot, wrong);
    }
}

/* Is the order of additions the same in every way to make the call? MPI may have another in place than elsewhere. */
static bool has_one_order(const struct matrix_case *c) {
    bool is_exact = c->type < MUSTER_FLOAT16 || c->type > MUSTER_FLOAT64 || c->operation >= MATRIX_BROADCAST ||
                    c->reduction == MUSTER_OP_MIN || c->reduction == MUSTER_OP_MAX;
    return is_exact || !ranks_use_engine("mpi");
}

/* The reference takes longer than the call: it is not asked about bits that another's hash answers for, be it that of
 * the same case before or, where all ranks have the same bits, that of another rank. */
static bool is_compared_by_hash(const struct bench *bench, const struct matrix_case *c, bool is_again) {
    return (is_again && has_one_order(c)) ||
           (c->operation == MATRIX_ALL_REDUCE && bench->rank->rank != c->seed % c->size);
}

/* Runs a batch of cases, in ways that are drawn; hashes[i] becomes that of the result of case i. */
static void batch_run(struct bench *bench, struct matrix_case *cases, size_t case_count, bool is_again,
                      int64_t *hashes) {
    struct slot slots[SLOTS] = {0};
    uint64_t way = matrix_random(&bench->random);
    bool by_handle = way & 1, in_place = way & 2, coalesced = !by_handle && (way >> 12 & 1);
    uint64_t kind = way >> 2 & 3; /* private, shared, by rank, by case */
    for (size_t i = 0; i < case_count; i++) {
        size_t arena = kind == 2 ? bench->rank->rank % 2 : kind == 3 ? i % 2 : kind;
        slots[i] = (struct slot){.c = &cases[i], .memory = bench->arenas[arena] + i * slot_bytes};
        slot_fill(bench, &slots[i], in_place, way >> 8 & 7);
    }
    if (coalesced) {
        rank_check_code(bench->rank, muster_coalesce_begin(bench->group), 0);
    }
    for (size_t i = 0; i < case_count; i++) {
        int code = call(bench->group, &slots[i], bench->rank->rank, by_handle ? &slots[i].work : NULL);
        if (code != 0) {
            complain(bench, &slots[i], muster_detail());
        }
    }
    if (coalesced && muster_coalesce_end(bench->group, NULL) != 0) {
        complain(bench, &slots[0], muster_detail());
    }
    for (size_t i = 0; i < case_count; i++) {
        if (muster_work_wait(&slots[i].work) != 0) {
            complain(bench, &slots[i], muster_detail());
        }
        slot_check(bench, &slots[i], is_compared_by_hash(bench, &cases[i], is_again));
        hashes[i] = hash_of(&slots[i]);
    }
}

static void compare_between_ranks(struct bench *bench, const struct matrix_case *c, int64_t hash) {
    int64_t all[MATRIX_RANKS_MAX];
    struct slot slot = {.c = (struct matrix_case *)c};
    if (c->operation != MATRIX_ALL_REDUCE) {
        return;
    }
    rank_check_code(bench->rank, muster_all_gather(bench->group, &hash, all, 1, MUSTER_INT64, NULL), 0);
    for (uint32_t rank = 0; rank < bench->rank->size; rank++) {
        if (all[rank] != hash) {
            complain(bench, &slot, "ranks have different bits");
        }
    }
}

static void triples_run(struct bench *bench, size_t first, size_t count) {
    struct matrix_case cases[SLOTS];
    int64_t hashes[SLOTS], again[SLOTS];
    size_t bytes_max = matrix_random(&bench->random) % 16 == 0 ? LARGE_BYTES_MAX : BYTES_MAX;
    for (size_t i = 0; i < count; i++) {
        matrix_draw(&bench->random, first + i, bench->rank->size, bytes_max, &cases[i]);
    }
    batch_run(bench, cases, count, false, hashes);
    batch_run(bench, cases, count, true, again);
    for (size_t i = 0; i < count; i++) {
        struct slot slot = {.c = &cases[i]};
        if (hashes[i] != again[i] && has_one_order(&cases[i])) {
            complain(bench, &slot, "another way gives other bits");
        }
        compare_between_ranks(bench, &cases[i], hashes[i]);
        compare_between_ranks(bench, &cases[i], again[i]);
    }
}

/* Each rank sends to the next, receives from the one before and then from anybody, while a barrier passes. */
static void messages_run(struct bench *bench) {
    uint32_t me = bench->rank->rank, size = bench->rank->size, next = (me + 1) % size,
             previous = (me + size - 1) % size;
    size_t count = matrix_random(&bench->random) % 70000;
    int32_t *out = (int32_t *)(void *)bench->arenas[me % 2], *in = (int32_t *)(void *)(bench->arenas[0] + slot_bytes);
    struct muster_work *works[3] = {NULL};
    struct muster_message message;
    for (size_t i = 0; i < count; i++) {
        out[i] = (int32_t)(me * 1000003 + i);
    }
    for (int form = 0; form < 2; form++) {
        uint32_t from = form ? MUSTER_ANY_RANK : previous;
        memset(in, CANARY, count * sizeof *in);
        rank_check_code(bench->rank,
                        muster_receive(bench->group, in, count + 5, MUSTER_INT32, from, 7, &message, &works[0]), 0);
        rank_check_code(bench->rank, muster_send(bench->group, out, count, MUSTER_INT32, next, 7, &works[1]), 0);
        rank_check_code(bench->rank, muster_barrier(bench->group, &works[2]), 0);
        for (size_t i = 0; i < 3; i++) {
            rank_check_code(bench->rank, muster_work_wait(&works[i]), 0);
        }
        rank_check(bench->rank, message.rank == previous && message.tag == 7 && message.count == count);
        for (size_t i = 0; i < count; i++) {
            rank_check(bench->rank, in[i] == (int32_t)(previous * 1000003 + i));
        }
        rank_check_code(bench->rank, muster_barrier(bench->group, NULL), 0); /* or the next could be from anybody */
    }
}

static void round_run(struct bench *bench) {
    uint64_t batch = bench->world->number;
    for (size_t first = 0, count; first < matrix_triple_count(); first += count) {
        size_t left = matrix_triple_count() - first;
        count = 1 + matrix_random(&bench->random) % TRIPLES_PER_BATCH_MAX;
        count = count < left ? count : left;
        if (batch++ % shares != 0) {
            continue;
        }
        triples_run(bench, first, count);
        if (bench->rank->size > 1 && matrix_random(&bench->random) % 8 == 0) {
            messages_run(bench);
        }
    }
}

static int rank_body(struct rank *rank, void *argument) {
    const struct world *world = argument;
    struct bench bench = {.rank = rank, .world = world, .random = world->seed};
    void *shared = NULL;
    if (world->without_shared_memory) {
        (void)setenv("MUSTER_SHM", "0", 1);
    }
    if (world->choice_file) {
        (void)setenv("MUSTER_CHOICE_FILE", world->choice_file, 1);
    }
    bench.group = rank_group(rank, NULL);
    bench.arenas[0] = malloc(SLOTS * slot_bytes);
    rank_check(rank, bench.arenas[0]);
    rank_check_code(rank, muster_alloc(bench.group, SLOTS * slot_bytes, &shared), 0);
    bench.arenas[1] = shared;
    for (uint64_t round = 0; round < rounds; round++) {
        round_run(&bench);
    }
    muster_free(bench.group, shared);
    free(bench.arenas[0]);
    muster_group_free(bench.group);
    return 0;
}

static void world_run(const char *name, uint32_t size, uint32_t ranks_per_host, bool without_shared_memory,
                      const char *choice_file) {
    static uint64_t count;
    struct ranks_options options = {.ranks_per_host = ranks_per_host};
    count++;
    struct world world = {name, count, (seed + 1000003 * count) | 1, without_shared_memory, choice_file};
    (void)printf("%u ranks, %s, seed %" PRIu64 "\n", size, name, world.seed);
    (void)fflush(stdout);
    ranks_run_with(size, rank_body, &world, &options);
}

/* ---- the worlds ---- */

static void on_one_host(void **state) {
    (void)state;
    for (uint32_t size = 1; size <= 5; size++) {
        world_run("one host", size, 0, false, NULL);
    }
    if (ranks_wished_size() > 5) {
        world_run("one host", ranks_wished_size(), 0, false, NULL);
    }
}

static void on_a_host_each(void **state) {
    (void)state;
    for (uint32_t size = 2; size <= 5; size++) {
        world_run("a host each", size, 1, false, NULL);
    }
}

static void on_hosts_of_two(void **state) {
    (void)state;
    for (uint32_t size = 3; size <= 5; size++) {
        world_run("hosts of two", size, 2, false, NULL);
    }
}

static void without_shared_memory(void **state) {
    (void)state;
    world_run("no shared memory", 3, 0, true, NULL);
}

/* The rule by which an operation always has one algorithm, the `turn`-th that it has in that medium. */
static bool rule_make(int operation, int medium, uint32_t turn, struct choice_rule *out) {
    static const uint32_t all[] = {
#define ALGORITHM_ENTRY(name, value, text) name,
        CHOICE_ALGORITHM_TABLE(ALGORITHM_ENTRY)
#undef ALGORITHM_ENTRY
    };
    *out = (struct choice_rule){.operation = (enum comm_operation)operation,
                                .medium = (enum choice_medium)medium,
                                .ranks_max = UINT32_MAX,
                                .bytes_max = UINT64_MAX,
                                .piece_bytes = turn % 2 ? 10000 : 0};
    uint32_t possible[sizeof all / sizeof *all], count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (choice_is_possible(out->operation, out->medium, all[i])) {
            possible[count++] = all[i];
        }
    }
    out->algorithm = count > 0 ? possible[turn % count] : 0;
    return count > 0;
}

static void table_write(int fd, uint32_t turn) {
    for (int operation = COMM_BARRIER; operation <= COMM_OPERATION_LAST; operation++) {
        for (int medium = 0; medium < CHOICE_MEDIUM_COUNT; medium++) {
            struct choice_rule rule;
            char line[128];
            if (rule_make(operation, medium, turn, &rule)) {
                assert_true(choice_rule_format(&rule, line, sizeof line));
                assert_int_equal(write(fd, line, strlen(line)), strlen(line));
            }
        }
    }
}

static void with_each_algorithm(void **state) {
    (void)state;
    for (uint32_t turn = 0; turn < 4; turn++) { /* no operation has more */
        char path[32], name[64];
        int fd = memfd_create("a table of algorithms", 0); /* ranks inherit it; nothing is left in a folder */
        assert_true(fd >= 0);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        table_write(fd, turn);
        for (uint32_t ranks_per_host = 0; ranks_per_host <= 2; ranks_per_host++) {
            (void)snprintf(name, sizeof name, "algorithms %u, ranks per host %u", turn, ranks_per_host);
            if (ranks_per_host != 2 || turn % 2 == 0) {
                world_run(name, 3 + turn % 3, ranks_per_host, false, path);
            }
        }
        (void)close(fd);
    }
}

int main(int argc, char **argv) {
    int64_t wanted[2] = {(int64_t)rounds, (int64_t)seed};
    shares = part_stride("whole_matrix", 9);
    for (int i = 1; i < argc; i++) {
        if (i > 2 || !str_parse_i64(argv[i], &wanted[i - 1]) || wanted[i - 1] < 1) {
            (void)fprintf(stderr, "usage: collectives_matrix_test [ROUNDS [SEED]]\n");
            return 2;
        }
    }
    rounds = (uint64_t)wanted[0];
    seed = (uint64_t)wanted[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_host),         cmocka_unit_test(on_a_host_each),
        cmocka_unit_test(on_hosts_of_two),     cmocka_unit_test(without_shared_memory),
        cmocka_unit_test(with_each_algorithm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
