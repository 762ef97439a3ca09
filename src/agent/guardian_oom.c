/* The counter of the memory cgroup; see guardian_oom.h. */
#include "agent/guardian_oom.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/str.h"

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

static int counter_open(bool is_v1) {
    char folder[PATH_MAX];
    char name[PATH_MAX];
    if (!cgroup_memory_folder(is_v1, folder, sizeof folder) ||
        !str_format(name, sizeof name, "%s/%s", folder, is_v1 ? "memory.oom_control" : "memory.events")) {
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
