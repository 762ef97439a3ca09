/* torch.save files: a zip archive with a pickle, in which each tensor is a call that names a storage, sizes and
 * strides, and an entry for each storage. See archive_impl.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "base/status.h"
#include "train/archive/torch_classes.h"
#include "train/archive/zip.h"

enum {
    PICKLE_VALUES_MAX = 16 << 20,
    WRAPPINGS_MAX = 4, /* a parameter around a tensor around ... */
    DEPTH_MAX = 64,
    /* Values in a list of numbers or texts, beyond which it is no setting but data, such as an optimizer's numbers of
     * its parameters. */
    LIST_VALUES_MAX = 64,
};
/* Steps of a walk through a tree, in which one value may lie in many places. */
#define STEPS_MAX ((uint64_t)4 << 20)
#define BYTE_ORDER_BYTES_MAX 16

/* One archive. */
struct torch_file {
    struct archive *archive;
    uint32_t file;
    struct zip zip;
    char folder[ZIP_NAME_MAX + 1]; /* all entries are in it: "archive/" */
    uint8_t *pickle;
    struct unpickled tree;
    /* The walk. */
    uint64_t steps;
    char path[ARCHIVE_NAME_MAX]; /* the keys so far, joined by dots */
    size_t path_bytes;
};

static int bad(const struct torch_file *t, const char *what) {
    return status_fail(MUSTER_ECORRUPT, "%s %s", t->path_bytes > 0 ? t->path : "what is saved", what);
}

/* ---- opening ---- */

/* The one folder that all entries lie in is that of its data.pkl. */
static int find_folder(struct torch_file *t) {
    for (size_t i = 0; i < t->zip.count; i++) {
        const char *slash = strchr(t->zip.entries[i].name, '/');
        if (slash && strcmp(slash, "/data.pkl") == 0) {
            size_t length = (size_t)(slash + 1 - t->zip.entries[i].name);
            if (t->folder[0] != '\0') {
                return status_fail(MUSTER_ECORRUPT, "its zip archive has two entries data.pkl");
            }
            memcpy(t->folder, t->zip.entries[i].name, length);
            t->folder[length] = '\0';
        }
    }
    return t->folder[0] != '\0'
               ? 0
               : status_fail(MUSTER_EUNSUPPORTED, "its zip archive has no entry data.pkl: it is not of torch.save");
}

/* NULL: there is none. */
static const struct zip_entry *find_entry(const struct torch_file *t, const char *name) {
    char full[2 * ZIP_NAME_MAX];
    int length = snprintf(full, sizeof full, "%s%s", t->folder, name);
    return length > 0 && (size_t)length < sizeof full ? zip_find(&t->zip, full) : NULL;
}

static int read_entry(const struct torch_file *t, const struct zip_entry *entry, uint64_t most, uint8_t **out) {
    int code = archive_read_new(t->archive, t->file, entry->data_at, entry->bytes, most, out);
    if (code == 0 && entry->crc != 0 && crc32_add(&t->archive->crc, 0, *out, (size_t)entry->bytes) != entry->crc) {
        free(*out);
        *out = NULL;
        code = status_fail(MUSTER_ECORRUPT, "it is damaged: the checksum does not fit");
    }
    return code ? status_prefix(code, "its entry %s", entry->name) : 0;
}

static int check_byte_order(const struct torch_file *t) {
    const struct zip_entry *entry = find_entry(t, "byteorder");
    uint8_t *order = NULL;
    if (!entry) {
        return 0; /* before PyTorch 2.1; all of those machines that matter are little-endian */
    }
    int code = read_entry(t, entry, BYTE_ORDER_BYTES_MAX, &order);
    if (code == 0 && strcmp((const char *)order, "little") != 0) {
        printable_clean((char *)order, strlen((const char *)order), false);
        code =
            status_fail(MUSTER_EUNSUPPORTED, "its byte order is \"%s\"; only \"little\" is read", (const char *)order);
    }
    free(order);
    return code;
}

