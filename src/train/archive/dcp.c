/* Folders of torch.distributed.checkpoint: .metadata is a pickle that names the chunks of each tensor, and for each the
 * bytes of a file that are a torch.save file of it. See archive_impl.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "train/archive/torch_classes.h"

enum { METADATA_VALUES_MAX = 16 << 20, PATH_MAX_BYTES = 256 };

/* What storage_data says of a chunk of a tensor, or of a value. */
struct place {
    const struct unpickle_value *fqn; /* texts */
    const struct unpickle_value *path;
    uint64_t offset, length;
    uint32_t file;
    uint32_t dim_count; /* NO_OFFSET: not a chunk */
    uint64_t start[MUSTER_TENSOR_DIMS_MAX];
};
#define NO_OFFSET UINT32_MAX

struct dcp {
    struct archive *archive;
    const char *folder;
    struct unpickled tree;
    struct place *places;
    size_t place_count, used_count;
};

static int misshapen(const char *what) {
    return status_fail(MUSTER_ECORRUPT, "it is no metadata as PyTorch 2 writes it: %s", what);
}

/* The state of an object of a class, else NULL. */
static const struct unpickle_value *state_of(const struct dcp *d, const struct unpickle_value *value,
                                             enum torch_role role) {
    const struct unpickle_class *class = value ? unpickled_class(&d->tree, value) : NULL;
    if (!class || value->kind != UNPICKLE_OBJECT || class->role != (int)role) {
        return NULL;
    }
    const struct unpickle_value *state = &unpickled_node(&d->tree, value)->state;
    return state->kind == UNPICKLE_MARK ? NULL : state;
}

static const struct unpickle_value *member(const struct dcp *d, const struct unpickle_value *state, const char *name) {
    return state ? unpickled_member(&d->tree, state, name) : NULL;
}

/* torch.Size((3, 4)). False: it is none. */
static bool read_size(const struct dcp *d, const struct unpickle_value *size, uint64_t *out, uint32_t *out_count) {
    const struct unpickle_class *class = size ? unpickled_class(&d->tree, size) : NULL;
    if (!class || size->kind != UNPICKLE_OBJECT || class->role != TORCH_SIZE) {
        return false;
    }
    const struct unpickle_value *numbers = unpickled_at(&d->tree, &unpickled_node(&d->tree, size)->args, 0);
    uint32_t count = numbers && numbers->kind == UNPICKLE_TUPLE ? unpickled_count(&d->tree, numbers) : UINT32_MAX;
    if (count > MUSTER_TENSOR_DIMS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct unpickle_value *number = unpickled_at(&d->tree, numbers, i);
        if (number->kind != UNPICKLE_INT || number->number < 0) {
            return false;
        }
        out[i] = (uint64_t)number->number;
    }
    *out_count = count;
    return true;
}

static int copy_text(const struct unpickle_value *text, char *out, size_t room) {
    if (text->size + (size_t)1 > room || memchr(text->bytes, 0, text->size)) {
        return misshapen("a name is too long, or has zeros in it");
    }
    memcpy(out, text->bytes, text->size);
    out[text->size] = '\0';
    return 0;
}

/* ---- places ---- */

static int compare_texts(const struct unpickle_value *a, const struct unpickle_value *b) {
    size_t least = a->size < b->size ? a->size : b->size;
    int order = memcmp(a->bytes, b->bytes, least);
    return order != 0 ? order : a->size < b->size ? -1 : a->size > b->size;
}

static int by_path(const void *left, const void *right) {
    const struct place *a = left, *b = right;
    int order = compare_texts(a->path, b->path);
    return order != 0 ? order : a->offset < b->offset ? -1 : a->offset > b->offset;
}

static int by_chunk(const void *left, const void *right) {
    const struct place *a = left, *b = right;
    int order = compare_texts(a->fqn, b->fqn);
    if (order != 0 || a->dim_count != b->dim_count) {
        return order != 0 ? order : a->dim_count < b->dim_count ? -1 : 1;
    }
    for (uint32_t i = 0; a->dim_count != NO_OFFSET && i < a->dim_count; i++) {
        if (a->start[i] != b->start[i]) {
            return a->start[i] < b->start[i] ? -1 : 1;
        }
    }
    return 0;
}

