/* NCCL as a group's engine, on doubles of its library and of the CUDA driver: every collective x type x reduction on
 * memory of the GPU among 2, 4 and 8 processes, on one host and on several; memory of the host in the same group;
 * streams; and what becomes of a call when NCCL fails, hangs, or a rank dies.
 *
 *     engine_nccl_test [ROUNDS [SEED]] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fnv.h"
#include "base/str.h"
#include "base/testing/parts_test_support.h"
#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "comm/device/hold_test_support.h"
#include "comm/nccl/device_matrix_test_support.h"
#include "comm/nccl/device_ranks_test_support.h"
#include "comm/nccl/nccl_double_test_support.h"

enum { SMALL = 1000 };

static uint64_t rounds = 1, seed = 20240901;

/* The rank ends where a call gives something else, or another sentence. */
static void expect_code(struct rank *rank, int code, int expected, const char *sentence) {
    if (code != expected || (sentence && !strstr(muster_detail(), sentence))) {
        (void)fprintf(stderr, "rank %u got '%s' (%s), not '%s' with '%s'\n", rank->rank, muster_strerror(code),
                      muster_detail(), muster_strerror(expected), sentence ? sentence : "");
        rank_failed(rank, __FILE__, __LINE__, "the right failure");
    }
}

/* Frees the group; then nothing of it may be left on the GPU. */
static void end(struct device_rank *d) {
    device_rank_end(d);
    rank_check(d->rank, nccl_double_live() == 0);
    rank_check(d->rank, cuda_double_live() == 0);
}

static void expect_numbers(struct device_rank *d, const int64_t *memory, size_t count, int64_t first) {
    int64_t host[SMALL];
    device_rank_get(d, host, memory, count * sizeof *host);
    for (size_t i = 0; i < count; i++) {
        rank_check(d->rank, host[i] == first + (int64_t)i);
    }
}

static void put_numbers(struct device_rank *d, int64_t *memory, size_t count, int64_t first) {
    int64_t host[SMALL];
    for (size_t i = 0; i < count; i++) {
        host[i] = first + (int64_t)i;
    }
    device_rank_put(d, memory, host, count * sizeof *host);
}

/* ---- every collective, type and reduction ---- */

static int matrix_body(struct rank *rank, void *argument) {
    struct device_rank d;
    device_rank_start(rank, &d);
    device_matrix_run(&d, (seed + *(const uint32_t *)argument) | 1, rounds);
    end(&d);
    return 0;
}

static void every_collective_type_and_reduction(void **state) {
    (void)state;
    static const uint32_t worlds[][2] = {{1, 0}, {2, 0}, {4, 0}, {8, 0}, {4, 2}, {3, 1}};
    unsigned stride = part_stride("whole_matrix", 4);
    for (uint32_t i = 0; i < sizeof worlds / sizeof *worlds; i += stride) {
        struct ranks_options options = {.ranks_per_host = worlds[i][1]};
        print_message("%u ranks, %u a host, seed %" PRIu64 "\n", worlds[i][0], worlds[i][1], seed + i);
        ranks_run_with(worlds[i][0], matrix_body, &i, &options);
    }
}

/* ---- both memories in one group ---- */

static int both_memories_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    device_rank_start(rank, &d);
    float *values = device_rank_allocate(&d, SMALL * sizeof *values, 0), host[SMALL];
    for (int turn = 0; turn < 20; turn++) {
        int32_t number = (int32_t)rank->rank + turn, most = -1;
        for (size_t i = 0; i < SMALL; i++) {
            host[i] = (float)(rank->rank + i);
        }
        device_rank_put(&d, values, host, sizeof host);
        rank_check_code(rank, muster_all_reduce(d.group, &number, &most, 1, MUSTER_INT32, MUSTER_OP_MAX, NULL), 0);
        rank_check(rank, most == (int32_t)rank->size - 1 + turn);
        rank_check_code(rank, muster_all_reduce(d.group, values, values, SMALL, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL),
                        0);
        rank_check_code(rank, muster_barrier(d.group, NULL), 0);
        device_rank_get(&d, host, values, sizeof host);
        for (size_t i = 0; i < SMALL; i++) {
            rank_check(rank, (size_t)host[i] == rank->size * i + rank->size * (rank->size - 1) / 2);
        }
    }
    device_rank_release(&d, values, 0);
    end(&d);
    return 0;
}

static void memory_of_the_host_goes_on_working(void **state) {
    (void)state;
    struct ranks_options hosts = {.ranks_per_host = 2};
    ranks_run(4, both_memories_body, NULL);
    ranks_run_with(4, both_memories_body, NULL, &hosts);
}

