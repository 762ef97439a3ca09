/* Opens OpenSSL; see tls_library.h. */
#include "net/tls_library.h"

#include <pthread.h>
#include <string.h>

#include "base/library.h"
#include "base/status.h"
#include "base/str.h"

/* The newest first. */
static const struct version {
    const char *name;
    unsigned long reason_mask; /* where an error's number has its reason: the bits above name a library, and with 1.1 a
                                  function */
} versions[] = {{"libssl.so.3", 0x7FFFFF}, {"libssl.so.1.1", 0xFFF}};

static struct tls_library functions;
static char failure[MUSTER_DETAIL_MAX]; /* empty: it is open */

/* Appends to `why` what is wrong. */
static bool open_version(const struct version *version, struct tls_library *out, char *why, size_t size) {
    const char *reason, *missing = NULL;
    struct tls_library found = {.name = version->name, .reason_mask = version->reason_mask};
    size_t len = strlen(why);
    const char *between = len > 0 ? "; " : "";
    void *library = library_open(version->name, &reason);
    if (!library) {
        (void)str_format(why + len, size - len, "%s%s", between, reason);
        return false;
    }
    /* Also those of libcrypto, which libssl depends on. */
#define TLS_LIBRARY_FIND(function)                                                                                     \
    missing = library_find(library, #function, &found.function, sizeof found.function) ? missing : #function;
    TLS_LIBRARY_TABLE(TLS_LIBRARY_FIND)
#undef TLS_LIBRARY_FIND
    if (missing) {
        (void)str_format(why + len, size - len, "%s%s has no %s", between, version->name, missing);
        return false;
    }
    *out = found;
    return true;
}

int tls_library_open(struct tls_library *out) {
    char why[MUSTER_DETAIL_MAX] = "";
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        if (open_version(&versions[i], out, why, sizeof why)) {
            return MUSTER_OK;
        }
    }
    return status_fail(
        MUSTER_EUNSUPPORTED,
        "TLS and secrets need OpenSSL 3 or 1.1.1 (Debian: libssl3 or libssl1.1, Red Hat: openssl-libs): %s", why);
}

static void open_library(void) {
    if (tls_library_open(&functions) != MUSTER_OK) {
        (void)str_copy(failure, sizeof failure, muster_detail());
    }
}

const struct tls_library *tls_library(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, open_library);
    if (failure[0]) {
        (void)status_fail(MUSTER_EUNSUPPORTED, "%s", failure);
        return NULL;
    }
    return &functions;
}