static int read_place(const struct dcp *d, const struct unpickle_value *index, const struct unpickle_value *info,
                      struct place *out) {
    const struct unpickle_value *chunk = state_of(d, index, TORCH_INDEX),
                                *where = state_of(d, info, TORCH_STORAGE_INFO);
    const struct unpickle_value *fqn = member(d, chunk, "fqn"), *start = member(d, chunk, "offset");
    const struct unpickle_value *path = member(d, where, "relative_path"), *offset = member(d, where, "offset"),
                                *length = member(d, where, "length");
    if (!fqn || fqn->kind != UNPICKLE_TEXT || !path || path->kind != UNPICKLE_TEXT || !offset ||
        offset->kind != UNPICKLE_INT || offset->number < 0 || !length || length->kind != UNPICKLE_INT ||
        length->number < 0) {
        return misshapen("an entry of storage_data says not where something lies");
    }
    if (fqn->size >= ARCHIVE_NAME_MAX || path->size >= PATH_MAX_BYTES) { /* before they are compared with many others */
        return misshapen("a name is too long");
    }
    *out = (struct place){.fqn = fqn,
                          .path = path,
                          .offset = (uint64_t)offset->number,
                          .length = (uint64_t)length->number,
                          .dim_count = NO_OFFSET};
    if (start && start->kind != UNPICKLE_NONE && !read_size(d, start, out->start, &out->dim_count)) {
        return misshapen("an offset of storage_data is no torch.Size of up to 8 numbers");
    }
    const struct unpickle_value *transforms = member(d, where, "transform_descriptors");
    if (transforms && unpickled_count(&d->tree, transforms) > 0) {
        return status_fail(MUSTER_EUNSUPPORTED, "%.*s is stored with an extension (compressed or encrypted)",
                           (int)(fqn->size < 256 ? fqn->size : 256), (const char *)fqn->bytes);
    }
    return 0;
}

/* What is wrong with where something lies, as a sentence that names it. */
static int bad_place(const struct place *place, const char *file, const char *what) {
    return status_fail(MUSTER_ECORRUPT, "%.*s is said to be at bytes %" PRIu64 " to %" PRIu64 " of %s, %s",
                       (int)(place->fqn->size < 256 ? place->fqn->size : 256), (const char *)place->fqn->bytes,
                       place->offset, place->offset + place->length, file, what);
}

/* Opens each file that is named, once, and looks whether its parts are in it. Parts that overlap are refused: each is
 * read as an archive, and a large one must not be read once for each of many places. */
static int open_files(struct dcp *d) {
    char name[PATH_MAX_BYTES];
    int code = 0;
    qsort(d->places, d->place_count, sizeof *d->places, by_path);
    for (size_t i = 0; i < d->place_count && code == 0; i++) {
        struct place *place = &d->places[i];
        const struct place *before = i > 0 && compare_texts(place[-1].path, place->path) == 0 ? place - 1 : NULL;
        code = copy_text(place->path, name, sizeof name);
        if (code == 0 && before) {
            place->file = before->file;
        } else if (code == 0) {
            code = archive_add_file_of(d->archive, d->folder, name, false, &place->file);
        }
        uint64_t bytes = code ? 0 : d->archive->files[place->file].bytes;
        if (code == 0 && (place->offset > bytes || place->length > bytes - place->offset)) {
            code = bad_place(place, name, "which is shorter");
        } else if (code == 0 && before && place->offset < before->offset + before->length) {
            code = bad_place(place, name, "where something else is");
        }
    }
    return code;
}

static int read_places(struct dcp *d, const struct unpickle_value *storage_data) {
    uint32_t count = unpickled_count(&d->tree, storage_data) / 2;
    if (count > ARCHIVE_PIECES_MAX) {
        return status_fail(MUSTER_ELIMIT, "%" PRIu32 " chunks; at most %zu are read", count, ARCHIVE_PIECES_MAX);
    }
    d->places = calloc((size_t)count + 1, sizeof *d->places);
    if (!d->places) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %" PRIu32 " chunks", count);
    }
    int code = 0;
    const struct unpickle_item *key = unpickled_first(&d->tree, storage_data);
    while (key && code == 0) {
        const struct unpickle_item *value = unpickled_next(&d->tree, key);
        code = read_place(d, &key->value, &value->value, &d->places[d->place_count++]);
        key = unpickled_next(&d->tree, value);
    }
    code = code ? code : open_files(d);
    if (code) {
        return code;
    }
    qsort(d->places, d->place_count, sizeof *d->places, by_chunk);
    for (size_t i = 1; i < d->place_count; i++) {
        if (by_chunk(&d->places[i], &d->places[i - 1]) == 0) {
            return status_fail(MUSTER_ECORRUPT, "a chunk of %.*s is stored twice",
                               (int)(d->places[i].fqn->size < 256 ? d->places[i].fqn->size : 256),
                               (const char *)d->places[i].fqn->bytes);
        }
    }
    return 0;
}

