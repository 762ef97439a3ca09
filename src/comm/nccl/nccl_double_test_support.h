/* A double of libnccl.so.2 for tests, a shared library of its own: MUSTER_NCCL_LIBRARY names it. It moves no byte
 * between GPUs. What it has of NCCL:
 *
 * - Communicators among processes of one machine, which meet by the id: a memfd of the process that made it. There is
 * no name in a file system, and nothing stays behind.
 * - Operations are put onto a stream of the CUDA double (comm/device/cuda_double_test_support.h) and carried out by its
 *   thread, in the memory of that double's devices, with real results. Reductions round after each addition, in the
 *   order of ranks, and minima and maxima drop NaNs, as NCCL's do.
 * - Calls between ncclGroupStart() and ncclGroupEnd() go together; sends and receives among them at the same time.
 * Alone, a send waits for its receiver, and holds up its stream.
 * - Communicators that do not block: calls give ncclInProgress, the work is put onto the stream later, and a call
 * before the last one has got through is refused.
 * - ncclCommFinalize() waits until all ranks have called it.
 * - ncclCommSplit() and ncclCommShrink(): meanwhile the parent is in progress, and the new communicator's place is
 * NULL. What goes wrong stays in the parent, and the new one is there all the same, to be aborted. Those that wait for
 * ranks which do not come, do so until the parent is aborted. A shrink refuses a parent that has failed;
 * ncclCommRevoke() lets it forget that, and stops what it carries out.
 * - Different calls of the ranks, and ranks that are gone, are waited for for ever, until the communicator is aborted.
 *   With MUSTER_DOUBLE_NCCL_NOTICE=1 a rank that is gone is noticed (ncclRemoteError), as NCCL does over a network.
 *
 * It is built as several versions (NCCL_DOUBLE_VERSION, CMakeLists.txt), whose older ones lack newer functions.
 *
 * Faults: MUSTER_DOUBLE_NCCL (comm/device/fault_test_support.h). MUSTER_DOUBLE_NCCL_VERSION: another number.
 * MUSTER_DOUBLE_NCCL_LAG_US: how long what is in progress stays so. */
#ifndef COMM_NCCL_DOUBLE_TEST_SUPPORT_H
#define COMM_NCCL_DOUBLE_TEST_SUPPORT_H

#include "comm/nccl/nccl_abi.h"

#define NCCL_DOUBLE_API __attribute__((visibility("default")))

/* How many communicators of this process have neither been destroyed nor aborted. */
NCCL_DOUBLE_API unsigned nccl_double_live(void);

/* Waits until all other ranks of the communicator with which this process last carried out a collective have begun the
 * next one, on the GPU. It may not be ended meanwhile. */
NCCL_DOUBLE_API void nccl_double_await_others(void);

/* Elements of one NCCL type: into[i] = into[i] OP with[i], as NCCL rounds. nccl_double_arithmetic_test_support.c. */
size_t nccl_double_type_bytes(unsigned type);
void nccl_double_combine(unsigned type, unsigned op, void *into, const void *with, size_t count);
/* Before the first combination: multiplies by `scalar`, or by 1/size where that is how NCCL averages. */
void nccl_double_before(unsigned type, unsigned op, const double *scalar, unsigned size, void *data, size_t count);
/* After the last one: divides integers by the size. */
void nccl_double_after(unsigned type, unsigned op, unsigned size, void *data, size_t count);

#endif
