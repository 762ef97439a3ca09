/* Random bytes of the kernel's. Takes no memory and is async-signal-safe. */
#ifndef BASE_SYSTEM_RANDOM_H
#define BASE_SYSTEM_RANDOM_H

#include <stddef.h>

/* All of the bytes, whatever signals arrive meanwhile. Waits where the machine has just started and has none yet.
 * 0, or -1 with errno set: then `out` may hold anything. */
int random_fill(void *out, size_t bytes);

#endif
