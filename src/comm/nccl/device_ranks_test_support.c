/* Ranks with a GPU each; see device_ranks_test_support.h. */
#include "comm/nccl/device_ranks_test_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/device.h"

void device_ranks_use_doubles(const char *cuda, const char *nccl) {
    (void)setenv("MUSTER_CUDA_LIBRARY", cuda, 1);
    (void)setenv("MUSTER_NCCL_LIBRARY", nccl, 1);
}

/* The test's own thread has the context of the rank's GPU for good. */
static void take_device(struct rank *rank, struct device_rank *out) {
    struct device device = {0};
    struct CUctx_st *previous = NULL;
    struct CUstream_st *stream = NULL;
    rank_check_code(rank, device_open(muster_group_local_rank(out->group), &device), 0);
    rank_check_code(rank, device_enter(&device, &previous), 0);
    rank_check(rank, device.cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING) == CUDA_OK);
    out->stream = stream;
}

int device_rank_try(struct rank *rank, int64_t timeout_ms, struct device_rank *out) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    *out = (struct device_rank){.rank = rank};
    options.engine = "nccl";
    options.timeout_ms = timeout_ms;
    return muster_group_create_store(rank_store(rank), rank->rank, rank->size, &options, &out->group);
}

void device_rank_start(struct rank *rank, struct device_rank *out) {
    rank_check_code(rank, device_rank_try(rank, RANKS_PATIENCE_MS, out), 0);
    take_device(rank, out);
}

void device_rank_end(struct device_rank *d) {
    if (d->stream) {
        rank_check(d->rank, cuda_library()->stream_destroy(d->stream) == CUDA_OK);
    }
    muster_group_free(d->group);
}

void *device_rank_allocate(struct device_rank *d, size_t bytes, unsigned kind) {
    void *memory = NULL;
    unsigned long long address = 0;
    if (kind == 0) {
        rank_check_code(d->rank, muster_device_alloc(d->group, bytes, &memory), 0);
        return memory;
    }
    rank_check(d->rank, cuda_library()->memory_allocate(&address, bytes) == CUDA_OK);
    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

void device_rank_release(struct device_rank *d, void *memory, unsigned kind) {
    if (kind == 0) {
        muster_device_free(d->group, memory);
    } else {
        rank_check(d->rank, cuda_library()->memory_free(device_address(memory)) == CUDA_OK);
    }
}

void device_rank_put(struct device_rank *d, void *to, const void *from, size_t bytes) {
    const struct cuda_library *cuda = cuda_library();
    rank_check(d->rank, bytes == 0 || cuda->copy_to_device(device_address(to), from, bytes, d->stream) == CUDA_OK);
    rank_check(d->rank, cuda->stream_synchronize(d->stream) == CUDA_OK);
}

void device_rank_get(struct device_rank *d, void *to, const void *from, size_t bytes) {
    const struct cuda_library *cuda = cuda_library();
    rank_check(d->rank, bytes == 0 || cuda->copy_to_host(to, device_address(from), bytes, d->stream) == CUDA_OK);
    rank_check(d->rank, cuda->stream_synchronize(d->stream) == CUDA_OK);
}

void device_rank_expect_sentence(struct rank *rank, const char *part) {
    if (!strstr(muster_detail(), part)) {
        (void)fprintf(stderr, "rank %u: '%s' lacks '%s'\n", rank->rank, muster_detail(), part);
        rank_failed(rank, __FILE__, __LINE__, "the right sentence");
    }
}

void device_rank_expect(struct rank *rank, int code, int expected, const char *part) {
    rank_check_code(rank, code, expected);
    device_rank_expect_sentence(rank, part);
}