static int torch_open(struct torch_file *t, uint64_t base, uint64_t bytes) {
    int code = zip_read(t->archive, t->file, base, bytes, &t->zip);
    code = code ? code : find_folder(t);
    code = code ? code : check_byte_order(t);
    const struct zip_entry *entry = code ? NULL : find_entry(t, "data.pkl");
    code = code ? code : read_entry(t, entry, ARCHIVE_PICKLE_BYTES_MAX, &t->pickle);
    return code ? code : unpickle(t->pickle, (size_t)entry->bytes, torch_classes, PICKLE_VALUES_MAX, &t->tree);
}

static void torch_close(struct torch_file *t) {
    unpickled_done(&t->tree);
    free(t->pickle);
    zip_done(&t->zip);
}

/* ---- a tensor ---- */

static enum torch_role role_of(const struct torch_file *t, const struct unpickle_value *value) {
    const struct unpickle_class *class = unpickled_class(&t->tree, value);
    return class ? (enum torch_role) class->role : TORCH_OTHER;
}

/* A call that makes a tensor. */
struct call {
    enum torch_role role; /* TORCH_REBUILD_V2, TORCH_REBUILD_V3 */
    struct unpickle_value args;
};

/* Looks through what parameters and buffers are wrapped in. False: the value is no tensor. */
static bool find_call(const struct torch_file *t, const struct unpickle_value *value, struct call *out) {
    const struct unpickle_value *at = value;
    for (int i = 0; i < WRAPPINGS_MAX && at && at->kind == UNPICKLE_OBJECT; i++) {
        const struct unpickle_value *args = &unpickled_node(&t->tree, at)->args;
        enum torch_role role = role_of(t, at);
        if (role == TORCH_RETYPED) { /* as if the function had been called with these arguments */
            const struct unpickle_value *function = unpickled_at(&t->tree, args, 0);
            const struct unpickle_value *inner = unpickled_at(&t->tree, args, 2);
            if (!function || function->kind != UNPICKLE_CLASS || !inner) {
                return false;
            }
            role = role_of(t, function);
            args = inner;
        }
        if (role == TORCH_REBUILD_V2 || role == TORCH_REBUILD_V3) {
            *out = (struct call){role, *args};
            return true;
        }
        at = role == TORCH_WRAPPED ? unpickled_at(&t->tree, args, 0) : NULL;
    }
    return false;
}

/* A tuple of numbers that are not negative, such as a shape. False: it is none, or has too many. */
static bool read_numbers(const struct torch_file *t, const struct unpickle_value *tuple, uint64_t *out,
                         uint32_t *out_count) {
    if (role_of(t, tuple) == TORCH_SIZE && tuple->kind == UNPICKLE_OBJECT) {
        tuple = unpickled_at(&t->tree, &unpickled_node(&t->tree, tuple)->args, 0);
    }
    uint32_t count = tuple && tuple->kind == UNPICKLE_TUPLE ? unpickled_count(&t->tree, tuple) : UINT32_MAX;
    if (count > MUSTER_TENSOR_DIMS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct unpickle_value *number = unpickled_at(&t->tree, tuple, i);
        if (number->kind != UNPICKLE_INT || number->number < 0) {
            return false;
        }
        out[i] = (uint64_t)number->number;
    }
    *out_count = count;
    return true;
}

/* ("storage", class, key, device, elements): the entry with the bytes. */
static int find_storage(const struct torch_file *t, const struct unpickle_value *storage, struct archive_type *out_type,
                        const struct zip_entry **out) {
    const struct unpickle_value *name =
        storage->kind == UNPICKLE_PERSISTENT ? &unpickled_node(&t->tree, storage)->args : storage;
    const struct unpickle_value *word = unpickled_at(&t->tree, name, 0), *class = unpickled_at(&t->tree, name, 1),
                                *key = unpickled_at(&t->tree, name, 2), *count = unpickled_at(&t->tree, name, 4);
    if (storage->kind != UNPICKLE_PERSISTENT || !count || !unpickled_is_text(word, "storage") ||
        class->kind != UNPICKLE_CLASS || role_of(t, class) != TORCH_STORAGE || key->kind != UNPICKLE_TEXT ||
        count->kind != UNPICKLE_INT || count->number < 0) {
        return bad(t, "has no storage as PyTorch writes them");
    }
    char entry_name[ZIP_NAME_MAX];
    int length = snprintf(entry_name, sizeof entry_name, "data/%.*s", (int)(key->size < 64 ? key->size : 64),
                          (const char *)key->bytes);
    const struct zip_entry *entry = length > 0 ? find_entry(t, entry_name) : NULL;
    *out_type = torch_types[unpickled_class(&t->tree, class)->detail];
    if (!entry) {
        return bad(t, "has a storage that is not in the zip archive");
    }
    if ((uint64_t)count->number != entry->bytes / out_type->element_bytes ||
        entry->bytes % out_type->element_bytes != 0) {
        return bad(t, "has a storage whose entry is of another size");
    }
    *out = entry;
    return 0;
}

