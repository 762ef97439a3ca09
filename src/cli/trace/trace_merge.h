/* What the traces of a job's ranks say: joined into one that Perfetto opens, on one clock; or as a table. */
#ifndef CLI_TRACE_MERGE_H
#define CLI_TRACE_MERGE_H

#include "base/buf.h"

enum { TRACE_FILES_MAX = 65536, TRACE_NOTES_BYTES_MAX = 65536, TRACE_REPORT_BYTES_MAX = 16 << 20 };

/* Reads every *.json file of `folder` that a traced process wrote and writes the joined trace to `path` (made aside and
 * then renamed; "-": stdout). Damaged lines and files that are no traces are left out. `notes` gets lines for people:
 * what was joined, how the clocks were compared, what was left out. MUSTER_ENOENT when there is no trace;
 * MUSTER_ESYSTEM, MUSTER_ENOMEM, MUSTER_ELIMIT (files, hosts). Blocks. */
int trace_merge(const char *folder, const char *path, struct buf *notes);

/* Appends a table to `out`. For each rank it has the time traced, the share of it in collectives and waiting in them,
 * how often the rank was the last to come to a call, and how long the others waited for it. A sentence names the
 * slowest rank, or says that there is none. Otherwise as trace_merge(). */
int trace_report(const char *folder, struct buf *out, struct buf *notes);

#endif
