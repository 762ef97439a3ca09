/* Counts what a process asks of a store, for ranks_bench. */
#ifndef BENCH_RANKS_COUNT_H
#define BENCH_RANKS_COUNT_H

#include <stdint.h>

/* Operations that this process has asked of any store, but for those that waited in vain. */
uint32_t ranks_store_operations(void);

#endif
