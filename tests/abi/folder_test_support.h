/* A folder of files for a test, and its end; libc alone, since these programs see nothing of this tree but the public
 * headers. */
#ifndef ABI_FOLDER_TEST_SUPPORT_H
#define ABI_FOLDER_TEST_SUPPORT_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static inline void remove_folder(const char *path) {
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        char file[512];
        (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        (void)unlink(file); /* . and .. refuse */
    }
    if (folder) {
        (void)closedir(folder);
    }
    (void)rmdir(path);
}

#endif