/* A rank with no data at all does as the others do, whose data are on the GPU, or on the host. */
static int idle_body(struct rank *rank, void *argument) {
    const size_t counts[] = {0, 3, 0, 5};
    struct device_rank d;
    (void)argument;
    device_rank_start(rank, &d);
    int16_t own[5], all[8] = {0}, host[8];
    for (size_t i = 0; i < 5; i++) {
        own[i] = (int16_t)(100 * rank->rank + i);
    }
    for (unsigned on_device = 0; on_device < 2; on_device++) {
        int16_t *from = device_rank_allocate(&d, sizeof own, 1), *to = device_rank_allocate(&d, sizeof all, 1);
        bool sends = counts[rank->rank] > 0, receives = rank->rank == 3;
        device_rank_put(&d, from, own, sizeof own);
        rank_check_code(rank,
                        muster_gather_v(d.group,
                                        !sends      ? NULL
                                        : on_device ? from
                                                    : own,
                                        !receives   ? NULL
                                        : on_device ? to
                                                    : all,
                                        counts, MUSTER_INT16, 3, NULL),
                        0);
        device_rank_get(&d, host, to, sizeof host);
        for (size_t i = 0; receives && i < 8; i++) {
            int16_t wanted = (int16_t)(i < 3 ? 100 + i : 300 + i - 3);
            rank_check(rank, (on_device ? host : all)[i] == wanted);
        }
        device_rank_release(&d, from, 1);
        device_rank_release(&d, to, 1);
    }
    end(&d);
    return 0;
}

static void a_rank_without_data_follows_the_others(void **state) {
    (void)state;
    ranks_run(4, idle_body, NULL);
}