/* ---- tensors and values ---- */

static const struct place *find_place(struct dcp *d, const struct place *key) {
    const struct place *found =
        d->place_count > 0 ? bsearch(key, d->places, d->place_count, sizeof *d->places, by_chunk) : NULL;
    d->used_count += found ? 1 : 0;
    return found;
}

/* Is what lies there a tensor of the wanted type and shape? */
static bool fits(const struct torch_tensor *there, const struct archive_tensor *tensor, const uint64_t *size) {
    return there->type.element_bytes == tensor->element_bytes && there->type.type == tensor->type &&
           strcmp(there->type.name, tensor->type_name) == 0 && there->dim_count == tensor->dim_count &&
           memcmp(there->shape, size, tensor->dim_count * sizeof *size) == 0;
}

static int add_chunk(struct dcp *d, const struct unpickle_value *fqn, const struct unpickle_value *chunk) {
    struct archive_tensor *tensor = &d->archive->tensors[d->archive->tensor_count - 1];
    struct place key = {.fqn = fqn};
    struct archive_piece piece = {.file = 0};
    uint32_t size_count = 0;
    const struct unpickle_value *state = state_of(d, chunk, TORCH_CHUNK);
    if (!read_size(d, member(d, state, "offsets"), key.start, &key.dim_count) ||
        !read_size(d, member(d, state, "sizes"), piece.size, &size_count) || key.dim_count != tensor->dim_count ||
        size_count != tensor->dim_count) {
        return status_fail(MUSTER_ECORRUPT, "tensor %s has a chunk without offsets and sizes", tensor->name);
    }
    const struct place *place = find_place(d, &key);
    if (!place) {
        return status_fail(MUSTER_ECORRUPT, "tensor %s has a chunk that is in no file", tensor->name);
    }
    const char *path = d->archive->files[place->file].path;
    struct torch_tensor there = {.dim_count = 0};
    int code = torch_file_read_tensor(d->archive, place->file, place->offset, place->length, &there);
    if (code) {
        return status_prefix(code, "tensor %s: %s at byte %" PRIu64, tensor->name, path, place->offset);
    }
    if (!fits(&there, tensor, piece.size)) {
        return status_fail(MUSTER_ECORRUPT,
                           "tensor %s: %s at byte %" PRIu64 ": the tensor there has another type or "
                           "shape than .metadata says",
                           tensor->name, path, place->offset);
    }
    piece.file = place->file;
    piece.data_at = there.data_at;
    piece.crc = there.crc;
    memcpy(piece.start, key.start, sizeof piece.start);
    memcpy(piece.stride, there.stride, sizeof piece.stride);
    return archive_add_piece(d->archive, &piece);
}

/* (dtype, layout, requires_grad, memory format, pinned) */
static int read_type(const struct dcp *d, const struct unpickle_value *properties, struct archive_type *out) {
    const struct unpickle_value *state = state_of(d, properties, TORCH_PROPERTIES);
    const struct unpickle_value *dtype = state ? unpickled_at(&d->tree, state, 0) : NULL;
    const struct unpickle_class *class = dtype ? unpickled_class(&d->tree, dtype) : NULL;
    if (!class || dtype->kind != UNPICKLE_CLASS || class->role != TORCH_DTYPE) {
        return misshapen("a tensor has no dtype");
    }
    *out = torch_types[class->detail];
    return 0;
}

