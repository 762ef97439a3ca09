/* Fuzzes the patterns of --rename (checkpoint_rename.h): the input is a name, then renames, each on a line. What is
 * accepted gives the name that a plain reading of the first pattern that fits gives. */
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

#include "train/checkpoint/checkpoint_rename.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ITEMS_MAX = 16, WANTED_MAX = 8192 };

/* What the right side of a rename makes of a name; false: the left side is another. */
static bool apply(const char *item, const char *name, char wanted[WANTED_MAX]) {
    char *left = strdup(item);
    assert(left);
    char *right = strchr(left, '=');
    *right++ = '\0';
    char *star = strchr(left, '*'), *to = strchr(right, '*');
    size_t length = strlen(name), head = star ? (size_t)(star - left) : 0, tail = star ? strlen(star + 1) : 0;
    bool fits =
        star ? length >= head + tail && strncmp(name, left, head) == 0 && strcmp(name + length - tail, star + 1) == 0
             : strcmp(name, left) == 0;
    if (fits && to) {
        (void)snprintf(wanted, WANTED_MAX, "%.*s%.*s%s", (int)(to - right), right, (int)(length - head - tail),
                       name + head, to + 1);
    } else if (fits) {
        (void)snprintf(wanted, WANTED_MAX, "%s", right);
    }
    free(left);
    return fits;
}

static void check(const struct checkpoint_renames *renames, const char *name) {
    char out[MUSTER_NAME_MAX], wanted[WANTED_MAX];
    int code = checkpoint_renames_check(renames);
    if (code) {
        assert(code == MUSTER_EINVAL && muster_detail()[0] != '\0');
        return;
    }
    bool fits = false;
    for (size_t i = 0; i < renames->count && !fits; i++) {
        fits = apply(renames->items[i], name, wanted);
    }
    if (!fits) {
        (void)snprintf(wanted, sizeof wanted, "%s", name);
    }
    code = checkpoint_rename(renames, name, out);
    assert(code == 0 ? strcmp(out, wanted) == 0
                     : code == MUSTER_EINVAL && (wanted[0] == '\0' || strlen(wanted) >= MUSTER_NAME_MAX));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *items[ITEMS_MAX];
    struct checkpoint_renames renames = {.items = items};
    char text[WANTED_MAX / 2] = "", *rest = text;
    memcpy(text, data, size < sizeof text ? size : sizeof text - 1);
    const char *name = strsep(&rest, "\n");
    while (rest && renames.count < ITEMS_MAX) {
        items[renames.count++] = strsep(&rest, "\n");
    }
    check(&renames, name);
    return 0;
}
