/* How a job ends, decided in one place for every backend: what the departure of a node means to those that still work,
 * and whether another round can be formed without those that have finished.
 *
 * The rules (docs/rendezvous.md, "How a job ends"):
 *   - A node whose workers have all succeeded is done. Its departure is no loss, and nothing turns its exit code.
 *   - Any other departure ends the round: the nodes that are left form the next one. If the job was closed as well, it
 *     has failed, and no round follows.
 *   - A round without the nodes that are done must still have the minimum of nodes; else the job fails at once.
 *
 * Pure: counts in, a verdict out. Who counts is the backend's affair. */
#ifndef RENDEZVOUS_JOB_END_H
#define RENDEZVOUS_JOB_END_H

#include <stdbool.h>
#include <stdint.h>

/* What one node knows of a round. */
struct job_end_view {
    uint32_t world_size;
    uint32_t arrived;      /* nodes that have come to the exit barrier, gone since or not */
    uint32_t missing;      /* nodes that have gone, or are silent */
    uint32_t missing_done; /* of these: their own record says that their workers have succeeded */
    uint32_t missing_mute; /* of these: they keep no records, as PyTorch's agents. The barrier alone has counted them */
    uint32_t recorded_done; /* of all: their own record says so. Needed where missing_mute > 0 */
    uint32_t reserve;       /* nodes that were not in the round and wait for a place */
    uint32_t min_nodes;
    bool closed; /* somebody has closed the job */
};

enum job_end_verdict {
    JOB_END_GO_ON,  /* nobody is missed */
    JOB_END_REFORM, /* a node is lost: form the next round */
    JOB_END_FAILED, /* a node is lost, and no round follows */
};

/* Some nodes of the round are missing: what follows for a node that works, or waits for the others at the end? */
enum job_end_verdict job_end_judge(const struct job_end_view *view);

/* Can another round be formed, when those that are done take no part in it? */
bool job_end_can_reform(const struct job_end_view *view);

#endif
