/* See fail.h. */
#include "fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/record.h>
#include <muster/status.h>

void fail(const char *format, ...) {
    char message[MUSTER_RECORD_MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    (void)fprintf(stderr, "%s: %s\n", program_invocation_short_name, message);
    (void)muster_record_error("%s", message);
    exit(EXIT_FAILURE);
}

void check(int status, const char *what) {
    if (status != MUSTER_OK) {
        fail("cannot %s: %s: %s", what, muster_strerror(status), muster_detail());
    }
}

void *allocate(size_t count, size_t element_bytes) {
    if (count > (SIZE_MAX - 63) / element_bytes) {
        fail("out of memory");
    }
    size_t bytes = (count * element_bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (memory == NULL) {
        fail("out of memory (%zu bytes)", bytes);
    }
    memset(memory, 0, bytes);
    return memory;
}
