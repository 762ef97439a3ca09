/* The real system calls; see snapshot_io.h. */
#include "train/state/snapshot_io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/system/random.h"

static int folder_open(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int sync_handle(void *ctx, int handle) {
    (void)ctx;
    while (fsync(handle) != 0) {
        if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

/* The name of a new folder is on the disk when the folder it lies in has been synced. */
static int sync_parent(int folder) {
    int parent = openat(folder, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) {
        return -errno;
    }
    int code = sync_handle(NULL, parent);
    (void)close(parent);
    return code;
}

static int system_open_folder(void *ctx, const char *path, bool make) {
    (void)ctx;
    int folder = folder_open(path);
    if (folder != -ENOENT || !make) {
        return folder;
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return -errno;
    }
    folder = folder_open(path);
    int code = folder < 0 ? 0 : sync_parent(folder);
    if (code) {
        (void)close(folder);
        return code;
    }
    return folder;
}

static int system_lock_folder(void *ctx, int folder) {
    (void)ctx;
    while (flock(folder, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            return -EWOULDBLOCK;
        }
        if (errno != EINTR) {
            return 0; /* some network file systems cannot lock a folder */
        }
    }
    return 0;
}

/* Closing would not do: a child that was forked meanwhile, by another thread, shares the lock. */
static void system_unlock_folder(void *ctx, int folder) {
    (void)ctx;
    (void)flock(folder, LOCK_UN);
}

static int system_list(void *ctx, int folder, snapshot_name_fn *each, void *each_ctx) {
    (void)ctx;
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* closedir() will close it */
    DIR *stream = again < 0 ? NULL : fdopendir(again);
    if (!stream) {
        int code = -errno;
        if (again >= 0) {
            (void)close(again);
        }
        return code;
    }
    int code = 0;
    const struct dirent *entry = NULL;
    do {
        errno = 0;
        entry = readdir(stream);
        code = entry ? each(each_ctx, entry->d_name) : -errno;
    } while (entry && code == 0);
    (void)closedir(stream);
    return code;
}

static int system_create(void *ctx, int folder, const char *name) {
    (void)ctx;
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd < 0 ? -errno : fd;
}

static int system_open(void *ctx, int folder, const char *name) {
    (void)ctx;
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* or a FIFO of that name would hold us up */
    if (fd < 0) {
        return -errno;
    }
    struct stat info;
    int code = fstat(fd, &info) != 0 ? -errno : S_ISREG(info.st_mode) ? 0 : -EINVAL;
    if (code) {
        (void)close(fd);
        return code;
    }
    return fd;
}

static int64_t system_size(void *ctx, int file) {
    (void)ctx;
    struct stat info;
    return fstat(file, &info) != 0 ? -errno : info.st_size;
}

static int64_t system_read(void *ctx, int file, void *bytes, size_t count, uint64_t offset) {
    (void)ctx;
    ssize_t got = 0;
    do {
        got = pread(file, bytes, count, (off_t)offset);
    } while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

static int64_t system_write(void *ctx, int file, const void *bytes, size_t count) {
    (void)ctx;
    ssize_t put = 0;
    do {
        put = write(file, bytes, count);
    } while (put < 0 && errno == EINTR);
    return put < 0 ? -errno : put;
}

static void system_start_sync(void *ctx, int file, uint64_t offset, uint64_t count) {
    (void)ctx;
    (void)sync_file_range(file, (off_t)offset, (off_t)count, SYNC_FILE_RANGE_WRITE);
}

static int system_set_direct(void *ctx, int file, bool is_direct) {
    (void)ctx;
    int flags = fcntl(file, F_GETFL);
    return flags < 0 || fcntl(file, F_SETFL, is_direct ? flags | O_DIRECT : flags & ~O_DIRECT) != 0 ? -errno : 0;
}

static int system_rename(void *ctx, int folder, const char *from, const char *to) {
    (void)ctx;
    return renameat(folder, from, folder, to) != 0 ? -errno : 0;
}

static int system_link(void *ctx, int folder, const char *from, const char *to) {
    (void)ctx;
    return linkat(folder, from, folder, to, 0) != 0 ? -errno : 0;
}

static int system_remove(void *ctx, int folder, const char *name) {
    (void)ctx;
    return unlinkat(folder, name, 0) != 0 ? -errno : 0;
}

static void system_close(void *ctx, int handle) {
    (void)ctx;
    (void)close(handle);
}

static int64_t system_now_ms(void *ctx) {
    (void)ctx;
    return clock_monotonic_ns() / CLOCK_NS_PER_MS;
}

static void system_pause(void *ctx, int64_t ms) {
    (void)ctx;
    struct timespec left = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000 * CLOCK_NS_PER_MS)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static int system_draw(void *ctx, uint64_t *out) {
    (void)ctx;
    return random_fill(out, sizeof *out) == 0 ? 0 : -errno;
}

const struct snapshot_io snapshot_io_system = {
    .direct_bytes = 4096, /* of every disk's blocks and every processor's pages */
    .open_folder = system_open_folder,
    .lock_folder = system_lock_folder,
    .unlock_folder = system_unlock_folder,
    .list = system_list,
    .create = system_create,
    .open = system_open,
    .size = system_size,
    .read = system_read,
    .write = system_write,
    .start_sync = system_start_sync,
    .set_direct = system_set_direct,
    .sync = sync_handle,
    .rename = system_rename,
    .link = system_link,
    .remove = system_remove,
    .close = system_close,
    .now_ms = system_now_ms,
    .pause = system_pause,
    .draw = system_draw,
};
