/* The counter of the memory cgroup; see guardian_oom.h. */
#include "agent/guardian/guardian_oom.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/str.h"

#define V1_FILE "memory.oom_control"
enum { DEPTH_MAX = 4, FOLDERS_MAX = 512, RECORDS_MAX = 65536, RECORD_BYTES = 8192 };

bool guardian_oom_parse(const char *text, uint64_t *out) {
    return cgroup_field(text, "oom_kill ", out);
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

static int counter_open_at(const char *folder, const char *file) {
    char name[PATH_MAX];
    return str_format(name, sizeof name, "%s/%s", folder, file) ? open(name, O_RDONLY | O_CLOEXEC) : -1;
}

static uint64_t count_tree(const char *folder, int depth, int *folders_left) {
    DIR *list = depth < DEPTH_MAX ? opendir(folder) : NULL;
    uint64_t sum = 0;
    for (struct dirent *entry; list && *folders_left > 0 && (entry = readdir(list)) != NULL;) {
        char path[PATH_MAX];
        uint64_t here = 0;
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.' ||
            !str_format(path, sizeof path, "%s/%s", folder, entry->d_name)) {
            continue;
        }
        --*folders_left;
        int fd = counter_open_at(path, V1_FILE);
        if (fd >= 0) {
            sum += counter_read(fd, &here) ? here : 0;
            (void)close(fd);
        }
        sum += count_tree(path, depth + 1, folders_left);
    }
    if (list) {
        (void)closedir(list);
    }
    return sum;
}

uint64_t guardian_oom_count_below(const char *folder) {
    int folders_left = FOLDERS_MAX;
    return count_tree(folder, 0, &folders_left);
}

static bool count_all(const struct guardian_oom *oom, uint64_t *out) {
    if (!counter_read(oom->fd, out)) {
        return false;
    }
    *out += oom->below ? guardian_oom_count_below(oom->below) : 0;
    return true;
}

/* ---- the log ---- */

/* The processes of a container have other numbers there, and its log is not for them. */
static int log_open(void) {
    int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && lseek(fd, 0, SEEK_END) < 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

pid_t guardian_oom_victim(const char *record) {
    static const char killed[] = "Killed process ", chosen[] = ",pid=";
    const char *at = strstr(record, killed);
    at = at ? at + sizeof killed - 1 : strstr(record, "oom-kill:") ? strstr(record, chosen) : NULL;
    at = at && *at == ',' ? at + sizeof chosen - 1 : at;
    return at ? (pid_t)strtol(at, NULL, 10) : 0;
}

/* A read is a record. Two of them tell of each victim. */
static void log_read(struct guardian_oom *oom) {
    char record[RECORD_BYTES];
    for (int i = 0; oom->log_fd >= 0 && i < RECORDS_MAX; i++) {
        ssize_t n = read(oom->log_fd, record, sizeof record - 1);
        if (n == 0 || (n < 0 && errno != EPIPE && errno != EINTR)) { /* EPIPE: some were overwritten */
            return;
        }
        record[n > 0 ? n : 0] = '\0';
        pid_t victim = guardian_oom_victim(record);
        if (victim > 0 &&
            victim != oom->victims[(oom->victim_count + GUARDIAN_OOM_VICTIMS - 1) % GUARDIAN_OOM_VICTIMS]) {
            oom->victims[oom->victim_count++ % GUARDIAN_OOM_VICTIMS] = victim;
        }
    }
}

static bool log_names(struct guardian_oom *oom, pid_t pid) {
    log_read(oom);
    for (size_t i = 0; i < GUARDIAN_OOM_VICTIMS; i++) {
        if (oom->victims[i] == pid) {
            oom->victims[i] = 0; /* another process may have the number later */
            return true;
        }
    }
    return false;
}

static void count_done(struct guardian_oom *oom) {
    if (oom->fd >= 0) {
        (void)close(oom->fd);
    }
    free(oom->below);
    oom->below = NULL;
    oom->fd = -1;
}

void guardian_oom_init(struct guardian_oom *oom) {
    char folder[PATH_MAX];
    *oom = (struct guardian_oom){.fd = -1, .log_fd = log_open()};
    if (cgroup_memory_folder(false, folder, sizeof folder)) {
        oom->fd = counter_open_at(folder, "memory.events");
    }
    if (oom->fd < 0 && cgroup_memory_folder(true, folder, sizeof folder)) {
        oom->fd = counter_open_at(folder, V1_FILE);
        /* Below the root are all jobs of the machine. */
        oom->below = cgroup_memory_is_root(true) ? NULL : strdup(folder);
    }
    if (oom->fd >= 0 && !count_all(oom, &oom->seen)) {
        count_done(oom);
    }
}

void guardian_oom_done(struct guardian_oom *oom) {
    count_done(oom);
    if (oom->log_fd >= 0) {
        (void)close(oom->log_fd);
    }
    oom->log_fd = -1;
}

static bool count_claim(struct guardian_oom *oom) {
    uint64_t now = 0;
    if (oom->fd < 0 || !count_all(oom, &now)) {
        return false;
    }
    if (now <= oom->seen) {
        oom->seen = now; /* a cgroup was removed, and its victims with it */
        return false;
    }
    oom->seen++;
    return true;
}

bool guardian_oom_claim(struct guardian_oom *oom, pid_t pid) {
    bool is_counted = count_claim(oom);
    return log_names(oom, pid) || is_counted;
}
