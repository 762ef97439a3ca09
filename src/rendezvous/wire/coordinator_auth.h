/* How an agent and a coordinator prove to each other that they know the job's secret, and how every frame afterwards
 * shows that it comes from the other one (docs/formats/coordinator.md, "With a secret").
 *
 *   agent        GREET      a nonce
 *   coordinator  CHALLENGE  a nonce of its own, and a tag of both: it knows the secret
 *   agent        PROOF      a tag of both: so does it
 *
 * The tags differ by who makes them, so that neither can be sent back as the other's; both nonces are new, so that
 * nothing recorded is of use later. Each direction then has a key of its own, and each frame a tag under it of the
 * frame and its number: one that is forged, changed, repeated, left out or moved does not fit, and ends the connection.
 *
 * Pure: random bytes are handed in. The structure is kept by whoever has the connection. */
#ifndef RENDEZVOUS_COORDINATOR_AUTH_H
#define RENDEZVOUS_COORDINATOR_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "rendezvous/wire/coordinator_wire.h"
#include "rendezvous/wire/secret.h"

#define COORDINATOR_SEAL_BYTES ((size_t)16) /* behind each frame; its length does not count them */

struct coordinator_auth {
    uint8_t agent_nonce[COORDINATOR_NONCE_BYTES], coordinator_nonce[COORDINATOR_NONCE_BYTES];
    uint8_t out_key[HMAC_BYTES], in_key[HMAC_BYTES];
    uint64_t out_count, in_count; /* frames */
};

/* The agent's first word. `nonce`: random. */
void coordinator_auth_greet(struct coordinator_auth *auth, const uint8_t nonce[COORDINATOR_NONCE_BYTES],
                            struct coordinator_message *out);

/* The coordinator's answer to a GREET. `nonce`: random. MUSTER_ENOMEM. */
int coordinator_auth_challenge(struct coordinator_auth *auth, const struct secret *secret, struct kv_slice run_id,
                               const uint8_t nonce[COORDINATOR_NONCE_BYTES], const struct coordinator_message *greet,
                               struct coordinator_message *out);

/* The agent's answer to a CHALLENGE; afterwards both can seal and open. MUSTER_EPROTOCOL: whoever has sent it does not
 * know the secret, or serves another job; nothing is to be said to it. MUSTER_ENOMEM. */
int coordinator_auth_prove(struct coordinator_auth *auth, const struct secret *secret, struct kv_slice run_id,
                           const struct coordinator_message *challenge, struct coordinator_message *out);

/* The coordinator looks at a PROOF. Errors as above. */
int coordinator_auth_accept(struct coordinator_auth *auth, const struct secret *secret, struct kv_slice run_id,
                            const struct coordinator_message *proof);

/* Appends the tag of the frame that fills `frame` from `from` on. MUSTER_ENOMEM; then the connection is of no use. */
int coordinator_auth_seal(struct coordinator_auth *auth, const struct secret *secret, struct buf *frame, size_t from);

/* Looks at the beginning of `bytes`. COMPLETE: a frame of *frame_len bytes from the other one, its tag behind it.
 * MALFORMED with the detail: too long or too short for a frame, or not from the other one, or not the next. */
enum coordinator_parse coordinator_auth_open(struct coordinator_auth *auth, const struct secret *secret,
                                             const uint8_t *bytes, size_t len, size_t *frame_len);

void coordinator_auth_wipe(struct coordinator_auth *auth);

#endif
