/* Marks on collective calls, so that ranks that mean different things by calls alike are told, at no cost: a mark
 * travels in the fingerprint that ranks compare anyway, and the sentence of the mismatch names it. And the stream of
 * calls, and who holds a group. For train.
 *
 * All functions but those that hold: by the thread that calls collectives on `group`. A call with a handle takes the
 * mark that holds when it is posted. */
#ifndef COMM_GROUP_MARK_H
#define COMM_GROUP_MARK_H

#include <stdint.h>

#include <muster/group.h>

#define GROUP_NO_UNIT UINT32_MAX
#define GROUP_UNIT_MAX 32767u

/* From now on all_reduces on `group` say that their data has been accumulated over `steps` steps before this one (cut
 * at COMM_MARK_OF_UNIT - 1); 0: over none. */
void group_mark_accumulated(struct muster_group *group, uint32_t steps);
/* From now on all_reduces, reduce_scatters and all_gathers on `group`, with or without counts per rank, say that their
 * data is that of unit number `unit` (cut at GROUP_UNIT_MAX: higher ones look alike). GROUP_NO_UNIT, as it is at first:
 * of none. A unit takes the place of accumulated steps. */
void group_mark_unit(struct muster_group *group, uint32_t unit);

/* The stream of muster_group_set_stream(); NULL: the default one, also of an engine that knows none. What copies memory
 * of a GPU by itself begins behind the same work as a call. */
void *group_stream(const struct muster_group *group);

/* ---- what is made with a group and lives on between its calls (ddp, fsdp, layers of batch norm), and handles ----
 *
 * If a program frees the group first, which it should not, what is left finds that out: the group's handle is still
 * there, but empty, until as many have let go as held it. Any thread. */

void group_hold(struct muster_group *group);
void group_let_go(struct muster_group *group); /* NULL is accepted */

/* MUSTER_EINVAL, with a sentence: a group that is held has been freed. */
int group_check_freed(const struct muster_group *group);

#endif
