/* One tensor of a torch.save file: from the call that would make it to where its elements lie; see torch_file_impl.h.
 */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "train/archive/torch_file_impl.h"

enum { WRAPPINGS_MAX = 4 }; /* a parameter around a tensor around ... */

/* As PyTorch writes it, and not read here. */
static int unread(const struct torch_file *t, const char *what) {
    return status_fail(MUSTER_EUNSUPPORTED, "%s %s", t->path_bytes > 0 ? t->path : "what is saved", what);
}

static int bad(const struct torch_file *t, const char *what) {
    return status_fail(MUSTER_ECORRUPT, "%s %s", t->path_bytes > 0 ? t->path : "what is saved", what);
}

enum torch_role torch_role_of(const struct torch_file *t, const struct unpickle_value *value) {
    const struct unpickle_class *class = unpickled_class(&t->tree, value);
    return class ? (enum torch_role) class->role : TORCH_OTHER;
}

bool torch_find_call(const struct torch_file *t, const struct unpickle_value *value, struct torch_call *out) {
    const struct unpickle_value *at = value;
    for (int i = 0; i < WRAPPINGS_MAX && at && at->kind == UNPICKLE_OBJECT; i++) {
        const struct unpickle_value *args = &unpickled_node(&t->tree, at)->args;
        enum torch_role role = torch_role_of(t, at);
        if (role == TORCH_RETYPED) { /* as if the function had been called with these arguments */
            const struct unpickle_value *function = unpickled_at(&t->tree, args, 0);
            const struct unpickle_value *inner = unpickled_at(&t->tree, args, 2);
            if (!function || function->kind != UNPICKLE_CLASS || !inner) {
                return false;
            }
            role = torch_role_of(t, function);
            args = inner;
        }
        if (role == TORCH_REBUILD_V2 || role == TORCH_REBUILD_V3) {
            *out = (struct torch_call){role, *args};
            return true;
        }
        at = role == TORCH_WRAPPED ? unpickled_at(&t->tree, args, 0) : NULL;
    }
    return false;
}

bool torch_read_numbers(const struct torch_file *t, const struct unpickle_value *tuple, uint64_t *out,
                        uint32_t *out_count) {
    if (torch_role_of(t, tuple) == TORCH_SIZE && tuple->kind == UNPICKLE_OBJECT) {
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
        class->kind != UNPICKLE_CLASS || key->kind != UNPICKLE_TEXT || count->kind != UNPICKLE_INT ||
        count->number < 0) {
        return bad(t, "has no storage as PyTorch writes them");
    }
    if (torch_role_of(t, class) != TORCH_STORAGE) {
        return unread(t, "has elements of a type that is not known here");
    }
    char entry_name[ZIP_NAME_MAX];
    int length = snprintf(entry_name, sizeof entry_name, "data/%.*s", (int)(key->size < 64 ? key->size : 64),
                          (const char *)key->bytes);
    const struct zip_entry *entry = length > 0 ? zip_find_in(&t->zip, t->folder, entry_name) : NULL;
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

static int read_dtype(const struct torch_file *t, const struct torch_call *call, struct archive_type *type) {
    const struct unpickle_value *dtype = unpickled_at(&t->tree, &call->args, 6);
    if (!dtype || dtype->kind != UNPICKLE_CLASS) {
        return bad(t, "has no dtype");
    }
    if (torch_role_of(t, dtype) != TORCH_DTYPE) {
        return unread(t, "has elements of a type that is not known here");
    }
    *type = torch_types[unpickled_class(&t->tree, dtype)->detail];
    return 0;
}

/* Negated and conjugated views say so behind the other arguments; their storages do not have their values. */
static bool has_more(const struct torch_file *t, const struct torch_call *call) {
    const struct unpickle_value *more = unpickled_at(&t->tree, &call->args, call->role == TORCH_REBUILD_V3 ? 7 : 6);
    return more && more->kind != UNPICKLE_NONE && unpickled_count(&t->tree, more) > 0;
}

int torch_read_tensor(const struct torch_file *t, const struct torch_call *call, struct torch_tensor *out) {
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
    if (unpickled_count(&t->tree, size) > MUSTER_TENSOR_DIMS_MAX) {
        return unread(t, "has more than 8 dimensions");
    }
    if (!torch_read_numbers(t, size, out->shape, &out->dim_count) ||
        !torch_read_numbers(t, stride, out->stride, &stride_count) || stride_count != out->dim_count) {
        return bad(t, "has no shape and strides as PyTorch writes them");
    }
    if (has_more(t, call)) {
        return unread(t, "is a negated or conjugated view; save a copy: tensor.resolve_neg().resolve_conj()");
    }
    if (!is_inside(out, (uint64_t)offset->number, entry->bytes)) {
        return bad(t, "leaves its storage");
    }
    out->data_at = entry->data_at + (uint64_t)offset->number * out->type.element_bytes;
    out->crc = offset->number == 0 && is_all_of(out, entry->bytes) ? entry->crc : 0;
    return 0;
}

int torch_add_tensor(struct torch_file *t, uint32_t file, const char *name, const struct torch_tensor *tensor) {
    struct archive_piece piece = {.file = file, .data_at = tensor->data_at, .crc = tensor->crc};
    memcpy(piece.size, tensor->shape, sizeof piece.size);
    memcpy(piece.stride, tensor->stride, sizeof piece.stride);
    int code = archive_add_tensor(t->archive, name, tensor->type, tensor->dim_count, tensor->shape);
    return code ? code : archive_add_piece(t->archive, &piece);
}
