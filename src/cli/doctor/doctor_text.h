/* Findings as text for people, and as JSON for programs. */
#ifndef CLI_DOCTOR_TEXT_H
#define CLI_DOCTOR_TEXT_H

#include <stdbool.h>

#include "base/buf.h"
#include "doctor/finding.h"
#include "doctor/meet.h"

#define DOCTOR_TEXT_BYTES_MAX ((size_t)1 << 20)

/* A line for each finding, with what to do below it, and a line that counts them. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int doctor_text(struct buf *out, const struct doctor_findings *findings, unsigned width, bool has_colours);

#define DOCTOR_MATRIX_NODES_MAX 12u /* more are not drawn */

/* Latency and bandwidth of all pairs as two tables; nothing for too many nodes. */
int doctor_text_matrix(struct buf *out, const struct meeting *meeting);

/* The findings as one JSON object; docs/doctor.md lists its members. `meeting`: NULL without other nodes. */
int doctor_json(struct buf *out, const char *node, const struct doctor_findings *findings,
                const struct meeting *meeting);

/* `muster doctor --list`. */
int doctor_text_list(struct buf *out);

#endif
