/* Generations: which of the meetings under one name a process takes part in. The store may hold what dead processes
 * have left there, and no number that a launcher gives is common to all ranks (each node counts its own restarts), so
 * ranks agree through the store alone. All keys lie under the name and size of the group:
 *
 *     N/rank/0      rank 0's record. It is stored if the key is absent, and so makes rank 0 the owner of generation N
 *     N/rank/R      the record of rank R, put there after that of rank 0
 *     N/topology    the verdict; stored if absent. It ends the generation, and never changes
 *     last          the number of the last generation (above 1): where to begin to look; may be behind, never ahead
 *
 * Rank 0 takes the first generation that has no owner, and ends those before it: so each generation before an owned one
 * has a verdict. Another rank looks for the first generation without a verdict, waits for its owner, puts its record,
 * and waits for the verdict. If that does not list its record, it goes on to the next generation.
 *
 *   - A record is put after the owner's. So no record is older than the process that reads it, and records of dead
 *     processes that waited for another rank 0 are never taken for new ones.
 *   - A rank that waits for a rank 0 that has gone is woken by the next rank 0, which ends that generation. Nothing is
 *     polled.
 *   - A rank 0 that was replaced meanwhile cannot end its generation well: the first verdict counts.
 *   - Records have random tokens, and a verdict lists the tokens that count. So no rank takes the verdict of a
 *     predecessor for its own, or the record of a successor for a member's.
 *   - A rank that finds itself replaced, or not listed, says so where members of that generation look for its address.
 *     They fail at once instead of waiting for it.
 *   - Members that all run on one host take the generation's keys away once all have read them, so that a store does
 * not grow with each group. A rank that saw them a moment before, and waits in a later generation, looks again from the
 *     first one every half second. */
#ifndef COMM_GENERATION_H
#define COMM_GENERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/context/kv.h"

enum { GENERATION_KEY_BYTES = 48 };

/* "N/rank/R", "N/topology". */
void generation_rank_key(uint32_t number, uint32_t rank, char out[GENERATION_KEY_BYTES]);
void generation_verdict_key(uint32_t number, char out[GENERATION_KEY_BYTES]);
/* Where other ranks look for a rank's address, as the context below "N/" has it. */
void generation_contact_key(uint32_t rank, char out[GENERATION_KEY_BYTES]);
/* Is this what a replaced rank has left there? */
bool generation_is_farewell(const struct muster_store_value *contact);

/* Rank 0: makes `record` the owner of a generation, *out. Errors: the store's. */
int generation_own(const struct comm_kv *kv, const void *record, size_t len, uint32_t *out);
/* Another rank: goes from *number (1 or more) to the first generation without a verdict, and waits for its owner's
 * record, to be freed by the caller. MUSTER_ETIMEOUT: there is none; the store's errors. */
int generation_await_owner(const struct comm_kv *kv, uint32_t rank, int64_t deadline_ns, uint32_t *number,
                           struct muster_store_value *out_record);
/* Stores the verdict unless there is one. */
int generation_decide(const struct comm_kv *kv, uint32_t number, const void *verdict, size_t len);
/* Takes this rank's record away, rank 0 the verdict too: after all ranks have read them, and before any of them may
 * meet anew. What fails is left in the store. */
void generation_forget(const struct comm_kv *kv, uint32_t number, uint32_t rank);

#endif
