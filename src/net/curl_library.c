/* Opens libcurl; see curl_library.h. */
#include "net/curl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

#define LIBRARY_NAME "libcurl.so.4"

static struct curl_library functions;
static char failure[MUSTER_DETAIL_MAX]; /* empty: it is open */

static bool find(void *library, const char *name, void *out, size_t size) {
    void *address = dlsym(library, name);
    if (!address) {
        (void)str_format(failure, sizeof failure, "%s has no %s: version 7.62 or later is needed", LIBRARY_NAME, name);
        return false;
    }
    memcpy(out, &address, size); /* C has no conversion between pointers to data and to functions */
    return true;
}

static void open_library(void) {
    void *library = dlopen(LIBRARY_NAME, RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        (void)str_format(failure, sizeof failure,
                         "HTTP needs libcurl, which is not installed here (Debian and Ubuntu: apt-get install "
                         "libcurl4): %s",
                         reason ? reason : LIBRARY_NAME " cannot be opened");
        return;
    }
    bool found = true;
#define CURL_LIBRARY_FIND(name) found = found && find(library, #name, &functions.name, sizeof functions.name);
    CURL_LIBRARY_TABLE(CURL_LIBRARY_FIND)
#undef CURL_LIBRARY_FIND
    if (found && functions.curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        (void)str_format(failure, sizeof failure, "libcurl cannot be initialised");
    }
}

const struct curl_library *curl_library(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, open_library);
    if (failure[0]) {
        (void)status_fail(MUSTER_EUNSUPPORTED, "%s", failure);
        return NULL;
    }
    return &functions;
}
