/* Opens NVRTC; see nvrtc_library.h. */
#include "comm/device/nvrtc_library.h"

#include <stdlib.h>

#include "base/library.h"
#include "base/status.h"
#include "base/str.h"

enum { LEAST_MAJOR = 11 }; /* 11.2: the first with this name, and with images for one architecture */

static int find_functions(void *library, struct nvrtc_library *out) {
    const char *missing = library_find(library, "nvrtcGetErrorString", &out->error_string, sizeof out->error_string)
                              ? NULL
                              : "nvrtcGetErrorString";
#define FIND(member, symbol, parameters)                                                                               \
    missing = missing || library_find(library, #symbol, &out->member, sizeof out->member) ? missing : #symbol;
    NVRTC_FUNCTION_TABLE(FIND)
#undef FIND
    if (missing) {
        return status_fail(MUSTER_EUNSUPPORTED, "kernels need NVRTC 11.2 or newer: %s has no %s", out->name, missing);
    }
    return out->version(&out->major, &out->minor) == NVRTC_OK
               ? 0
               : status_fail(MUSTER_EUNSUPPORTED, "%s does not tell its version", out->name);
}

/* The newest first. */
static void *open_by_driver(int driver_version, struct nvrtc_library *out, const char **reason) {
    void *library = NULL;
    for (int major = driver_version / 1000; !library && major >= LEAST_MAJOR; major--) {
        (void)str_format(out->name, sizeof out->name, "libnvrtc.so.%d%s", major, major == LEAST_MAJOR ? ".2" : "");
        library = library_open(out->name, reason);
    }
    return library;
}

int nvrtc_library_open(int driver_version, struct nvrtc_library *out) {
    const char *reason = "the driver is too old", *wanted = getenv("MUSTER_NVRTC_LIBRARY");
    struct nvrtc_library found = {.major = 0};
    void *library = NULL;
    if (wanted && *wanted) {
        (void)str_format(found.name, sizeof found.name, "%s", wanted);
        library = library_open(found.name, &reason);
    } else {
        library = open_by_driver(driver_version, &found, &reason);
    }
    if (!library) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "kernels need NVRTC, which cannot be opened (%s): install it (Debian and Red Hat: "
                           "cuda-nvrtc of NVIDIA's repository; Python: nvidia-cuda-nvrtc-cu12), or let "
                           "MUSTER_NVRTC_LIBRARY name its libnvrtc.so",
                           reason);
    }
    int code = find_functions(library, &found);
    if (code == 0) {
        *out = found;
    }
    return code;
}
