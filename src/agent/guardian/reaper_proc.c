/* /proc as a list of (process, parent); see reaper_proc.h. */
#include "agent/guardian/reaper_proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STAT_BYTES = 512, CHILDREN_BYTES = 4096 };

static ssize_t file_read(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    ssize_t n = read(fd, out, size - 1);
    (void)close(fd);
    if (n >= 0) {
        out[n] = '\0';
    }
    return n;
}

/* stat is "pid (name) state ppid ...", and the name may hold anything, so count from its last parenthesis. Returns what
 * follows it, " S 1 ...", or NULL. */
static const char *stat_read(pid_t pid, char text[STAT_BYTES]) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (file_read(path, text, STAT_BYTES) <= 0) {
        return NULL;
    }
    const char *after = strrchr(text, ')');
    return after && strlen(after) >= 5 ? after + 1 : NULL;
}

pid_t reaper_proc_parent(pid_t pid) {
    char text[STAT_BYTES];
    const char *after = stat_read(pid, text);
    return after ? (pid_t)strtol(after + 3, NULL, 10) : -1;
}

char reaper_proc_state(pid_t pid) {
    char text[STAT_BYTES];
    const char *after = stat_read(pid, text);
    return after ? after[1] : '\0';
}

void reaper_proc_command(pid_t pid, char *out, size_t size) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    ssize_t n = file_read(path, out, size);
    if (n <= 0) {
        (void)snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
        char name[64] = "";
        (void)file_read(path, name, sizeof name);
        name[strcspn(name, "\n")] = '\0';
        (void)snprintf(out, size, "[%s]", name);
        return;
    }
    while (n > 0 && out[n - 1] == '\0') {
        n--;
    }
    for (ssize_t i = 0; i < n; i++) {
        out[i] = out[i] == '\0' ? ' ' : out[i];
    }
}

int reaper_proc_rank(pid_t pid) {
    enum { DECIMAL = 10 };
    static const char name[] = "RANK=";
    char path[64], *variable = NULL;
    size_t size = 0;
    int rank = -1;
    (void)snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && rank < 0 && getdelim(&variable, &size, '\0', file) > 0) {
        rank = strncmp(variable, name, sizeof name - 1) == 0 ? (int)strtol(variable + sizeof name - 1, NULL, DECIMAL)
                                                             : rank;
    }
    if (file) {
        (void)fclose(file);
    }
    free(variable);
    return rank;
}

/* Is this /proc about our own process namespace? Under unshare --pid alone it is not, and its numbers mean others. */
static bool proc_is_ours(void) {
    char target[32] = "";
    return readlink("/proc/self", target, sizeof target - 1) > 0 && strtol(target, NULL, 10) == (long)getpid();
}

bool reaper_proc_scan(reaper_proc_visit *visit, void *ctx) {
    DIR *folder = proc_is_ours() ? opendir("/proc") : NULL;
    if (!folder) {
        return false;
    }
    bool going = true;
    for (struct dirent *entry; going && (entry = readdir(folder)) != NULL;) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        if (*end != '\0' || pid <= 0) {
            continue;
        }
        pid_t parent = reaper_proc_parent((pid_t)pid);
        if (parent >= 0) {
            going = visit(ctx, (pid_t)pid, parent);
        }
    }
    (void)closedir(folder);
    return true;
}

struct only_mine {
    reaper_proc_visit *visit;
    void *ctx;
    pid_t self;
};

static bool visit_mine(void *ctx, pid_t pid, pid_t parent) {
    struct only_mine *only = ctx;
    return parent != only->self || only->visit(only->ctx, pid, parent);
}

/* Feeds numbers separated by blanks, read piece by piece, to `visit`. */
static void numbers_visit(int fd, reaper_proc_visit *visit, void *ctx) {
    char piece[CHILDREN_BYTES];
    pid_t self = getpid();
    pid_t number = 0;
    bool going = true;
    for (ssize_t n; going && (n = read(fd, piece, sizeof piece)) > 0;) {
        for (ssize_t i = 0; going && i < n; i++) {
            if (piece[i] >= '0' && piece[i] <= '9') {
                number = number * 10 + (piece[i] - '0');
            } else if (number > 0) {
                going = visit(ctx, number, self);
                number = 0;
            }
        }
    }
}

bool reaper_proc_children(reaper_proc_visit *visit, void *ctx) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { /* a kernel without CONFIG_PROC_CHILDREN, or no descriptor free */
        struct only_mine only = {visit, ctx, getpid()};
        return reaper_proc_scan(visit_mine, &only);
    }
    numbers_visit(fd, visit, ctx);
    (void)close(fd);
    return true;
}
