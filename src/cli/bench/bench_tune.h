/* `muster bench --tune`: measures the algorithms of each operation against each other and prints the table of the
 * quickest (docs/formats/choice.md), for MUSTER_CHOICE_FILE. */
#ifndef CLI_BENCH_TUNE_H
#define CLI_BENCH_TUNE_H

#include <muster/store.h>

#include "cli/bench/bench_plan.h"

/* One rank of it; the first one prints. All ranks call it, under a launcher. */
int bench_tune_run(const struct bench_options *options);

/* Who this rank is, and the store in which all meet, as the launcher says. *store: to be closed. */
int bench_tune_meet(uint32_t *out_rank, uint32_t *out_ranks, struct muster_store **store);

#endif
