/* safetensors files as archives: one, or those that an index of Hugging Face's names. See archive_impl.h; the header is
 * read by train/state. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "train/archive/archive_impl.h"
#include "train/archive/zip.h"
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

/* *out_last: what the last dimension is divided by. Elements of 4 bits come two to a byte, as in PyTorch. element_bytes
 * 0: there is no such type. */
static struct archive_type type_of(const struct safetensors_entry *entry, uint64_t *out_last) {
    const struct safetensors_type *other = entry->other;
    *out_last = 1;
    if (!other) {
        return (struct archive_type){entry->type, (uint32_t)muster_type_bytes(entry->type),
                                     muster_type_name(entry->type)};
    }
    *out_last = other->bits < 8 ? 8 / other->bits : 1;
    return (struct archive_type){MUSTER_TYPE_COUNT, other->name ? (other->bits + 7) / 8 : 0, other->name};
}

static int add_entry(struct archive *archive, const struct shard *shard, const struct safetensors_entry *entry) {
    struct archive_piece piece = {.file = shard->file, .data_at = shard->data_at + entry->offset};
    uint64_t shape[MUSTER_TENSOR_DIMS_MAX], stride = 1, last = 1;
    struct archive_type type = type_of(entry, &last);
    char why[64];
    if (type.element_bytes == 0 || (last > 1 && (entry->dim_count == 0 || entry->shape[entry->dim_count - 1] % last))) {
        (void)str_format(why, sizeof why, "a tensor of %s", entry->unread ? entry->unread : entry->other->dtype);
        return archive_add_left_out(archive, entry->name, why);
    }
    memcpy(shape, entry->shape, sizeof shape);
    if (last > 1) {
        shape[entry->dim_count - 1] /= last;
    }
    memcpy(piece.size, shape, sizeof piece.size);
    for (uint32_t i = entry->dim_count; i-- > 0;) {
        piece.stride[i] = stride;
        stride *= shape[i];
    }
    int code = archive_add_tensor(archive, entry->name, type, entry->dim_count, shape);
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

static int lacks(const struct mapping *mapping) {
    return status_fail(MUSTER_ECORRUPT, "%s has no tensor %.200s, which the index says is there", mapping->file,
                       mapping->tensor);
}

static int read_safetensors(struct archive *archive, uint32_t file, const struct mapping *mappings, size_t count) {
    struct shard shard = {.file = file};
    int code = read_header(archive, &shard);
    for (size_t i = 0; i < count && code == 0; i++) {
        const struct safetensors_entry *entry = safetensors_find(&shard.table, mappings[i].tensor);
        code = entry ? add_entry(archive, &shard, entry) : lacks(&mappings[i]);
    }
    code = code ? code : note_others(archive, &shard, mappings, count);
    safetensors_done(&shard.table);
    return code;
}

static int by_text(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Are all tensors of the index among those from number `first` on? */
static int check_named(const struct archive *archive, size_t first, const struct mapping *mappings, size_t count) {
    size_t there = archive->tensor_count - first;
    const char **names = calloc(there + 1, sizeof *names);
    int code = names ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of names");
    for (size_t i = 0; i < there && code == 0; i++) {
        names[i] = archive->tensors[first + i].name;
    }
    if (code == 0) {
        qsort(names, there, sizeof *names, by_text);
    }
    for (size_t i = 0; i < count && code == 0; i++) {
        code = bsearch(&mappings[i].tensor, names, there, sizeof *names, by_text) ? 0 : lacks(&mappings[i]);
    }
    free(names);
    return code;
}

/* A file of torch.save has all of its tensors read. */
static int read_torch(struct archive *archive, uint32_t file, const struct mapping *mappings, size_t count) {
    size_t first = archive->tensor_count;
    int code = torch_file_read(archive, file, 0, archive->files[file].bytes, "");
    return code ? status_prefix(code, "%s", archive->files[file].path) : check_named(archive, first, mappings, count);
}

/* The tensors of one file. Links are followed: the cache of huggingface_hub consists of them. */
static int read_shard(struct archive *archive, const char *folder, const struct mapping *mappings, size_t count) {
    uint32_t file = 0;
    int code = archive_add_file_of(archive, folder, mappings[0].file, true, &file);
    bool is_zip = false;
    code = code ? code : zip_is_one(archive, file, &is_zip);
    return code     ? code
           : is_zip ? read_torch(archive, file, mappings, count)
                    : read_safetensors(archive, file, mappings, count);
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
