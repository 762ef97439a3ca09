/* Names of a snapshot's files; see snapshot_manifest.h. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/str.h"
#include "train/state/snapshot_manifest.h"

#define DATA_SUFFIX ".safetensors"
#define MANIFEST_SUFFIX ".json"
#define TEMPORARY_SUFFIX ".tmp"

void snapshot_name_data(char out[SNAPSHOT_NAME_MAX], int64_t step, uint64_t checksum) {
    bool fits = str_format(out, SNAPSHOT_NAME_MAX, "step-%" PRId64 "-%016" PRIx64 DATA_SUFFIX, step, checksum);
    assert(fits);
}

void snapshot_name_manifest(char out[SNAPSHOT_NAME_MAX], int64_t step) {
    bool fits = str_format(out, SNAPSHOT_NAME_MAX, "step-%" PRId64 MANIFEST_SUFFIX, step);
    assert(fits);
}

void snapshot_name_temporary(char out[SNAPSHOT_NAME_MAX], int64_t step, enum snapshot_kind kind) {
    const char *suffix = kind == SNAPSHOT_DATA ? DATA_SUFFIX : MANIFEST_SUFFIX;
    bool fits = str_format(out, SNAPSHOT_NAME_MAX, "step-%" PRId64 "%s" TEMPORARY_SUFFIX, step, suffix);
    assert(fits);
}

/* Decimal digits as we write them: no sign, no leading zero. Returns what follows, or NULL. */
static const char *parse_step(const char *text, int64_t *out) {
    int64_t step = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(step, 10, &step) || __builtin_add_overflow(step, *at - '0', &step)) {
            return NULL;
        }
    }
    if (at == text || (text[0] == '0' && at - text > 1)) {
        return NULL;
    }
    *out = step;
    return at;
}

static const char *parse_checksum(const char *text, uint64_t *out) {
    uint64_t value = 0;
    for (size_t i = 0; i < 16; i++) {
        char c = text[i];
        bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
        if (!digit && !letter) {
            return NULL;
        }
        value = value << 4 | (uint64_t)(digit ? c - '0' : c - 'a' + 10);
    }
    *out = value;
    return text + 16;
}

struct snapshot_name snapshot_name_parse(const char *name) {
    struct snapshot_name parsed = {.kind = SNAPSHOT_OTHER};
    const char *rest = str_has_prefix(name, "step-") ? parse_step(name + 5, &parsed.step) : NULL;
    if (!rest) {
        return parsed;
    }
    if (strcmp(rest, MANIFEST_SUFFIX) == 0) {
        parsed.kind = SNAPSHOT_MANIFEST;
    } else if (strcmp(rest, DATA_SUFFIX TEMPORARY_SUFFIX) == 0 || strcmp(rest, MANIFEST_SUFFIX TEMPORARY_SUFFIX) == 0) {
        parsed.kind = SNAPSHOT_TEMPORARY;
    } else if (rest[0] == '-') {
        rest = parse_checksum(rest + 1, &parsed.checksum);
        parsed.kind = rest && strcmp(rest, DATA_SUFFIX) == 0 ? SNAPSHOT_DATA : SNAPSHOT_OTHER;
    }
    return parsed;
}
