/* `muster bench --tune=links`: measures for each pair of hosts which interfaces and how many connections join them
 * best, and prints the lines for MUSTER_CHOICE_FILE (docs/formats/choice.md). */
#ifndef CLI_BENCH_TUNE_LINKS_H
#define CLI_BENCH_TUNE_LINKS_H

#include "cli/bench/bench_plan.h"

/* One rank of it; the first one prints. All ranks call it, under a launcher. */
int bench_tune_links_run(const struct bench_options *options);

#endif
