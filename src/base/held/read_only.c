/* See read_only.h. State is per process by nature: addresses are. */
#include "base/held/read_only.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* A signal handler may look at any moment, and finds a piece whole: its end is stored last, and taken away first. */
static struct piece {
    _Atomic uintptr_t begin, end; /* end 0: the place is free */
    const char *_Atomic words;
} pieces[READ_ONLY_MAX];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of those who change it */

void read_only_note(const void *begin, size_t bytes, const char *words) {
    (void)pthread_mutex_lock(&mutex);
    size_t i = 0;
    while (i < READ_ONLY_MAX && atomic_load_explicit(&pieces[i].end, memory_order_relaxed) != 0) {
        i++;
    }
    if (i < READ_ONLY_MAX) {
        atomic_store_explicit(&pieces[i].words, words, memory_order_relaxed);
        atomic_store_explicit(&pieces[i].begin, (uintptr_t)begin, memory_order_relaxed);
        atomic_store_explicit(&pieces[i].end, (uintptr_t)begin + bytes, memory_order_release);
    }
    (void)pthread_mutex_unlock(&mutex);
}

void read_only_forget(const void *begin) {
    (void)pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < READ_ONLY_MAX; i++) {
        if (atomic_load_explicit(&pieces[i].begin, memory_order_relaxed) == (uintptr_t)begin) {
            atomic_store_explicit(&pieces[i].end, 0, memory_order_release);
        }
    }
    (void)pthread_mutex_unlock(&mutex);
}

const char *read_only_words(const void *address) {
    for (size_t i = 0; i < READ_ONLY_MAX; i++) {
        uintptr_t end = atomic_load_explicit(&pieces[i].end, memory_order_acquire);
        if ((uintptr_t)address < end &&
            (uintptr_t)address >= atomic_load_explicit(&pieces[i].begin, memory_order_relaxed)) {
            return atomic_load_explicit(&pieces[i].words, memory_order_relaxed);
        }
    }
    return NULL;
}
