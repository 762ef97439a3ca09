/* Answers of etcd's v2 API; see etcd_v2_answer.h. */
#include "store/client/etcd_v2_answer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum { SHOWN_BYTES_MAX = 80 };

static uint64_t read_index(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : 0;
    return number > 0 ? (uint64_t)number : 0;
}

/* NULL where there is none; a value with a zero byte inside is none of ours. */
static const char *read_text(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
        return NULL;
    }
    return json_string_value(value);
}

static bool read_node(const json_t *object, struct etcd_v2_node *out) {
    *out = (struct etcd_v2_node){
        .key = read_text(object, "key"),
        .value = read_text(object, "value"),
        .is_folder = json_is_true(json_object_get(object, "dir")),
        .modified_index = read_index(object, "modifiedIndex"),
    };
    if (!out->key) {
        out->key = "/"; /* the root has none */
    }
    return json_is_object(object);
}

static int read_children(const json_t *list, struct etcd_v2_answer *out) {
    size_t count = json_array_size(list);
    out->children = count > 0 ? calloc(count, sizeof *out->children) : NULL;
    if (count > 0 && !out->children) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu nodes of etcd", count);
    }
    for (; out->child_count < count; out->child_count++) {
        if (!read_node(json_array_get(list, out->child_count), &out->children[out->child_count])) {
            return status_fail(MUSTER_EPROTOCOL, "etcd answers a folder whose entries are none");
        }
    }
    return MUSTER_OK;
}

static int read_object(const json_t *object, struct etcd_v2_answer *out) {
    const char *action = read_text(object, "action");
    const json_t *node = json_object_get(object, "node");
    const json_t *error = json_object_get(object, "errorCode");
    if (json_is_integer(error) && json_integer_value(error) > 0 && json_integer_value(error) < INT32_MAX) {
        const char *message = read_text(object, "message");
        out->error = (long)json_integer_value(error);
        out->message = message ? message : "";
        out->index = out->index ? out->index : read_index(object, "index");
        return MUSTER_OK;
    }
    if (!action || !read_node(node, &out->node)) {
        return status_fail(MUSTER_EPROTOCOL, "etcd answers what is neither a node nor an error");
    }
    out->action = action;
    return read_children(json_object_get(node, "nodes"), out);
}

/* What the body says, for people. */
static int explain(long http_code, const uint8_t *body, size_t len) {
    char shown[SHOWN_BYTES_MAX + 1];
    size_t used = 0;
    for (; used < len && used < SHOWN_BYTES_MAX && body[used] != '\n'; used++) {
        shown[used] = body[used] >= ' ' && body[used] < 0x7f ? (char)body[used] : '?';
    }
    shown[used] = '\0';
    if (http_code == 404) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "etcd does not offer its v2 API (%s): start etcd 3.4 or 3.5 with --enable-v2; etcd 3.6 has "
                           "none any more",
                           shown);
    }
    return status_fail(MUSTER_EPROTOCOL, "that is no answer of etcd's v2 API (HTTP %ld: %s)", http_code, shown);
}

static uint64_t parse_index(const char *text) {
    int64_t index = 0;
    return str_parse_i64(text, &index) && index > 0 ? (uint64_t)index : 0;
}

int etcd_v2_answer_read(long http_code, const uint8_t *body, size_t len, const char *index_header,
                        struct etcd_v2_answer *out) {
    *out = (struct etcd_v2_answer){.message = "", .action = "", .node.key = "", .index = parse_index(index_header)};
    json_t *object = json_loadb((const char *)body, len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(object)) {
        json_decref(object);
        return explain(http_code, body, len);
    }
    out->json = object;
    int rc = read_object(object, out);
    if (rc != MUSTER_OK) {
        etcd_v2_answer_done(out);
    }
    return rc;
}

void etcd_v2_answer_done(struct etcd_v2_answer *answer) {
    free(answer->children);
    json_decref(answer->json);
    *answer = (struct etcd_v2_answer){.message = "", .action = "", .node.key = ""};
}
