/* See holder_local.h. The list is the process's because the descriptors are: a holder that is closed leaves what it put
 * to the next one. */
#include "train/memory/holder_local.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/held/held_wire.h"
#include "base/status.h"
#include "base/str.h"

struct kept {
    struct kept *next;
    int fd;
    char name[HELD_NAME_BYTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *first; /* guarded by `lock`, as all of the list */

/* Where the pointer to it is, or where the list ends; *out_count: how many are before it. */
static struct kept **find(const char *name, int *out_count) {
    struct kept **at = &first;
    int count = 0;
    while (*at && strcmp((*at)->name, name) != 0) {
        at = &(*at)->next;
        count++;
    }
    if (out_count) {
        *out_count = count;
    }
    return at;
}

static int duplicate(int fd, const char *name, int *out) {
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (copy < 0) {
        return errno == EMFILE ? status_fail(MUSTER_ELIMIT, "no descriptor is free for the memory '%s'", name)
                               : status_fail_errno(errno, "a descriptor for the memory '%s'", name);
    }
    *out = copy;
    return MUSTER_OK;
}

static int put(const char *name, int copy) {
    int count;
    struct kept **at = find(name, &count);
    if (*at) {
        (void)close((*at)->fd);
        (*at)->fd = copy;
        return MUSTER_OK;
    }
    if (count >= HELD_NAMES_MAX) {
        return status_fail(MUSTER_ELIMIT, "no more than %d names of memory are kept", HELD_NAMES_MAX);
    }
    struct kept *kept = calloc(1, sizeof *kept);
    if (!kept) {
        return status_fail(MUSTER_ENOMEM, "no memory for the name '%s'", name);
    }
    (void)str_copy(kept->name, sizeof kept->name, name);
    kept->fd = copy;
    *at = kept;
    return MUSTER_OK;
}

int holder_local_put(const char *name, int fd) {
    int copy = -1;
    int status = duplicate(fd, name, &copy);
    if (status != MUSTER_OK) {
        return status;
    }
    (void)pthread_mutex_lock(&lock);
    status = put(name, copy);
    (void)pthread_mutex_unlock(&lock);
    if (status != MUSTER_OK) {
        (void)close(copy);
    }
    return status;
}

int holder_local_get(const char *name, int *out_fd) {
    (void)pthread_mutex_lock(&lock);
    const struct kept *kept = *find(name, NULL);
    int status = kept ? duplicate(kept->fd, name, out_fd)
                      : status_fail(MUSTER_ENOENT, "this process holds no memory with the name '%s'", name);
    (void)pthread_mutex_unlock(&lock);
    return status;
}

void holder_local_drop(const char *name) {
    (void)pthread_mutex_lock(&lock);
    struct kept **at = find(name, NULL);
    struct kept *kept = *at;
    if (kept) {
        *at = kept->next;
        (void)close(kept->fd);
        free(kept);
    }
    (void)pthread_mutex_unlock(&lock);
}
