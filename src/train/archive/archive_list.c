/* What is in an archive: tensors, their pieces, values; see archive_impl.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "base/utf8.h"
#include "train/archive/archive_impl.h"

/* Elements of a tensor. A sum of as many products of sizes and strides as there are dimensions does not overflow. */
#define ELEMENTS_MAX ((uint64_t)1 << 56)

int archive_grow(void **array, size_t element_bytes, size_t count, size_t *room, size_t most, const char *what) {
    if (count < *room) {
        return 0;
    }
    if (count >= most) {
        return status_fail(MUSTER_ELIMIT, "there are more than %zu %s", most, what);
    }
    size_t wanted = *room < 16 ? 16 : *room * 2;
    wanted = wanted < most ? wanted : most;
    void *grown = realloc(*array, wanted * element_bytes);
    if (!grown) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %s", what);
    }
    *array = grown;
    *room = wanted;
    return 0;
}

static int copy_name(const char *name, char **out) {
    if (name[0] == '\0' || strlen(name) >= ARCHIVE_NAME_MAX || !utf8_is_valid(name)) {
        return status_fail(MUSTER_ECORRUPT, "a name is empty, too long, or not UTF-8");
    }
    *out = strdup(name);
    return *out ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a name");
}

/* ---- tensors ---- */

static int count_bytes(struct archive_tensor *tensor) {
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        if (tensor->shape[i] > ELEMENTS_MAX || __builtin_mul_overflow(elements, tensor->shape[i], &elements) ||
            elements > ELEMENTS_MAX) {
            return status_fail(MUSTER_ECORRUPT, "tensor %s has more than 2^56 elements", tensor->name);
        }
    }
    tensor->bytes = elements * tensor->element_bytes;
    return 0;
}

int archive_add_tensor(struct archive *archive, const char *name, struct archive_type type, uint32_t dim_count,
                       const uint64_t *shape) {
    int code = archive_grow((void **)&archive->tensors, sizeof *archive->tensors, archive->tensor_count,
                            &archive->tensor_room, ARCHIVE_TENSORS_MAX, "tensors");
    struct archive_tensor tensor = {.type_name = type.name,
                                    .type = type.type,
                                    .element_bytes = type.element_bytes,
                                    .dim_count = dim_count,
                                    .first_piece = (uint32_t)archive->piece_count};
    memcpy(tensor.shape, shape, dim_count * sizeof *shape);
    code = code ? code : copy_name(name, &tensor.name);
    code = code ? code : count_bytes(&tensor);
    if (code) {
        free(tensor.name);
        return code;
    }
    archive->tensors[archive->tensor_count++] = tensor;
    return 0;
}

int archive_add_piece(struct archive *archive, const struct archive_piece *piece) {
    int code = archive_grow((void **)&archive->pieces, sizeof *archive->pieces, archive->piece_count,
                            &archive->piece_room, ARCHIVE_PIECES_MAX, "pieces of tensors");
    if (code == 0) {
        archive->pieces[archive->piece_count++] = *piece;
        archive->tensors[archive->tensor_count - 1].piece_count++;
    }
    return code;
}

static int by_start(const void *left, const void *right) {
    const struct archive_piece *a = left, *b = right;
    return a->start[0] < b->start[0] ? -1 : a->start[0] > b->start[0];
}

static bool overlap(const struct archive_piece *a, const struct archive_piece *b, uint32_t dim_count) {
    for (uint32_t i = 0; i < dim_count; i++) {
        if (a->size[i] == 0 || b->size[i] == 0 || a->start[i] >= b->start[i] + b->size[i] ||
            b->start[i] >= a->start[i] + a->size[i]) {
            return false;
        }
    }
    return true;
}

/* Elements of a box of a tensor; UINT64_MAX: it leaves the tensor. */
static uint64_t count_inside(const struct archive_piece *piece, const struct archive_tensor *tensor) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        if (piece->start[i] > tensor->shape[i] || piece->size[i] > tensor->shape[i] - piece->start[i]) {
            return UINT64_MAX;
        }
        count *= piece->size[i];
    }
    return count;
}

int archive_check_cover(struct archive *archive, const struct archive_tensor *tensor) {
    struct archive_piece *pieces = archive->pieces + tensor->first_piece;
    uint64_t covered = 0, elements = tensor->bytes / tensor->element_bytes;
    qsort(pieces, tensor->piece_count, sizeof *pieces, by_start);
    for (uint32_t i = 0; i < tensor->piece_count; i++) {
        uint64_t count = count_inside(&pieces[i], tensor);
        if (count == UINT64_MAX) {
            return status_fail(MUSTER_ECORRUPT, "tensor %s: a part leaves the tensor", tensor->name);
        }
        covered += count;
        /* Pieces that begin behind the end of this one in the first dimension cannot meet it, nor can later ones. */
        for (uint32_t j = i + 1;
             count > 0 && j < tensor->piece_count &&
             (tensor->dim_count == 0 || pieces[j].start[0] < pieces[i].start[0] + pieces[i].size[0]);
             j++) {
            if (overlap(&pieces[i], &pieces[j], tensor->dim_count)) {
                return status_fail(MUSTER_ECORRUPT, "tensor %s: two parts overlap", tensor->name);
            }
        }
    }
    if (covered != elements) {
        return status_fail(MUSTER_ECORRUPT, "tensor %s: %" PRIu64 " of its %" PRIu64 " elements are nowhere",
                           tensor->name, elements - covered, elements);
    }
    return 0;
}