static int mixture_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    device_rank_start(rank, &d);
    float here[4] = {0}, *there = device_rank_allocate(&d, sizeof here, 0);
    struct muster_work *work = NULL;
    rank_check_code(rank, muster_all_reduce(d.group, here, there, 4, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL),
                    MUSTER_EINVAL);
    rank_check(rank,
               strstr(muster_detail(), "all_reduce: its buffers are in memory of the host and in memory of the GPU"));
    rank_check_code(rank, muster_all_gather(d.group, here, there, 2, MUSTER_FLOAT32, &work), MUSTER_EINVAL);
    rank_check_code(rank, muster_all_reduce(d.group, there, there, 4, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    device_rank_release(&d, there, 0);
    end(&d);
    return 0;
}

static void a_call_is_in_one_memory(void **state) {
    (void)state;
    ranks_run(2, mixture_body, NULL);
}

/* A group beside, whose engine takes memory of the host alone. */
static int refusal_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *plain = NULL;
    struct muster_work *work = NULL;
    (void)argument;
    device_rank_start(rank, &d);
    float here[4] = {0}, *there = device_rank_allocate(&d, sizeof here, 0);
    options.engine = "muster";
    rank_check_code(rank, muster_group_split(d.group, 0, 0, &options, &plain), 0);
    device_rank_expect(
        rank, muster_all_reduce(plain, there, here, 4, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), MUSTER_EUNSUPPORTED,
        ", and the engine 'muster' of group 'world.1:0' takes memory of the host: ask for the engine 'nccl'");
    device_rank_expect(rank, muster_broadcast(plain, there, 4, MUSTER_FLOAT32, 0, &work), MUSTER_EUNSUPPORTED,
                       "broadcast: a buffer is in memory of GPU ");
    device_rank_expect(rank, muster_send(plain, there, 4, MUSTER_FLOAT32, 1 - rank->rank, 0, NULL), MUSTER_EUNSUPPORTED,
                       "send: a buffer is in memory of GPU ");
    device_rank_expect(rank, muster_receive(plain, there, 4, MUSTER_FLOAT32, 1 - rank->rank, 0, NULL, &work),
                       MUSTER_EUNSUPPORTED, "receive: a buffer is in memory of GPU ");
    rank_check_code(rank, muster_all_reduce(plain, here, here, 4, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    muster_group_free(plain);
    device_rank_release(&d, there, 0);
    end(&d);
    return 0;
}

static void other_engines_refuse_memory_of_gpus(void **state) {
    (void)state;
    ranks_run(2, refusal_body, NULL);
}

/* ---- streams ---- */

/* The caller's stream fills the buffer late; the call waits for that, also if another stream is set before the progress
 * thread comes to it. argument: by a handle? */
static int stream_body(struct rank *rank, void *argument) {
    const bool *by_handle = argument;
    struct device_rank d;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "3000", 1);
    device_rank_start(rank, &d);
    int64_t *values = device_rank_allocate(&d, SMALL * sizeof *values, 0), host[SMALL];
    for (int64_t turn = 1; turn <= 5; turn++) {
        struct muster_work *work = NULL;
        for (size_t i = 0; i < SMALL; i++) {
            host[i] = turn * (int64_t)(rank->rank + i);
        }
        rank_check_code(rank, muster_group_set_stream(d.group, d.stream), 0);
        for (int i = 0; i < 10; i++) { /* which takes the stream longer than all that the call does */
            rank_check(rank, cuda_library()->set_bytes(device_address(values), 0, 1, d.stream) == CUDA_OK);
        }
        rank_check(rank,
                   cuda_library()->copy_to_device(device_address(values), host, sizeof host, d.stream) == CUDA_OK);
        rank_check_code(
            rank,
            muster_all_reduce(d.group, values, values, SMALL, MUSTER_INT64, MUSTER_OP_SUM, *by_handle ? &work : NULL),
            0);
        rank_check_code(rank, muster_group_set_stream(d.group, NULL), 0);
        rank_check_code(rank, muster_work_wait(&work), 0);
        device_rank_get(&d, host, values, sizeof host);
        for (size_t i = 0; i < SMALL; i++) {
            rank_check(rank, host[i] == turn * (int64_t)(rank->size * i + rank->size * (rank->size - 1) / 2));
        }
    }
    device_rank_release(&d, values, 0);
    end(&d);
    return 0;
}

static void a_call_waits_for_the_callers_stream(void **state) {
    (void)state;
    bool by_handle = false;
    ranks_run(3, stream_body, &by_handle);
    by_handle = true;
    ranks_run(3, stream_body, &by_handle);
}

/* The progress thread comes to the call only when the caller's stream has been given work that holds it up: the call
 * does not wait for that. It is busy meanwhile with a call for which rank 1 lets it wait. */
static int later_work_body(struct rank *rank, void *argument) {
    struct device_rank d;
    static struct hold hold = HOLD_INIT;
    struct muster_work *first = NULL, *second = NULL;
    (void)argument;
    device_rank_start(rank, &d);
    int64_t *values = device_rank_allocate(&d, SMALL * sizeof *values, 0), number = 1;
    put_numbers(&d, values, SMALL, rank->rank);
    rank_check_code(rank, muster_group_set_stream(d.group, d.stream), 0);
    if (rank->rank == 1) {
        rank_await(rank, 0, 1);
    }
    rank_check_code(rank, muster_all_reduce(d.group, &number, &number, 1, MUSTER_INT64, MUSTER_OP_SUM, &first), 0);
    rank_check_code(rank, muster_all_reduce(d.group, values, values, SMALL, MUSTER_INT64, MUSTER_OP_MAX, &second), 0);
    hold_begin(&hold, d.stream);
    rank_mark(rank, 1);
    rank_check_code(rank, muster_work_wait(&first), 0);
    rank_check_code(rank, muster_work_wait(&second), 0);
    rank_check(rank, cuda_library()->stream_query(d.stream) == CUDA_NOT_READY);
    hold_end(&hold);
    expect_numbers(&d, values, SMALL, 1);
    device_rank_release(&d, values, 0);
    end(&d);
    return 0;
}

static void a_call_with_a_handle_waits_for_no_later_work(void **state) {
    (void)state;
    ranks_run(2, later_work_body, NULL);
}

/* ---- memory ---- */

static int memory_body(struct rank *rank, void *argument) {
    struct device_rank d;
    unsigned char host[5000];
    (void)argument;
    device_rank_start(rank, &d);
    unsigned char *memory = device_rank_allocate(&d, sizeof host, 0);
    rank_check(rank, device_place_of(memory) == DEVICE_PLACE_DEVICE);
    device_rank_get(&d, host, memory, sizeof host);
    for (size_t i = 0; i < sizeof host; i++) {
        rank_check(rank, host[i] == 0);
    }
    device_rank_release(&d, memory, 0);
    rank_check(rank, device_place_of(memory) == DEVICE_PLACE_HOST);
    muster_device_free(d.group, NULL);
    void *shared = NULL; /* and muster_alloc() still gives memory of the host */
    rank_check_code(rank, muster_alloc(d.group, 100, &shared), 0);
    rank_check(rank, device_place_of(shared) == DEVICE_PLACE_HOST);
    muster_free(d.group, shared);
    end(&d);
    return 0;
}

static void memory_of_the_gpu_is_zeroed(void **state) {
    (void)state;
    ranks_run(1, memory_body, NULL);
}

/* ---- messages, and calls that go together ---- */

/* In a ring, by handles, both at once; then out of order by tags; then from anybody, into memory of the host. */
static int message_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_message came;
    struct muster_work *works[2] = {NULL};
    uint32_t next = (rank->rank + 1) % rank->size, before = (rank->rank + rank->size - 1) % rank->size;
    (void)argument;
    device_rank_start(rank, &d);
    int64_t *from = device_rank_allocate(&d, SMALL * sizeof *from, 0),
            *to = device_rank_allocate(&d, SMALL * sizeof *to, 1);
    for (size_t count = 1; count <= SMALL; count *= 10) {
        put_numbers(&d, from, SMALL, 1000 * rank->rank);
        rank_check_code(rank, muster_send(d.group, from, count, MUSTER_INT64, next, 3, &works[0]), 0);
        rank_check_code(rank, muster_receive(d.group, to, SMALL, MUSTER_INT64, before, 3, &came, &works[1]), 0);
        rank_check_code(rank, muster_work_wait(&works[0]), 0);
        rank_check_code(rank, muster_work_wait(&works[1]), 0);
        rank_check(rank, came.count == count && came.rank == before && came.tag == 3);
        expect_numbers(&d, to, count, 1000 * before);
        rank_check_code(rank, muster_send(d.group, from, 5, MUSTER_INT64, next, 1, &works[0]), 0);
        rank_check_code(rank, muster_send(d.group, from + 100, 5, MUSTER_INT64, next, 2, &works[1]), 0);
        rank_check_code(rank, muster_receive(d.group, to, 5, MUSTER_INT64, before, 2, NULL, NULL), 0);
        expect_numbers(&d, to, 5, 1000 * before + 100);
        rank_check_code(rank, muster_receive(d.group, to, 5, MUSTER_INT64, before, 1, NULL, NULL), 0);
        expect_numbers(&d, to, 5, 1000 * before);
        rank_check_code(rank, muster_work_wait(&works[0]), 0);
        rank_check_code(rank, muster_work_wait(&works[1]), 0);
        int64_t here[4] = {-1};
        rank_check_code(rank, muster_send(d.group, from, 4, MUSTER_INT64, next, 9, &works[0]), 0);
        rank_check_code(rank, muster_receive(d.group, here, 4, MUSTER_INT64, MUSTER_ANY_RANK, 9, &came, NULL), 0);
        rank_check(rank, came.rank == before && here[3] == 1000 * before + 3);
        rank_check_code(rank, muster_work_wait(&works[0]), 0);
        rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    }
    device_rank_release(&d, from, 0);
    device_rank_release(&d, to, 1);
    end(&d);
    return 0;
}

