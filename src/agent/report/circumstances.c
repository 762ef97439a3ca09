/* A full disk, a deleted folder; see circumstances.h. */
#include "agent/report/circumstances.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/str.h"

/* What a worker would have wanted to write, at least. */
enum { ROOM_BYTES = 64 * 1024 };

/* Asks the file system itself, which knows of quotas: by a file without a name, which is gone when it is closed. 0, or
 * why there is no room. */
static int room_error(const char *folder) {
    static char zeros[ROOM_BYTES]; /* not const: it takes no room in the file, nor in memory until it is written */
    int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) {
        struct statvfs room;
        bool none = statvfs(folder, &room) == 0 && room.f_blocks > 0 && room.f_bavail == 0;
        return errno == ENOSPC || errno == EDQUOT ? errno : none ? ENOSPC : 0;
    }
    ssize_t n = write(fd, zeros, sizeof zeros);
    int error_number = n < 0 ? errno : n < (ssize_t)sizeof zeros ? ENOSPC : 0;
    if (error_number == 0 && fsync(fd) != 0) { /* network file systems tell it here */
        error_number = errno;
    }
    (void)close(fd);
    return error_number == ENOSPC || error_number == EDQUOT ? error_number : 0;
}

int circumstances_folder_is_gone(void) {
    char folder[PATH_MAX];
    return getcwd(folder, sizeof folder) == NULL && errno == ENOENT;
}

void circumstances_describe(const char *log_folder, char out[CIRCUMSTANCES_SIZE]) {
    out[0] = '\0';
    int error_number = log_folder[0] != '\0' ? room_error(log_folder) : 0;
    if (error_number != 0) {
        (void)str_format(out, CIRCUMSTANCES_SIZE,
                         "the file system of the log folder %.900s is full (%s): workers that write there fail\n",
                         log_folder, strerror(error_number));
    }
    if (circumstances_folder_is_gone()) {
        size_t used = strlen(out);
        (void)str_format(out + used, CIRCUMSTANCES_SIZE - used, "%s",
                         "the working folder has been deleted: workers find no file there by a relative path\n");
    }
}
