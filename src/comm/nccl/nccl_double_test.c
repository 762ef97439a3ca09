/* The double of NCCL itself, since other tests trust it: real results among processes, groups of calls, communicators
 * that do not block, split and shrunk ones, errors, aborts, and ranks that are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "comm/group/ranks_test_support.h"
#include "comm/nccl/nccl_double_test_support.h"
#include "comm/nccl/nccl_library.h"

enum { COUNT = 300, BYTES = COUNT * 4 };

struct world {
    struct rank *rank;
    const struct nccl_library *nccl;
    const struct cuda_library *cuda;
    struct CUstream_st *stream;
    struct ncclComm *comm;
    unsigned long long memory; /* BYTES, and twice that for each rank */
};

static void *address(const struct world *w, size_t offset) {
    return (void *)(uintptr_t)(w->memory + offset); /* NOLINT(performance-no-int-to-ptr) */
}

/* One rank tells the others through a store. */
static struct nccl_id share_id(struct world *w) {
    struct muster_store *store = rank_store(w->rank);
    struct muster_store_value value = {0};
    struct nccl_id id;
    if (w->rank->rank == 0) {
        rank_check(w->rank, w->nccl->get_id(&id) == NCCL_OK);
        rank_check_code(w->rank, muster_store_set(store, "id", &id, sizeof id), 0);
    } else {
        rank_check_code(w->rank, muster_store_get(store, "id", RANKS_PATIENCE_MS, &value), 0);
        memcpy(&id, value.data, sizeof id);
        muster_store_value_free(&value);
    }
    muster_store_close(store);
    return id;
}

static void world_start(struct rank *rank, struct world *w) {
    struct device device;
    struct CUctx_st *previous = NULL;
    *w = (struct world){.rank = rank, .nccl = nccl_library(), .cuda = cuda_library()};
    rank_check(rank, w->nccl && w->cuda);
    rank_check_code(rank, device_open(rank->rank, &device), 0);
    rank_check_code(rank, device_enter(&device, &previous), 0);
    rank_check(rank, w->cuda->stream_create(&w->stream, 0) == CUDA_OK);
    rank_check(rank, w->cuda->memory_allocate(&w->memory, (size_t)BYTES * (2 * rank->size + 1)) == CUDA_OK);
}

static void world_end(struct world *w) {
    rank_check(w->rank, w->cuda->memory_free(w->memory) == CUDA_OK);
    rank_check(w->rank, w->cuda->stream_destroy(w->stream) == CUDA_OK);
    rank_check(w->rank, nccl_double_live() == 0 && cuda_double_live() == 0);
}

static unsigned await_state(struct world *w, struct ncclComm *comm) {
    unsigned state = NCCL_IN_PROGRESS;
    while (state == NCCL_IN_PROGRESS) {
        rank_check(w->rank, w->nccl->comm_async_error(comm, &state) == NCCL_OK);
        (void)poll(NULL, 0, 1);
    }
    return state;
}

static void make_comm(struct world *w, int blocking) {
    struct nccl_config config = NCCL_CONFIG_INIT;
    config.blocking = blocking;
    struct nccl_id id = share_id(w);
    unsigned result = w->nccl->comm_init_config(&w->comm, (int)w->rank->size, id, (int)w->rank->rank, &config);
    rank_check(w->rank, result == (blocking ? NCCL_OK : NCCL_IN_PROGRESS));
    rank_check(w->rank, await_state(w, w->comm) == NCCL_OK);
}

static void put(struct world *w, size_t offset, int32_t first) {
    int32_t values[COUNT];
    for (int32_t i = 0; i < COUNT; i++) {
        values[i] = first + i;
    }
    rank_check(w->rank, w->cuda->copy_to_device(w->memory + offset, values, BYTES, w->stream) == CUDA_OK);
    rank_check(w->rank, w->cuda->stream_synchronize(w->stream) == CUDA_OK);
}

