/* Copies that are too large for the caches. */
#ifndef COMM_COPY_H
#define COMM_COPY_H

#include <stddef.h>

enum {
    /* Of the largest buffer of a call: from here on it does not stay in the caches, and streaming stores were found to
     * pay (with 32 MiB of last cache; sysconf() gives that of the whole host to a virtual machine that has a part). */
    COMM_LARGE_BYTES_MIN = 12 * 1024 * 1024
};

/* memcpy() for a destination that is larger than the caches, and not read soon. */
void comm_copy_past_caches(void *to, const void *from, size_t bytes);

#endif
