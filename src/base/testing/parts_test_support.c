/* Reads the lists of what is left out of a run. */
#include "base/testing/parts_test_support.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 512, PATH_BYTES = 4096 };

/* Does a line "PROGRAM PART  # why" speak of this one? *out_reason points into the line. */
static bool line_is_of(char *line, const char *part, const char **out_reason) {
    char *reason = strchr(line, '#'), *rest = NULL;
    *out_reason = "";
    if (reason) {
        *reason++ = '\0';
        *out_reason = reason + strspn(reason, " ");
    }
    const char *program = strtok_r(line, " \n", &rest);
    const char *name = strtok_r(NULL, " \n", &rest);
    return program && name && strcmp(program, program_invocation_short_name) == 0 && strcmp(name, part) == 0;
}

/* Says so. */
static bool is_in(const char *path, const char *part) {
    char line[LINE_BYTES];
    const char *reason;
    FILE *file = fopen(path, "re");
    if (!file) {
        (void)fprintf(stderr, "MUSTER_TEST_EXCEPT: %s cannot be read\n", path);
        exit(1);
    }
    bool is_named = false;
    while (!is_named && fgets(line, sizeof line, file)) {
        is_named = line_is_of(line, part, &reason);
    }
    (void)fclose(file);
    if (is_named) {
        (void)printf("[ EXCEPTED ] %s: %s%s", part, reason, strchr(reason, '\n') ? "" : "\n");
        (void)fflush(stdout);
    }
    return is_named;
}

bool part_is_wanted(const char *part) {
    const char *only = getenv("MUSTER_TEST_ONLY"), *paths = getenv("MUSTER_TEST_EXCEPT");
    if (only && strcmp(only, part) != 0) {
        return false;
    }
    while (paths && *paths) {
        char path[PATH_BYTES];
        size_t length = strcspn(paths, ":");
        (void)snprintf(path, sizeof path, "%.*s", (int)length, paths);
        if (is_in(path, part)) {
            return false;
        }
        paths += length + (paths[length] == ':');
    }
    return true;
}

unsigned part_stride(const char *part, unsigned sparse) {
    return part_is_wanted(part) ? 1 : sparse;
}
