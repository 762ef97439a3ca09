/* Messages between two processes of a context, matched by group, lane and tag, over whatever link there is between the
 * two: a ring in shared memory on one host, TCP between hosts. Both muster_send()/muster_receive() and the schedules
 * of collectives that are not all in one host's memory (comm/executor.h) are made of these.
 *
 * Nothing here has a thread: whoever waits brings everything forward (p2p_progress()), under one lock. Links are
 * made when first needed. */
#ifndef COMM_P2P_H
#define COMM_P2P_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/bell.h"

struct p2p;

enum p2p_lane { P2P_MESSAGES = 0, P2P_COLLECTIVES = 1 };

#define P2P_ANY_PEER UINT32_MAX

/* Peers are numbered as in the root group. */
struct p2p_envelope {
    uint32_t group; /* id */
    uint8_t lane;
    uint32_t peer;
    uint64_t tag;         /* of the user, or sequence number and step of a collective */
    uint64_t fingerprint; /* must be equal on both sides (type of a message; comm_call_fingerprint()) */
};

/* Embedded in the caller's memory; must stay there until done. All fields are p2p's; read them when it is done. */
struct p2p_request {
    struct p2p_envelope envelope; /* of a receive from P2P_ANY_PEER: who it was, once done */
    void *buffer;
    size_t bytes;          /* of a receive: room; once done, bytes that came */
    size_t moved;          /* so far */
    int status;            /* once done: 0 or a negative code */
    char *detail;          /* once done with an error: owned, freed by p2p_request_done() */
    _Atomic uint32_t done; /* load with acquire */
    bool is_send;
    struct p2p_request *next, *previous;
};

/* Posts. Return 0 or a negative code (nothing was posted). Any thread. */
int p2p_send(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope, const void *buffer,
             size_t bytes);
int p2p_receive(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope, void *buffer,
                size_t bytes);

/* Moves what can be moved without blocking. true: something moved. Any thread. */
bool p2p_progress(struct p2p *p2p);

/* Waits until all are done, by the waiter (whose idle() need not be p2p_progress(): it is called here). The first error
 * of any of them, with its detail, MUSTER_ETIMEOUT, or what stopped() says; then those not done are withdrawn, so that
 * their memory may go. */
int p2p_wait(struct p2p *p2p, struct comm_waiter *waiter, struct p2p_request *const *requests, size_t request_count,
             int64_t deadline_ns);

/* Gives the status (with its detail in this thread) of a request that is done, and what it holds. */
int p2p_request_done(struct p2p_request *request);

#endif
