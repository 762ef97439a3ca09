/* A worker in C that records how it fails, for case_c_programs_record_their_errors.
 *
 *     record_worker error|crash     rank 1 fails so; the others wait to be stopped */
#include <muster/record.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Exported, as all is by default, so that the backtrace has its name. */
int load_shard(const char *how);

__attribute__((noinline, visibility("default"))) int load_shard(const char *how) {
    if (strcmp(how, "crash") == 0) {
        (void)raise(SIGSEGV);
    }
    int rc = muster_record_error("shard %d: checksum \"%s\" is wrong", 7, "ca\xc3\xa9");
    return rc == 0 ? 3 : 2;
}

int main(int argc, char **argv) {
    const char *rank = getenv("RANK");
    if (argc != 2 || rank == NULL || muster_record_start() != 0) {
        return 2;
    }
    if (strcmp(rank, "1") != 0) {
        (void)pause();
    }
    return load_shard(argv[1]);
}
