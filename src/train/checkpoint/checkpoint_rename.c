/* See checkpoint_rename.h. */
#include "train/checkpoint/checkpoint_rename.h"

#include <stdbool.h>
#include <string.h>

#include "base/fnv.h"
#include "base/status.h"
#include "base/str.h"

/* Characters of a text, without an end. */
struct span {
    const char *at;
    size_t count;
};

/* One side of a rename, cut at its star. */
struct pattern {
    struct span before, after;
    bool has_star;
};

static struct pattern cut(const char *begin, const char *end) {
    const char *star = memchr(begin, '*', (size_t)(end - begin));
    const char *at = star ? star : end;
    return (struct pattern){.before = {begin, (size_t)(at - begin)},
                            .after = {star ? star + 1 : end, star ? (size_t)(end - star) - 1 : 0},
                            .has_star = star != NULL};
}

static void read(const char *item, struct pattern *ours, struct pattern *theirs) {
    const char *equals = strchr(item, '=');
    *ours = cut(item, equals);
    *theirs = cut(equals + 1, item + strlen(item));
}

static bool has_second_star(const struct pattern *pattern) {
    return pattern->after.count > 0 && memchr(pattern->after.at, '*', pattern->after.count) != NULL;
}

int checkpoint_renames_check(const struct checkpoint_renames *renames) {
    for (size_t i = 0; i < renames->count; i++) {
        const char *item = renames->items ? renames->items[i] : NULL;
        const char *equals = item ? strchr(item, '=') : NULL;
        struct pattern ours, theirs;
        if (!equals || equals == item || equals[1] == '\0') {
            return status_fail(MUSTER_EINVAL, "rename \"%s\": it must be OURS=THEIRS", item ? item : "(null)");
        }
        read(item, &ours, &theirs);
        if (has_second_star(&ours) || has_second_star(&theirs) || (theirs.has_star && !ours.has_star)) {
            return status_fail(MUSTER_EINVAL,
                               "rename \"%s\": a side has one * at most, and the right one only if the left one has it",
                               item);
        }
    }
    return 0;
}

uint64_t checkpoint_renames_hash(const struct checkpoint_renames *renames, uint64_t hash) {
    for (size_t i = 0; i < renames->count; i++) {
        hash = fnv_bytes(hash, renames->items[i], strlen(renames->items[i]) + 1);
    }
    return hash;
}

/* *star: what the * stands for. */
static bool matches(const struct pattern *pattern, const char *name, struct span *star) {
    size_t length = strlen(name), fixed = pattern->before.count + pattern->after.count;
    if (length < fixed || (length > fixed && !pattern->has_star)) {
        return false;
    }
    *star = (struct span){name + pattern->before.count, length - fixed};
    return memcmp(name, pattern->before.at, pattern->before.count) == 0 &&
           memcmp(name + length - pattern->after.count, pattern->after.at, pattern->after.count) == 0;
}

static bool append(char *out, size_t *length, const struct span *span) {
    if (span->count >= MUSTER_NAME_MAX - *length) {
        return false;
    }
    memcpy(out + *length, span->at, span->count);
    *length += span->count;
    out[*length] = '\0';
    return true;
}

int checkpoint_rename(const struct checkpoint_renames *renames, const char *name, char out[MUSTER_NAME_MAX]) {
    const struct span nothing = {name, 0};
    struct pattern ours, theirs = {.before = {name, strlen(name)}, .after = nothing};
    struct span star = nothing;
    size_t length = 0;
    for (size_t i = 0; i < renames->count; i++) {
        read(renames->items[i], &ours, &theirs);
        if (matches(&ours, name, &star)) {
            break;
        }
        theirs = (struct pattern){.before = {name, strlen(name)}, .after = nothing};
    }
    bool fits = append(out, &length, &theirs.before) && append(out, &length, theirs.has_star ? &star : &nothing) &&
                append(out, &length, &theirs.after);
    return fits && length > 0 ? 0
                              : status_fail(MUSTER_EINVAL, "the name that a rename gives to tensor %s is %s", name,
                                            fits ? "empty" : "too long");
}