static void expect_values(struct world *w, size_t offset, int32_t first, int32_t step) {
    int32_t values[COUNT];
    rank_check(w->rank, w->cuda->copy_to_host(values, w->memory + offset, BYTES, w->stream) == CUDA_OK);
    rank_check(w->rank, w->cuda->stream_synchronize(w->stream) == CUDA_OK);
    for (int32_t i = 0; i < COUNT; i++) {
        rank_check(w->rank, values[i] == first + step * i);
    }
}

static int results_body(struct rank *rank, void *argument) {
    struct world w;
    int number = -1, size = (int)rank->size, me = (int)rank->rank;
    (void)argument;
    rank_check(rank, size > 0);
    world_start(rank, &w);
    make_comm(&w, 1);
    rank_check(rank, w.nccl->comm_count(w.comm, &number) == NCCL_OK && number == size);
    rank_check(rank, w.nccl->comm_rank(w.comm, &number) == NCCL_OK && number == me);
    put(&w, 0, me);
    rank_check(rank, w.nccl->all_reduce(address(&w, 0), address(&w, 0), COUNT, NCCL_INT32, NCCL_SUM, w.comm,
                                        w.stream) == NCCL_OK);
    expect_values(&w, 0, size * (size - 1) / 2, size);
    put(&w, 0, 100 * me);
    rank_check(rank,
               w.nccl->all_gather(address(&w, 0), address(&w, BYTES), COUNT, NCCL_INT32, w.comm, w.stream) == NCCL_OK);
    for (int i = 0; i < size; i++) {
        expect_values(&w, (size_t)BYTES * (size_t)(i + 1), 100 * i, 1);
    }
    /* Everybody sends to the next and receives from the one before: as one. */
    rank_check(rank, w.nccl->group_start() == NCCL_OK);
    rank_check(rank, w.nccl->send(address(&w, 0), COUNT, NCCL_INT32, (me + 1) % size, w.comm, w.stream) == NCCL_OK);
    rank_check(rank, w.nccl->receive(address(&w, BYTES), COUNT, NCCL_INT32, (me + size - 1) % size, w.comm, w.stream) ==
                         NCCL_OK);
    rank_check(rank, w.nccl->group_end() == NCCL_OK);
    expect_values(&w, BYTES, 100 * ((me + size - 1) % size), 1);
    /* NCCL's newer calls. */
    rank_check(rank,
               w.nccl->gather(address(&w, 0), address(&w, BYTES), COUNT, NCCL_INT32, 1, w.comm, w.stream) == NCCL_OK);
    for (int i = 0; i < size && me == 1; i++) {
        expect_values(&w, (size_t)BYTES * (size_t)(i + 1), 100 * i, 1);
    }
    rank_check(rank,
               w.nccl->scatter(address(&w, BYTES), address(&w, 0), COUNT, NCCL_INT32, 1, w.comm, w.stream) == NCCL_OK);
    expect_values(&w, 0, 100 * me, 1);
    for (int i = 0; i < size; i++) {
        put(&w, (size_t)BYTES * (size_t)(i + 1), 1000 * me + 100 * i);
    }
    rank_check(rank, w.nccl->all_to_all(address(&w, BYTES), address(&w, BYTES), COUNT, NCCL_INT32, w.comm, w.stream) ==
                         NCCL_INVALID_ARGUMENT); /* not in place */
    rank_check(rank, w.nccl->all_to_all(address(&w, BYTES), address(&w, (size_t)BYTES * (rank->size + 1)), COUNT,
                                        NCCL_INT32, w.comm, w.stream) == NCCL_OK);
    for (int i = 0; i < size; i++) {
        expect_values(&w, (size_t)BYTES * (size_t)(size + 1 + i), 1000 * i + 100 * me, 1);
    }
    rank_check(rank, w.cuda->stream_synchronize(w.stream) == CUDA_OK);
    rank_check(rank, w.nccl->comm_destroy(w.comm) == NCCL_OK);
    world_end(&w);
    return 0;
}

