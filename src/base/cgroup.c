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
static bool cgroup_path(const char *controller, bool is_v1, char *out, size_t size) {
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
        bool match = is_v1 ? list_has(controllers + 1, controller) : controllers[1] == '\0';
        found = match && str_copy(out, size, path + 1);
    }
    if (file) {
        (void)fclose(file);
    }
    return found;
}

/* One line of mountinfo: "id parent dev root point options ... - type source superoptions". Cuts it up. */
static bool mount_matches(const char *controller, char *line, bool is_v1, char **root, char **point) {
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
    if (!options || strcmp(type, is_v1 ? "cgroup" : "cgroup2") != 0 || (is_v1 && !list_has(options, controller))) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        (void)strsep(&line, " ");
    }
    *root = strsep(&line, " ");
    *point = strsep(&line, " ");
    return *root && *point;
}

static bool cgroup_folder(const char *controller, bool is_v1, char *out, size_t max) {
    char path[PATH_BYTES], line[LINE_BYTES];
    FILE *file = cgroup_path(controller, is_v1, path, sizeof path) ? fopen("/proc/self/mountinfo", "re") : NULL;
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *root;
        char *point;
        if (mount_matches(controller, line, is_v1, &root, &point)) {
            size_t strip = strcmp(root, "/") != 0 && str_has_prefix(path, root) ? strlen(root) : 0;
            found = str_format(out, max, "%s%s", point, strcmp(path + strip, "/") == 0 ? "" : path + strip);
        }
    }
    if (file) {
        (void)fclose(file);
    }
    return found;
}

bool cgroup_memory_folder(bool is_v1, char *out, size_t max) {
    return cgroup_folder("memory", is_v1, out, max);
}

bool cgroup_memory_is_root(bool is_v1) {
    char path[PATH_BYTES];
    return cgroup_path("memory", is_v1, path, sizeof path) && strcmp(path, "/") == 0;
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

/* ---- processors and processes ---- */

/* The folder above, in place. False at the top. */
static bool go_up(char *folder) {
    char *slash = strrchr(folder, '/');
    if (!slash || slash == folder) {
        return false;
    }
    *slash = '\0';
    return true;
}

/* "150000 100000" or "max 100000" of version 2: processors, or 0. */
static double read_cpu_max(const char *folder) {
    char path[PATH_BYTES], text[64] = "";
    FILE *file = str_format(path, sizeof path, "%s/cpu.max", folder) ? fopen(path, "re") : NULL;
    char *end = text;
    double quota = file && fgets(text, sizeof text, file) ? strtod(text, &end) : 0;
    double period = end == text ? 0 : strtod(end, NULL);
    if (file) {
        (void)fclose(file);
    }
    return period > 0 ? quota / period : 0;
}

static double read_cpu_v1(const char *folder) {
    uint64_t quota = read_number(folder, "cpu.cfs_quota_us"), period = read_number(folder, "cpu.cfs_period_us");
    bool is_limited = (int64_t)quota > 0 && (int64_t)period > 0; /* -1: none */
    return is_limited ? (double)quota / (double)period : 0;
}

bool cgroup_cpu_quota(double *out) {
    char folder[PATH_BYTES];
    double least = 0;
    for (int is_v1 = 0; is_v1 < 2; is_v1++) {
        for (bool more = cgroup_folder("cpu", is_v1, folder, sizeof folder); more; more = go_up(folder)) {
            double quota = is_v1 ? read_cpu_v1(folder) : read_cpu_max(folder);
            least = quota > 0 && (least <= 0 || quota < least) ? quota : least;
        }
    }
    *out = least;
    return least > 0;
}

bool cgroup_process_limit(uint64_t *out_max, uint64_t *out_used) {
    char folder[PATH_BYTES];
    bool found = false;
    for (int is_v1 = 0; is_v1 < 2; is_v1++) {
        for (bool more = cgroup_folder("pids", is_v1, folder, sizeof folder); more; more = go_up(folder)) {
            uint64_t max = read_number(folder, "pids.max"), used = read_number(folder, "pids.current");
            if (max == UINT64_MAX || used == UINT64_MAX) {
                continue;
            }
            used = used < max ? used : max;
            if (!found || max - used < *out_max - *out_used) {
                *out_max = max;
                *out_used = used;
            }
            found = true;
        }
    }
    return found;
}
