/* For tests on the double of the CUDA driver: work that keeps a stream from what it is given afterwards, as a kernel
 * that takes its time, until the test lets it go. */
#ifndef COMM_HOLD_TEST_SUPPORT_H
#define COMM_HOLD_TEST_SUPPORT_H

#include <pthread.h>
#include <stdbool.h>

struct hold {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_reached, is_over;
};
#define HOLD_INIT                                                                                                      \
    { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false }

/* Returns when the stream (NULL: the default one) has come to it. The hold stays until the stream has got past it. */
void hold_begin(struct hold *hold, void *stream);
void hold_end(struct hold *hold);

#endif
