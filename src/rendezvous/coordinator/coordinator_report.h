/* What a job does now, as a JSON document: the answer to STATUS (docs/formats/coordinator.md). Pure. */
#ifndef RENDEZVOUS_COORDINATOR_REPORT_H
#define RENDEZVOUS_COORDINATOR_REPORT_H

#include "base/buf.h"
#include "rendezvous/coordinator/coordinator_history.h"

#define COORDINATOR_REPORT_MEMBERS_MAX ((size_t)16384) /* listed; the others are counted */
#define COORDINATOR_REPORT_DOCUMENT_MAX ((size_t)8 << 20)

/* Appends the document; members that find no room in `out` are left out, and counted. MUSTER_ENOMEM; MUSTER_ELIMIT only
 * for a buffer that is smaller than a report without members. */
int coordinator_report(const struct coordinator *coordinator, const struct coordinator_history *history, int64_t now_ms,
                       struct buf *out);

#endif
