/* Walks through what a torch.save file has: tensors and values, with names made of the keys that lead to them. See
 * torch_file_impl.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "train/archive/torch_file_impl.h"

enum {
    DEPTH_MAX = 64,
    /* Values in a list of numbers or texts, beyond which it is no setting but data, such as an optimizer's numbers of
     * its parameters. */
    LIST_VALUES_MAX = 64,
};
/* Steps of a walk through a tree, in which one value may lie in many places. */
#define STEPS_MAX ((uint64_t)4 << 20)

static int add_tensor(struct torch_file *t, const struct torch_call *call) {
    const char *name = t->path_bytes > 0 ? t->path : "tensor";
    struct torch_tensor tensor = {.dim_count = 0};
    int code = torch_read_tensor(t, call, &tensor);
    return code == MUSTER_EUNSUPPORTED ? archive_add_left_out(t->archive, name, muster_detail())
           : code                      ? code
                                       : torch_add_tensor(t, t->file, name, &tensor);
}

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

/* Adds a key to the path; *before is what to give to path_leave(). False: it cannot be a part of a name. */
static bool path_enter(struct torch_file *t, const struct unpickle_value *key, size_t *before) {
    char number[24];
    const char *text = (const char *)key->bytes;
    size_t bytes = key->size, room = sizeof t->path - t->path_bytes;
    if (key->kind == UNPICKLE_INT) {
        bytes = (size_t)snprintf(number, sizeof number, "%" PRId64, key->number);
        text = number;
    }
    if (bytes == 0 || bytes + 2 > room || memchr(text, 0, bytes)) {
        return false;
    }
    *before = t->path_bytes;
    if (t->path_bytes > 0) {
        t->path[t->path_bytes++] = '.';
    }
    memcpy(t->path + t->path_bytes, text, bytes);
    t->path_bytes += bytes;
    t->path[t->path_bytes] = '\0';
    return true;
}

static void path_leave(struct torch_file *t, size_t before) {
    t->path_bytes = before;
    t->path[before] = '\0';
}

/* An object is one if all it has are its items, and not what it was called with (but for a defaultdict's class). */
static bool is_dict(const struct torch_file *t, const struct unpickle_value *value) {
    if (value->kind != UNPICKLE_OBJECT || torch_role_of(t, value) != TORCH_DICT) {
        return value->kind == UNPICKLE_DICT;
    }
    const struct unpickle_value *first = unpickled_at(&t->tree, &unpickled_node(&t->tree, value)->args, 0);
    return !first || first->kind == UNPICKLE_CLASS;
}

/* A list of so many numbers or texts that it can be no setting. The first ones tell: a long list may lie in many
 * places, and must not be looked through in each. */
static bool is_long_list(const struct torch_file *t, const struct unpickle_value *list) {
    if (unpickled_count(&t->tree, list) <= LIST_VALUES_MAX) {
        return false;
    }
    const struct unpickle_item *item = unpickled_first(&t->tree, list);
    for (int i = 0; i < LIST_VALUES_MAX; i++) {
        if (item->value.kind < UNPICKLE_NONE || item->value.kind > UNPICKLE_BYTES) {
            return false;
        }
        item = unpickled_next(&t->tree, item);
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
    if (!path_enter(t, key, &before)) {
        return archive_add_left_out(t->archive, path_of(t),
                                    "something under a key that is empty or too long, or has zeros in it");
    }
    int code = walk(t, value, depth + 1);
    path_leave(t, before);
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
    struct torch_call call;
    if (depth > DEPTH_MAX || ++t->steps > STEPS_MAX) {
        return status_fail(MUSTER_ELIMIT,
                           "what is saved is nested more than %d deep, or has more than %" PRIu64 " values", DEPTH_MAX,
                           STEPS_MAX);
    }
    if (torch_find_call(t, value, &call)) {
        return add_tensor(t, &call);
    }
    bool is_numpys = false;
    int code = numpy_add(t, value, path_of(t), &is_numpys);
    if (code || is_numpys) {
        return code;
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

int torch_walk(struct torch_file *t, const struct unpickle_value *value, const char *prefix) {
    struct unpickle_value key = {
        .kind = UNPICKLE_TEXT, .size = (uint32_t)strlen(prefix), .bytes = (const uint8_t *)prefix};
    size_t before = 0;
    if (prefix[0] != '\0' && !path_enter(t, &key, &before)) {
        return status_fail(MUSTER_ELIMIT, "a name is too long, or has zeros in it");
    }
    return walk(t, value, 0);
}