/* ---- values ---- */

static int add_value(struct archive *archive, const char *name, struct archive_value value, const uint8_t *text,
                     size_t bytes) {
    int code = archive_grow((void **)&archive->values, sizeof *archive->values, archive->value_count,
                            &archive->value_room, ARCHIVE_VALUES_MAX, "values");
    code = code ? code : copy_name(name, &value.name);
    if (code) {
        return code;
    }
    if (text) {
        value.text = strndup((const char *)text, bytes);
        if (!value.text) {
            free(value.name);
            return status_fail(MUSTER_ENOMEM, "no memory for a text");
        }
    }
    archive->values[archive->value_count++] = value;
    return 0;
}

int archive_add_integer(struct archive *archive, const char *name, int64_t integer) {
    return add_value(archive, name, (struct archive_value){.kind = MUSTER_VALUE_INTEGER, .integer = integer}, NULL, 0);
}

int archive_add_real(struct archive *archive, const char *name, double real) {
    return add_value(archive, name, (struct archive_value){.kind = MUSTER_VALUE_REAL, .real = real}, NULL, 0);
}

int archive_add_left_out(struct archive *archive, const char *name, const char *description) {
    return add_value(archive, name, (struct archive_value){.is_left_out = true}, (const uint8_t *)description,
                     strlen(description));
}

/* Valid, without zeros, and not too long for a snapshot. */
int archive_add_text(struct archive *archive, const char *name, const uint8_t *text, size_t bytes) {
    size_t used = 0;
    while (used < bytes && text[used] != 0 && utf8_length(text + used, bytes - used) > 0) {
        used += utf8_length(text + used, bytes - used);
    }
    if (used < bytes || bytes >= MUSTER_VALUE_TEXT_MAX) {
        return archive_add_left_out(archive, name, "a text that is too long, or not UTF-8");
    }
    return add_value(archive, name, (struct archive_value){.kind = MUSTER_VALUE_TEXT}, text, bytes);
}

/* ---- names ---- */

enum { NAMING_PASSES_MAX = 8 };

struct named {
    char **name;
    size_t order;
};

static int by_name(const void *left, const void *right) {
    const struct named *a = left, *b = right;
    int order = strcmp(*a->name, *b->name);
    return order != 0 ? order : a->order < b->order ? -1 : 1;
}

static int add_number(char **name, size_t number) {
    char *text = str_format_new("%s (%zu)", *name, number);
    if (!text || strlen(text) >= ARCHIVE_NAME_MAX) {
        int code = text ? status_fail(MUSTER_ELIMIT, "two of its names are %s", *name)
                        : status_fail(MUSTER_ENOMEM, "no memory for a name");
        free(text);
        return code;
    }
    free(*name);
    *name = text;
    return 0;
}

/* *out_any: some were alike, and what they are called now may be another's name. */
static int number_alike(struct named *all, size_t count, bool *out_any) {
    int code = 0;
    *out_any = false;
    qsort(all, count, sizeof *all, by_name);
    for (size_t first = 0, next; first < count && code == 0; first = next) {
        for (next = first + 1; next < count && code == 0 && strcmp(*all[next].name, *all[first].name) == 0; next++) {
            code = add_number(all[next].name, next - first + 1);
            *out_any = true;
        }
    }
    return code;
}

/* names: the first of `count`, `stride` bytes apart. */
static int name_apart(void *names, size_t count, size_t stride) {
    struct named *all = calloc(count + 1, sizeof *all);
    bool again = true;
    int code = all ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of names");
    for (size_t i = 0; i < count && code == 0; i++) {
        all[i] = (struct named){(char **)((char *)names + i * stride), i};
    }
    for (int pass = 0; code == 0 && again; pass++) {
        code = pass < NAMING_PASSES_MAX ? number_alike(all, count, &again)
                                        : status_fail(MUSTER_ELIMIT, "its names cannot be told apart");
    }
    free(all);
    return code;
}

int archive_name_apart(struct archive *archive) {
    int code = archive->tensor_count == 0
                   ? 0
                   : name_apart(&archive->tensors[0].name, archive->tensor_count, sizeof *archive->tensors);
    return code || archive->value_count == 0
               ? code
               : name_apart(&archive->values[0].name, archive->value_count, sizeof *archive->values);
}
