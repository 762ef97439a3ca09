/* Opens OpenSSL; see tls_library.h. */
#include "net/tls_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

#define LIBRARY_NAME "libssl.so.3"

static struct tls_library functions;
static char failure[MUSTER_DETAIL_MAX]; /* empty: it is open */

static bool find(void *library, const char *name, void *out, size_t size) {
    void *address = dlsym(library, name); /* also in libcrypto, which libssl depends on */
    if (!address) {
        (void)str_format(failure, sizeof failure, "OpenSSL's %s has no %s: is it of version 3?", LIBRARY_NAME, name);
        return false;
    }
    memcpy(out, &address, size); /* C has no conversion between pointers to data and to functions */
    return true;
}

static void open_library(void) {
    void *library = dlopen(LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        (void)str_format(failure, sizeof failure, "TLS and secrets need OpenSSL 3 (Debian: libssl3): %s",
                         reason ? reason : LIBRARY_NAME " cannot be opened");
        return;
    }
    bool found = true;
#define TLS_LIBRARY_FIND(name) found = found && find(library, #name, &functions.name, sizeof functions.name);
    TLS_LIBRARY_TABLE(TLS_LIBRARY_FIND)
#undef TLS_LIBRARY_FIND
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
