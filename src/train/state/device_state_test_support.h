/* For tests of states on a GPU, on the double of the driver: tensors of all sizes in memory of the host or of the GPU,
 * whose contents come from one number. */
#ifndef TRAIN_DEVICE_STATE_TEST_SUPPORT_H
#define TRAIN_DEVICE_STATE_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/snapshot.h>

#include "comm/device/cuda_abi.h"
#include "comm/group/ranks_test_support.h"

enum { DEVICE_STATE_TENSORS = 6 };

struct device_state {
    bool on_device;
    char *memory[DEVICE_STATE_TENSORS]; /* where each allocation begins; its tensor lies behind the beginning */
    struct muster_tensor tensors[DEVICE_STATE_TENSORS];
    int64_t tag;
    struct muster_value value;
    struct muster_snapshot_state state;
};

/* The driver is open, and the thread has a context, as in a program of CUDA. Ends the rank on failure. */
void device_state_begin(struct rank *rank);

/* One tensor takes three chunks of pinned memory; one has no elements, others a few bytes, at odd addresses. */
void device_state_init(struct rank *rank, struct device_state *s, bool on_device);
void device_state_done(struct rank *rank, struct device_state *s);

/* All from a number; at once, or as a stream's work, which begins when `gate` (NULL: none) is opened. */
void device_state_fill(struct device_state *s, int64_t tag);
struct device_gate;
struct device_gate *device_gate_new(void);
void device_gate_open(void *gate); /* the work that waits for it frees it */
void device_state_fill_late(struct device_state *s, int64_t tag, struct CUstream_st *stream, struct device_gate *gate);

/* Is all of it, bit for bit, what comes from this number? And the value. */
bool device_state_is(const struct device_state *s, int64_t tag);

#endif
