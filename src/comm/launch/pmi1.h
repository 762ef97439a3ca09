/* PMI-1, the text protocol that starters of MPI programs speak with their processes over an inherited socket (PMI_FD):
 * MPICH's Hydra and what descends from it, and Slurm with --mpi=pmi2, which answers in this protocol as well.
 *
 * It is used once a process, to pass one text from rank 0 to all; afterwards the starter has been told that this
 * process needs it no more. Commands: Balaji et al. 2010, "PMI: A Scalable Parallel Process-Management Interface for
 * Extreme-Scale Systems", and MPICH's simple_pmi. Blocks, until the deadline at most. */
#ifndef COMM_LAUNCH_PMI1_H
#define COMM_LAUNCH_PMI1_H

#include <stddef.h>
#include <stdint.h>

#define PMI1_VALUE_MAX 200 /* bytes of the text, terminator included; no blanks. Slurm takes 255 */

/* rank 0 gives `text` (others: ignored), all get it in `out`, of PMI1_VALUE_MAX bytes. MUSTER_EPROTOCOL, MUSTER_ECLOSED
 * (the starter has gone, or was told already that it is not needed), MUSTER_ETIMEOUT (ranks did not come),
 * MUSTER_ESYSTEM. */
int pmi1_share(int fd, uint32_t rank, const char *text, int64_t deadline_ns, char *out);

#endif
