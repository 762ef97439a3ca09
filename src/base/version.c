/* The version of the library that runs; see muster/version.h. */
#include <muster/version.h>

int muster_version(void) {
    return MUSTER_VERSION;
}

const char *muster_version_text(void) {
    return MUSTER_VERSION_TEXT;
}
