/* See cuda_adopt.h. */
#include "comm/device/cuda_adopt.h"

#include <link.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/library.h"
#include "comm/device/cuda_library.h"

static int take_count(struct dl_phdr_info *object, size_t bytes, void *count) {
    (void)bytes;
    *(uint64_t *)count = object->dlpi_adds;
    return 1; /* all objects have the same */
}

/* Objects that the loader has loaded up to now. */
static uint64_t count_loaded(void) {
    uint64_t count = 0;
    (void)dl_iterate_phdr(take_count, &count);
    return count;
}

/* A driver that nobody has initialised answers no questions. */
static bool is_in_use(void *library) {
    unsigned (*device_count)(int *) = NULL;
    int count = 0;
    return library_find(library, "cuDeviceGetCount", &device_count, sizeof device_count) &&
           device_count(&count) == CUDA_OK && count > 0;
}

/* The loader looks into every folder for what is not there. So it is asked once for as long as it loads nothing. */
static void *driver(void) {
    static _Thread_local uint64_t absent_at;
    const char *wanted = getenv("MUSTER_CUDA_LIBRARY");
    if (wanted && *wanted) {
        return library_loaded(wanted);
    }
    uint64_t count = count_loaded();
    void *library = count == absent_at ? NULL : library_loaded(CUDA_LIBRARY_NAME);
    absent_at = library ? 0 : count;
    return library;
}

void cuda_library_adopt(void) {
    if (!cuda_library_if_open()) {
        void *library = driver();
        if (library && is_in_use(library)) {
            (void)cuda_library(); /* one that is too old: then nothing is looked at, as before */
        }
    }
}