static void messages_go_from_gpu_to_gpu(void **state) {
    (void)state;
    struct ranks_options hosts = {.ranks_per_host = 1};
    ranks_run(3, message_body, NULL);
    ranks_run_with(3, message_body, NULL, &hosts);
}

/* All_reduces of both memories, and an exchange, between coalesce_begin and _end. */
static int coalesced_body(struct rank *rank, void *argument) {
    struct device_rank d;
    int64_t here[2] = {1, 2};
    uint32_t other = 1 - rank->rank;
    (void)argument;
    device_rank_start(rank, &d);
    int64_t *values = device_rank_allocate(&d, SMALL * sizeof *values, 0);
    put_numbers(&d, values, SMALL, 0);
    rank_check_code(rank, muster_coalesce_begin(d.group), 0);
    rank_check_code(rank, muster_all_reduce(d.group, values, values, 10, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    rank_check_code(rank, muster_all_reduce(d.group, here, here, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    rank_check_code(rank, muster_all_reduce(d.group, here + 1, here + 1, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    rank_check_code(rank, muster_all_reduce(d.group, values + 10, values + 10, 10, MUSTER_INT64, MUSTER_OP_SUM, NULL),
                    0);
    rank_check_code(rank, muster_all_reduce(d.group, values + 20, values + 20, 10, MUSTER_INT64, MUSTER_OP_SUM, NULL),
                    0);
    rank_check_code(rank, muster_send(d.group, values + 100, 10, MUSTER_INT64, other, 0, NULL), 0);
    rank_check_code(rank, muster_receive(d.group, values + 200, 10, MUSTER_INT64, other, 0, NULL, NULL), 0);
    rank_check_code(rank, muster_coalesce_end(d.group, NULL), 0);
    rank_check(rank, here[0] == 2 && here[1] == 4);
    expect_numbers(&d, values + 200, 10, 100);
    expect_numbers(&d, values + 30, 70, 30);
    int64_t host[30];
    device_rank_get(&d, host, values, sizeof host);
    for (size_t i = 0; i < 30; i++) {
        rank_check(rank, host[i] == 2 * (int64_t)i);
    }
    device_rank_release(&d, values, 0);
    end(&d);
    return 0;
}

static void coalesced_calls_may_be_in_either_memory(void **state) {
    (void)state;
    ranks_run(2, coalesced_body, NULL);
}

/* ---- groups ---- */

/* Groups made from one with this engine have it, too, unless they ask for another. */
static int split_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_group *half = NULL, *plain = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    (void)argument;
    device_rank_start(rank, &d);
    options.engine = "muster";
    rank_check_code(rank, muster_group_split(d.group, (int32_t)rank->rank % 2, 0, NULL, &half), 0);
    rank_check_code(rank, muster_group_split(d.group, 0, 0, &options, &plain), 0);
    rank_check(rank,
               strcmp(muster_group_engine(half), "nccl") == 0 && strcmp(muster_group_engine(plain), "muster") == 0);
    struct device_rank in_half = {rank, half, d.stream};
    int64_t *values = device_rank_allocate(&in_half, SMALL * sizeof *values, 0);
    put_numbers(&d, values, SMALL, rank->rank);
    rank_check_code(rank, muster_all_reduce(half, values, values, SMALL, MUSTER_INT64, MUSTER_OP_MAX, NULL), 0);
    expect_numbers(&d, values, SMALL, 2 + rank->rank % 2);
    void *none = NULL;
    rank_check_code(rank, muster_device_alloc(plain, 8, &none), MUSTER_EUNSUPPORTED);
    rank_check(rank, strstr(muster_detail(), "has the engine 'muster', which has no memory of GPUs"));
    rank_check_code(rank, muster_group_set_stream(plain, NULL), MUSTER_EUNSUPPORTED);
    rank_check_code(rank, muster_device_alloc(half, 8, NULL), MUSTER_EINVAL);
    device_rank_release(&in_half, values, 0);
    muster_group_free(plain);
    muster_group_free(half);
    end(&d);
    return 0;
}

static void groups_made_from_it_have_the_engine(void **state) {
    (void)state;
    ranks_run(4, split_body, NULL);
}

/* argument: the variable, the sentence. */
static int without_body(struct rank *rank, void *argument) {
    struct device_rank d;
    const char *const *missing = argument;
    (void)setenv(missing[0], "libno-such-library.so.2", 1);
    expect_code(rank, device_rank_try(rank, 60000, &d), MUSTER_EUNSUPPORTED, missing[1]);
    rank_check(rank, !d.group);
    return 0;
}

static void without_driver_or_nccl_no_group_is_made(void **state) {
    (void)state;
    const char *driver[] = {"MUSTER_CUDA_LIBRARY", "NVIDIA's driver, which cannot be opened"};
    const char *nccl[] = {"MUSTER_NCCL_LIBRARY", "groups of GPUs need NCCL"};
    ranks_run(1, without_body, driver);
    ranks_run(1, without_body, nccl);
    ranks_run(3, without_body, nccl);
}

/* ---- failures ---- */

/* Faults of one rank, or of all, in an all_reduce of all ranks; and what each rank's call must give. */
struct failing {
    const char *cuda_faults, *nccl_faults; /* NULL: none */
    bool by_all, notices;
    int64_t timeout_ms;
    int expected, expected_elsewhere;
    const char *sentence, *sentence_elsewhere;
};

enum { FAULTY = 1, CALLS_BEFORE = 2 };

static int all_reduce_of(struct device_rank *d, float *values) {
    return muster_all_reduce(d->group, values, values, SMALL, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
}

static int failing_body(struct rank *rank, void *argument) {
    const struct failing *f = argument;
    struct device_rank d;
    bool is_faulty = f->by_all || rank->rank == FAULTY;
    if (is_faulty && f->cuda_faults) {
        (void)setenv("MUSTER_DOUBLE_CUDA", f->cuda_faults, 1);
    }
    if (is_faulty && f->nccl_faults) {
        (void)setenv("MUSTER_DOUBLE_NCCL", f->nccl_faults, 1);
    }
    (void)setenv("MUSTER_DOUBLE_NCCL_NOTICE", f->notices ? "1" : "0", 1);
    device_rank_start(rank, &d);
    float *values = device_rank_allocate(&d, SMALL * sizeof *values, 1);
    for (int i = 0; i < CALLS_BEFORE; i++) {
        rank_check_code(rank, all_reduce_of(&d, values), 0);
    }
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    rank_hurry(d.group, f->timeout_ms);
    int64_t begin_ns = clock_monotonic_ns();
    int code = all_reduce_of(&d, values);
    int64_t took_ms = (clock_monotonic_ns() - begin_ns) / CLOCK_NS_PER_MS;
    expect_code(rank, code, is_faulty ? f->expected : f->expected_elsewhere,
                is_faulty ? f->sentence : f->sentence_elsewhere);
    rank_check(rank, took_ms < f->timeout_ms + RANKS_PATIENCE_MS / 4);
    expect_code(rank, all_reduce_of(&d, values), MUSTER_EGROUP, NULL);
    muster_group_free(d.group);
    return 0;
}

static void expect_failure(const struct failing *failing) {
    struct failing f = *failing;
    ranks_run(3, failing_body, &f);
}

#define THIRD "3" /* the call that fails: after CALLS_BEFORE good ones */

static void a_call_that_nccl_refuses_fails_the_group(void **state) {
    (void)state;
    expect_failure(
        &(struct failing){.nccl_faults = "error:ncclAllReduce:" THIRD ":3",
                          .timeout_ms = 60000,
                          .expected = MUSTER_ESYSTEM,
                          .expected_elsewhere = MUSTER_ESYSTEM,
                          .sentence = "begin the call: NCCL: internal error (the double says: it was told to)",
                          .sentence_elsewhere = "rank 1"});
}

static void an_error_that_comes_later_fails_the_group(void **state) {
    (void)state;
    expect_failure(&(struct failing){.nccl_faults = "fail:ncclAllReduce:" THIRD ":2",
                                     .timeout_ms = 60000,
                                     .expected = MUSTER_ESYSTEM,
                                     .expected_elsewhere = MUSTER_ESYSTEM,
                                     .sentence = "carry out the call: NCCL: a system call failed",
                                     .sentence_elsewhere = "rank 1"});
}

static void a_peer_that_nccl_misses_is_a_peer(void **state) {
    (void)state;
    expect_failure(&(struct failing){.nccl_faults = "fail:ncclAllReduce:" THIRD ":6",
                                     .by_all = true,
                                     .timeout_ms = 60000,
                                     .expected = MUSTER_EPEER});
}

static void a_call_that_hangs_on_the_gpu_is_given_up_at_the_deadline(void **state) {
    (void)state;
    expect_failure(&(struct failing){.nccl_faults = "stick:ncclAllReduce:" THIRD,
                                     .by_all = true,
                                     .timeout_ms = 1000,
                                     .expected = MUSTER_ETIMEOUT,
                                     .sentence = "not done within 1.000 s; all ranks have begun it"});
}

static void a_stream_that_hangs_is_given_up_at_the_deadline(void **state) {
    (void)state; /* the events of a call are two: before it, and after it */
    expect_failure(&(struct failing){.cuda_faults = "stick:record:6",
                                     .by_all = true,
                                     .timeout_ms = 1000,
                                     .expected = MUSTER_ETIMEOUT,
                                     .sentence = "not done within 1.000 s"});
}

static void a_gpu_that_breaks_is_told_in_the_drivers_words(void **state) {
    (void)state;
    expect_failure(&(struct failing){.cuda_faults = "fail:record:5:700",
                                     .timeout_ms = 60000,
                                     .expected = MUSTER_ESYSTEM,
                                     .expected_elsewhere = MUSTER_ESYSTEM,
                                     .sentence = "wait for the caller's stream: CUDA_ERROR_ILLEGAL_ADDRESS",
                                     .sentence_elsewhere = "rank 1"});
    expect_failure(&(struct failing){.cuda_faults = "fail:record:6:700",
                                     .by_all = true,
                                     .timeout_ms = 60000,
                                     .expected = MUSTER_ESYSTEM,
                                     .sentence = "carry out the call: CUDA_ERROR_ILLEGAL_ADDRESS"});
}

/* Who does not come is named, as with any engine: the group knows. */
static int late_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    device_rank_start(rank, &d);
    float *values = device_rank_allocate(&d, SMALL * sizeof *values, 1);
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    rank_hurry(d.group, 1000);
    if (rank->rank == 2) {
        rank_await(rank, 0, 1);
        rank_await(rank, 1, 1);
        muster_group_free(d.group);
        return 0;
    }
    expect_code(rank, all_reduce_of(&d, values), MUSTER_ETIMEOUT, "these ranks did not come: 2");
    rank_mark(rank, 1);
    muster_group_free(d.group);
    return 0;
}

static void a_rank_that_does_not_come_is_named(void **state) {
    (void)state;
    ranks_run(3, late_body, NULL);
}

/* A rank is killed while the others are in a call with it. */
static int killed_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    device_rank_start(rank, &d);
    float *values = device_rank_allocate(&d, SMALL * sizeof *values, 1);
    rank_check_code(rank, all_reduce_of(&d, values), 0);
    rank_mark(rank, 1);
    if (rank->rank == 1) {
        rank_await_signal(rank, 1); /* which never comes */
    }
    expect_code(rank, all_reduce_of(&d, values), MUSTER_EPEER, "rank 1");
    struct muster_group *rest = NULL;
    rank_check_code(rank, muster_group_shrink(d.group, RANKS_PATIENCE_MS, &rest), 0);
    rank_check(rank, muster_group_size(rest) == rank->size - 1);
    rank_check(rank, strcmp(muster_group_engine(rest), "nccl") == 0);
    struct device_rank again = {rank, rest, d.stream};
    rank_check_code(rank, all_reduce_of(&again, values), 0);
    muster_group_free(rest);
    muster_group_free(d.group);
    return 0;
}

static void survivors_of_a_death_go_on_with_a_new_communicator(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(4, killed_body, NULL, NULL);
    ranks_await_all(ranks, 1);
    ranks_kill(ranks, 1);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), rank == 1 ? RANKS_KILLED - 9 : 0);
    }
    ranks_free(ranks);
}

/* A group that has failed is freed without waiting for the others, who may never come: that wait is
 * ncclCommFinalize()'s. */
static int failed_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_NCCL", "die:ncclCommFinalize:1", 1);
    device_rank_start(rank, &d);
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    muster_group_abort(d.group, "no more");
    muster_group_free(d.group);
    return 0;
}

