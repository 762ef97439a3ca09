/* Opens OpenSSL; see tls_library.h. */
#include "net/tls_library.h"

#include <pthread.h>

#include "base/library.h"
#include "base/status.h"
#include "base/str.h"

#define LIBRARY_NAME "libssl.so.3"

static struct tls_library functions;
static char failure[MUSTER_DETAIL_MAX]; /* empty: it is open */

static void open_library(void) {
    const char *reason, *missing = NULL;
    void *library = library_open(LIBRARY_NAME, &reason);
    if (!library) {
        (void)str_format(failure, sizeof failure, "TLS and secrets need OpenSSL 3 (Debian: libssl3): %s", reason);
        return;
    }
    /* Also those of libcrypto, which libssl depends on. */
#define TLS_LIBRARY_FIND(name)                                                                                         \
    missing = library_find(library, #name, &functions.name, sizeof functions.name) ? missing : #name;
    TLS_LIBRARY_TABLE(TLS_LIBRARY_FIND)
#undef TLS_LIBRARY_FIND
    if (missing) {
        (void)str_format(failure, sizeof failure, "OpenSSL's " LIBRARY_NAME " has no %s: is it of version 3?", missing);
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
