/* See thread.h. */
#include "base/system/thread.h"

#include <signal.h>

int thread_start(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *argument), void *argument) {
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* a new thread has its maker's mask */
    int error_number = pthread_create(out, attributes, run, argument);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error_number;
}
