/* How a trainer gives up: one sentence for people on stderr and for the launcher in the error record, then exit 1. */
#ifndef EXAMPLES_MNIST_FAIL_H
#define EXAMPLES_MNIST_FAIL_H

#include <stddef.h>

_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Zeroed memory for `count` elements, aligned for vectors (64 bytes); fails when there is none. free() frees it. */
void *allocate(size_t count, size_t element_bytes);

#endif