static void calls_have_real_results(void **state) {
    (void)state;
    ranks_run(3, results_body, NULL);
}

static int premul_body(struct rank *rank, void *argument) {
    struct world w;
    unsigned op = 0;
    float half = 0.5F, values[2] = {(float)rank->rank, 4};
    (void)argument;
    world_start(rank, &w);
    make_comm(&w, 1);
    rank_check(rank, w.nccl->op_create_premul_sum(&op, &half, NCCL_FLOAT32, NCCL_SCALAR_HOST, w.comm) == NCCL_OK);
    rank_check(rank, w.cuda->copy_to_device(w.memory, values, sizeof values, w.stream) == CUDA_OK);
    rank_check(rank,
               w.nccl->all_reduce(address(&w, 0), address(&w, 0), 2, NCCL_FLOAT32, op, w.comm, w.stream) == NCCL_OK);
    rank_check(rank, w.cuda->copy_to_host(values, w.memory, sizeof values, w.stream) == CUDA_OK);
    rank_check(rank, w.cuda->stream_synchronize(w.stream) == CUDA_OK);
    rank_check(rank, values[0] == 1.5F && values[1] == 6);
    rank_check(rank, w.nccl->op_destroy(op, w.comm) == NCCL_OK);
    rank_check(rank, w.nccl->all_reduce(address(&w, 0), address(&w, 0), 2, NCCL_FLOAT32, op, w.comm, w.stream) ==
                         NCCL_INVALID_ARGUMENT);
    rank_check(rank, w.nccl->comm_destroy(w.comm) == NCCL_OK);
    world_end(&w);
    return 0;
}

static void a_reduction_may_multiply_first(void **state) {
    (void)state;
    ranks_run(3, premul_body, NULL);
}

static int not_blocking_body(struct rank *rank, void *argument) {
    struct world w;
    unsigned state = NCCL_OK;
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_NCCL_LAG_US", "20000", 1);
    world_start(rank, &w);
    make_comm(&w, 0);
    put(&w, 0, 1);
    unsigned first = w.nccl->all_reduce(address(&w, 0), address(&w, 0), COUNT, NCCL_INT32, NCCL_MAX, w.comm, w.stream);
    unsigned second = w.nccl->all_reduce(address(&w, 0), address(&w, 0), COUNT, NCCL_INT32, NCCL_MAX, w.comm, w.stream);
    rank_check(rank, first == NCCL_IN_PROGRESS && second == NCCL_INVALID_ARGUMENT); /* too early */
    rank_check(rank, w.nccl->comm_async_error(w.comm, &state) == NCCL_OK && state == NCCL_IN_PROGRESS);
    rank_check(rank, await_state(&w, w.comm) == NCCL_OK);
    expect_values(&w, 0, 1, 1);
    /* A call in a group that is refused takes the others with it. */
    rank_check(rank, w.nccl->group_start() == NCCL_OK);
    rank_check(rank, w.nccl->all_reduce(address(&w, 0), address(&w, 0), COUNT, NCCL_INT32, NCCL_SUM, w.comm,
                                        w.stream) == NCCL_OK);
    rank_check(rank, w.nccl->all_reduce(&w, &w, 1, NCCL_INT32, NCCL_SUM, w.comm, w.stream) == NCCL_INVALID_ARGUMENT);
    rank_check(rank, w.nccl->group_end() == NCCL_INVALID_ARGUMENT);
    expect_values(&w, 0, 1, 1);
    rank_check(rank, w.nccl->comm_finalize(w.comm) == NCCL_IN_PROGRESS);
    rank_check(rank, await_state(&w, w.comm) == NCCL_OK);
    rank_check(rank, w.nccl->comm_destroy(w.comm) == NCCL_OK);
    world_end(&w);
    return 0;
}

