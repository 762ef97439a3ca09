/* Laying out and writing safetensors headers; safetensors_read.c reads them. See safetensors.h. */
#include "train/state/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"
#include "train/state/json_text.h"
#include "train/state/safetensors_impl.h"

/* The format is little-endian, and tensors are written as they lie in memory. */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "snapshots on big-endian machines need swapped bytes");

const struct safetensors_type safetensors_types[] = {
    {"I8", MUSTER_INT8, 8, NULL},
    {"U8", MUSTER_UINT8, 8, NULL},
    {"I16", MUSTER_INT16, 16, NULL},
    {"I32", MUSTER_INT32, 32, NULL},
    {"I64", MUSTER_INT64, 64, NULL},
    {"U16", MUSTER_UINT16, 16, NULL},
    {"U32", MUSTER_UINT32, 32, NULL},
    {"U64", MUSTER_UINT64, 64, NULL},
    {"F16", MUSTER_FLOAT16, 16, NULL},
    {"BF16", MUSTER_BFLOAT16, 16, NULL},
    {"F32", MUSTER_FLOAT32, 32, NULL},
    {"F64", MUSTER_FLOAT64, 64, NULL},
    /* Of Python's files; they can lie beside what is loaded. */
    {"BOOL", MUSTER_TYPE_COUNT, 8, "bool"},
    {"F8_E4M3", MUSTER_TYPE_COUNT, 8, "float8_e4m3fn"},
    {"F8_E5M2", MUSTER_TYPE_COUNT, 8, "float8_e5m2"},
    {"F8_E4M3FNUZ", MUSTER_TYPE_COUNT, 8, "float8_e4m3fnuz"},
    {"F8_E5M2FNUZ", MUSTER_TYPE_COUNT, 8, "float8_e5m2fnuz"},
    {"F8_E8M0", MUSTER_TYPE_COUNT, 8, "float8_e8m0fnu"},
    {"F4", MUSTER_TYPE_COUNT, 4, SAFETENSORS_F4_NAME},
    {"F6_E2M3", MUSTER_TYPE_COUNT, 6, NULL},
    {"F6_E3M2", MUSTER_TYPE_COUNT, 6, NULL},
    {"C64", MUSTER_TYPE_COUNT, 64, "complex64"},
    {NULL, MUSTER_TYPE_COUNT, 0, NULL},
};

static const struct safetensors_type *type_of(enum muster_type type) {
    const struct safetensors_type *found = safetensors_types;
    while (found->dtype && found->type != type) {
        found++;
    }
    return found;
}

static const struct safetensors_type *type_of_entry(const struct safetensors_entry *entry) {
    return entry->other ? entry->other : type_of(entry->type);
}

const struct safetensors_type *safetensors_type_named(const char *name) {
    for (const struct safetensors_type *at = safetensors_types; at->dtype; at++) {
        const char *own = at->type == MUSTER_TYPE_COUNT ? at->name : muster_type_name(at->type);
        if (own && strcmp(own, name) == 0) {
            return at;
        }
    }
    return NULL;
}

bool safetensors_extent(uint32_t element_bits, const uint64_t *shape, uint32_t dim_count, uint64_t *out) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < dim_count; i++) {
        if (shape[i] > SAFETENSORS_DATA_BYTES_MAX || __builtin_mul_overflow(count, shape[i], &count)) {
            return false; /* the first bound holds beside a dimension of 0, too */
        }
    }
    uint64_t rest = count % 8 * element_bits;
    if (count / 8 > SAFETENSORS_DATA_BYTES_MAX / element_bits || rest % 8 != 0) {
        return false;
    }
    *out = count / 8 * element_bits + rest / 8;
    return *out <= SAFETENSORS_DATA_BYTES_MAX;
}

bool safetensors_bytes(enum muster_type type, const uint64_t *shape, uint32_t dim_count, uint64_t *out) {
    return safetensors_extent(type_of(type)->bits, shape, dim_count, out);
}

/* ---- the caller's list ---- */

