/* Every collective x type x reduction on memory of a GPU, in ways that are drawn: in place, at odd addresses, by a
 * handle, with buffers of the engine's and of the driver's. */
#ifndef COMM_DEVICE_MATRIX_TEST_SUPPORT_H
#define COMM_DEVICE_MATRIX_TEST_SUPPORT_H

#include "comm/nccl/device_ranks_test_support.h"

/* By all ranks of the group, with the same seed, which is not 0. Ends the rank where a result is wrong, or something is
 * written beside one. */
void device_matrix_run(struct device_rank *d, uint64_t seed, uint64_t rounds);

#endif