/* Are all elements in the storage? */
static bool is_inside(const struct torch_tensor *tensor, uint64_t offset, uint64_t storage_bytes) {
    uint64_t last = offset, elements = storage_bytes / tensor->type.element_bytes;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        uint64_t reach = 0;
        if (tensor->shape[i] == 0) {
            return true; /* it has no elements */
        }
        if (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->stride[i], &reach) ||
            __builtin_add_overflow(last, reach, &last)) {
            return false;
        }
    }
    return last < elements;
}

/* Row-major without gaps, and all of the storage: then its checksum is the tensor's. */
static bool is_all_of(const struct torch_tensor *tensor, uint64_t storage_bytes) {
    uint64_t stride = 1;
    for (uint32_t i = tensor->dim_count; i-- > 0;) {
        if (tensor->shape[i] != 1 && tensor->stride[i] != stride) {
            return false;
        }
        stride *= tensor->shape[i];
    }
    return stride * tensor->type.element_bytes == storage_bytes;
}

static int read_dtype(const struct torch_file *t, const struct call *call, struct archive_type *type) {
    const struct unpickle_value *dtype = unpickled_at(&t->tree, &call->args, 6);
    if (!dtype || dtype->kind != UNPICKLE_CLASS || role_of(t, dtype) != TORCH_DTYPE) {
        return bad(t, "has no dtype");
    }
    *type = torch_types[unpickled_class(&t->tree, dtype)->detail];
    return 0;
}

/* Negated and conjugated views say so behind the other arguments; their storages do not have their values. */
static bool has_more(const struct torch_file *t, const struct call *call) {
    const struct unpickle_value *more = unpickled_at(&t->tree, &call->args, call->role == TORCH_REBUILD_V3 ? 7 : 6);
    return more && more->kind != UNPICKLE_NONE && unpickled_count(&t->tree, more) > 0;
}

static int read_tensor(const struct torch_file *t, const struct call *call, struct torch_tensor *out) {
    const struct unpickle_value *storage = unpickled_at(&t->tree, &call->args, 0),
                                *offset = unpickled_at(&t->tree, &call->args, 1),
                                *size = unpickled_at(&t->tree, &call->args, 2),
                                *stride = unpickled_at(&t->tree, &call->args, 3);
    const struct zip_entry *entry = NULL;
    uint32_t stride_count = 0;
    if (!stride || offset->kind != UNPICKLE_INT || offset->number < 0) {
        return bad(t, "is no tensor as PyTorch writes them");
    }
    int code = find_storage(t, storage, &out->type, &entry);
    if (code == 0 && call->role == TORCH_REBUILD_V3) {
        code = read_dtype(t, call, &out->type);
    }
    if (code) {
        return code;
    }
    if (!read_numbers(t, size, out->shape, &out->dim_count) || !read_numbers(t, stride, out->stride, &stride_count) ||
        stride_count != out->dim_count) {
        return bad(t, "has more than 8 dimensions, or no shape and strides as PyTorch writes them");
    }
    if (has_more(t, call)) {
        return bad(t, "is a negated or conjugated view; save a copy: tensor.resolve_neg().resolve_conj()");
    }
    if (!is_inside(out, (uint64_t)offset->number, entry->bytes)) {
        return bad(t, "leaves its storage");
    }
    out->data_at = entry->data_at + (uint64_t)offset->number * out->type.element_bytes;
    out->crc = offset->number == 0 && is_all_of(out, entry->bytes) ? entry->crc : 0;
    return 0;
}