static void a_failed_group_is_freed_at_once(void **state) {
    (void)state;
    ranks_run(3, failed_body, NULL);
}

/* Ranks that make different calls, or have their buffers in different memories. */
struct differing {
    bool compares, by_place;
    const char *sentence;
};

static int differing_body(struct rank *rank, void *argument) {
    const struct differing *differing = argument;
    struct device_rank d;
    (void)setenv("MUSTER_COMPARE_CALLS", differing->compares ? "1" : "0", 1);
    device_rank_start(rank, &d);
    float here[SMALL] = {0}, *values = device_rank_allocate(&d, SMALL * sizeof *values, 1);
    rank_check_code(rank, all_reduce_of(&d, values), 0);
    bool is_other = rank->rank == 1;
    float *buffer = is_other && differing->by_place ? here : values;
    size_t count = is_other && !differing->by_place ? 7 : 8;
    int code = muster_all_reduce(d.group, buffer, buffer, count, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
    expect_code(rank, code, MUSTER_EMISMATCH, differing->sentence);
    muster_group_free(d.group);
    return 0;
}

static void different_calls_are_found_out(void **state) {
    (void)state;
    struct ranks_options hosts = {.ranks_per_host = 1};
    struct differing differing = {.sentence = "call 2 of group 'world' is all_reduce of"};
    ranks_run(2, differing_body, &differing);
    differing.compares = true;
    ranks_run(2, differing_body, &differing);
    differing.sentence = "all_reduce of 7 float32, sum";
    ranks_run_with(2, differing_body, &differing, &hosts);
}

static void different_memories_are_found_out_where_calls_are_compared(void **state) {
    (void)state;
    struct ranks_options hosts = {.ranks_per_host = 1};
    struct differing differing = {true, true,
                                  "the buffers of its ranks are in memory of the host and in memory of the GPU"};
    ranks_run(3, differing_body, &differing);
    ranks_run_with(3, differing_body, &differing, &hosts);
}

/* A rank dies within a call of NCCL. */
static int dying_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    if (rank->rank == 2) {
        (void)setenv("MUSTER_DOUBLE_NCCL", "die:ncclGroupEnd:2", 1);
    }
    device_rank_start(rank, &d);
    float *values = device_rank_allocate(&d, SMALL * sizeof *values, 1);
    rank_check_code(rank, all_reduce_of(&d, values), 0);
    expect_code(rank, all_reduce_of(&d, values), MUSTER_EPEER, "rank 2");
    muster_group_free(d.group);
    return 0;
}

