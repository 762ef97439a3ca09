/* The handshake and the tags of frames; see coordinator_auth.h. Who sends what when is native_connection.c and
 * coordinator_line.c. */
#include "rendezvous/wire/coordinator_auth.h"

#include <string.h>

#include "base/bytes.h"
#include "base/status.h"

enum { LENGTH_BYTES = 4, COUNT_BYTES = 8 };

_Static_assert(HMAC_BYTES == COORDINATOR_TAG_BYTES, "a message's tag is a whole HMAC");

/* What a tag or key is for, its terminator included: no two begin alike and differ in length only. */
static const char coordinator_label[] = "muster coordinator";
static const char agent_label[] = "muster agent";
static const char to_coordinator_label[] = "muster frames to the coordinator";
static const char to_agent_label[] = "muster frames to the agent";

static bool is_equal(const uint8_t *a, const uint8_t *b, size_t len) {
    volatile uint8_t difference = 0; /* every byte is looked at, wherever the first difference is */
    for (size_t i = 0; i < len; i++) {
        difference |= a[i] ^ b[i];
    }
    return difference == 0;
}

/* HMAC(secret, label, length of the run id, run id, first nonce, second nonce). */
static int derive(const struct secret *secret, const char *label, size_t label_len, struct kv_slice run_id,
                  const uint8_t *first, const uint8_t *second, uint8_t out[HMAC_BYTES]) {
    uint8_t length[2];
    struct bytes_writer w = {.data = length, .size = sizeof length};
    bytes_put_number(&w, run_id.len, sizeof length);
    const struct hmac_part parts[] = {{label, label_len},
                                      {length, sizeof length},
                                      {run_id.data, run_id.len},
                                      {first, COORDINATOR_NONCE_BYTES},
                                      {second, COORDINATOR_NONCE_BYTES}};
    return secret_sign(secret, parts, sizeof parts / sizeof *parts, out);
}

static int coordinator_tag(const struct coordinator_auth *auth, const struct secret *secret, struct kv_slice run_id,
                           uint8_t out[HMAC_BYTES]) {
    return derive(secret, coordinator_label, sizeof coordinator_label, run_id, auth->agent_nonce,
                  auth->coordinator_nonce, out);
}

static int agent_tag(const struct coordinator_auth *auth, const struct secret *secret, struct kv_slice run_id,
                     uint8_t out[HMAC_BYTES]) {
    return derive(secret, agent_label, sizeof agent_label, run_id, auth->coordinator_nonce, auth->agent_nonce, out);
}

static int frame_keys(struct coordinator_auth *auth, const struct secret *secret, struct kv_slice run_id,
                      uint8_t to_coordinator[HMAC_BYTES], uint8_t to_agent[HMAC_BYTES]) {
    int rc = derive(secret, to_coordinator_label, sizeof to_coordinator_label, run_id, auth->agent_nonce,
                    auth->coordinator_nonce, to_coordinator);
    auth->out_count = auth->in_count = 0;
    return rc ? rc
              : derive(secret, to_agent_label, sizeof to_agent_label, run_id, auth->agent_nonce,
                       auth->coordinator_nonce, to_agent);
}

/* ---- the handshake ---- */

void coordinator_auth_greet(struct coordinator_auth *auth, const uint8_t nonce[COORDINATOR_NONCE_BYTES],
                            struct coordinator_message *out) {
    memcpy(auth->agent_nonce, nonce, COORDINATOR_NONCE_BYTES);
    *out = (struct coordinator_message){.kind = COORDINATOR_GREET};
    memcpy(out->nonce, nonce, COORDINATOR_NONCE_BYTES);
}

int coordinator_auth_challenge(struct coordinator_auth *auth, const struct secret *secret, struct kv_slice run_id,
                               const uint8_t nonce[COORDINATOR_NONCE_BYTES], const struct coordinator_message *greet,
                               struct coordinator_message *out) {
    memcpy(auth->agent_nonce, greet->nonce, COORDINATOR_NONCE_BYTES);
    memcpy(auth->coordinator_nonce, nonce, COORDINATOR_NONCE_BYTES);
    *out = (struct coordinator_message){.kind = COORDINATOR_CHALLENGE};
    memcpy(out->nonce, nonce, COORDINATOR_NONCE_BYTES);
    return coordinator_tag(auth, secret, run_id, out->tag);
}

