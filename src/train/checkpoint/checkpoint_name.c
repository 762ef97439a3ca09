/* See checkpoint_name.h. */
#include "train/checkpoint/checkpoint_name.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define PREFIX "checkpoint-"
#define JSON_SUFFIX ".json"
#define PART_SUFFIX ".safetensors"
#define TEMPORARY_SUFFIX ".tmp"

void checkpoint_name_write(char out[CHECKPOINT_NAME_MAX], const struct checkpoint_name *name) {
    bool fits = false;
    switch (name->kind) {
    case CHECKPOINT_RECORD:
        fits = str_format(out, CHECKPOINT_NAME_MAX, PREFIX "%" PRId64 JSON_SUFFIX, name->step);
        break;
    case CHECKPOINT_PART:
        fits = str_format(out, CHECKPOINT_NAME_MAX, PREFIX "%" PRId64 "-%016" PRIx64 "-%" PRIu32 PART_SUFFIX,
                          name->step, name->token, name->part);
        break;
    case CHECKPOINT_MAP:
    case CHECKPOINT_TEMPORARY:
        fits = str_format(out, CHECKPOINT_NAME_MAX, PREFIX "%" PRId64 "-%016" PRIx64 "%s", name->step, name->token,
                          name->kind == CHECKPOINT_MAP ? JSON_SUFFIX : TEMPORARY_SUFFIX);
        break;
    case CHECKPOINT_OTHER:
        break;
    }
    assert(fits);
}

/* The number before `end`, a name's next character; what it gives is only right where writing it again says so. */
static const char *parse_number(const char *text, int base, uint64_t *out) {
    char *end = NULL;
    *out = strtoull(text, &end, base);
    return end;
}

struct checkpoint_name checkpoint_name_parse(const char *text) {
    const struct checkpoint_name other = {.kind = CHECKPOINT_OTHER};
    struct checkpoint_name name = other;
    char again[CHECKPOINT_NAME_MAX];
    uint64_t step = 0, part = 0;
    if (!str_has_prefix(text, PREFIX)) {
        return other;
    }
    const char *rest = parse_number(text + strlen(PREFIX), 10, &step);
    if (*rest == '-') {
        rest = parse_number(rest + 1, 16, &name.token);
        name.kind = strcmp(rest, JSON_SUFFIX) == 0        ? CHECKPOINT_MAP
                    : strcmp(rest, TEMPORARY_SUFFIX) == 0 ? CHECKPOINT_TEMPORARY
                                                          : CHECKPOINT_OTHER;
        if (*rest == '-') {
            (void)parse_number(rest + 1, 10, &part);
            name.kind = CHECKPOINT_PART;
        }
    } else {
        name.kind = CHECKPOINT_RECORD;
    }
    if (name.kind == CHECKPOINT_OTHER || step > INT64_MAX || part > UINT32_MAX) {
        return other;
    }
    name.step = (int64_t)step;
    name.part = (uint32_t)part;
    checkpoint_name_write(again, &name);
    return strcmp(text, again) == 0 ? name : other; /* one spelling: no sign, no blanks, no leading zeros */
}
