/* Failures that say the same: of many workers that fail alike the report shows a few, and tells the others by their
 * ranks. Pure. */
#ifndef AGENT_REPORT_ALIKE_H
#define AGENT_REPORT_ALIKE_H

#include <stddef.h>

#include "agent/report/report.h"

/* Beside the root so many are always shown. */
#define REPORT_SHOWN_MAX 8

/* Fills as[i], for the entries 1 to count - 1 behind the root, with the number of an entry before it that is shown and
 * says the same, or 0: entry i is shown itself. */
void report_find_alike(const struct report_entry *const *sorted, size_t count, size_t *as);

/* A line for each entry of which others are left out. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int report_append_alike(const struct report_entry *const *sorted, size_t count, const size_t *as, struct buf *out);

#endif
