/* Latency, bandwidth and clock offset between two nodes, over one TCP connection. One side asks, the other answers;
 * both block, for a bounded time. */
#ifndef DOCTOR_MEASURE_H
#define DOCTOR_MEASURE_H

#include <stdint.h>

#include "doctor/nodes.h"

#define MEASURE_CONNECT_MS INT64_C(3000)
#define MEASURE_ACCEPT_MS INT64_C(4000) /* longer than connecting takes, so that the other one says why it failed */
#define MEASURE_PAIR_MS INT64_C(8000)   /* everything of a pair that is connected */
#define MEASURE_BYTES_MAX (UINT64_C(64) << 20) /* of one transfer */

/* Connects to `node` and measures; fills all of `out` but the ranks. A failure is part of the result. */
void measure_ask(const struct doctor_node *node, struct doctor_pair *out);

/* Waits for the one partner that knows `nonce` on the listening socket, and answers until it hangs up. Others are hung
 * up on. MUSTER_ETIMEOUT, MUSTER_ESYSTEM, MUSTER_EPROTOCOL: the other side knows as well. */
int measure_answer(int listen_fd, uint64_t nonce);

#endif
