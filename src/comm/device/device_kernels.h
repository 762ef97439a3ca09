/* Kernels for gradients in memory of a GPU (conversions to 16-bit floats and back, and division), and for batch norm.
 * NVRTC compiles them for the GPU at hand when the first user asks for them. */
#ifndef COMM_DEVICE_KERNELS_H
#define COMM_DEVICE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/types.h>

#include "comm/device/device_work.h"
#include "comm/device/nvrtc_library.h"

struct device_kernels;

/* The image of all kernels for one architecture ("sm_90"), malloc'd. Needs no GPU. MUSTER_EUNSUPPORTED, MUSTER_ENOMEM.
 */
int device_kernels_compile(const struct nvrtc_library *nvrtc, const char *architecture, char **out, size_t *out_bytes);

/* The kernels of the device's context. All users in the process share them; the first one has them compiled, which
 * takes about as long as a small program takes to compile. Any thread. MUSTER_EUNSUPPORTED (no NVRTC, or one that does
 * not know this GPU: the sentence says what to install), MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int device_kernels_acquire(const struct device *device, struct device_kernels **out);
/* is_idle: none of this user's kernels is under way; else they stay with the GPU for good. The device must still be
 * there. NULL is accepted. */
void device_kernels_release(struct device_kernels *kernels, bool is_idle);

/* Given to the stream. Results are those of train/reduction/narrow.h and reduce_finish(), to the bit, but that a NaN
 * may be another one. half: BFLOAT16 or FLOAT16; wide: FLOAT32 or FLOAT64. No overlap. */
int device_kernels_narrow(const struct device_kernels *kernels, const struct device_stream *stream,
                          enum muster_type half, void *out, enum muster_type wide, const void *in, size_t count);
int device_kernels_widen(const struct device_kernels *kernels, const struct device_stream *stream,
                         enum muster_type wide, void *out, enum muster_type half, const void *in, size_t count);
/* data[i] /= divisor, of any of the four types. */
int device_kernels_divide(const struct device_kernels *kernels, const struct device_stream *stream,
                          enum muster_type type, void *data, size_t count, uint32_t divisor);

/* ---- batch norm ---- */

#define DEVICE_NORM_TABLE(X)                                                                                           \
    X(DEVICE_NORM_SUMS, muster_norm_sums)                                                                              \
    X(DEVICE_NORM_FOLD, muster_norm_fold)                                                                              \
    X(DEVICE_NORM_COUNT, muster_norm_count)                                                                            \
    X(DEVICE_NORM_STATISTICS, muster_norm_statistics)                                                                  \
    X(DEVICE_NORM_EVALUATION, muster_norm_evaluation)                                                                  \
    X(DEVICE_NORM_GRADIENTS, muster_norm_gradients)                                                                    \
    X(DEVICE_NORM_SLOPES, muster_norm_slopes)                                                                          \
    X(DEVICE_NORM_APPLY, muster_norm_apply)                                                                            \
    X(DEVICE_NORM_APPLY_BACKWARD, muster_norm_apply_backward)

enum device_norm {
#define DEVICE_NORM_ENUM(id, name) id,
    DEVICE_NORM_TABLE(DEVICE_NORM_ENUM)
#undef DEVICE_NORM_ENUM
        DEVICE_NORM_END
};

/* Given to the stream. parameters: one pointer for each parameter that the kernel has in norm_template.h, copied:
 * addresses and counts are of 64 bits. elements: how many it has to do; 0: nothing is done. */
int device_kernels_norm(const struct device_kernels *kernels, const struct device_stream *stream, enum device_norm norm,
                        void **parameters, size_t elements);

#endif