static int check_tensor(const struct muster_tensor *tensor, size_t index, uint64_t *out_bytes) {
    if (!tensor->name || tensor->name[0] == '\0') {
        return status_fail(MUSTER_EINVAL, "tensor %zu has no name", index);
    }
    if (strnlen(tensor->name, MUSTER_NAME_MAX) == MUSTER_NAME_MAX) {
        return status_fail(MUSTER_ELIMIT, "the name of tensor %zu is longer than %zu bytes", index,
                           MUSTER_NAME_MAX - 1);
    }
    if (!utf8_is_valid(tensor->name)) {
        return status_fail(MUSTER_EINVAL, "the name of tensor %zu is not UTF-8", index);
    }
    if (strcmp(tensor->name, SAFETENSORS_METADATA) == 0) {
        return status_fail(MUSTER_EINVAL, "a tensor cannot be named %s", tensor->name);
    }
    if (tensor->dim_count > MUSTER_TENSOR_DIMS_MAX) {
        return status_fail(MUSTER_ELIMIT, "tensor %s has %" PRIu32 " dimensions; at most %d are possible", tensor->name,
                           tensor->dim_count, MUSTER_TENSOR_DIMS_MAX);
    }
    if (!type_of(tensor->type)->dtype || tensor->type == MUSTER_TYPE_COUNT) {
        return status_fail(MUSTER_EINVAL, "tensor %s is of no known type (%d)", tensor->name, (int)tensor->type);
    }
    if (!safetensors_bytes(tensor->type, tensor->shape, tensor->dim_count, out_bytes)) {
        return status_fail(MUSTER_ELIMIT, "tensor %s is larger than 2^60 bytes", tensor->name);
    }
    if (!tensor->data && *out_bytes > 0) {
        return status_fail(MUSTER_EINVAL, "tensor %s has no data", tensor->name);
    }
    return 0;
}

/* Larger elements first: then each tensor is aligned to its element if the first is. */
static int by_element(const void *left, const void *right) {
    const struct safetensors_entry *a = left, *b = right;
    uint32_t a_bits = type_of_entry(a)->bits, b_bits = type_of_entry(b)->bits;
    if (a_bits != b_bits) {
        return a_bits > b_bits ? -1 : 1;
    }
    return a->index < b->index ? -1 : 1;
}

static int fill_entries(const struct muster_tensor *tensors, size_t count, struct safetensors_entry *entries) {
    for (size_t i = 0; i < count; i++) {
        entries[i] = (struct safetensors_entry){.name = tensors[i].name, .type = tensors[i].type, .index = i};
        int code = check_tensor(&tensors[i], i, &entries[i].bytes);
        if (code) {
            return code;
        }
        entries[i].dim_count = tensors[i].dim_count;
        memcpy(entries[i].shape, tensors[i].shape, sizeof entries[i].shape);
    }
    return 0;
}

int safetensors_place(struct safetensors *table) {
    qsort(table->entries, table->count, sizeof *table->entries, by_element);
    for (size_t i = 0; i < table->count; i++) {
        struct safetensors_entry *entry = &table->entries[i];
        if (!safetensors_extent(type_of_entry(entry)->bits, entry->shape, entry->dim_count, &entry->bytes)) {
            return status_fail(MUSTER_ELIMIT, "tensor %s is larger than 2^60 bytes", entry->name);
        }
        entry->offset = table->data_bytes;
        table->data_bytes += entry->bytes; /* no overflow: each is at most 2^60, checked one by one */
        if (table->data_bytes > SAFETENSORS_DATA_BYTES_MAX) {
            return status_fail(MUSTER_ELIMIT, "the tensors are larger than 2^60 bytes");
        }
    }
    return 0;
}

int safetensors_layout(const struct muster_tensor *tensors, size_t count, struct safetensors *out) {
    if (count > MUSTER_TENSORS_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu tensors; at most %zu fit into a snapshot", count, MUSTER_TENSORS_MAX);
    }
    struct safetensors table = {.count = count, .entries = calloc(count ? count : 1, sizeof *table.entries)};
    if (!table.entries) {
        return status_fail(MUSTER_ENOMEM, "no memory for a table of %zu tensors", count);
    }
    int code = fill_entries(tensors, count, table.entries);
    code = code ? code : safetensors_place(&table);
    if (code) {
        safetensors_done(&table);
        return code;
    }
    *out = table;
    return 0;
}

/* ---- writing ---- */

