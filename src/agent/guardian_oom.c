/* Finding the counter through /proc/self/cgroup and mountinfo, and reading it; see guardian_oom.h. */
#include "agent/guardian_oom.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

enum { LINE_BYTES = 8192 };

bool guardian_oom_parse(const char *text, uint64_t *out) {
    static const char key[] = "oom_kill ";
    while (*text != '\0') {
        if (strncmp(text, key, sizeof key - 1) == 0) {
            *out = strtoull(text + sizeof key - 1, NULL, 10);
            return true;
        }
        const char *newline = strchr(text, '\n');
        if (!newline) {
            return false;
        }
        text = newline + 1;
    }
    return false;
}

static bool counter_read(int fd, uint64_t *out) {
    char text[1024];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) {
        return false;
    }
    text[n] = '\0';
    return guardian_oom_parse(text, out);
}

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
static bool cgroup_path(bool v1, char *out, size_t size) {
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
        bool match = v1 ? list_has(controllers + 1, "memory") : controllers[1] == '\0';
        found = match && str_copy(out, size, path + 1);
    }
    if (file) {
        (void)fclose(file);
    }
    return found;
}

/* One line of mountinfo: "id parent dev root point options ... - type source superoptions". Cuts it up. */
static bool mount_matches(char *line, bool v1, char **root, char **point) {
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
    if (!options || strcmp(type, v1 ? "cgroup" : "cgroup2") != 0 || (v1 && !list_has(options, "memory"))) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        (void)strsep(&line, " ");
    }
    *root = strsep(&line, " ");
    *point = strsep(&line, " ");
    return *root && *point;
}

/* The folder of `path`: a container often sees only its own part (`root`) of the hierarchy. */
static bool cgroup_folder(bool v1, const char *path, char *out, size_t size) {
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char line[LINE_BYTES];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *root;
        char *point;
        if (mount_matches(line, v1, &root, &point)) {
            size_t strip = strcmp(root, "/") != 0 && str_has_prefix(path, root) ? strlen(root) : 0;
            found = str_format(out, size, "%s%s", point, strcmp(path + strip, "/") == 0 ? "" : path + strip);
        }
    }
    if (file) {
        (void)fclose(file);
    }
    return found;
}

static int counter_open(bool v1) {
    char path[PATH_MAX];
    char folder[PATH_MAX];
    char name[PATH_MAX];
    if (!cgroup_path(v1, path, sizeof path) || !cgroup_folder(v1, path, folder, sizeof folder) ||
        !str_format(name, sizeof name, "%s/%s", folder, v1 ? "memory.oom_control" : "memory.events")) {
        return -1;
    }
    return open(name, O_RDONLY | O_CLOEXEC);
}

void guardian_oom_init(struct guardian_oom *oom) {
    *oom = (struct guardian_oom){.fd = counter_open(false)};
    if (oom->fd < 0) {
        oom->fd = counter_open(true);
    }
    if (oom->fd >= 0 && !counter_read(oom->fd, &oom->seen)) {
        guardian_oom_done(oom);
    }
}

void guardian_oom_done(struct guardian_oom *oom) {
    if (oom->fd >= 0) {
        (void)close(oom->fd);
    }
    oom->fd = -1;
}

bool guardian_oom_claim(struct guardian_oom *oom) {
    uint64_t now = 0;
    if (oom->fd < 0 || !counter_read(oom->fd, &now) || now <= oom->seen) {
        return false;
    }
    oom->seen++;
    return true;
}
