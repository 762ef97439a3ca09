/* See random.h. What the bytes are for, and what is done without them, is the caller's to know. */
#include "base/system/random.h"

#include <errno.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/types.h>

int random_fill(void *out, size_t bytes) {
    uint8_t *at = out;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = getrandom(at + done, bytes - done, 0);
        if (got < 0 && errno != EINTR) {
            return -1;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}