static void a_death_within_nccl_is_noticed(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(4, dying_body, NULL, NULL);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), rank == 2 ? RANKS_KILLED - 9 : 0);
    }
    ranks_free(ranks);
}

/* The program aborts while the GPU hangs. */
static int aborted_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_work *work = NULL;
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_NCCL", "stick:ncclAllReduce:1", 1);
    device_rank_start(rank, &d);
    float *values = device_rank_allocate(&d, SMALL * sizeof *values, 1);
    rank_check_code(rank, muster_all_reduce(d.group, values, values, SMALL, MUSTER_FLOAT32, MUSTER_OP_SUM, &work), 0);
    if (rank->rank == 0) {
        muster_group_abort(d.group, "no more");
    }
    expect_code(rank, muster_work_wait(&work), MUSTER_EABORTED, "no more");
    muster_group_free(d.group);
    return 0;
}

static void a_group_may_be_aborted_in_a_call(void **state) {
    (void)state;
    ranks_run(3, aborted_body, NULL);
}

/* A rank aborts the group as soon as it has it, when others may still be about to hear that all have connected. */
static int hasty_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    rank_check_code(rank, device_rank_try(rank, RANKS_PATIENCE_MS, &d), 0);
    if (rank->rank == 2) {
        muster_group_abort(d.group, "no more");
    }
    expect_code(rank, muster_barrier(d.group, NULL), MUSTER_EABORTED, "no more");
    muster_group_free(d.group);
    return 0;
}

