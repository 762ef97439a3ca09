/* Finding the cgroup through /proc/self/cgroup and mountinfo, and reading its files; see cgroup.h. */
#include "base/cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

enum { LINE_BYTES = 8192, PATH_BYTES = 4096, STAT_BYTES = 8192 };
#define NO_LIMIT_BYTES (UINT64_C(1) << 62) /* version 1 writes a number near 2^63 where there is none */

bool cgroup_field(const char *text, const char *key, uint64_t *out) {
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        if (strncmp(line, key, length) == 0) {
            *out = strtoull(line + length, NULL, 10);
            return true;
        }
    }
    return false;
}

/* ---- where it lies ---- */

static bool list_has(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ','), at = at ? at + 1 : NULL) {
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

/* Our path in the hierarchy: "0::/path" (v2) or "4:memory:/path" (v1). */
static bool cgroup_path(bool is_v1, char *out, size_t size) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[LINE_BYTES];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) {
            continue;
        }
        *path = '\0';
        bool match = is_v1 ? list_has(controllers + 1, "memory") : controllers[1] == '\0';
        found = match && str_copy(out, size, path + 1);
    }
    if (file) {
        (void)fclose(file);
    }
    return found;
}

/* One line of mountinfo: "id parent dev root point options ... - type source superoptions". Cuts it up. */
static bool mount_matches(char *line, bool is_v1, char **root, char **point) {
    char *rest = strstr(line, " - ");
    if (!rest) {
        return false;
    }
    *rest = '\0';
    rest += strlen(" - ");
    rest[strcspn(rest, "\n")] = '\0';
    const char *type = strsep(&rest, " ");
    (void)strsep(&rest, " ");
    const char *options = strsep(&rest, " ");
    if (!options || strcmp(type, is_v1 ? "cgroup" : "cgroup2") != 0 || (is_v1 && !list_has(options, "memory"))) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        (void)strsep(&line, " ");
    }
    *root = strsep(&line, " ");
    *point = strsep(&line, " ");
    return *root && *point;
}

bool cgroup_memory_folder(bool is_v1, char *out, size_t max) {
    char path[PATH_BYTES], line[LINE_BYTES];
    FILE *file = cgroup_path(is_v1, path, sizeof path) ? fopen("/proc/self/mountinfo", "re") : NULL;
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *root;
        char *point;
        if (mount_matches(line, is_v1, &root, &point)) {
            size_t strip = strcmp(root, "/") != 0 && str_has_prefix(path, root) ? strlen(root) : 0;
            found = str_format(out, max, "%s%s", point, strcmp(path + strip, "/") == 0 ? "" : path + strip);
        }
    }
    if (file) {
        (void)fclose(file);
    }
    return found;
}

/* ---- room ---- */

/* "max", and what cannot be read, is no limit: UINT64_MAX. */
static uint64_t read_number(const char *folder, const char *name) {
    char path[PATH_BYTES], text[32] = "";
    FILE *file = str_format(path, sizeof path, "%s/%s", folder, name) ? fopen(path, "re") : NULL;
    char *end = text;
    unsigned long long number = file && fgets(text, sizeof text, file) ? strtoull(text, &end, 10) : 0;
    if (file) {
        (void)fclose(file);
    }
    return end == text ? UINT64_MAX : number;
}

/* What the kernel gives back when it has to. */
static uint64_t read_cached_bytes(const char *folder, bool is_v1) {
    char path[PATH_BYTES], text[STAT_BYTES];
    uint64_t active = 0, inactive = 0;
    FILE *file = str_format(path, sizeof path, "%s/memory.stat", folder) ? fopen(path, "re") : NULL;
    if (!file) {
        return 0;
    }
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    (void)cgroup_field(text, is_v1 ? "total_active_file " : "active_file ", &active);
    (void)cgroup_field(text, is_v1 ? "total_inactive_file " : "inactive_file ", &inactive);
    return active + inactive;
}

bool cgroup_room_of(const char *folder, bool is_v1, struct cgroup_room *out) {
    char at[sizeof out->folder];
    bool found = false;
    for (bool more = str_copy(at, sizeof at, folder); more;) {
        uint64_t limit = read_number(at, is_v1 ? "memory.limit_in_bytes" : "memory.max");
        uint64_t used = read_number(at, is_v1 ? "memory.usage_in_bytes" : "memory.current");
        if (limit < NO_LIMIT_BYTES && used != UINT64_MAX) {
            uint64_t cached = read_cached_bytes(at, is_v1);
            used -= cached < used ? cached : used;
            uint64_t left = limit > used ? limit - used : 0;
            if (!found || left < out->left_bytes) {
                out->limit_bytes = limit;
                out->left_bytes = left;
                (void)str_copy(out->folder, sizeof out->folder, at);
            }
            found = true;
        }
        char *slash = strrchr(at, '/');
        more = slash && slash != at;
        if (more) {
            *slash = '\0';
        }
    }
    return found;
}

bool cgroup_memory_room(struct cgroup_room *out) {
    char folder[PATH_BYTES];
    for (int is_v1 = 0; is_v1 < 2; is_v1++) {
        if (cgroup_memory_folder(is_v1, folder, sizeof folder) && cgroup_room_of(folder, is_v1, out)) {
            return true;
        }
    }
    return false;
}
