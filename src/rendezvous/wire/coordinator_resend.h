/* What lets a session outlive its connection. Each side counts the messages that it has sent and received, and keeps
 * those that the other side has not confirmed. Whoever connects anew says how many have come (RESUME, RESUMED); the
 * rest is sent again, once and in order. Signs of life carry the confirmations.
 *
 * Signs of life, questions and the handshake belong to one connection: they are neither counted nor kept. */
#ifndef RENDEZVOUS_COORDINATOR_RESEND_H
#define RENDEZVOUS_COORDINATOR_RESEND_H

#include "base/buf.h"
#include "rendezvous/wire/coordinator_wire.h"

#define COORDINATOR_RESEND_BYTES_MAX ((size_t)256 * 1024) /* that one side keeps for the other */

struct coordinator_resend {
    uint64_t sent_count, confirmed_count, received_count;
    struct buf unconfirmed; /* frames */
};

void coordinator_resend_init(struct coordinator_resend *resend);
void coordinator_resend_done(struct coordinator_resend *resend);

/* Is the message part of the session? */
bool coordinator_resend_counts(enum coordinator_kind kind);
/* One is sent: keeps a copy of its frame. MUSTER_ENOMEM; MUSTER_ELIMIT, when the other side confirms nothing. */
int coordinator_resend_sent(struct coordinator_resend *resend, const uint8_t *frame, size_t len);
/* The other side has had so many. False when that cannot be: it speaks of another session. */
bool coordinator_resend_confirm(struct coordinator_resend *resend, uint64_t count);
/* The kept frames one by one, in order; `at` begins with 0. NULL: no more. Valid until the next call but this. */
const uint8_t *coordinator_resend_next(const struct coordinator_resend *resend, size_t *at, size_t *len);

#endif
