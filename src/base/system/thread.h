/* Threads of the library's own, in whatever program. */
#ifndef BASE_SYSTEM_THREAD_H
#define BASE_SYSTEM_THREAD_H

#include <pthread.h>

/* pthread_create(), with all signals blocked in the new thread: they are the business of the program's own threads.
 * attributes: NULL: the defaults. 0, or an errno. */
int thread_start(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *argument), void *argument);

#endif
