/* See mpi_stages.h. The memory has no name in any file system: it goes with the two processes. */
#include "agent/mpi/mpi_stages.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

static size_t bytes_of(uint32_t count) {
    return (size_t)count * sizeof(_Atomic uint32_t);
}

static int map(int fd, uint32_t count, struct mpi_stages *out) {
    void *memory = mmap(NULL, bytes_of(count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return status_fail_errno(errno, "share memory with the MPI server");
    }
    *out = (struct mpi_stages){.words = memory, .count = count};
    return 0;
}

int mpi_stages_create(uint32_t count, struct mpi_stages *out, int *out_fd) {
    int fd = memfd_create("muster-mpi", MFD_CLOEXEC);
    if (fd < 0) {
        return status_fail_errno(errno, "make memory for the MPI server");
    }
    int code = ftruncate(fd, (off_t)bytes_of(count)) == 0 ? map(fd, count, out)
                                                          : status_fail_errno(errno, "size the MPI server's memory");
    if (code) {
        (void)close(fd);
        return code;
    }
    *out_fd = fd;
    return 0;
}

int mpi_stages_open(int fd, uint32_t count, struct mpi_stages *out) {
    struct stat found;
    if (fstat(fd, &found) != 0) {
        return status_fail_errno(errno, "look at the memory that the agent shares");
    }
    return (size_t)found.st_size >= bytes_of(count)
               ? map(fd, count, out)
               : status_fail(MUSTER_EPROTOCOL, "the memory that the agent shares is too short");
}

void mpi_stages_done(struct mpi_stages *stages) {
    if (stages->words) {
        (void)munmap((void *)stages->words, bytes_of(stages->count));
        stages->words = NULL;
    }
}
