/* What rank 0 answers to all who wait for it, in bytes: who the members of a generation are and where they run, or why
 * there is no group. Pure. */
#ifndef COMM_VERDICT_H
#define COMM_VERDICT_H

#include <stddef.h>
#include <stdint.h>

#include <muster/failure.h>
#include <muster/status.h>

#include "comm/host/topology.h"

/* First byte of a verdict. */
enum verdict_kind {
    VERDICT_TOPOLOGY = 0, /* then the tokens of all ranks, u32 each, and the topology */
    VERDICT_FAILURE = 1,  /* then a code, u32, what its record says (verdict.c), and a sentence */
    VERDICT_REPLACED = 2  /* the owner has gone, and there is another one, or will be */
};

enum { VERDICT_FAILURE_BYTES_MAX = MUSTER_DETAIL_MAX + 32 + MUSTER_FAILURE_HOST_MAX + 8 * MUSTER_FAILURE_RUNS_MAX };

/* tokens: one a rank. *out: malloc'd, the caller's. MUSTER_ENOMEM. */
int verdict_encode_topology(const struct topology *topology, const uint32_t *tokens, uint8_t **out, size_t *out_len);
/* Returns how many bytes. */
size_t verdict_encode_failure(int code, const char *sentence, const struct muster_failure *record,
                              uint8_t out[VERDICT_FAILURE_BYTES_MAX]);

struct verdict {
    enum verdict_kind kind;
    struct topology topology; /* of VERDICT_TOPOLOGY */
    uint32_t *tokens;         /* likewise; owned */
};

/* 0, what it says being in *out, to be freed with verdict_done(); or the failure that it tells, with sentence and
 * record. MUSTER_EPROTOCOL: it is not understood; MUSTER_ENOMEM. */
int verdict_decode(const uint8_t *data, size_t len, uint32_t size, struct verdict *out);
void verdict_done(struct verdict *verdict);

#endif
