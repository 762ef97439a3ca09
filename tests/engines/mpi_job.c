/* A rank of a job that mpirun itself has started: mpi_job FILE WHAT. The ranks meet in FILE. What they do:
 *   end     call, free the group, and end
 *   unfreed call, and end without freeing the group
 *   killed  rank 1 kills itself; the others write what they are told into FILE.told-RANK, and end with 3 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/muster.h>

#include "base/status.h"
#include "base/str.h"

enum { CODE_TOLD = 3 };

static uint32_t number_of(const char *name, const char *other) {
    int64_t number = 0;
    const char *text = getenv(name);
    text = text ? text : getenv(other);
    return text && str_parse_i64(text, &number) ? (uint32_t)number : 0;
}

/* In a file: a launcher may not pass on what comes after a death. */
static int fail(uint32_t rank, const char *meeting) {
    char path[4096], sentence[MUSTER_DETAIL_MAX];
    (void)snprintf(sentence, sizeof sentence, "%s", muster_detail());
    (void)snprintf(path, sizeof path, "%s.told-%u", meeting, rank);
    FILE *file = fopen(path, "we");
    if (file) {
        (void)fprintf(file, "rank %u: %s\n", rank, sentence);
        (void)fclose(file);
    }
    return CODE_TOLD;
}

int main(int argc, char **argv) {
    uint32_t rank = number_of("OMPI_COMM_WORLD_RANK", "PMI_RANK"), size = number_of("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
    int64_t sum = 1;
    struct muster_group *group = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.engine = "mpi";
    if (argc != 3 || muster_group_create_file(argv[1], rank, size, &options, &group) != 0 ||
        muster_all_reduce(group, &sum, &sum, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL) != 0) {
        return fail(rank, argc > 1 ? argv[1] : "mpi_job");
    }
    (void)printf("rank %u of %u: %lld on %s\n", rank, size, (long long)sum, muster_group_engine(group));
    (void)fflush(stdout);
    if (strcmp(argv[2], "killed") == 0) {
        if (rank == 1) {
            (void)raise(SIGKILL);
        }
        return muster_barrier(group, NULL) == 0 ? 0 : fail(rank, argv[1]);
    }
    if (strcmp(argv[2], "end") == 0) {
        muster_group_free(group);
    }
    return 0;
}
