/* For tests: ranks whose groups have NCCL for their engine, and memory of the GPU that they can fill and read; on the
 * doubles of the CUDA driver and of NCCL, or on the real ones. */
#ifndef COMM_DEVICE_RANKS_TEST_SUPPORT_H
#define COMM_DEVICE_RANKS_TEST_SUPPORT_H

#include <muster/muster.h>

#include "comm/group/ranks_test_support.h"

struct device_rank {
    struct rank *rank;
    struct muster_group *group;
    void *stream; /* of the test's own work on the GPU */
};

/* Lets the libraries be the doubles, in this process and those forked from it: CUDA_DOUBLE and NCCL_DOUBLE, which
 * muster_double_test() defines. */
void device_ranks_use_doubles(const char *cuda, const char *nccl);

/* Makes the root group, with the engine "nccl". Ends the rank on failure. */
void device_rank_start(struct rank *rank, struct device_rank *out);
/* The same with a time-out, without the test's own stream: returns what that gave. */
int device_rank_try(struct rank *rank, int64_t timeout_ms, struct device_rank *out);
/* Frees the group. */
void device_rank_end(struct device_rank *device_rank);

/* Ends the rank if its detail lacks this part, or if the code is another one. */
void device_rank_expect_sentence(struct rank *rank, const char *part);
void device_rank_expect(struct rank *rank, int code, int expected, const char *part);

/* Memory of the GPU: from muster_device_alloc() (kind 0), or from the driver (kind 1). */
void *device_rank_allocate(struct device_rank *device_rank, size_t bytes, unsigned kind);
void device_rank_release(struct device_rank *device_rank, void *memory, unsigned kind);

/* Copies, waited for. */
void device_rank_put(struct device_rank *device_rank, void *to, const void *from, size_t bytes);
void device_rank_get(struct device_rank *device_rank, void *to, const void *from, size_t bytes);

#endif