static void an_abort_at_once_spoils_no_making(void **state) {
    (void)state;
    enum { TURNS = 10 };
    struct ranks_options hosts = {.ranks_per_host = 2};
    for (int turn = 0; turn < TURNS; turn++) {
        ranks_run_with(4, hasty_body, NULL, &hosts);
    }
}

/* NCCL's abort hangs: the rank does not. */
static int hanging_abort_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_NCCL", "stick:ncclAllReduce:1,hang:ncclCommAbort:1", 1);
    device_rank_start(rank, &d);
    float *values = device_rank_allocate(&d, SMALL * sizeof *values, 1);
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    rank_hurry(d.group, 1000);
    expect_code(rank, all_reduce_of(&d, values), MUSTER_ETIMEOUT, "not done within 1.000 s");
    muster_group_free(d.group);
    _exit(0); /* without a look for leaks: what the GPU may still use is left to it */
}

static void an_abort_that_hangs_holds_nobody(void **state) {
    (void)state;
    ranks_run(2, hanging_abort_body, NULL);
}

/* ---- connecting ---- */

struct connecting {
    const char *faults;
    uint32_t faulty; /* the rank with the faults */
    int64_t timeout_ms;
    int expected, expected_elsewhere;
    const char *sentence, *sentence_elsewhere;
};