static int add_tensor(struct torch_file *t, const struct call *call) {
    struct torch_tensor tensor = {.dim_count = 0};
    int code = read_tensor(t, call, &tensor);
    struct archive_piece piece = {.file = t->file, .data_at = tensor.data_at, .crc = tensor.crc};
    memcpy(piece.size, tensor.shape, sizeof piece.size);
    memcpy(piece.stride, tensor.stride, sizeof piece.stride);
    code = code ? code
                : archive_add_tensor(t->archive, t->path_bytes > 0 ? t->path : "tensor", tensor.type, tensor.dim_count,
                                     tensor.shape);
    return code ? code : archive_add_piece(t->archive, &piece);
}

/* ---- the walk ---- */

static const char *path_of(const struct torch_file *t) {
    return t->path_bytes > 0 ? t->path : "value";
}

static int add_left_out(struct torch_file *t, const struct unpickle_value *value) {
    static const char *const words[] = {
        [UNPICKLE_NONE] = "None",   [UNPICKLE_BIG] = "an integer of more than 64 bits",
        [UNPICKLE_BYTES] = "bytes", [UNPICKLE_TUPLE] = "tuple",
        [UNPICKLE_LIST] = "list",   [UNPICKLE_DICT] = "dict",
        [UNPICKLE_SET] = "set",     [UNPICKLE_PERSISTENT] = "a storage without a tensor",
    };
    char text[256];
    const struct unpickle_class *class = unpickled_class(&t->tree, value);
    if (class) {
        (void)snprintf(text, sizeof text, "%s.%s", class->module, class->name);
        return archive_add_left_out(t->archive, path_of(t), text);
    }
    uint32_t count = unpickled_count(&t->tree, value);
    if (count > 0 && value->kind != UNPICKLE_PERSISTENT) {
        (void)snprintf(text, sizeof text, "%s of %" PRIu32, words[value->kind], count);
        return archive_add_left_out(t->archive, path_of(t), text);
    }
    return archive_add_left_out(t->archive, path_of(t), words[value->kind] ? words[value->kind] : "nothing");
}

static int add_scalar(struct torch_file *t, const struct unpickle_value *value) {
    switch (value->kind) {
    case UNPICKLE_BOOL:
    case UNPICKLE_INT:
        return archive_add_integer(t->archive, path_of(t), value->number);
    case UNPICKLE_REAL:
        return archive_add_real(t->archive, path_of(t), value->real);
    case UNPICKLE_TEXT:
        return archive_add_text(t->archive, path_of(t), value->bytes, value->size);
    default:
        return add_left_out(t, value);
    }
}

/* Adds a key to the path; *before is what to give to path_leave(). */
static int path_enter(struct torch_file *t, const struct unpickle_value *key, size_t *before) {
    char number[24];
    const char *text = (const char *)key->bytes;
    size_t bytes = key->size, room = sizeof t->path - t->path_bytes;
    if (key->kind == UNPICKLE_INT) {
        bytes = (size_t)snprintf(number, sizeof number, "%" PRId64, key->number);
        text = number;
    }
    if (bytes + 2 > room || memchr(text, 0, bytes)) {
        return status_fail(MUSTER_ELIMIT, "the names below %s are too long, or have zeros in them", path_of(t));
    }
    *before = t->path_bytes;
    if (t->path_bytes > 0) {
        t->path[t->path_bytes++] = '.';
    }
    memcpy(t->path + t->path_bytes, text, bytes);
    t->path_bytes += bytes;
    t->path[t->path_bytes] = '\0';
    return 0;
}

static void path_leave(struct torch_file *t, size_t before) {
    t->path_bytes = before;
    t->path[before] = '\0';
}

/* An object is one if all it has are its items, and not what it was called with (but for a defaultdict's class). */
static bool is_dict(const struct torch_file *t, const struct unpickle_value *value) {
    if (value->kind != UNPICKLE_OBJECT || role_of(t, value) != TORCH_DICT) {
        return value->kind == UNPICKLE_DICT;
    }
    const struct unpickle_value *first = unpickled_at(&t->tree, &unpickled_node(&t->tree, value)->args, 0);
    return !first || first->kind == UNPICKLE_CLASS;
}