static json_t *shape_of(const struct safetensors_entry *entry) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < entry->dim_count; i++) {
        if (json_array_append_new(shape, json_integer((json_int_t)entry->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return shape;
}

static int add_entry(json_t *tree, const struct safetensors_entry *entry) {
    if (json_object_get(tree, entry->name)) {
        return status_fail(MUSTER_EINVAL, "two tensors are named %s", entry->name);
    }
    uint64_t end = entry->offset + entry->bytes;
    json_t *member = json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_of_entry(entry)->dtype, "shape", shape_of(entry),
                               "data_offsets", (json_int_t)entry->offset, (json_int_t)end);
    if (!member || json_object_set_new(tree, entry->name, member) != 0) {
        return status_fail(MUSTER_ENOMEM, "no memory for a header");
    }
    return 0;
}

static int build(const struct safetensors *table, const char *key, const char *value, json_t **out) {
    json_t *tree = key ? json_pack("{s:{s:s}}", SAFETENSORS_METADATA, key, value) : json_object();
    int code = tree ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a header");
    for (size_t i = 0; i < table->count && code == 0; i++) {
        code = add_entry(tree, &table->entries[i]);
    }
    if (code) {
        json_decref(tree);
        return code;
    }
    *out = tree;
    return 0;
}

/* The header, with spaces up to a multiple of 8, so that the data is aligned in the file; its length goes in front. */
static int write_header(const json_t *tree, struct buf *out) {
    size_t before = out->len;
    uint64_t prefix = 0;
    int code = buf_append(out, &prefix, sizeof prefix);
    code = code ? code : json_text_append(tree, JSON_COMPACT, out);
    code = code ? code : buf_append(out, "       ", (8 - (out->len - before) % 8) % 8);
    if (code == 0) {
        prefix = out->len - before - sizeof prefix;
        memcpy(buf_bytes(out) + before, &prefix, sizeof prefix);
    }
    if (code == MUSTER_ELIMIT || prefix > SAFETENSORS_HEADER_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "the names and shapes of the tensors need more than %zu bytes",
                           SAFETENSORS_HEADER_BYTES_MAX);
    }
    return code;
}

int safetensors_encode_with(const struct safetensors *table, const char *key, const char *value, struct buf *out) {
    json_t *tree = NULL;
    int code = build(table, key, value, &tree);
    code = code ? code : write_header(tree, out);
    json_decref(tree);
    return code;
}

int safetensors_encode(const struct safetensors *table, int64_t step, struct buf *out) {
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRId64, step);
    return safetensors_encode_with(table, step < 0 ? NULL : "step", text, out);
}

/* ---- looking up ---- */

static int by_name(const void *name, const void *entry) {
    return strcmp(name, ((const struct safetensors_entry *)entry)->name);
}

const struct safetensors_entry *safetensors_find(const struct safetensors *table, const char *name) {
    return table->count == 0 ? NULL : bsearch(name, table->entries, table->count, sizeof *table->entries, by_name);
}

/* "float32 [3, 4]" */
static void describe(enum muster_type type, const uint64_t *shape, uint32_t dim_count, char out[], size_t size) {
    int used = snprintf(out, size, "%s [", type == MUSTER_TYPE_COUNT ? "another type" : muster_type_name(type));
    for (uint32_t i = 0; i < dim_count && used > 0 && (size_t)used < size; i++) {
        used += snprintf(out + used, size - (size_t)used, i ? ", %" PRIu64 : "%" PRIu64, shape[i]);
    }
    if (used > 0 && (size_t)used + 1 < size) {
        (void)memcpy(out + used, "]", 2);
    }
}

int safetensors_match(const struct safetensors_entry *entry, const struct muster_tensor *tensor) {
    if (entry->type == tensor->type && entry->dim_count == tensor->dim_count &&
        memcmp(entry->shape, tensor->shape, tensor->dim_count * sizeof tensor->shape[0]) == 0) {
        return 0;
    }
    char there[256], wanted[256];
    describe(entry->type, entry->shape, entry->dim_count, there, sizeof there);
    describe(tensor->type, tensor->shape, tensor->dim_count, wanted, sizeof wanted);
    return status_fail(MUSTER_EINVAL, "tensor %s is %s in the file, %s in the program", tensor->name, there, wanted);
}

void safetensors_done(struct safetensors *table) {
    free(table->entries);
    json_decref(table->tree);
    *table = (struct safetensors){.count = 0};
}