static void a_communicator_may_not_block(void **state) {
    (void)state;
    ranks_run(2, not_blocking_body, NULL);
}

static void expect_sum(struct world *w, struct ncclComm *comm, int32_t sum) {
    put(w, 0, (int32_t)w->rank->rank);
    rank_check(w->rank, await_state(w, comm) == NCCL_OK);
    unsigned result = w->nccl->all_reduce(address(w, 0), address(w, 0), 1, NCCL_INT32, NCCL_SUM, comm, w->stream);
    rank_check(w->rank, result == NCCL_OK || result == NCCL_IN_PROGRESS);
    rank_check(w->rank, await_state(w, comm) == NCCL_OK);
    int32_t value = -1;
    rank_check(w->rank, w->cuda->copy_to_host(&value, w->memory, sizeof value, w->stream) == CUDA_OK);
    rank_check(w->rank, w->cuda->stream_synchronize(w->stream) == CUDA_OK);
    rank_check(w->rank, value == sum);
}

/* Begins a split, or a shrink; the new one is there when the parent is in progress no more. */
static struct ncclComm *await_derived(struct world *w, unsigned result, struct ncclComm *const *made) {
    rank_check(w->rank, result == NCCL_IN_PROGRESS);
    rank_check(w->rank, await_state(w, w->comm) == NCCL_OK);
    return *made;
}

/* Even and odd ranks, in reverse order, without rank 4; then all but rank 2. */
static int derived_body(struct rank *rank, void *argument) {
    struct world w;
    struct ncclComm *half = (void *)&w, *rest = (void *)&w;
    int number = -1, excluded[] = {2};
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_NCCL_LAG_US", "20000", 1);
    world_start(rank, &w);
    make_comm(&w, 0);
    unsigned result = w.nccl->comm_split(w.comm, rank->rank == 4 ? NCCL_NO_COLOR : (int)rank->rank % 2,
                                         -(int)rank->rank, &half, NULL);
    rank_check(rank, !half); /* not yet */
    rank_check(rank, w.nccl->comm_split(w.comm, 0, 0, &rest, NULL) == NCCL_INVALID_ARGUMENT);
    half = await_derived(&w, result, &half);
    rank_check(rank, (half == NULL) == (rank->rank == 4));
    if (half) {
        expect_sum(&w, half, rank->rank % 2 ? 1 + 3 : 0 + 2);
        rank_check(rank, w.nccl->comm_rank(half, &number) == NCCL_OK && number == (rank->rank < 2 ? 1 : 0));
        rank_check(rank, w.nccl->comm_destroy(half) == NCCL_OK);
    }
    rank_check(rank, w.nccl->comm_shrink(w.comm, NULL, 0, &rest, NULL, 0) == NCCL_INVALID_ARGUMENT);
    if (rank->rank == 2) {
        rank_check(rank, w.nccl->comm_shrink(w.comm, excluded, 1, &rest, NULL, 0) == NCCL_INVALID_ARGUMENT);
    } else {
        result = w.nccl->comm_shrink(w.comm, excluded, 1, &rest, NULL, NCCL_SHRINK_NORMAL);
        rest = await_derived(&w, result, &rest);
        expect_sum(&w, rest, 0 + 1 + 3 + 4);
        rank_check(rank, w.nccl->comm_count(rest, &number) == NCCL_OK && number == 4);
        rank_check(rank, w.nccl->comm_destroy(rest) == NCCL_OK);
    }
    rank_check(rank, w.nccl->comm_destroy(w.comm) == NCCL_OK);
    world_end(&w);
    return 0;
}

static void communicators_come_from_others(void **state) {
    (void)state;
    ranks_run(5, derived_body, NULL);
}

/* A split that fails on one rank leaves its error in the parent there; the others wait until they abort the parent. The
 * communicators that were to come are there all the same, for their own abort. */
