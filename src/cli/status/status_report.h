/* Reports of jobs: what a c10d rendezvous says, in the form of a coordinator's report, and both as text. Pure. */
#ifndef CLI_STATUS_REPORT_H
#define CLI_STATUS_REPORT_H

#include <jansson.h>

#include "base/buf.h"
#include "rendezvous/torch/state.h"

#define STATUS_TEXT_BYTES_MAX ((size_t)8 << 20)

/* The state of a c10d rendezvous as a report: backend, run_id, phase, round, complete, closed, nodes, members.
 * MUSTER_ENOMEM. */
int status_report_c10d(const struct rdzv_state *state, const char *run_id, int64_t now_us, json_t **out);

/* Every text of a report that somebody has sent, fit to print: control characters become question marks. MUSTER_ENOMEM.
 */
int status_report_clean(json_t *report);

/* The whole report for people. Members beyond `members_max` are counted. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int status_text(struct buf *out, const json_t *report, size_t members_max);

/* One line: what the job does now. */
int status_text_line(struct buf *out, const json_t *report);

/* Has the job changed between the two, so that people want to know? */
bool status_differs(const json_t *before, const json_t *after);

/* The job is over: nothing will change any more. */
bool status_is_over(const json_t *report);

#endif
