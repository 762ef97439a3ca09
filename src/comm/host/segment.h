/* Memory that processes of one host share: anonymous (memfd), so that nothing is ever left behind in a file system,
 * however its users die. A neighbour opens it through the maker's /proc/<pid>/fd/<number>. */
#ifndef COMM_SEGMENT_H
#define COMM_SEGMENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct segment {
    void *memory; /* page-aligned; zeroed when made */
    size_t bytes;
    int fd; /* -1 once it need not be found any more */
};

/* What a neighbour needs to open it. `cookie` is random and stands in the first 8 bytes of the memory: a pid or
 * descriptor that was reused in the meantime is noticed. */
struct segment_name {
    int32_t pid;
    int32_t fd;
    uint64_t bytes;
    uint64_t cookie;
};

/* The first SEGMENT_HEADER_BYTES of the memory are the segment's own. */
#define SEGMENT_HEADER_BYTES ((size_t)64)

/* Is there room for so many bytes, on this machine and in this process's cgroup? MUSTER_ENOMEM says how much is left.
 * segment_create() asks so for each segment; this is for those who make several at once. */
int segment_check_room(size_t bytes, const char *label);

/* MUSTER_ESYSTEM, MUSTER_ENOMEM (also when the host's shared memory is used up: pages are reserved here, so that later
 * use cannot end in SIGBUS, unless `lazy`). */
int segment_create(size_t bytes, const char *label, int lazy, struct segment *out, struct segment_name *out_name);
/* MUSTER_ESYSTEM with a sentence that says what to do (MUSTER_SHM=0) where the kernel refuses; MUSTER_ECORRUPT: not it.
 */
int segment_open(const struct segment_name *name, struct segment *out);
/* The same, and out->fd is a descriptor of it: for those that hold the memory for a later process. */
int segment_open_held(const struct segment_name *name, struct segment *out);
/* Maps what segment_create() has made in another process, whose descriptor this process was given. The descriptor stays
 * the caller's. MUSTER_ECORRUPT: it is something else. */
int segment_adopt(int fd, struct segment *out);
void segment_close(struct segment *segment);

/* In its place, where a process is alone: private memory, zeroed, page-aligned; what is not touched takes no room.
 * NULL: there is none. */
void *segment_make_private(size_t bytes);
/* NULL is accepted. */
void segment_free_private(void *memory, size_t bytes);

#endif
