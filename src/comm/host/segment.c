/* Shared anonymous memory; see segment.h. */
#include "comm/host/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/cgroup.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"

/* Its size cannot change any more: nobody who maps it can be surprised by SIGBUS. */
static bool seal(int fd) {
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
}

/* The kernel would reserve pages until it has killed every process of the host, or of the container. */
int segment_check_room(size_t bytes, const char *label) {
    unsigned long long available_kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %llu", &available_kib) != 1) {
    }
    if (file) {
        (void)fclose(file);
    }
    if (available_kib > 0 && bytes / 1024 >= available_kib) {
        return status_fail(MUSTER_ENOMEM, "%s: no room for %zu bytes of shared memory, %llu KiB are left", label, bytes,
                           available_kib);
    }
    struct cgroup_room room;
    if (cgroup_memory_room(&room) && bytes >= room.left_bytes) {
        return status_fail(
            MUSTER_ENOMEM,
            "%s: no room for %zu bytes of shared memory: the memory limit of the cgroup at %s is %llu KiB, "
            "and %llu KiB of it are left",
            label, bytes, room.folder, (unsigned long long)(room.limit_bytes / 1024),
            (unsigned long long)(room.left_bytes / 1024));
    }
    return 0;
}

static int reserve(int fd, size_t bytes, const char *label) {
    int error;
    do {
        error = posix_fallocate(fd, 0, (off_t)bytes);
    } while (error == EINTR);
    if (error != 0) {
        return status_fail(MUSTER_ENOMEM, "%s: no room for %zu bytes of shared memory: %s", label, bytes,
                           strerror(error));
    }
    return 0;
}

static int map(int fd, size_t bytes, const char *label, struct segment *out) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return status_fail_errno(errno, "%s: map %zu bytes of shared memory", label, bytes);
    }
    *out = (struct segment){.memory = memory, .bytes = bytes, .fd = fd};
    return 0;
}

int segment_create(size_t bytes, const char *label, int lazy, struct segment *out, struct segment_name *out_name) {
    uint64_t cookie;
    int status = lazy ? 0 : segment_check_room(bytes, label);
    if (status != 0) {
        return status;
    }
    if (random_fill(&cookie, sizeof cookie) != 0) {
        return status_fail_errno(errno, "%s: random number", label);
    }
    bytes = bytes < SEGMENT_HEADER_BYTES ? SEGMENT_HEADER_BYTES : bytes;
    int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return status_fail_errno(errno, "%s: shared memory", label);
    }
    struct segment made;
    if (ftruncate(fd, (off_t)bytes) != 0 || !seal(fd)) {
        status = status_fail_errno(errno, "%s: shared memory of %zu bytes", label, bytes);
    }
    if (status == 0 && !lazy) {
        status = reserve(fd, bytes, label);
    }
    if (status == 0) {
        status = map(fd, bytes, label, &made);
    }
    if (status != 0) {
        (void)close(fd);
        return status;
    }
    memcpy(made.memory, &cookie, sizeof cookie);
    *out = made;
    *out_name = (struct segment_name){.pid = (int32_t)getpid(), .fd = fd, .bytes = bytes, .cookie = cookie};
    return 0;
}

/* Is it such memory? It may be any file, so nothing is read before its size is known. */
static int map_made(int fd, const char *where, struct segment *out) {
    struct stat found;
    if (fstat(fd, &found) != 0) {
        return status_fail_errno(errno, "shared memory at %s", where);
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(found.st_mode) || (uint64_t)found.st_size < SEGMENT_HEADER_BYTES || seals < 0 ||
        !(seals & F_SEAL_SHRINK)) {
        return status_fail(MUSTER_ECORRUPT, "shared memory at %s is not the expected one", where);
    }
    return map(fd, (size_t)found.st_size, where, out);
}

/* Is it what its name says? A number may be another's by now. */
static int check(const struct segment_name *name, const char *path, int fd, struct segment *out) {
    int status = map_made(fd, path, out);
    if (status != 0) {
        return status;
    }
    if (out->bytes != name->bytes) {
        status = status_fail(MUSTER_ECORRUPT, "shared memory at %s is not the expected one", path);
    } else if (memcmp(out->memory, &name->cookie, sizeof name->cookie) != 0) {
        status = status_fail(MUSTER_ECORRUPT, "shared memory at %s is another one by now", path);
    }
    if (status != 0) {
        (void)munmap(out->memory, out->bytes);
    }
    return status;
}

int segment_open_held(const struct segment_name *name, struct segment *out) {
    char path[64];
    (void)str_format(path, sizeof path, "/proc/%d/fd/%d", (int)name->pid, (int)name->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return status_fail_errno(errno,
                                 "open a neighbour's shared memory at %s (is ptrace of the same user forbidden? "
                                 "MUSTER_SHM=0 does without)",
                                 path);
    }
    struct segment opened;
    int status = check(name, path, fd, &opened);
    if (status == 0) {
        *out = opened;
    } else {
        (void)close(fd);
    }
    return status;
}

int segment_open(const struct segment_name *name, struct segment *out) {
    int status = segment_open_held(name, out);
    if (status == 0) {
        (void)close(out->fd); /* the mapping stays */
        out->fd = -1;
    }
    return status;
}

int segment_adopt(int fd, struct segment *out) {
    struct segment adopted;
    int status = map_made(fd, "a descriptor", &adopted);
    if (status == 0) {
        adopted.fd = -1;
        *out = adopted;
    }
    return status;
}

void segment_close(struct segment *segment) {
    if (segment->memory) {
        (void)munmap(segment->memory, segment->bytes);
    }
    if (segment->fd >= 0) {
        (void)close(segment->fd);
    }
    *segment = (struct segment){.fd = -1};
}

void *segment_make_private(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void segment_free_private(void *memory, size_t bytes) {
    if (memory) {
        (void)munmap(memory, bytes);
    }
}
