/* safetensors files as archives: one, or those that an index of Hugging Face's names. See archive_impl.h; the header is
 * read by train/state. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/archive/archive_impl.h"
#include "train/state/json_text.h"
#include "train/state/safetensors.h"

#define INDEX_BYTES_MAX ((uint64_t)64 << 20)

/* An open file's table. */
struct shard {
    uint32_t file;
    uint64_t data_at;
    struct safetensors table;
};

/* PyTorch's HuggingFaceStorageWriter writes such files: their tensors are a rank's parts, and look like whole ones. */
static bool has_parts(const struct safetensors *table) {
    return json_object_get(json_object_get(table->tree, "__metadata__"), "DCP_SHARDING_INFO") != NULL;
}

static int read_header(struct archive *archive, struct shard *shard) {
    uint8_t prefix[SAFETENSORS_PREFIX_BYTES] = {0}, *header = NULL;
    uint64_t bytes = archive->files[shard->file].bytes;
    size_t length = 0;
    int code = archive_read(archive, shard->file, 0, prefix, bytes < sizeof prefix ? bytes : sizeof prefix);
    code = code ? code : safetensors_header_length(prefix, bytes, &length);
    code = code ? code
                : archive_read_new(archive, shard->file, sizeof prefix, length, SAFETENSORS_HEADER_BYTES_MAX, &header);
    shard->data_at = sizeof prefix + length;
    code = code ? code : safetensors_decode(header, length, bytes - shard->data_at, &shard->table);
    free(header);
    if (code == 0 && has_parts(&shard->table)) {
        code =
            status_fail(MUSTER_EUNSUPPORTED, "its tensors are parts that a rank has saved; write whole ones with "
                                             "consolidate_safetensors_files_on_every_rank() or enable_consolidation");
    }
    return code ? status_prefix(code, "%s", archive->files[shard->file].path) : 0;
}

/* Muster has no value for these; the header has their names. */
static struct archive_type type_of(const struct safetensors *table, const struct safetensors_entry *entry) {
    static const struct {
        const char *dtype;
        struct archive_type type;
    } others[] = {
        {"BOOL", {MUSTER_TYPE_COUNT, 1, "bool"}},
        {"F8_E4M3", {MUSTER_TYPE_COUNT, 1, "float8_e4m3fn"}},
        {"F8_E5M2", {MUSTER_TYPE_COUNT, 1, "float8_e5m2"}},
        {"C64", {MUSTER_TYPE_COUNT, 8, "complex64"}},
    };
    struct archive_type type = {entry->type, (uint32_t)muster_type_bytes(entry->type), muster_type_name(entry->type)};
    const char *dtype = json_string_value(json_object_get(json_object_get(table->tree, entry->name), "dtype"));
    for (size_t i = 0; entry->type == MUSTER_TYPE_COUNT && i < sizeof others / sizeof *others; i++) {
        if (dtype && strcmp(dtype, others[i].dtype) == 0) {
            type = others[i].type;
        }
    }
    return type;
}

static int add_entry(struct archive *archive, const struct shard *shard, const struct safetensors_entry *entry) {
    struct archive_type type = type_of(&shard->table, entry);
    struct archive_piece piece = {.file = shard->file, .data_at = shard->data_at + entry->offset};
    uint64_t stride = 1;
    if (type.element_bytes == 0) {
        return status_fail(MUSTER_EUNSUPPORTED, "tensor %s is of a type that is not read", entry->name);
    }
    memcpy(piece.size, entry->shape, sizeof piece.size);
    for (uint32_t i = entry->dim_count; i-- > 0;) {
        piece.stride[i] = stride;
        stride *= entry->shape[i];
    }
    int code = archive_add_tensor(archive, entry->name, type, entry->dim_count, entry->shape);
    return code ? code : archive_add_piece(archive, &piece);
}

int safetensors_file_read(struct archive *archive, const char *path) {
    struct shard shard = {.file = 0};
    int code = archive_add_file(archive, path, true, &shard.file);
    code = code ? code : read_header(archive, &shard);
    for (size_t i = 0; i < shard.table.count && code == 0; i++) {
        code = add_entry(archive, &shard, &shard.table.entries[i]);
    }
    safetensors_done(&shard.table);
    return code;
}

