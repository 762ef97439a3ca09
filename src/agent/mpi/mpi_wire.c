/* See mpi_wire.h. */
#include "agent/mpi/mpi_wire.h"

#include <string.h>

#include "base/status.h"

int mpi_wire_write_worker(uint32_t local_rank, const char *const *variables, size_t count, struct buf *out) {
    int code = buf_append(out, &local_rank, sizeof local_rank);
    if (count > MPI_WIRE_VARIABLES_MAX) {
        return status_fail(MUSTER_ELIMIT, "a worker gets %zu variables for MPI; %d are the most", count,
                           MPI_WIRE_VARIABLES_MAX);
    }
    for (size_t i = 0; i < count && code == 0; i++) {
        code = buf_append(out, variables[i], strlen(variables[i]) + 1);
    }
    return code;
}

bool mpi_wire_read_worker(const uint8_t *body, size_t length, struct mpi_worker_said *out) {
    *out = (struct mpi_worker_said){0};
    if (length < sizeof out->local_rank || (length > sizeof out->local_rank && body[length - 1] != '\0')) {
        return false;
    }
    memcpy(&out->local_rank, body, sizeof out->local_rank);
    for (size_t at = sizeof out->local_rank; at < length; at += strlen((const char *)body + at) + 1) {
        const char *variable = (const char *)body + at;
        if (out->count == MPI_WIRE_VARIABLES_MAX || !strchr(variable, '=')) {
            return false;
        }
        out->variables[out->count++] = variable;
    }
    return true;
}
