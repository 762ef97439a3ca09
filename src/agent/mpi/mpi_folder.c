/* See mpi_folder.h. */
#include "agent/mpi/mpi_folder.h"

#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "base/str.h"

int mpi_folder_create(char *out, size_t size) {
    if (!str_format(out, size, "%s/muster-mpi-XXXXXX", file_temporary_folder())) {
        return status_fail(MUSTER_ELIMIT, "the path of the temporary folder is too long");
    }
    if (!mkdtemp(out)) {
        int error_number = errno;
        out[0] = '\0';
        return status_fail_errno(error_number, "make a folder in %.200s", file_temporary_folder());
    }
    return 0;
}

/* A folder is met again after what is in it. */
void mpi_folder_remove(const char *path) {
    char *copy = path[0] != '\0' ? str_format_new("%s", path) : NULL;
    char *const paths[] = {copy, NULL};
    FTS *walk = copy ? fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL) : NULL;
    for (FTSENT *entry; walk && (entry = fts_read(walk));) {
        if (entry->fts_info == FTS_DP) {
            (void)rmdir(entry->fts_accpath);
        } else if (entry->fts_info != FTS_D) {
            (void)unlink(entry->fts_accpath);
        }
    }
    if (walk) {
        (void)fts_close(walk);
    }
    free(copy);
}
