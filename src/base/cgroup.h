/* The cgroup of the calling process, version 1 or 2: where that of memory lies, and how much it leaves of memory,
 * processor time and processes.
 *
 * Nothing here fails: where there is no such cgroup, or it cannot be read, the answer is false. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The folder of its files, as far as this process sees it: a container often has only its own part of the hierarchy. */
bool cgroup_memory_folder(bool is_v1, char *out, size_t max);

/* The calling process is in the hierarchy's root, as far as it can see. */
bool cgroup_memory_is_root(bool is_v1);

/* The number behind `key` (with the space that follows it) at the start of a line of `text`. Pure. */
bool cgroup_field(const char *text, const char *key, uint64_t *out);

struct cgroup_room {
    uint64_t limit_bytes;
    uint64_t left_bytes; /* of the limit: what is not used, and what is cached of files, which the kernel would drop */
    char folder[256];    /* whose limit that is */
};

/* Of the calling process's cgroup and all above it that can be seen, the one that leaves least. */
bool cgroup_memory_room(struct cgroup_room *out);
/* The same from this folder on, upwards. */
bool cgroup_room_of(const char *folder, bool is_v1, struct cgroup_room *out);

/* How many processors' worth of time it gives, of itself and all above it the least. False: no limit. */
bool cgroup_cpu_quota(double *out);
/* How many processes and threads there may be, and are, where the fewest are left. False: no limit. */
bool cgroup_process_limit(uint64_t *out_max, uint64_t *out_used);

#endif
