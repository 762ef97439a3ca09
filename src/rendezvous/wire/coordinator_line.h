/* The coordinator's end of an agent's connection, up to the messages: the greeting, the handshake when the job has a
 * secret, and then frames. Sockets and buffers are its user's (a guest of the store's server). */
#ifndef RENDEZVOUS_COORDINATOR_LINE_H
#define RENDEZVOUS_COORDINATOR_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "rendezvous/wire/coordinator_auth.h"

/* The most that has to be there for a whole message, and that one message makes. */
#define COORDINATOR_LINE_BYTES_MAX (COORDINATOR_FRAME_BYTES_MAX + COORDINATOR_SEAL_BYTES)

struct coordinator_gate {
    const struct secret *secret; /* borrowed; NULL: anybody may speak */
    struct kv_slice run_id;      /* borrowed */
    bool requires_tls;           /* who greets without is told so */
};

enum coordinator_line_stage {
    COORDINATOR_LINE_NEW,
    COORDINATOR_LINE_GREETED,    /* it speaks the protocol */
    COORDINATOR_LINE_CHALLENGED, /* it has been told that this side knows the secret */
    COORDINATOR_LINE_OPEN,       /* messages */
};

struct coordinator_line { /* zeroed: a new one */
    enum coordinator_line_stage stage;
    struct coordinator_auth auth; /* with a secret */
    bool is_tls;                  /* what is taken and put goes through TLS */
};

enum coordinator_line_event {
    COORDINATOR_LINE_MORE,    /* nothing whole is there */
    COORDINATOR_LINE_STEP,    /* greeting or handshake: what is in `answer` is to be sent */
    COORDINATOR_LINE_MESSAGE, /* *message; it lives in `bytes` */
    COORDINATOR_LINE_REFUSED, /* not this one, the detail says why: it may be told */
    COORDINATOR_LINE_BROKEN,  /* the same, but it is told nothing, as nobody knows who it is */
};

/* Looks at the beginning of `bytes`; *used of them have been taken. `answer` is appended to. */
enum coordinator_line_event coordinator_line_take(struct coordinator_line *line, const struct coordinator_gate *gate,
                                                  const uint8_t *bytes, size_t len, struct buf *answer,
                                                  struct coordinator_message *message, size_t *used);

/* `frame` holds one, as coordinator_wire_put() has written it: appends what it needs to go over this line.
 * MUSTER_ENOMEM.
 */
int coordinator_line_seal(struct coordinator_line *line, const struct coordinator_gate *gate, struct buf *frame);

/* The connection has ended. False with the detail for the log when its agent has gone without an answer to a challenge:
 * it knows another secret. Wipes the keys. */
bool coordinator_line_end(struct coordinator_line *line);

#endif
