/* Folders of tests; see folder_test_support.h. */
#include "base/folder_test_support.h"

#include <dirent.h>
#include <errno.h>
#include <unistd.h>

int folder_remove(const char *path) {
    DIR *folder = opendir(path);
    int count = 0;
    if (!folder) {
        return errno == ENOENT ? 0 : -1;
    }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.' && unlinkat(dirfd(folder), entry->d_name, 0) == 0;
    }
    (void)closedir(folder);
    return rmdir(path) == 0 ? count : -1;
}
