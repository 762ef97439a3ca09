/* Sizes and shapes as words; see ckpt.h. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/ckpt/ckpt.h"

void ckpt_size_text(uint64_t bytes, char out[CKPT_SIZE_MAX]) {
    static const char units[] = "KMGTPE";
    double value = (double)bytes;
    int unit = -1;
    while (value >= 1024 && unit + 2 < (int)sizeof units) {
        value /= 1024;
        unit++;
    }
    if (unit < 0) {
        (void)snprintf(out, CKPT_SIZE_MAX, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
    } else {
        (void)snprintf(out, CKPT_SIZE_MAX, "%.1f %ciB", value, units[unit]);
    }
}

void ckpt_shape_text(const struct archive_tensor *tensor, char out[CKPT_SHAPE_MAX]) {
    int used = snprintf(out, CKPT_SHAPE_MAX, "[");
    for (uint32_t i = 0; i < tensor->dim_count; i++) { /* 8 numbers of 20 digits fit */
        used +=
            snprintf(out + used, (size_t)(CKPT_SHAPE_MAX - used), "%s%" PRIu64, i > 0 ? ", " : "", tensor->shape[i]);
    }
    (void)snprintf(out + used, (size_t)(CKPT_SHAPE_MAX - used), "]");
}
