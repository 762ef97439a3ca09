/* Slurm's host lists: what is accepted has every host that it counts, none beyond, and each name is a list of one. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/hostlist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char text[HOSTLIST_BYTES_MAX + 1];

static void check_host(size_t index) {
    char host[HOSTLIST_HOST_MAX], again[HOSTLIST_HOST_MAX];
    size_t count = 0;
    if (hostlist_get(text, index, host) != 0) {
        return; /* too long a name */
    }
    assert(host[0] != '\0' && strpbrk(host, "[], \t\n") == NULL);
    int status = hostlist_count(host, &count);
    assert(status == 0 && count == 1);
    status = hostlist_get(host, 0, again);
    assert(status == 0 && strcmp(host, again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char host[HOSTLIST_HOST_MAX];
    size_t count = 0;
    size = size < sizeof text ? size : sizeof text - 1;
    memcpy(text, data, size);
    text[size] = '\0';
    if (hostlist_count(text, &count) != 0) {
        return 0;
    }
    assert(count > 0 && count <= HOSTLIST_HOSTS_MAX);
    check_host(0);
    check_host(count / 2);
    check_host(count - 1);
    int status = hostlist_get(text, count, host);
    assert(status != 0);
    return 0;
}
