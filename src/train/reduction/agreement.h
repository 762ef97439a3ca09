/* Do all ranks of a group say the same? Each describes in a text what ranks must have in common: a line
 * "option NAME: VALUE" for each option, and any other line for each tensor of the model. Ranks compare hashes; only
 * when these differ the texts travel, and the first line that differs is what the user is told. */
#ifndef TRAIN_AGREEMENT_H
#define TRAIN_AGREEMENT_H

#include <stdbool.h>
#include <stddef.h>

#include <muster/group.h>

#include "base/buf.h"

/* Of a text. */
#define AGREEMENT_BYTES_MAX ((size_t)64 << 20)
/* Of a line, with its end; a sentence cuts longer ones. */
#define AGREEMENT_LINE_MAX 416

/* The value of an option that is on or off. */
const char *agreement_truth(bool value);

/* Compares the texts of all ranks. Collective. Borrows `text`. MUSTER_EMISMATCH, on all ranks: they differ; the
 * sentence has the line of rank 0 and that of the lowest rank that differs from it. Other failures may be this rank's
 * alone. */
int agreement_compare(struct muster_group *group, const struct buf *text);

/* In place of agreement_compare(), for a rank that has found, alone perhaps, that it cannot take part: `status` is the
 * code, and muster_detail() the sentence. It comes all the same, so no rank waits for it; those that compare texts get
 * MUSTER_EMISMATCH and "rank R cannot take part: SENTENCE". Returns `status`, with its sentence. */
int agreement_refuse(struct muster_group *group, int status);

#endif