static int add_tensor(struct dcp *d, const char *name, const struct unpickle_value *fqn,
                      const struct unpickle_value *state) {
    struct archive_type type;
    uint64_t shape[MUSTER_TENSOR_DIMS_MAX] = {0};
    uint32_t dim_count = 0;
    const struct unpickle_value *properties = member(d, state, "properties"), *chunks = member(d, state, "chunks");
    int code = properties ? read_type(d, properties, &type) : misshapen("a tensor has no properties");
    if (code == 0 && chunks && unpickled_count(&d->tree, chunks) > ARCHIVE_CHUNKS_MAX) {
        code = status_fail(MUSTER_ELIMIT, "tensor %s has more than %" PRIu32 " chunks", name, ARCHIVE_CHUNKS_MAX);
    }
    if (code == 0 && (!chunks || !read_size(d, member(d, state, "size"), shape, &dim_count))) {
        code = status_fail(MUSTER_ECORRUPT, "tensor %s has no chunks, or no size of up to 8 dimensions", name);
    }
    code = code ? code : archive_add_tensor(d->archive, name, type, dim_count, shape);
    if (code) {
        return code;
    }
    for (const struct unpickle_item *item = unpickled_first(&d->tree, chunks); item && code == 0;
         item = unpickled_next(&d->tree, item)) {
        code = add_chunk(d, fqn, &item->value);
    }
    return code ? code : archive_check_cover(d->archive, &d->archive->tensors[d->archive->tensor_count - 1]);
}

static int add_value(struct dcp *d, const char *name, const struct unpickle_value *fqn) {
    struct place key = {.fqn = fqn, .dim_count = NO_OFFSET};
    const struct place *place = find_place(d, &key);
    if (!place) {
        return status_fail(MUSTER_ECORRUPT, "value %s is in no file", name);
    }
    int code = torch_file_read(d->archive, place->file, place->offset, place->length, name);
    return code ? status_prefix(code, "%s at byte %" PRIu64, d->archive->files[place->file].path, place->offset) : 0;
}

static int add_entry(struct dcp *d, const struct unpickle_value *fqn, const struct unpickle_value *value) {
    char name[ARCHIVE_NAME_MAX];
    const struct unpickle_class *class = unpickled_class(&d->tree, value);
    if (fqn->kind != UNPICKLE_TEXT) {
        return misshapen("a name is no text");
    }
    int code = copy_text(fqn, name, sizeof name);
    if (code) {
        return code;
    }
    if (class && value->kind == UNPICKLE_OBJECT && class->role == TORCH_BYTES_METADATA) {
        return add_value(d, name, fqn);
    }
    const struct unpickle_value *state = state_of(d, value, TORCH_TENSOR_METADATA);
    return state ? add_tensor(d, name, fqn, state) : misshapen("an entry is neither a tensor nor bytes");
}

static int read_all(struct dcp *d) {
    const struct unpickle_value *root = state_of(d, &d->tree.root, TORCH_METADATA);
    const struct unpickle_value *entries = member(d, root, "state_dict_metadata"),
                                *storage_data = member(d, root, "storage_data");
    if (!entries || entries->kind != UNPICKLE_DICT || !storage_data || storage_data->kind != UNPICKLE_DICT) {
        return misshapen("it has no state_dict_metadata or no storage_data");
    }
    int code = read_places(d, storage_data);
    const struct unpickle_item *key = unpickled_first(&d->tree, entries);
    while (key && code == 0) {
        const struct unpickle_item *value = unpickled_next(&d->tree, key);
        code = add_entry(d, &key->value, &value->value);
        key = unpickled_next(&d->tree, value);
    }
    if (code == 0 && d->used_count != d->place_count) {
        code = status_fail(MUSTER_ECORRUPT, "%zu of its %zu chunks in files are of no tensor",
                           d->place_count - d->used_count, d->place_count);
    }
    return code;
}

int dcp_read(struct archive *archive, const char *folder) {
    struct dcp d = {.archive = archive, .folder = folder};
    uint32_t file = 0;
    uint8_t *bytes = NULL;
    int code = archive_add_file_of(archive, folder, ".metadata", false, &file);
    uint64_t count = code ? 0 : archive->files[file].bytes;
    code = code ? code : archive_read_new(archive, file, 0, count, ARCHIVE_PICKLE_BYTES_MAX, &bytes);
    code = code ? code : unpickle(bytes, (size_t)count, torch_classes, METADATA_VALUES_MAX, &d.tree);
    code = code ? code : read_all(&d);
    unpickled_done(&d.tree);
    free(d.places);
    free(bytes);
    return code ? status_prefix(code, "%s/.metadata", folder) : 0;
}