int coordinator_auth_prove(struct coordinator_auth *auth, const struct secret *secret, struct kv_slice run_id,
                           const struct coordinator_message *challenge, struct coordinator_message *out) {
    uint8_t expected[HMAC_BYTES];
    memcpy(auth->coordinator_nonce, challenge->nonce, COORDINATOR_NONCE_BYTES);
    int rc = coordinator_tag(auth, secret, run_id, expected);
    if (rc == MUSTER_OK && !is_equal(expected, challenge->tag, sizeof expected)) {
        rc = status_fail(MUSTER_EPROTOCOL,
                         "authentication failed: its secret or --rdzv-id is not this node's; start all "
                         "nodes of the job with the same secret and --rdzv-id");
    }
    explicit_bzero(expected, sizeof expected);
    if (rc != MUSTER_OK) {
        return rc;
    }
    *out = (struct coordinator_message){.kind = COORDINATOR_PROOF};
    rc = agent_tag(auth, secret, run_id, out->tag);
    return rc ? rc : frame_keys(auth, secret, run_id, auth->out_key, auth->in_key);
}

int coordinator_auth_accept(struct coordinator_auth *auth, const struct secret *secret, struct kv_slice run_id,
                            const struct coordinator_message *proof) {
    uint8_t expected[HMAC_BYTES];
    int rc = agent_tag(auth, secret, run_id, expected);
    if (rc == MUSTER_OK && !is_equal(expected, proof->tag, sizeof expected)) {
        rc = status_fail(MUSTER_EPROTOCOL, "it does not know the job's secret");
    }
    explicit_bzero(expected, sizeof expected);
    return rc ? rc : frame_keys(auth, secret, run_id, auth->in_key, auth->out_key);
}

/* ---- frames ---- */

static int frame_tag(const struct secret *secret, const uint8_t key[HMAC_BYTES], uint64_t count, const uint8_t *frame,
                     size_t len, uint8_t out[HMAC_BYTES]) {
    uint8_t number[COUNT_BYTES];
    struct bytes_writer w = {.data = number, .size = sizeof number};
    bytes_put_number(&w, count, sizeof number);
    const struct hmac_part parts[] = {{number, sizeof number}, {frame, len}};
    return secret_sign_with(secret, key, parts, sizeof parts / sizeof *parts, out);
}

int coordinator_auth_seal(struct coordinator_auth *auth, const struct secret *secret, struct buf *frame, size_t from) {
    uint8_t tag[HMAC_BYTES];
    int rc = frame_tag(secret, auth->out_key, auth->out_count++, buf_bytes(frame) + from, frame->len - from, tag);
    return rc ? rc : buf_append(frame, tag, COORDINATOR_SEAL_BYTES);
}

enum coordinator_parse coordinator_auth_open(struct coordinator_auth *auth, const struct secret *secret,
                                             const uint8_t *bytes, size_t len, size_t *frame_len) {
    struct bytes_reader r = {.data = bytes, .size = len};
    uint8_t tag[HMAC_BYTES];
    uint64_t length = bytes_get_number(&r, LENGTH_BYTES);
    if (r.overrun) {
        return COORDINATOR_MORE;
    }
    if (length == 0 || length > COORDINATOR_FRAME_BYTES_MAX - LENGTH_BYTES) {
        (void)status_fail(MUSTER_EPROTOCOL, "a message of %llu bytes", (unsigned long long)length);
        return COORDINATOR_MALFORMED;
    }
    size_t whole = LENGTH_BYTES + (size_t)length;
    if (len < whole + COORDINATOR_SEAL_BYTES) {
        return COORDINATOR_MORE;
    }
    if (frame_tag(secret, auth->in_key, auth->in_count++, bytes, whole, tag)) {
        return COORDINATOR_MALFORMED;
    }
    if (!is_equal(tag, bytes + whole, COORDINATOR_SEAL_BYTES)) {
        (void)status_fail(MUSTER_EPROTOCOL, "a message that was forged, changed, repeated or moved on its way");
        return COORDINATOR_MALFORMED;
    }
    *frame_len = whole;
    return COORDINATOR_COMPLETE;
}

void coordinator_auth_wipe(struct coordinator_auth *auth) {
    explicit_bzero(auth, sizeof *auth);
}
