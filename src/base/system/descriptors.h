/* How many files and sockets this process may hold open. */
#ifndef BASE_SYSTEM_DESCRIPTORS_H
#define BASE_SYSTEM_DESCRIPTORS_H

#include <stddef.h>

/* The most that can be had: the hard limit (ulimit -Hn). SIZE_MAX: without end. */
size_t descriptors_limit(void);

/* Raises this process's own limit to that. A process that serves many others needs it; processes that are started from
 * here afterwards inherit it, so start those that should keep the user's limit before. */
void descriptors_raise(void);

#endif
