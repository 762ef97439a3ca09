/* The numbers of what Muster's processes say to each other. Processes of one job must have the same.
 *
 * A number rises by one, in the same commit, when a process with the old number could misunderstand one with the new:
 *
 *   - a field comes, goes, or gets another length or meaning, in what these numbers stand for
 *   - a message or key comes that the other side has to answer or heed
 *
 * It stays when the old side ignores what is new, and the new side copes without it.
 *
 * Where a number stands never changes, since it is read before anything else. Processes from before there were numbers
 * show none there; that is 0. PyTorch's agents have no number: they are met with PyTorch's own protocol. */
#ifndef BASE_PROTOCOL_H
#define BASE_PROTOCOL_H

#include <stdint.h>

enum { PROTOCOL_SENTENCE_SIZE = 384 };

enum {
    /* Agents: JOIN and the other messages of docs/formats/coordinator.md, and Muster's own keys beside PyTorch's
     * (c10d, static, etcd-v2, etcd). In JOIN it was 1 before. */
    PROTOCOL_AGENTS = 3,
    /* Ranks: their records and the verdict of a meeting, shared memory, and links (docs/formats/wire.md). */
    PROTOCOL_RANKS = 1,
};

/* Those of this program. */
uint32_t protocol_agents(void);
uint32_t protocol_ranks(void);

/* For people: two that cannot understand each other, and what to do. Returns `out`. Pure. */
const char *protocol_differs(const char *one, uint32_t one_number, const char *other, uint32_t other_number,
                             char out[PROTOCOL_SENTENCE_SIZE]);

#endif