/* A list of so many numbers or texts that it can be no setting. */
static bool is_long_list(const struct torch_file *t, const struct unpickle_value *list) {
    if (unpickled_count(&t->tree, list) <= LIST_VALUES_MAX) {
        return false;
    }
    for (const struct unpickle_item *item = unpickled_first(&t->tree, list); item;
         item = unpickled_next(&t->tree, item)) {
        if (item->value.kind < UNPICKLE_NONE || item->value.kind > UNPICKLE_BYTES) {
            return false;
        }
    }
    return true;
}

static int walk(struct torch_file *t, const struct unpickle_value *value, int depth);

static int walk_item(struct torch_file *t, const struct unpickle_value *key, const struct unpickle_value *value,
                     int depth) {
    size_t before = 0;
    if (key->kind != UNPICKLE_TEXT && key->kind != UNPICKLE_INT) {
        return archive_add_left_out(t->archive, path_of(t), "a key that is neither a text nor an integer");
    }
    int code = path_enter(t, key, &before);
    if (code == 0) {
        code = walk(t, value, depth + 1);
        path_leave(t, before);
    }
    return code;
}

static int walk_dict(struct torch_file *t, const struct unpickle_value *dict, int depth) {
    const struct unpickle_item *key = unpickled_first(&t->tree, dict);
    int code = 0;
    while (key && code == 0) {
        const struct unpickle_item *value = unpickled_next(&t->tree, key);
        code = walk_item(t, &key->value, &value->value, depth);
        key = unpickled_next(&t->tree, value);
    }
    return code;
}

static int walk_list(struct torch_file *t, const struct unpickle_value *list, int depth) {
    struct unpickle_value key = {.kind = UNPICKLE_INT, .number = 0};
    int code = 0;
    for (const struct unpickle_item *item = unpickled_first(&t->tree, list); item && code == 0;
         item = unpickled_next(&t->tree, item)) {
        code = walk_item(t, &key, &item->value, depth);
        key.number++;
    }
    return code;
}

static int walk(struct torch_file *t, const struct unpickle_value *value, int depth) {
    struct call call;
    if (depth > DEPTH_MAX || ++t->steps > STEPS_MAX) {
        return status_fail(MUSTER_ELIMIT,
                           "what is saved is nested more than %d deep, or has more than %" PRIu64 " values", DEPTH_MAX,
                           STEPS_MAX);
    }
    if (find_call(t, value, &call)) {
        return add_tensor(t, &call);
    }
    if (is_dict(t, value)) {
        return walk_dict(t, value, depth);
    }
    bool is_list = value->kind == UNPICKLE_LIST || value->kind == UNPICKLE_TUPLE;
    if (is_list && unpickled_count(&t->tree, value) > 0 && !is_long_list(t, value)) {
        return walk_list(t, value, depth);
    }
    return add_scalar(t, value);
}

/* ---- what others see ---- */

int torch_file_read(struct archive *archive, uint32_t file, uint64_t base, uint64_t bytes, const char *prefix) {
    struct torch_file t = {.archive = archive, .file = file};
    struct unpickle_value key = {
        .kind = UNPICKLE_TEXT, .size = (uint32_t)strlen(prefix), .bytes = (const uint8_t *)prefix};
    size_t before = 0;
    int code = torch_open(&t, base, bytes);
    code = code || prefix[0] == '\0' ? code : path_enter(&t, &key, &before);
    code = code ? code : walk(&t, &t.tree.root, 0);
    torch_close(&t);
    return code;
}

int torch_file_read_tensor(struct archive *archive, uint32_t file, uint64_t base, uint64_t bytes,
                           struct torch_tensor *out) {
    struct torch_file t = {.archive = archive, .file = file};
    struct call call;
    int code = torch_open(&t, base, bytes);
    if (code == 0) {
        code = find_call(&t, &t.tree.root, &call) ? read_tensor(&t, &call, out) : bad(&t, "is no tensor");
    }
    torch_close(&t);
    return code;
}
