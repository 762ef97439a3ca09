/* `muster bench --tune`: measures the algorithms of each operation against each other and prints the table of the
 * quickest (docs/formats/choice.md), for MUSTER_CHOICE_FILE. */
#ifndef CLI_BENCH_TUNE_H
#define CLI_BENCH_TUNE_H

#include "cli/bench/bench_plan.h"

/* One rank of it; the first one prints. All ranks call it, under a launcher. */
int bench_tune_run(const struct bench_options *options);

#endif
