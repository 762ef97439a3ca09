/* The limit on open files; see descriptors.h. Who needs how many is the caller's to know. */
#include "base/system/descriptors.h"

#include <stdint.h>
#include <sys/resource.h>

size_t descriptors_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY || limit.rlim_max > SIZE_MAX) {
        return SIZE_MAX;
    }
    return (size_t)limit.rlim_max;
}

void descriptors_raise(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* where the kernel forbids it, opening fails later, and says so */
    }
}
