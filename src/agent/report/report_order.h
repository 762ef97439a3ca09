/* Which of several failures came first, and in which order the others stand. Pure. */
#ifndef AGENT_REPORT_ORDER_H
#define AGENT_REPORT_ORDER_H

#include "agent/report/report.h"

/* Others than the root, as the report lists them: in the order of their ends, then those that the launcher stopped, by
 * rank. */
void report_sort(const struct report_entry **entries, size_t count);

#endif
