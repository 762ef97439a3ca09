/* Writing, syncing, renaming; see file.h. What temporary files are called is their makers' business. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wait_for_room(int fd, int patience_ms) {
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    int count;
    do {
        count = poll(&wait, 1, patience_ms);
    } while (count < 0 && errno == EINTR);
    return count > 0 ? 0 : count == 0 ? ETIMEDOUT : errno;
}

int file_write_all(int fd, const void *bytes, size_t count, int patience_ms) {
    int error_number = 0;
    for (size_t done = 0; done < count && error_number == 0;) {
        ssize_t n = write(fd, (const char *)bytes + done, count - done);
        if (n >= 0) {
            done += (size_t)n;
        } else if (errno == EAGAIN) {
            error_number = wait_for_room(fd, patience_ms);
        } else if (errno != EINTR) {
            error_number = errno;
        }
    }
    return error_number;
}

/* The rename is not lost with the machine's power. A folder that cannot be opened or synced is as good as it gets. */
static void sync_folder_of(const char *path) {
    char folder[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');
    if (slash && (size_t)(slash - path) + 1 < sizeof folder) {
        memcpy(folder, path, (size_t)(slash - path) + 1);
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        (void)close(fd);
    }
}

int file_replace(int fd, const char *aside, const char *path, const void *bytes, size_t count, bool syncs) {
    int error_number = file_write_all(fd, bytes, count, 0);
    if (error_number == 0 && syncs && fsync(fd) != 0) {
        error_number = errno;
    }
    if (close(fd) != 0 && error_number == 0) {
        error_number = errno;
    }
    if (error_number == 0 && rename(aside, path) != 0) {
        error_number = errno;
    }
    if (error_number != 0) {
        (void)unlink(aside);
    } else if (syncs) {
        sync_folder_of(path);
    }
    return error_number;
}

const char *file_temporary_folder(void) {
    const char *places[] = {getenv("TMPDIR"), getenv("TEMP"), getenv("TMP"), "/tmp", "/var/tmp", "/usr/tmp"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (places[i] != NULL && places[i][0] != '\0' && access(places[i], W_OK | X_OK) == 0) {
            return places[i];
        }
    }
    return ".";
}
