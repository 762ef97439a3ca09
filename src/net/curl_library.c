/* Opens libcurl; see curl_library.h. */
#include "net/curl_library.h"

#include <pthread.h>

#include "base/library.h"
#include "base/status.h"
#include "base/str.h"

#define LIBRARY_NAME "libcurl.so.4"

static struct curl_library functions;
static char failure[MUSTER_DETAIL_MAX]; /* empty: it is open */

static void open_library(void) {
    const char *reason, *missing = NULL;
    void *library = library_open(LIBRARY_NAME, &reason);
    if (!library) {
        (void)str_format(failure, sizeof failure,
                         "HTTP needs libcurl, which is not installed here (Debian and Ubuntu: apt-get install "
                         "libcurl4): %s",
                         reason);
        return;
    }
#define CURL_LIBRARY_FIND(name)                                                                                        \
    missing = library_find(library, #name, &functions.name, sizeof functions.name) ? missing : #name;
    CURL_LIBRARY_TABLE(CURL_LIBRARY_FIND)
#undef CURL_LIBRARY_FIND
    if (missing) {
        (void)str_format(failure, sizeof failure, LIBRARY_NAME " has no %s: version 7.62 or later is needed", missing);
    } else if (functions.curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
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
