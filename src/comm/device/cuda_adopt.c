/* See cuda_adopt.h. */
#include "comm/device/cuda_adopt.h"

#include <stdlib.h>

#include "base/library.h"
#include "comm/device/cuda_library.h"

/* A driver that nobody has initialised answers no questions. */
static bool is_in_use(const char *name) {
    unsigned (*device_count)(int *) = NULL;
    int count = 0;
    void *library = library_loaded(name);
    return library && library_find(library, "cuDeviceGetCount", &device_count, sizeof device_count) &&
           device_count(&count) == CUDA_OK && count > 0;
}

void cuda_library_adopt(void) {
    const char *wanted = getenv("MUSTER_CUDA_LIBRARY");
    if (!cuda_library_if_open() && is_in_use(wanted && *wanted ? wanted : CUDA_LIBRARY_NAME)) {
        (void)cuda_library(); /* one that is too old: then nothing is looked at, as before */
    }
}
