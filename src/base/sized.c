/* Structs that grow; see sized.h. Pure. */
#include "base/sized.h"

#include <muster/version.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static int copy_known(void *out, size_t own_bytes, const void *given, size_t given_bytes, const char *name) {
    const uint8_t *bytes = given;
    for (size_t i = own_bytes; i < given_bytes; i++) {
        if (bytes[i] != 0) {
            return status_fail(MUSTER_EUNSUPPORTED,
                               "struct %s has %zu bytes, of which libmuster %s knows %zu, and the program has set a "
                               "newer member: it needs a newer libmuster",
                               name, given_bytes, muster_version_text(), own_bytes);
        }
    }
    memcpy(out, given, given_bytes < own_bytes ? given_bytes : own_bytes);
    return 0;
}

int sized_read(void *out, size_t own_bytes, const void *given, size_t given_bytes, size_t least_bytes,
               const char *name) {
    if (given_bytes < least_bytes || given_bytes > SIZED_BYTES_MAX) {
        return status_fail(MUSTER_EINVAL, "struct %s of %zu bytes; it has at least %zu", name, given_bytes,
                           least_bytes);
    }
    return copy_known(out, own_bytes, given, given_bytes, name);
}

int sized_read_options(void *out, size_t own_bytes, const void *given, const char *name, const char *initializer) {
    size_t given_bytes = 0;
    if (!given) {
        return 0;
    }
    memcpy(&given_bytes, given, sizeof given_bytes);
    if (given_bytes < sizeof given_bytes || given_bytes > SIZED_BYTES_MAX) {
        return status_fail(MUSTER_EINVAL, "struct %s was not made with %s: its size is %zu", name, initializer,
                           given_bytes);
    }
    int code = copy_known(out, own_bytes, given, given_bytes, name);
    memcpy(out, &own_bytes, sizeof own_bytes);
    return code;
}

int sized_read_array(struct sized_array *out, size_t own_bytes, const void *given, size_t given_bytes, size_t count,
                     size_t least_bytes, const char *name) {
    *out = (struct sized_array){given, NULL};
    if (count > 0 && !given) {
        return status_fail(MUSTER_EINVAL, "a list of %zu struct %s is NULL", count, name);
    }
    if (count == 0 || given_bytes == own_bytes) {
        return 0;
    }
    uint8_t *items = calloc(count, own_bytes);
    int code = items ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %zu struct %s", count, name);
    for (size_t i = 0; i < count && code == 0; i++) {
        code = sized_read(items + i * own_bytes, own_bytes, (const uint8_t *)given + i * given_bytes, given_bytes,
                          least_bytes, name);
    }
    if (code) {
        free(items);
        return code;
    }
    *out = (struct sized_array){items, items};
    return 0;
}

void sized_write(void *out, size_t out_bytes, const void *from, size_t own_bytes) {
    size_t known = out_bytes < own_bytes ? out_bytes : own_bytes;
    memcpy(out, from, known);
    memset((uint8_t *)out + known, 0, out_bytes - known);
}
