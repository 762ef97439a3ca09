/* Nearest names by edit distance; see suggest.h. */
#include "cli/command/suggest.h"

#include <string.h>

#include "base/str.h"

unsigned suggest_limit(const char *typed) {
    size_t n = strlen(typed);
    return n <= 2 ? 1 : n <= 6 ? 2 : 3;
}

int suggest_better(const char *typed, const char *name, unsigned *distance) {
    unsigned d = str_distance(typed, name);
    /* A name of which nothing is left is not a slip of the finger. */
    if (d >= *distance || d >= strlen(name)) {
        return 0;
    }
    *distance = d;
    return 1;
}

const char *suggest_nearest(const char *typed, const char *const *names, size_t count) {
    const char *best = NULL;
    unsigned distance = suggest_limit(typed) + 1;
    for (size_t i = 0; i < count; i++) {
        if (suggest_better(typed, names[i], &distance)) {
            best = names[i];
        }
    }
    return best;
}
