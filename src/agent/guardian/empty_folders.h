/* Removing folders in which nothing is. */
#ifndef AGENT_EMPTY_FOLDERS_H
#define AGENT_EMPTY_FOLDERS_H

#include <stdbool.h>

/* Removes `path` and the folders below it, down to `levels` below, in which nothing is but records of calls
 * (base/call_record.h), which go too; other files stay, and so do the folders that hold them. Allocates nothing. False
 * when a folder could not be looked into. */
bool empty_folders_remove(const char *path, int levels);

#endif