static int connecting_body(struct rank *rank, void *argument) {
    const struct connecting *c = argument;
    struct device_rank d;
    bool is_faulty = rank->rank == c->faulty;
    if (is_faulty) {
        (void)setenv("MUSTER_DOUBLE_NCCL", c->faults, 1);
    }
    int code = device_rank_try(rank, c->timeout_ms, &d);
    expect_code(rank, code, is_faulty ? c->expected : c->expected_elsewhere,
                is_faulty ? c->sentence : c->sentence_elsewhere);
    rank_check(rank, !d.group);
    return 0;
}

static void an_id_that_cannot_be_made_is_told_to_all(void **state) {
    (void)state;
    struct connecting c = {.faults = "error:ncclGetUniqueId:1:3",
                           .faulty = 0,
                           .timeout_ms = 60000,
                           .expected = MUSTER_ESYSTEM,
                           .expected_elsewhere = MUSTER_ESYSTEM,
                           .sentence = "make an id: NCCL: internal error",
                           .sentence_elsewhere = "make an id: NCCL: internal error"};
    ranks_run(3, connecting_body, &c);
}

/* The rank that fails fails the group, and so the others hear of it. */
static void a_rank_that_cannot_connect_lets_nobody_wait(void **state) {
    (void)state;
    struct connecting c = {.faults = "error:ncclCommInitRankConfig:1:1",
                           .faulty = 2,
                           .timeout_ms = 120000,
                           .expected = MUSTER_ESYSTEM,
                           .expected_elsewhere = MUSTER_ESYSTEM,
                           .sentence = "make a communicator: NCCL: the device failed",
                           .sentence_elsewhere = "rank 2"};
    ranks_run(3, connecting_body, &c);
}

static void connecting_ends_at_the_deadline(void **state) {
    (void)state;
    struct connecting c = {.faults = "delay:ncclCommInitRankConfig:1:6000000",
                           .faulty = 1,
                           .timeout_ms = 3000,
                           .expected = MUSTER_ETIMEOUT,
                           .expected_elsewhere = MUSTER_ETIMEOUT,
                           .sentence_elsewhere = "the engine 'nccl' was not ready on all ranks in time"};
    ranks_run(2, connecting_body, &c);
}

int main(int argc, char **argv) {
    int64_t wanted[2] = {(int64_t)rounds, (int64_t)seed};
    for (int i = 1; i < argc; i++) {
        if (i > 2 || !str_parse_i64(argv[i], &wanted[i - 1]) || wanted[i - 1] < 1) {
            (void)fprintf(stderr, "usage: engine_nccl_test [ROUNDS [SEED]]\n");
            return 2;
        }
    }
    rounds = (uint64_t)wanted[0];
    seed = (uint64_t)wanted[1];
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_the_gpu_is_zeroed),
        cmocka_unit_test(memory_of_the_host_goes_on_working),
        cmocka_unit_test(a_rank_without_data_follows_the_others),
        cmocka_unit_test(a_call_is_in_one_memory),
        cmocka_unit_test(other_engines_refuse_memory_of_gpus),
        cmocka_unit_test(a_call_waits_for_the_callers_stream),
        cmocka_unit_test(a_call_with_a_handle_waits_for_no_later_work),
        cmocka_unit_test(messages_go_from_gpu_to_gpu),
        cmocka_unit_test(coalesced_calls_may_be_in_either_memory),
        cmocka_unit_test(groups_made_from_it_have_the_engine),
        cmocka_unit_test(without_driver_or_nccl_no_group_is_made),
        cmocka_unit_test(an_id_that_cannot_be_made_is_told_to_all),
        cmocka_unit_test(a_rank_that_cannot_connect_lets_nobody_wait),
        cmocka_unit_test(connecting_ends_at_the_deadline),
        cmocka_unit_test(a_call_that_nccl_refuses_fails_the_group),
        cmocka_unit_test(an_error_that_comes_later_fails_the_group),
        cmocka_unit_test(a_peer_that_nccl_misses_is_a_peer),
        cmocka_unit_test(a_call_that_hangs_on_the_gpu_is_given_up_at_the_deadline),
        cmocka_unit_test(a_stream_that_hangs_is_given_up_at_the_deadline),
        cmocka_unit_test(a_gpu_that_breaks_is_told_in_the_drivers_words),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(survivors_of_a_death_go_on_with_a_new_communicator),
        cmocka_unit_test(different_calls_are_found_out),
        cmocka_unit_test(different_memories_are_found_out_where_calls_are_compared),
        cmocka_unit_test(a_failed_group_is_freed_at_once),
        cmocka_unit_test(a_death_within_nccl_is_noticed),
        cmocka_unit_test(a_group_may_be_aborted_in_a_call),
        cmocka_unit_test(an_abort_at_once_spoils_no_making),
        cmocka_unit_test(an_abort_that_hangs_holds_nobody),
        cmocka_unit_test(every_collective_type_and_reduction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