/* ---- many, with an index ---- */

/* A row of the index's weight_map. */
struct mapping {
    const char *tensor, *file;
};

static int by_file(const void *left, const void *right) {
    const struct mapping *a = left, *b = right;
    int order = strcmp(a->file, b->file);
    return order != 0 ? order : strcmp(a->tensor, b->tensor);
}

static int read_mappings(const json_t *tree, struct mapping **out, size_t *out_count) {
    json_t *map = json_object_get(tree, "weight_map"), *file;
    const char *tensor;
    size_t count = 0;
    if (!json_is_object(map) || json_object_size(map) > ARCHIVE_TENSORS_MAX) {
        return status_fail(MUSTER_ECORRUPT, "it has no weight_map, or one of more than %zu tensors",
                           ARCHIVE_TENSORS_MAX);
    }
    struct mapping *mappings = calloc(json_object_size(map) + 1, sizeof *mappings);
    if (!mappings) {
        return status_fail(MUSTER_ENOMEM, "no memory for an index");
    }
    json_object_foreach(map, tensor, file) {
        if (!json_is_string(file)) {
            free(mappings);
            return status_fail(MUSTER_ECORRUPT, "weight_map has no file for %.200s", tensor);
        }
        mappings[count++] = (struct mapping){tensor, json_string_value(file)};
    }
    qsort(mappings, count, sizeof *mappings, by_file);
    *out = mappings;
    *out_count = count;
    return 0;
}

/* Tensors that lie in the file but are of another file, or of none, by the index. */
static int note_others(struct archive *archive, const struct shard *shard, const struct mapping *mappings,
                       size_t count) {
    size_t at = 0;
    int code = 0;
    for (size_t i = 0; i < shard->table.count && code == 0; i++) { /* both are sorted */
        while (at < count && strcmp(mappings[at].tensor, shard->table.entries[i].name) < 0) {
            at++;
        }
        if (at == count || strcmp(mappings[at].tensor, shard->table.entries[i].name) != 0) {
            code = archive_add_left_out(archive, shard->table.entries[i].name, "a tensor that the index does not name");
        }
    }
    return code;
}

/* The tensors of one file. Links are followed: the cache of huggingface_hub consists of them. */
static int read_shard(struct archive *archive, const char *folder, const struct mapping *mappings, size_t count) {
    struct shard shard = {.file = 0};
    int code = archive_add_file_of(archive, folder, mappings[0].file, true, &shard.file);
    code = code ? code : read_header(archive, &shard);
    for (size_t i = 0; i < count && code == 0; i++) {
        const struct safetensors_entry *entry = safetensors_find(&shard.table, mappings[i].tensor);
        code = entry ? add_entry(archive, &shard, entry)
                     : status_fail(MUSTER_ECORRUPT, "%s has no tensor %.200s, which the index says is there",
                                   mappings[i].file, mappings[i].tensor);
    }
    code = code ? code : note_others(archive, &shard, mappings, count);
    safetensors_done(&shard.table);
    return code;
}

static int read_shards(struct archive *archive, const char *folder, const struct mapping *mappings, size_t count) {
    int code = 0;
    for (size_t first = 0, end = 0; first < count && code == 0; first = end) {
        while (end < count && strcmp(mappings[end].file, mappings[first].file) == 0) {
            end++;
        }
        code = read_shard(archive, folder, mappings + first, end - first);
    }
    return code;
}

int safetensors_index_read(struct archive *archive, const char *path, const char *folder) {
    uint32_t file = 0;
    uint8_t *text = NULL;
    json_t *tree = NULL;
    struct mapping *mappings = NULL;
    size_t count = 0;
    int code = archive_add_file(archive, path, true, &file);
    uint64_t bytes = code ? 0 : archive->files[file].bytes;
    code = code ? code : archive_read_new(archive, file, 0, bytes, INDEX_BYTES_MAX, &text);
    code = code ? code : json_text_parse("the index", text, (size_t)bytes, &tree);
    code = code ? code : read_mappings(tree, &mappings, &count);
    code = code ? code : read_shards(archive, folder, mappings, count);
    free(mappings);
    json_decref(tree);
    free(text);
    return code ? status_prefix(code, "%s", path) : 0;
}
