/* The command line of mnist. */
#ifndef EXAMPLES_MNIST_OPTIONS_H
#define EXAMPLES_MNIST_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum { PARTS_MAX = 64 }; /* of a step, micro-batches or virtual ranks */

struct options {
    int64_t epochs;
    int64_t steps; /* stop after step number ...; 0: no such limit */
    int batch;     /* images a step, over all workers */
    int micro_batches;
    int virtual_ranks;          /* 0: none */
    bool changes_virtual_ranks; /* goes on from a state of another number of them */
    double lr;                  /* 0: the optimizer's usual rate */
    const char *optimizer;
    bool normalise, synchronise;
    bool forget; /* the state ends with the workers */
    bool shrink; /* survivors go on without the workers that are lost */
    uint64_t seed;
    const char *data, *snapshot, *plot; /* the last two may be NULL */
};

/* Reads the arguments. --help prints and exits 0; a mistake prints and exits 2. Strings are borrowed from argv. */
void options_read(struct options *options, int argc, char **argv);

#endif
