/* See json_text.h. */
#include "train/state/json_text.h"

#include <jansson.h>

#include "base/status.h"

struct sink {
    struct buf *out;
    int code;
};

static int append(const char *text, size_t bytes, void *data) {
    struct sink *sink = data;
    sink->code = sink->code ? sink->code : buf_append(sink->out, text, bytes);
    return sink->code ? -1 : 0;
}

int json_text_append(const struct json_t *tree, size_t flags, struct buf *out) {
    struct sink sink = {.out = out};
    int result = json_dump_callback(tree, append, &sink, flags);
    if (result == 0 && sink.code == 0) { /* jansson overlooks that a name could not be appended */
        return 0;
    }
    return sink.code ? sink.code : status_fail(MUSTER_ENOMEM, "no memory to write JSON");
}

int json_text_parse(const char *what, const void *bytes, size_t count, struct json_t **out) {
    json_error_t error;
    json_t *tree = json_loadb(bytes, count, JSON_REJECT_DUPLICATES, &error);
    if (tree) {
        *out = tree;
        return 0;
    }
    /* jansson has nothing to say when memory runs out, wherever that happens. */
    if (error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory) {
        return status_fail(MUSTER_ENOMEM, "no memory to read %s of %zu bytes", what, count);
    }
    return status_fail(MUSTER_ECORRUPT, "%s is not JSON: %s (line %d, byte %d)", what, error.text, error.line,
                       error.position);
}
