/* A walk over a folder with its listing on the stack; see empty_folders.h. */
#include "agent/guardian/empty_folders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/call_record.h"

/* A worker's last calls have been reported, or nobody will ask for them. */
static bool is_call_record(const char *name) {
    size_t length = strlen(name), suffix = sizeof CALL_RECORD_SUFFIX - 1;
    return length > suffix && strcmp(name + length - suffix, CALL_RECORD_SUFFIX) == 0;
}

/* What opendir() would allocate is on the stack: the end of a run must be clean when memory has run out, too. */
static bool remove_at(int parent_fd, const char *name, int levels) {
    _Alignas(struct dirent64) char entries[2048];
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool seen = fd >= 0 || errno == ENOTDIR || errno == ENOENT;
    long bytes = 0; /* glibc has a function for the call from 2.30 on */
    while (fd >= 0 && (bytes = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0) {
        for (long at = 0; at < bytes;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            at += entry->d_reclen;
            if (is_call_record(entry->d_name)) {
                (void)unlinkat(fd, entry->d_name, 0);
            } else if (levels > 0 && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
                seen = remove_at(fd, entry->d_name, levels - 1) && seen;
            }
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    (void)unlinkat(parent_fd, name, AT_REMOVEDIR); /* fails, as it should, on a file and where one is left */
    return seen && bytes >= 0;
}

bool empty_folders_remove(const char *path, int levels) {
    return remove_at(AT_FDCWD, path, levels);
}
