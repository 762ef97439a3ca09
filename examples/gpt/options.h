/* The command line of gpt. */
#ifndef EXAMPLES_GPT_OPTIONS_H
#define EXAMPLES_GPT_OPTIONS_H

#include <stdint.h>

#include "gpt.h"
#include "sharding.h"

enum {
    OPTIONS_BATCH_MAX = 4096,
    OPTIONS_LAYERS_MAX = 340, /* 12 tensors each: MUSTER_OPTIMIZER_PARAMETERS_MAX */
};

struct options {
    struct gpt_shape shape; /* the vocabulary is the text's, except for --check */
    const char *data;
    const char *vocabulary; /* folder; NULL: tokens are characters */
    int batch;              /* of all ranks together */
    struct sharding_choice sharding;
    int64_t steps, warm_up, evaluate_every, save_every, report_every;
    double learning_rate, weight_decay, beta1, beta2, clip;
    int64_t seed;
    const char *snapshot, *plot; /* may be NULL */
    const char *weights;         /* may be NULL */
    bool forgets;                /* the state ends with its processes */
    bool changes_virtual_ranks;  /* goes on from a state of another number of them */
    bool samples_only;
    int sample; /* tokens; 0: none */
    const char *prompt;
    double temperature;
    const char *check, *check_out; /* NULL without --check */
};

/* Reads the arguments. --help prints and exits 0; a mistake prints and exits 2. Strings are borrowed from argv. */
void options_read(struct options *options, int argc, char **argv);

#endif
