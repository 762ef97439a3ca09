/* The number of virtual ranks belongs to a training, like its seed: it is saved with the state, and compared. */
#ifndef EXAMPLES_COMMON_VIRTUAL_RANKS_H
#define EXAMPLES_COMMON_VIRTUAL_RANKS_H

#include <stdbool.h>
#include <stdint.h>

/* saved: what the state that was loaded says, 0 for none; own: the option's number. Another number gives other bits:
 * fails, unless may_change (--change-virtual-ranks). */
void check_virtual_ranks(int64_t saved, int64_t own, bool may_change);

#endif
