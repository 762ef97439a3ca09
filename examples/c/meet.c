/* Workers that meet: each leaves its greeting in the job's store, waits for the others at a barrier, and rank 0 reads
 * all.
 *
 *     cc -o meet meet.c $(pkg-config --cflags --libs muster)
 *     muster run --standalone --nproc-per-node=4 --no-python ./meet
 *
 * The library needs nothing but libc. A failure ends in one sentence and leaves an error record, which the launcher's
 * report shows; so does a crash. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/record.h>
#include <muster/store.h>

enum { TIMEOUT_MS = 60000 };

/* For people on stderr, for the launcher in the error file. */
static int failed(const char *what) {
    fprintf(stderr, "meet: cannot %s: %s\n", what, muster_detail());
    (void)muster_record_error("cannot %s: %s", what, muster_detail());
    return EXIT_FAILURE;
}

static int read_greetings(struct muster_store *store, unsigned world_size) {
    for (unsigned rank = 0; rank < world_size; rank++) {
        char key[32];
        (void)snprintf(key, sizeof key, "greeting/%u", rank);
        struct muster_store_value greeting;
        if (muster_store_get(store, key, TIMEOUT_MS, &greeting) != MUSTER_OK) {
            return failed("read a greeting");
        }
        printf("%s\n", (const char *)greeting.data);
        muster_store_value_free(&greeting);
    }
    return EXIT_SUCCESS;
}

static int meet(struct muster_store *store, unsigned rank, unsigned world_size) {
    char key[32], greeting[64];
    (void)snprintf(key, sizeof key, "greeting/%u", rank);
    (void)snprintf(greeting, sizeof greeting, "rank %u of %u is process %ld", rank, world_size, (long)getpid());
    if (muster_store_set(store, key, greeting, strlen(greeting)) != MUSTER_OK) {
        return failed("leave a greeting");
    }
    if (muster_store_barrier(store, "everybody", world_size, TIMEOUT_MS) != MUSTER_OK) {
        return failed("wait for the others");
    }
    return rank == 0 ? read_greetings(store, world_size) : EXIT_SUCCESS;
}

/* Of a variable that muster_store_open_env() has checked. */
static unsigned number(const char *variable) {
    return (unsigned)strtoul(getenv(variable), NULL, 10);
}

int main(void) {
    (void)muster_record_start(); /* without it a crash leaves no record; the program works all the same */
    struct muster_store *store = NULL;
    if (muster_store_open_env(TIMEOUT_MS, &store) != MUSTER_OK) {
        return failed("open the job's store");
    }
    int exit_code = meet(store, number("RANK"), number("WORLD_SIZE"));
    muster_store_close(store);
    return exit_code;
}