static int failing_split_body(struct rank *rank, void *argument) {
    struct world w;
    struct ncclComm *half = NULL;
    unsigned state = NCCL_OK;
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_NCCL", rank->rank == 1 ? "fail:ncclCommSplit:1:2" : "", 1);
    world_start(rank, &w);
    make_comm(&w, 0);
    rank_check(rank, w.nccl->comm_split(w.comm, 0, 0, &half, NULL) == NCCL_IN_PROGRESS);
    if (rank->rank == 1) {
        rank_check(rank, await_state(&w, w.comm) == NCCL_SYSTEM_ERROR);
        rank_check(rank, w.nccl->comm_split(w.comm, 0, 0, &half, NULL) == NCCL_SYSTEM_ERROR);
        rank_mark(rank, 1);
    } else {
        rank_await(rank, 1, 1);
        rank_check(rank, w.nccl->comm_async_error(w.comm, &state) == NCCL_OK && state == NCCL_IN_PROGRESS && !half);
    }
    rank_check(rank, w.nccl->comm_abort(w.comm) == NCCL_OK);
    rank_check(rank, half && w.nccl->comm_abort(half) == NCCL_OK);
    world_end(&w);
    return 0;
}

static void a_split_that_fails_spoils_the_parent(void **state) {
    (void)state;
    ranks_run(3, failing_split_body, NULL);
}

/* Rank 0 comes to no call. The others' hangs, until they revoke the communicator (argument), or shrink it in the way
 * that stops what is under way; then they have one without rank 0. */
static int stopped_body(struct rank *rank, void *argument) {
    struct world w;
    struct ncclComm *rest = NULL;
    int excluded[] = {0};
    const bool *revokes = argument;
    world_start(rank, &w);
    make_comm(&w, 0);
    if (rank->rank > 0) {
        (void)w.nccl->all_reduce(address(&w, 0), address(&w, 0), 1, NCCL_INT32, NCCL_SUM, w.comm, w.stream);
        rank_check(rank, await_state(&w, w.comm) == NCCL_OK);
        rank_check(rank, w.cuda->stream_query(w.stream) == CUDA_NOT_READY);
        if (*revokes) {
            rank_check(rank, w.nccl->comm_revoke(w.comm, 1) == NCCL_INVALID_ARGUMENT);
            rank_check(rank, w.nccl->comm_revoke(w.comm, 0) == NCCL_IN_PROGRESS);
            rank_check(rank, await_state(&w, w.comm) == NCCL_OK);
            rank_check(rank, w.cuda->stream_query(w.stream) == CUDA_OK);
            rank_check(rank, w.nccl->comm_finalize(w.comm) == NCCL_INVALID_USAGE);
            rank_check(rank, w.nccl->all_reduce(address(&w, 0), address(&w, 0), 1, NCCL_INT32, NCCL_SUM, w.comm,
                                                w.stream) == NCCL_INVALID_USAGE);
        }
        unsigned result = w.nccl->comm_shrink(w.comm, excluded, 1, &rest, NULL, NCCL_SHRINK_ABORTING);
        rest = await_derived(&w, result, &rest);
        rank_check(rank, w.cuda->stream_synchronize(w.stream) == CUDA_OK);
        expect_sum(&w, rest, 1 + 2);
        rank_check(rank, w.nccl->comm_destroy(rest) == NCCL_OK);
    }
    rank_check(rank, w.nccl->comm_abort(w.comm) == NCCL_OK);
    world_end(&w);
    return 0;
}

static void calls_are_stopped_and_the_rest_goes_on(void **state) {
    (void)state;
    bool revokes = false;
    ranks_run(3, stopped_body, &revokes);
    revokes = true;
    ranks_run(3, stopped_body, &revokes);
}

