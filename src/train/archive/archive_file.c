/* The files of an archive: read by position, few of them open at a time; see archive_impl.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "base/utf8.h"
#include "train/archive/archive_impl.h"

static int fail_open(const char *path, int error_number) {
    if (error_number == ENOENT) {
        return status_fail(MUSTER_ENOENT, "%s is not there", path);
    }
    if (error_number == ELOOP) {
        return status_fail(MUSTER_ECORRUPT, "%s is a link; only files of the folder itself are read", path);
    }
    return status_fail_errno(error_number, "open %s", path);
}

static int open_file(const struct archive_file *file, int *out_fd, uint64_t *out_bytes) {
    /* Without O_NONBLOCK a FIFO of that name would hold us up. */
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (file->follows_links ? 0 : O_NOFOLLOW));
    struct stat info;
    if (fd < 0) {
        return fail_open(file->path, errno);
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        (void)close(fd);
        return status_fail(MUSTER_ESYSTEM, "%s is no regular file", file->path);
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)info.st_size;
    return 0;
}

static int make_slots(struct archive *archive) {
    if (archive->slots) {
        return 0;
    }
    archive->slots = malloc(ARCHIVE_OPEN_MAX * sizeof *archive->slots);
    if (!archive->slots) {
        return status_fail(MUSTER_ENOMEM, "no memory for files");
    }
    for (size_t i = 0; i < ARCHIVE_OPEN_MAX; i++) {
        archive->slots[i].fd = -1;
    }
    return 0;
}

/* The slot with the file open in it; the file that was there before is closed. */
static int use_slot(struct archive *archive, uint32_t file, struct archive_slot **out) {
    struct archive_slot *slot = &archive->slots[file % ARCHIVE_OPEN_MAX];
    if (slot->fd < 0 || slot->file != file) {
        int fd = -1;
        uint64_t bytes = 0;
        int code = open_file(&archive->files[file], &fd, &bytes);
        if (code) {
            return code;
        }
        if (slot->fd >= 0) {
            (void)close(slot->fd);
        }
        slot->fd = fd;
        slot->file = file;
        slot->window_bytes = 0;
        archive->files[file].bytes = bytes;
    }
    *out = slot;
    return 0;
}

int archive_add_file(struct archive *archive, const char *path, bool follows_links, uint32_t *out) {
    int code = archive_grow((void **)&archive->files, sizeof *archive->files, archive->file_count, &archive->file_room,
                            ARCHIVE_FILES_MAX, "files");
    code = code ? code : make_slots(archive);
    char *own = code ? NULL : strdup(path);
    if (!own) {
        return code ? code : status_fail(MUSTER_ENOMEM, "no memory for the name of a file");
    }
    struct archive_slot *slot = NULL;
    *out = (uint32_t)archive->file_count;
    archive->files[archive->file_count++] = (struct archive_file){.path = own, .follows_links = follows_links};
    return use_slot(archive, *out, &slot);
}

/* A name that stays in its folder, and that can be shown. */
static bool is_single_name(const char *name) {
    for (const char *p = name; *p != '\0'; p++) {
        if (*p == '/' || *p == '\\' || (unsigned char)*p < 0x20) {
            return false;
        }
    }
    return name[0] != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && utf8_is_valid(name);
}

int archive_add_file_of(struct archive *archive, const char *folder, const char *name, bool follows_links,
                        uint32_t *out) {
    if (!is_single_name(name)) {
        return status_fail(MUSTER_ECORRUPT, "it names the file \"%.100s\", which is no single name in its folder",
                           name);
    }
    char *path = str_format_new("%s/%s", folder, name);
    if (!path) {
        return status_fail(MUSTER_ENOMEM, "no memory for the name of a file");
    }
    int code = archive_add_file(archive, path, follows_links, out);
    free(path);
    return code;
}

/* ---- reading ---- */

static int read_at(const struct archive *archive, const struct archive_slot *slot, uint64_t offset, void *out,
                   uint64_t count) {
    const char *path = archive->files[slot->file].path;
    for (uint64_t done = 0; done < count;) {
        ssize_t got = pread(slot->fd, (uint8_t *)out + done, (size_t)(count - done), (off_t)(offset + done));
        if (got < 0 && errno != EINTR) {
            return status_fail_errno(errno, "read %s", path);
        }
        if (got == 0) {
            return status_fail(MUSTER_ECORRUPT, "%s ends before byte %" PRIu64 ": it is cut off, or was changed", path,
                               offset + count);
        }
        done += got > 0 ? (uint64_t)got : 0;
    }
    return 0;
}

int archive_read(struct archive *archive, uint32_t file, uint64_t offset, void *out, uint64_t count) {
    struct archive_slot *slot = NULL;
    if (file == ARCHIVE_IN_MEMORY) { /* whose places are ours, and right */
        memcpy(out, buf_bytes(&archive->memory) + offset, count);
        return 0;
    }
    int code = use_slot(archive, file, &slot);
    if (code) {
        return code;
    }
    uint64_t file_bytes = archive->files[file].bytes;
    if (offset > file_bytes || count > file_bytes - offset) {
        return status_fail(MUSTER_ECORRUPT, "%s ends early: it has %" PRIu64 " bytes", archive->files[file].path,
                           file_bytes);
    }
    uint64_t at = offset / ARCHIVE_WINDOW_BYTES * ARCHIVE_WINDOW_BYTES;
    if (count >= ARCHIVE_WINDOW_BYTES / 2 || offset + count > at + ARCHIVE_WINDOW_BYTES) {
        return read_at(archive, slot, offset, out, count);
    }
    if (slot->window_bytes == 0 || slot->window_at != at) {
        uint64_t bytes = file_bytes - at < ARCHIVE_WINDOW_BYTES ? file_bytes - at : ARCHIVE_WINDOW_BYTES;
        slot->window_bytes = 0;
        code = read_at(archive, slot, at, slot->window, bytes);
        if (code) {
            return code;
        }
        slot->window_at = at;
        slot->window_bytes = (uint32_t)bytes;
    }
    memcpy(out, slot->window + (offset - at), count);
    return 0;
}

int archive_read_new(struct archive *archive, uint32_t file, uint64_t offset, uint64_t count, uint64_t most,
                     uint8_t **out) {
    if (count > most) {
        return status_fail(MUSTER_ELIMIT, "%" PRIu64 " bytes where at most %" PRIu64 " are read", count, most);
    }
    /* What a broken file promises is not allocated before it is there. */
    uint64_t file_bytes = archive->files[file].bytes;
    bool is_there = offset <= file_bytes && count <= file_bytes - offset;
    uint8_t *bytes = is_there ? malloc((size_t)count + 1) : NULL;
    if (is_there && !bytes) {
        return status_fail(MUSTER_ENOMEM, "no memory for %" PRIu64 " bytes", count);
    }
    int code = is_there ? archive_read(archive, file, offset, bytes, count)
                        : status_fail(MUSTER_ECORRUPT, "%s ends early", archive->files[file].path);
    if (code) {
        free(bytes);
        return code;
    }
    bytes[count] = 0;
    *out = bytes;
    return 0;
}

void archive_close_files(struct archive *archive) {
    for (size_t i = 0; archive->slots && i < ARCHIVE_OPEN_MAX; i++) {
        if (archive->slots[i].fd >= 0) {
            (void)close(archive->slots[i].fd);
        }
    }
    for (size_t i = 0; i < archive->file_count; i++) {
        free(archive->files[i].path);
    }
    free(archive->slots);
    free(archive->files);
}
