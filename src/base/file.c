/* Writing, syncing, publishing; see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/random.h"

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

/* ---- drafts; while one has no name, the path of its folder lies there for a call ---- */

enum { RANDOM_DIGITS = 16, TRIES_MAX = 8, SELF_LINK_MAX = 32 };
#define TEMPORARY_SUFFIX ".tmp"

/* Of the part of `path` that names its folder, with the slash. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

static bool folder_of(const char *path, char out[PATH_MAX]) {
    size_t length = folder_length(path);
    if (length >= PATH_MAX) {
        return false;
    }
    memcpy(out, length ? path : ".", length ? length : 1);
    out[length ? length : 1] = '\0';
    return true;
}

/* PATH.<random>.tmp; a last component that leaves no room for that is cut. */
static int draw_name(const char *path, char out[PATH_MAX]) {
    size_t folder = folder_length(path), length = strlen(path), added = 1 + RANDOM_DIGITS + sizeof TEMPORARY_SUFFIX - 1;
    uint64_t random = 0;
    length = length - folder + added > NAME_MAX ? folder + NAME_MAX - added : length;
    if (length + added >= PATH_MAX) {
        return ENAMETOOLONG;
    }
    int error_number = random_fill(&random, sizeof random) == 0 ? 0 : errno;
    memcpy(out, path, length);
    out[length++] = '.';
    for (int i = 0; i < RANDOM_DIGITS; i++) {
        out[length++] = "0123456789abcdef"[random >> 4 * i & 0xF];
    }
    memcpy(out + length, TEMPORARY_SUFFIX, sizeof TEMPORARY_SUFFIX);
    return error_number;
}

/* By which a file without a name is given one. */
static void self_link(int fd, char out[SELF_LINK_MAX]) {
    static const char folder[] = "/proc/self/fd/";
    char digits[12];
    int count = 0;
    for (int value = fd; count == 0 || value > 0; value /= 10) {
        digits[count++] = (char)('0' + value % 10);
    }
    memcpy(out, folder, sizeof folder);
    char *at = out + sizeof folder - 1;
    while (count > 0) {
        *at++ = digits[--count];
    }
    *at = '\0';
}

static bool open_without_name(struct file_draft *draft) {
    char self[SELF_LINK_MAX];
    draft->fd = folder_of(draft->path, draft->name) ? open(draft->name, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    draft->name[0] = '\0';
    if (draft->fd < 0) {
        return false;
    }
    self_link(draft->fd, self);
    if (access(self, F_OK) == 0) {
        return true;
    }
    (void)close(draft->fd); /* no /proc: it could not be given a name */
    return false;
}

int file_draft_open(struct file_draft *draft, const char *path) {
    draft->path = path;
    int error_number = open_without_name(draft) ? 0 : EEXIST;
    for (int i = 0; i < TRIES_MAX && error_number == EEXIST; i++) {
        error_number = draw_name(path, draft->name);
        if (error_number == 0) {
            draft->fd = open(draft->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
            error_number = draft->fd < 0 ? errno : 0;
        }
    }
    return error_number;
}

static int give_name(int fd, const char *name) {
    char self[SELF_LINK_MAX];
    self_link(fd, self);
    return linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
}

/* One name more. */
static int add_name(const struct file_draft *draft, const char *name) {
    if (!draft->name[0]) {
        return give_name(draft->fd, name);
    }
    return linkat(AT_FDCWD, draft->name, AT_FDCWD, name, 0) == 0 ? 0 : errno;
}

/* Instead of whatever has that name. A draft without a name is given a passing one, since only names are renamed. */
static int take_name(struct file_draft *draft) {
    int error_number = draft->name[0] ? 0 : EEXIST;
    for (int i = 0; i < TRIES_MAX && error_number == EEXIST; i++) {
        error_number = draw_name(draft->path, draft->name);
        error_number = error_number ? error_number : give_name(draft->fd, draft->name);
        if (error_number) {
            draft->name[0] = '\0'; /* another's, or nobody's */
        }
    }
    if (error_number == 0 && rename(draft->name, draft->path) != 0) {
        error_number = errno;
    }
    if (error_number == 0) {
        draft->name[0] = '\0';
    }
    return error_number;
}

/* Where no file has two names: an empty file of our own holds the place. */
static int take_free_name(struct file_draft *draft) {
    int fd = open(draft->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) {
        return errno;
    }
    (void)close(fd);
    int error_number = take_name(draft);
    if (error_number) {
        (void)unlink(draft->path);
    }
    return error_number;
}

static int publish(struct file_draft *draft, enum file_name name) {
    if (draft->name[0] && name == FILE_TAKES_NAME) {
        return take_name(draft);
    }
    int error_number = add_name(draft, draft->path);
    if (error_number == EEXIST && name == FILE_TAKES_NAME) {
        return take_name(draft);
    }
    return error_number == EPERM || error_number == EOPNOTSUPP ? take_free_name(draft) : error_number;
}

/* The name is not lost with the machine's power. A folder that cannot be opened or synced is as good as it gets. */
static void sync_folder_of(struct file_draft *draft) {
    int fd = folder_of(draft->path, draft->name) ? open(draft->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        (void)close(fd);
    }
}

int file_draft_close(struct file_draft *draft, int error_number, enum file_name name, bool syncs) {
    bool has_name = draft->name[0] != '\0';
    if (error_number == 0 && syncs && fsync(draft->fd) != 0) {
        error_number = errno;
    }
    if (has_name && close(draft->fd) != 0 &&
        error_number == 0) { /* only now some file systems say that they are full */
        error_number = errno;
    }
    error_number = error_number ? error_number : publish(draft, name);
    if (!has_name) {
        (void)close(draft->fd); /* it had to be open until it had a name */
    }
    if (draft->name[0]) {
        (void)unlink(draft->name);
    }
    if (error_number == 0 && syncs) {
        sync_folder_of(draft);
    }
    return error_number;
}

int file_publish(const char *path, const void *bytes, size_t count, enum file_name name, bool syncs) {
    struct file_draft draft;
    int error_number = file_draft_open(&draft, path);
    return error_number ? error_number
                        : file_draft_close(&draft, file_write_all(draft.fd, bytes, count, 0), name, syncs);
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
