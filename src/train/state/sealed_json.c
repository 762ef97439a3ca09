/* See sealed_json.h. */
#include "train/state/sealed_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/state/checksum.h"
#include "train/state/json_text.h"

enum { HEX_TEXT_BYTES = 17 };

/* What follows the checked bytes: they end before it. */
#define TRAILER_FORMAT ",\n  \"checksum\": \"%016" PRIx64 "\"\n}\n"
enum { TRAILER_BYTES = sizeof ",\n  \"checksum\": \"0123456789abcdef\"\n}\n" - 1 };

/* ---- writing ---- */

static int too_long(size_t most) {
    return status_fail(MUSTER_ELIMIT, "names and values need more than %zu bytes", most);
}

/* The text without its end, which the checksum of what is before it takes the place of. */
static int seal(const struct buf *text, size_t most, struct buf *out) {
    const uint8_t *bytes = buf_bytes(text);
    size_t checked = text->len - 1;
    checked -= bytes[checked - 1] == '\n';
    if (checked + TRAILER_BYTES > most) {
        return too_long(most);
    }
    int code = buf_append(out, bytes, checked);
    return code ? code : buf_printf(out, TRAILER_FORMAT, checksum_of(bytes, checked));
}

int sealed_json_append(const json_t *tree, size_t flags, size_t most, struct buf *out) {
    struct buf text;
    buf_init(&text, most);
    int code = json_text_append(tree, flags, &text);
    code = code == MUSTER_ELIMIT ? too_long(most) : code;
    code = code ? code : seal(&text, most, out);
    buf_done(&text);
    return code;
}

/* ---- reading ---- */

int sealed_json_check(const char *what, const uint8_t *bytes, size_t count, uint64_t *out_id) {
    char trailer[TRAILER_BYTES + 1];
    if (count < TRAILER_BYTES) {
        return status_fail(MUSTER_ECORRUPT, "%s is cut off at %zu bytes", what, count);
    }
    uint64_t id = checksum_of(bytes, count - TRAILER_BYTES);
    (void)snprintf(trailer, sizeof trailer, TRAILER_FORMAT, id);
    if (memcmp(trailer, bytes + count - TRAILER_BYTES, TRAILER_BYTES) != 0) {
        return status_fail(MUSTER_ECORRUPT, "%s is damaged: its checksum does not fit", what);
    }
    *out_id = id;
    return 0;
}

int sealed_json_parse(const uint8_t *bytes, size_t count, json_t **out) {
    int code = json_text_parse("it", bytes, count, out);
    return code == MUSTER_ECORRUPT ? MUSTER_EUNSUPPORTED : code;
}

int sealed_json_is_format(const json_t *tree, const char *format, int version) {
    uint64_t stated = 0;
    const char *text = json_string_value(json_object_get(tree, "format"));
    bool fits = text && strcmp(text, format) == 0 && sealed_json_read_count(tree, "version", &stated) &&
                stated == (uint64_t)version;
    return fits ? 0 : status_fail(MUSTER_EUNSUPPORTED, "it is not of format %s, version %d", format, version);
}

/* jansson does not always tell a lack of memory from bad text. */
int sealed_json_not_understood(const char *what, int code) {
    (void)status_prefix(code, "%s is whole but not understood (memory ran out, or another program or version wrote it)",
                        what);
    return code == MUSTER_ENOMEM ? code : MUSTER_EUNSUPPORTED;
}

/* ---- members ---- */

json_t *sealed_json_hex(uint64_t number) {
    char text[HEX_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%016" PRIx64, number);
    return json_string(text);
}

bool sealed_json_read_hex(const json_t *json, uint64_t *out) {
    const char *text = json_string_value(json);
    char again[HEX_TEXT_BYTES], *end = NULL;
    if (!text || strlen(text) != HEX_TEXT_BYTES - 1) {
        return false;
    }
    *out = strtoull(text, &end, 16);
    (void)snprintf(again, sizeof again, "%016" PRIx64, *out);
    return strcmp(text, again) == 0; /* one spelling: no sign, no blanks, no capitals */
}

bool sealed_json_read_count(const json_t *tree, const char *name, uint64_t *out) {
    const json_t *json = json_object_get(tree, name);
    if (!json_is_integer(json) || json_integer_value(json) < 0) {
        return false;
    }
    *out = (uint64_t)json_integer_value(json);
    return true;
}
