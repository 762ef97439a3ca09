/* Joins the trace files of a job's ranks into one that Perfetto opens, on one clock. */
#ifndef CLI_TRACE_MERGE_H
#define CLI_TRACE_MERGE_H

#include "base/buf.h"

enum { TRACE_FILES_MAX = 65536, TRACE_NOTES_BYTES_MAX = 65536 };

/* Reads every *.json file of `folder` that a traced process wrote and writes the joined trace to `path` (made aside and
 * then renamed; "-": stdout). Damaged lines and files that are no traces are left out. `notes` gets lines for people:
 * what was joined, how the clocks were compared, what was left out. MUSTER_ENOENT when there is no trace;
 * MUSTER_ESYSTEM, MUSTER_ENOMEM, MUSTER_ELIMIT (files, hosts). Blocks. */
int trace_merge(const char *folder, const char *path, struct buf *notes);

#endif