/* Different calls, and ranks that are gone, are waited for for ever, or noticed. */
static int hanging_body(struct rank *rank, void *argument) {
    struct world w;
    const bool *notices = argument;
    (void)setenv("MUSTER_DOUBLE_NCCL_NOTICE", *notices ? "1" : "0", 1);
    world_start(rank, &w);
    make_comm(&w, 0);
    if (rank->rank == 0) {
        rank_await(rank, 1, 1);
        rank_check(rank, w.nccl->comm_abort(w.comm) == NCCL_OK);
        world_end(&w);
        return 0;
    }
    (void)w.nccl->all_reduce(address(&w, 0), address(&w, 0), 1, NCCL_INT32, NCCL_SUM, w.comm, w.stream);
    rank_check(rank, await_state(&w, w.comm) == NCCL_OK);
    rank_mark(rank, 1);
    while (*notices && await_state(&w, w.comm) == NCCL_OK) {
    }
    rank_check(rank, *notices ? await_state(&w, w.comm) == NCCL_REMOTE_ERROR
                              : w.cuda->stream_query(w.stream) == CUDA_NOT_READY);
    rank_check(rank, w.nccl->comm_abort(w.comm) == NCCL_OK); /* which sets the stream free */
    rank_check(rank, w.cuda->stream_synchronize(w.stream) == CUDA_OK);
    world_end(&w);
    return 0;
}

static void who_is_gone_is_waited_for_until_an_abort(void **state) {
    (void)state;
    bool notices = false;
    ranks_run(2, hanging_body, &notices);
    notices = true;
    ranks_run(2, hanging_body, &notices);
}

static void rounding_is_that_of_the_type(void **state) {
    (void)state;
    uint16_t half[] = {0x3c00, 0x7bff, 0x0001, 0x3c01};       /* 1, 65504, the smallest, 1 + 2^-10 */
    const uint16_t more[] = {0x1000, 0x7bff, 0x8001, 0x1000}; /* 2^-11: a tie; too much; back to nothing; a tie */
    nccl_double_combine(NCCL_FLOAT16, NCCL_SUM, half, more, 4);
    assert_int_equal(half[0], 0x3c00); /* to even */
    assert_int_equal(half[1], 0x7c00);
    assert_int_equal(half[2], 0x0000);
    assert_int_equal(half[3], 0x3c02);
    uint16_t brain[] = {0x3f80, 0x7fc0};
    const uint16_t other[] = {0x3b80, 0x3f80}; /* 2^-8: a tie; a NaN and 1 */
    nccl_double_combine(NCCL_BFLOAT16, NCCL_SUM, brain, other, 1);
    nccl_double_combine(NCCL_BFLOAT16, NCCL_MIN, &brain[1], &other[1], 1);
    assert_int_equal(brain[0], 0x3f80);
    assert_int_equal(brain[1], 0x3f80); /* NCCL's minimum drops a NaN */
    int8_t sums[] = {-7, 100};
    const int8_t with[] = {0, 100};
    nccl_double_combine(NCCL_INT8, NCCL_AVG, sums, with, 2);
    nccl_double_after(NCCL_INT8, NCCL_AVG, 2, sums, 2);
    assert_int_equal(sums[0], -3); /* towards zero */
    assert_int_equal(sums[1], (int8_t)200 / 2);
}

int main(void) {
    (void)setenv("MUSTER_CUDA_LIBRARY", CUDA_DOUBLE, 1);
    (void)setenv("MUSTER_NCCL_LIBRARY", NCCL_DOUBLE, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_is_that_of_the_type),
        cmocka_unit_test(calls_have_real_results),
        cmocka_unit_test(a_reduction_may_multiply_first),
        cmocka_unit_test(a_communicator_may_not_block),
        cmocka_unit_test(communicators_come_from_others),
        cmocka_unit_test(a_split_that_fails_spoils_the_parent),
        cmocka_unit_test(calls_are_stopped_and_the_rest_goes_on),
        cmocka_unit_test(who_is_gone_is_waited_for_until_an_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
