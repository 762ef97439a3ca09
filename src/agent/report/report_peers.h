/* What the other workers of the node did when the first one failed: the report's last lines. A worker that waits for a
 * rank which has ended, is stopped, or is somewhere else, fails in that rank's place. */
#ifndef AGENT_REPORT_PEERS_H
#define AGENT_REPORT_PEERS_H

#include "agent/report/report.h"

/* Appends nothing when there is nothing to say. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int report_append_peers(const struct report *report, const struct report_entry *root, struct buf *out);

#endif
