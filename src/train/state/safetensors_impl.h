/* What the writer and the reader of safetensors headers share. */
#ifndef TRAIN_SAFETENSORS_IMPL_H
#define TRAIN_SAFETENSORS_IMPL_H

#include "train/state/safetensors.h"

/* The one name that is no tensor's. */
#define SAFETENSORS_METADATA "__metadata__"

extern const struct safetensors_type safetensors_types[];

/* Product of the element's size and the shape, in bytes; false when it is more than a file can hold, or no whole bytes.
 */
bool safetensors_extent(uint32_t element_bits, const uint64_t *shape, uint32_t dim_count, uint64_t *out);

#endif
