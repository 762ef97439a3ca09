/* Opens NCCL; see nccl_library.h. */
#include "comm/nccl/nccl_library.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "base/status.h"
#include "base/str.h"

#define LIBRARY "libnccl.so.2"

static int major_of(int version) {
    return version / 10000;
}

static int minor_of(int version) {
    return version / 100 % 100;
}

static int refuse_version(const struct nccl_library *found, const char *missing) {
    return status_fail(MUSTER_EUNSUPPORTED, "groups of GPUs need NCCL %d.%d or newer; %s is %d.%d%s%s",
                       major_of(NCCL_LEAST_VERSION), minor_of(NCCL_LEAST_VERSION), found->name,
                       major_of(found->version), minor_of(found->version), missing ? " and has no " : "",
                       missing ? missing : "");
}

/* Before 2.9 a version was 1000 * major + 100 * minor + patch. */
static int version_of(int code) {
    return code < 10000 ? code / 1000 * 10000 + code / 100 % 10 * 100 + code % 100 : code;
}

static int find_functions(void *library, struct nccl_library *out) {
    const char *missing = NULL;
    int code = 0;
    if (!library_find(library, "ncclGetVersion", &out->get_version, sizeof out->get_version) ||
        out->get_version(&code) != NCCL_OK) {
        return status_fail(MUSTER_EUNSUPPORTED, "%s is not NCCL: it does not tell its version (MUSTER_NCCL_LIBRARY)",
                           out->name);
    }
    out->version = version_of(code);
#define FIND(member, symbol, parameters)                                                                               \
    missing = library_find(library, #symbol, &out->member, sizeof out->member) || missing ? missing : #symbol;
#define FIND_OPTIONAL(member, symbol, parameters)                                                                      \
    (void)library_find(library, #symbol, &out->member, sizeof out->member);
    NCCL_FUNCTION_TABLE(FIND)
    NCCL_NAMED_TYPE_FUNCTION_TABLE(FIND)
    NCCL_TEXT_FUNCTION_TABLE(FIND)
    NCCL_OPTIONAL_FUNCTION_TABLE(FIND_OPTIONAL)
    NCCL_OPTIONAL_NAMED_TYPE_FUNCTION_TABLE(FIND_OPTIONAL)
#undef FIND
#undef FIND_OPTIONAL
    return out->version < NCCL_LEAST_VERSION || missing ? refuse_version(out, missing) : 0;
}

int nccl_library_open(struct nccl_library *out) {
    const char *reason = NULL, *wanted = getenv("MUSTER_NCCL_LIBRARY");
    struct nccl_library found = {.version = 0};
    (void)str_format(found.name, sizeof found.name, "%s", wanted && *wanted ? wanted : LIBRARY);
    void *library = library_open(found.name, &reason); /* one of that name that is loaded comes first */
    if (!library) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "groups of GPUs need NCCL, which cannot be opened (%s): install it (Debian and Red Hat: "
                           "libnccl2 or libnccl of NVIDIA's repository; Python: nvidia-nccl-cu12), or let "
                           "MUSTER_NCCL_LIBRARY name its libnccl.so.2",
                           reason);
    }
    int code = find_functions(library, &found);
    if (code == 0) {
        *out = found; /* the library stays: it has threads */
    }
    return code;
}

const struct nccl_library *nccl_library(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct nccl_library kept;
    static bool is_open;
    pthread_mutex_lock(&mutex);
    is_open = is_open || nccl_library_open(&kept) == 0;
    const struct nccl_library *found = is_open ? &kept : NULL;
    pthread_mutex_unlock(&mutex);
    return found;
}

int nccl_fail(const struct nccl_library *nccl, unsigned result, struct ncclComm *comm, const char *what) {
    const char *words = nccl->error_string(result), *last = nccl->last_error(comm);
    bool has_last = last && *last;
    return status_fail(result == NCCL_REMOTE_ERROR ? MUSTER_EPEER : MUSTER_ESYSTEM, "%s: NCCL: %s%s%s%s", what,
                       words ? words : "unknown error", has_last ? " (" : "", has_last ? last : "",
                       has_last ? ")" : "");
}
