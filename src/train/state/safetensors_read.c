/* Reading safetensors headers, which may come from anywhere; see safetensors.h. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/state/json_text.h"
#include "train/state/safetensors_impl.h"

enum { SHAPE_MAX = 1024 };

int safetensors_header_length(const uint8_t prefix[SAFETENSORS_PREFIX_BYTES], uint64_t file_bytes, size_t *out) {
    uint64_t length = 0;
    memcpy(&length, prefix, sizeof length);
    if (file_bytes < SAFETENSORS_PREFIX_BYTES || length > file_bytes - SAFETENSORS_PREFIX_BYTES) {
        return status_fail(MUSTER_ECORRUPT,
                           "it is cut off, or no safetensors file: a header of %" PRIu64 " bytes in %" PRIu64 " bytes",
                           length, file_bytes);
    }
    if (length > SAFETENSORS_HEADER_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "a header of %" PRIu64 " bytes; at most %zu are read", length,
                           SAFETENSORS_HEADER_BYTES_MAX);
    }
    *out = (size_t)length;
    return 0;
}

static int bad(const char *name, const char *what) {
    return status_fail(MUSTER_ECORRUPT, "the header's entry for \"%.*s\" has %s", (int)MUSTER_NAME_MAX, name, what);
}

static bool read_unsigned(const json_t *number, uint64_t *out) {
    if (!json_is_integer(number) || json_integer_value(number) < 0) {
        return false;
    }
    *out = (uint64_t)json_integer_value(number);
    return true;
}

static int read_type(const json_t *text, struct safetensors_entry *entry) {
    const struct safetensors_type *found = safetensors_types;
    if (!json_is_string(text)) {
        return bad(entry->name, "no dtype");
    }
    while (found->dtype && strcmp(found->dtype, json_string_value(text)) != 0) {
        found++;
    }
    entry->type = found->type;
    entry->other = found->dtype && found->type == MUSTER_TYPE_COUNT ? found : NULL;
    entry->unread = found->dtype ? NULL : "a dtype that is not known here";
    return 0;
}

static int read_shape(const json_t *shape, struct safetensors_entry *entry) {
    if (!json_is_array(shape) || json_array_size(shape) > SHAPE_MAX) {
        return bad(entry->name, "no shape, or one of too many dimensions");
    }
    for (size_t i = 0; i < json_array_size(shape); i++) {
        uint64_t size = 0;
        if (!read_unsigned(json_array_get(shape, i), &size)) {
            return bad(entry->name, "a shape that is not of whole numbers");
        }
        if (i < MUSTER_TENSOR_DIMS_MAX) {
            entry->shape[i] = size;
        }
    }
    if (json_array_size(shape) > MUSTER_TENSOR_DIMS_MAX) {
        entry->unread = "more than 8 dimensions";
    }
    entry->dim_count = entry->unread ? 0 : (uint32_t)json_array_size(shape);
    return 0;
}

static uint32_t bits_of(const struct safetensors_entry *entry) {
    return entry->other ? entry->other->bits : 8 * (uint32_t)muster_type_bytes(entry->type);
}

static int read_extent(const json_t *offsets, uint64_t data_bytes, struct safetensors_entry *entry) {
    uint64_t begin = 0, end = 0, wanted = 0;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !read_unsigned(json_array_get(offsets, 0), &begin) || !read_unsigned(json_array_get(offsets, 1), &end)) {
        return bad(entry->name, "no data_offsets");
    }
    if (begin > end || end > data_bytes) {
        return bad(entry->name, "data_offsets outside of the file");
    }
    if (!entry->unread &&
        (!safetensors_extent(bits_of(entry), entry->shape, entry->dim_count, &wanted) || wanted != end - begin)) {
        return bad(entry->name, "data_offsets that do not fit its shape");
    }
    if (entry->unread) {
        entry->type = MUSTER_TYPE_COUNT;
        entry->other = NULL;
    }
    entry->offset = begin;
    entry->bytes = end - begin;
    return 0;
}

static int read_entry(const json_t *member, uint64_t data_bytes, struct safetensors_entry *entry) {
    if (entry->name[0] == '\0' || strlen(entry->name) >= MUSTER_NAME_MAX) {
        return bad(entry->name, "an empty name, or one that is too long");
    }
    int code =
        read_type(json_object_get(member, "dtype"), entry); /* members that others have added mean nothing here */
    code = code ? code : read_shape(json_object_get(member, "shape"), entry);
    return code ? code : read_extent(json_object_get(member, "data_offsets"), data_bytes, entry);
}

