/* Opens the CUDA driver's library; see cuda_library.h. */
#include "comm/device/cuda_library.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "base/status.h"
#include "base/str.h"

static struct cuda_library kept;
_Atomic(const struct cuda_library *) cuda_library_opened;

static int find_functions(void *library, struct cuda_library *out) {
    const char *missing = NULL;
#define FIND(member, symbol, parameters)                                                                               \
    missing = missing || library_find(library, #symbol, &out->member, sizeof out->member) ? missing : #symbol;
    CUDA_FUNCTION_TABLE(FIND)
#undef FIND
    return missing
               ? status_fail(MUSTER_EUNSUPPORTED,
                             "memory of GPUs needs the driver of CUDA %d.%d or a newer one: %s has no %s",
                             CUDA_DRIVER_VERSION_MIN / 1000, CUDA_DRIVER_VERSION_MIN % 1000 / 10, out->name, missing)
               : 0;
}

static const char *words_of(const struct cuda_library *cuda, unsigned result) {
    const char *words = NULL;
    return cuda->error_string(result, &words) == CUDA_OK && words ? words : "unknown error";
}

static int initialise(struct cuda_library *out) {
    if (out->driver_version(&out->version) != CUDA_OK || out->version < CUDA_DRIVER_VERSION_MIN) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "memory of GPUs needs the driver of CUDA %d.%d or a newer one; %s is that of %d.%d: install "
                           "a newer driver",
                           CUDA_DRIVER_VERSION_MIN / 1000, CUDA_DRIVER_VERSION_MIN % 1000 / 10, out->name,
                           out->version / 1000, out->version % 1000 / 10);
    }
    unsigned result = out->init(0);
    if (result == CUDA_OK) {
        result = out->device_count(&out->devices);
    }
    if (result != CUDA_OK && result != CUDA_NO_DEVICE) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "the CUDA driver (%s) does not start: %s (error %u). Does nvidia-smi work here?", out->name,
                           words_of(out, result), result);
    }
    if (result == CUDA_NO_DEVICE || out->devices == 0) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return status_fail(MUSTER_EUNSUPPORTED, "the CUDA driver sees no GPU%s%s%s",
                           visible ? " (CUDA_VISIBLE_DEVICES='" : "", visible ? visible : "", visible ? "')" : "");
    }
    return 0;
}

int cuda_library_open(struct cuda_library *out) {
    const char *reason = NULL, *wanted = getenv("MUSTER_CUDA_LIBRARY");
    struct cuda_library found = {.version = 0};
    (void)str_format(found.name, sizeof found.name, "%s", wanted && *wanted ? wanted : CUDA_LIBRARY_NAME);
    void *library = library_open(found.name, &reason);
    if (!library) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "memory of GPUs needs NVIDIA's driver, which cannot be opened (%s): install it, or give the "
                           "container access to it",
                           reason);
    }
    int code = find_functions(library, &found);
    code = code ? code : initialise(&found);
    if (code == 0) {
        *out = found; /* the library stays: what it has started does */
    }
    return code;
}

const struct cuda_library *cuda_library(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    const struct cuda_library *found = atomic_load_explicit(&cuda_library_opened, memory_order_relaxed);
    if (!found && cuda_library_open(&kept) == 0) {
        found = &kept;
        atomic_store_explicit(&cuda_library_opened, found, memory_order_release);
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

int cuda_fail(const struct cuda_library *cuda, unsigned result, const char *what) {
    const char *name = NULL;
    (void)cuda->error_name(result, &name);
    return status_fail(result == CUDA_OUT_OF_MEMORY ? MUSTER_ENOMEM : MUSTER_ESYSTEM, "%s: %s (%s)", what,
                       name ? name : "unknown error", words_of(cuda, result));
}
