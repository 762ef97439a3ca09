/* Names checked and copied, lists placed in one block; see model_copy.h. */
#include "train/reduction/model_copy.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum { ALIGNMENT = 16 };
_Static_assert(ALIGNMENT % _Alignof(max_align_t) == 0, "pieces are aligned for any type");

int model_check_name(const char *what, size_t index, const char *name) {
    if (!name || strnlen(name, MODEL_NAME_MAX) == MODEL_NAME_MAX) {
        return status_fail(MUSTER_EINVAL, "%s %zu has no name, or one of more than %zu bytes", what, index,
                           MODEL_NAME_MAX - 1);
    }
    return strchr(name, '\n') ? status_fail(MUSTER_EINVAL, "the name of %s %zu has a line break", what, index)
                              : MUSTER_OK;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

int model_check_unique(const char *what, const char *const *first, size_t stride, size_t count) {
    const char **sorted = malloc(count * sizeof *sorted);
    int status = MUSTER_OK;
    if (!sorted) {
        return status_fail(MUSTER_ENOMEM, "no memory to compare the names of %zu %ss", count, what);
    }
    for (size_t i = 0; i < count; i++) {
        memcpy(&sorted[i], (const char *)first + i * stride, sizeof *sorted);
    }
    qsort(sorted, count, sizeof *sorted, compare_names);
    for (size_t i = 1; status == MUSTER_OK && i < count; i++) {
        if (strcmp(sorted[i - 1], sorted[i]) == 0) {
            status = status_fail(MUSTER_EINVAL, "two %ss are called \"%s\"", what, sorted[i]);
        }
    }
    free(sorted);
    return status;
}

void *model_carve(void *block, size_t *used, size_t bytes) {
    size_t at = *used;
    *used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return block ? (uint8_t *)block + at : NULL;
}

const char *model_keep_name(char **room, const char *name) {
    char *kept = *room;
    size_t bytes = strlen(name) + 1;
    memcpy(kept, name, bytes);
    *room += bytes;
    return kept;
}