static int check_metadata(json_t *member) {
    const char *key;
    json_t *value;
    if (!json_is_object(member) && !json_is_null(member)) {
        return bad(SAFETENSORS_METADATA, "no object in it");
    }
    json_object_foreach(member, key, value) {
        if (!json_is_string(value)) {
            return bad(SAFETENSORS_METADATA, "a value that is no text");
        }
    }
    return 0;
}

static int read_entries(json_t *tree, struct safetensors *table) {
    const char *name;
    json_t *member;
    json_object_foreach(tree, name, member) {
        if (strcmp(name, SAFETENSORS_METADATA) == 0) {
            int code = check_metadata(member);
            if (code) {
                return code;
            }
            continue;
        }
        struct safetensors_entry *entry = &table->entries[table->count];
        *entry = (struct safetensors_entry){.name = name, .index = table->count};
        int code = read_entry(member, table->data_bytes, entry);
        if (code) {
            return code;
        }
        table->count++;
    }
    return 0;
}

static int by_offset(const void *left, const void *right) {
    const struct safetensors_entry *a = left, *b = right;
    if (a->offset != b->offset) {
        return a->offset < b->offset ? -1 : 1;
    }
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int by_name(const void *left, const void *right) {
    return strcmp(((const struct safetensors_entry *)left)->name, ((const struct safetensors_entry *)right)->name);
}

/* Each byte of the data belongs to exactly one tensor. */
static int check_tiling(struct safetensors *table) {
    uint64_t at = 0;
    qsort(table->entries, table->count, sizeof *table->entries, by_offset);
    for (size_t i = 0; i < table->count; i++) {
        if (table->entries[i].offset != at) {
            return bad(table->entries[i].name, "data that overlaps another's, or a gap before it");
        }
        at += table->entries[i].bytes;
    }
    if (at != table->data_bytes) {
        return status_fail(MUSTER_ECORRUPT, "it has %" PRIu64 " bytes of data, its header tells of %" PRIu64,
                           table->data_bytes, at);
    }
    return 0;
}

static int parse(const uint8_t *header, size_t length, json_t **out) {
    if (length == 0 || header[0] != '{') {
        return status_fail(MUSTER_ECORRUPT, "no safetensors file: the header does not begin with {");
    }
    return json_text_parse("the header", header, length, out);
}

int safetensors_decode(const uint8_t *header, size_t length, uint64_t data_bytes, struct safetensors *out) {
    struct safetensors table = {.data_bytes = data_bytes};
    int code = parse(header, length, &table.tree);
    if (code) {
        return code;
    }
    size_t members = json_object_size(table.tree);
    if (members > MUSTER_TENSORS_MAX + 1) {
        code = status_fail(MUSTER_ELIMIT, "%zu tensors; at most %zu are read", members, MUSTER_TENSORS_MAX);
    } else {
        table.entries = calloc(members ? members : 1, sizeof *table.entries);
        code = table.entries ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a table of %zu tensors", members);
    }
    code = code ? code : read_entries(table.tree, &table);
    code = code ? code : check_tiling(&table);
    if (code) {
        safetensors_done(&table);
        return code;
    }
    qsort(table.entries, table.count, sizeof *table.entries, by_name);
    *out = table;
    return 0;
}
