/* Stamps to the harness's channel: see stamp.h. */
#include "stamp.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STAMP_LINE_MAX 1024 /* bytes; far below PIPE_BUF, which keeps a line whole */

int64_t stamp_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int stamp_open(const char *path) {
    struct stat info;
    int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
    if (stat(path, &info) == 0 && S_ISFIFO(info.st_mode)) {
        flags = O_RDWR | O_CLOEXEC;
    }
    return open(path, flags, 0644);
}

void stamp_write(int fd, const char *name, int64_t when_ns, const char *more) {
    char line[STAMP_LINE_MAX];
    int length = snprintf(line, sizeof line, "%s ns=%" PRId64 " pid=%d%s\n", name, when_ns, (int)getpid(), more);
    if (length <= 0 || length >= (int)sizeof line) {
        return;
    }
    ssize_t written = write(fd, line, (size_t)length);
    (void)written;
}
