/* Greeting, handshake and frames of one connection; see coordinator_line.h. */
#include "rendezvous/wire/coordinator_line.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"
#include "base/system/random.h"

/* Kind, version and nonce of a GREET are the longest. */
enum { HANDSHAKE_BYTES_MAX = 1 + 2 + COORDINATOR_NONCE_BYTES };

static enum coordinator_line_event take_hello(struct coordinator_line *line, const struct coordinator_gate *gate,
                                              const uint8_t *bytes, size_t len, size_t *used) {
    size_t here = len < COORDINATOR_HELLO_BYTES ? len : COORDINATOR_HELLO_BYTES;
    if (memcmp(bytes, COORDINATOR_HELLO, here) != 0) {
        (void)status_fail(MUSTER_EPROTOCOL, "it speaks neither the store's protocol nor the coordinator's");
        return COORDINATOR_LINE_BROKEN;
    }
    if (here < COORDINATOR_HELLO_BYTES) {
        return COORDINATOR_LINE_MORE;
    }
    line->stage = COORDINATOR_LINE_GREETED;
    *used = here;
    if (gate->requires_tls && !line->is_tls) {
        (void)status_fail(MUSTER_EPROTOCOL,
                          "the node that serves the rendezvous uses TLS, and this one does not: start all nodes with "
                          "--rdzv-conf tls_cert=FILE,tls_key=FILE,tls_ca=FILE");
        return COORDINATOR_LINE_REFUSED;
    }
    return COORDINATOR_LINE_STEP;
}

static bool fail_without_proof(unsigned kind) {
    (void)status_fail(MUSTER_EPROTOCOL,
                      "%s without the job's secret: start this node with the secret of the others (--rdzv-conf "
                      "secret_file=FILE, or MUSTER_SECRET)",
                      coordinator_kind_name(kind));
    return false;
}

static enum coordinator_line_event challenge(struct coordinator_line *line, const struct coordinator_gate *gate,
                                             const struct coordinator_message *greet, struct buf *answer) {
    uint8_t nonce[COORDINATOR_NONCE_BYTES];
    struct coordinator_message message;
    if (random_fill(nonce, sizeof nonce) != 0) {
        (void)status_fail_errno(errno, "random bytes for a challenge");
        return COORDINATOR_LINE_BROKEN;
    }
    if (coordinator_auth_challenge(&line->auth, gate->secret, gate->run_id, nonce, greet, &message) ||
        coordinator_wire_put(answer, &message)) {
        return COORDINATOR_LINE_BROKEN;
    }
    line->stage = COORDINATOR_LINE_CHALLENGED;
    return COORDINATOR_LINE_STEP;
}

/* Who has shown nothing yet need not be listened to until the end of a long message, nor be given the memory for it.
 * False with the detail. */
static bool is_handshake(const uint8_t *bytes, size_t len) {
    struct bytes_reader r = {.data = bytes, .size = len};
    uint64_t length = bytes_get_number(&r, 4);
    uint64_t kind = bytes_get_number(&r, 1);
    if (r.overrun || kind == COORDINATOR_GREET || kind == COORDINATOR_PROOF) {
        if (len >= 4 && length > HANDSHAKE_BYTES_MAX) {
            (void)status_fail(MUSTER_EPROTOCOL, "a message of %llu bytes before a PROOF", (unsigned long long)length);
            return false;
        }
        return true;
    }
    return fail_without_proof((unsigned)kind);
}

static enum coordinator_line_event handshake(struct coordinator_line *line, const struct coordinator_gate *gate,
                                             const struct coordinator_message *message, struct buf *answer) {
    if (line->stage == COORDINATOR_LINE_GREETED && message->kind == COORDINATOR_GREET) {
        return challenge(line, gate, message, answer);
    }
    if (line->stage == COORDINATOR_LINE_CHALLENGED && message->kind == COORDINATOR_PROOF) {
        if (coordinator_auth_accept(&line->auth, gate->secret, gate->run_id, message)) {
            line->stage = COORDINATOR_LINE_GREETED; /* its end says nothing new */
            return COORDINATOR_LINE_REFUSED;
        }
        line->stage = COORDINATOR_LINE_OPEN;
        return COORDINATOR_LINE_STEP;
    }
    if (line->stage == COORDINATOR_LINE_CHALLENGED) {
        line->stage = COORDINATOR_LINE_GREETED;
        (void)status_fail(MUSTER_EPROTOCOL, "%s in place of a PROOF", coordinator_kind_name(message->kind));
        return COORDINATOR_LINE_REFUSED;
    }
    (void)fail_without_proof(message->kind);
    return COORDINATOR_LINE_REFUSED;
}

static enum coordinator_line_event take_message(const struct coordinator_gate *gate,
                                                const struct coordinator_message *message) {
    if (message->kind == COORDINATOR_GREET && !gate->secret) {
        (void)status_fail(MUSTER_EPROTOCOL,
                          "the node that serves the rendezvous has no secret, and this one has: start "
                          "all nodes of the job with the same one");
        return COORDINATOR_LINE_REFUSED;
    }
    return COORDINATOR_LINE_MESSAGE;
}

enum coordinator_line_event coordinator_line_take(struct coordinator_line *line, const struct coordinator_gate *gate,
                                                  const uint8_t *bytes, size_t len, struct buf *answer,
                                                  struct coordinator_message *message, size_t *used) {
    if (line->stage == COORDINATOR_LINE_NEW) {
        enum coordinator_line_event event = take_hello(line, gate, bytes, len, used);
        line->stage = event == COORDINATOR_LINE_STEP && !gate->secret ? COORDINATOR_LINE_OPEN : line->stage;
        return event;
    }
    bool is_sealed = gate->secret && line->stage == COORDINATOR_LINE_OPEN;
    if (gate->secret && !is_sealed && !is_handshake(bytes, len)) {
        line->stage = COORDINATOR_LINE_GREETED; /* its end says nothing new */
        return COORDINATOR_LINE_REFUSED;
    }
    size_t frame_len = len;
    enum coordinator_parse parse = COORDINATOR_COMPLETE;
    if (is_sealed) {
        parse = coordinator_auth_open(&line->auth, gate->secret, bytes, len, &frame_len);
        if (parse == COORDINATOR_MALFORMED) {
            return COORDINATOR_LINE_BROKEN;
        }
    }
    if (parse == COORDINATOR_COMPLETE) {
        parse = coordinator_wire_get(bytes, frame_len, true, message, used);
    }
    if (parse == COORDINATOR_MORE) {
        return COORDINATOR_LINE_MORE;
    }
    if (parse == COORDINATOR_MALFORMED) {
        return COORDINATOR_LINE_REFUSED;
    }
    *used += is_sealed ? COORDINATOR_SEAL_BYTES : 0;
    return line->stage == COORDINATOR_LINE_OPEN ? take_message(gate, message) : handshake(line, gate, message, answer);
}

int coordinator_line_seal(struct coordinator_line *line, const struct coordinator_gate *gate, struct buf *frame) {
    bool is_sealed = gate->secret && line->stage == COORDINATOR_LINE_OPEN;
    return is_sealed ? coordinator_auth_seal(&line->auth, gate->secret, frame, 0) : MUSTER_OK;
}

bool coordinator_line_end(struct coordinator_line *line) {
    bool is_fine = line->stage != COORDINATOR_LINE_CHALLENGED;
    if (!is_fine) {
        (void)status_fail(MUSTER_EPROTOCOL, "authentication failed: its secret or --rdzv-id differs");
    }
    coordinator_auth_wipe(&line->auth);
    line->stage = COORDINATOR_LINE_NEW;
    return is_fine;
}
