/* Holding a stream; see hold_test_support.h. */
#include "comm/device/hold_test_support.h"

#include "comm/device/cuda_double_test_support.h"

static void hold_run(void *argument) {
    struct hold *hold = argument;
    pthread_mutex_lock(&hold->mutex);
    hold->is_reached = true;
    pthread_cond_broadcast(&hold->changed);
    while (!hold->is_over) {
        pthread_cond_wait(&hold->changed, &hold->mutex);
    }
    pthread_mutex_unlock(&hold->mutex);
}

void hold_begin(struct hold *hold, void *stream) {
    cuda_double_enqueue(stream, hold_run, hold);
    pthread_mutex_lock(&hold->mutex);
    while (!hold->is_reached) {
        pthread_cond_wait(&hold->changed, &hold->mutex);
    }
    pthread_mutex_unlock(&hold->mutex);
}

void hold_end(struct hold *hold) {
    pthread_mutex_lock(&hold->mutex);
    hold->is_over = true;
    pthread_cond_broadcast(&hold->changed);
    pthread_mutex_unlock(&hold->mutex);
}
