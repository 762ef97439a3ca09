/* The handshake and the frames' tags without any connection: who knows the secret gets through, and nobody else,
 * whatever was recorded, sent back, cut or changed. */
#include "rendezvous/wire/coordinator_auth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/wire/coordinator_line.h"

enum { FRAMES_MAX = 4096 };

static struct secret *ours, *other;

static struct secret *secret_of(const char *value) {
    struct secret_text text;
    struct secret *secret;
    assert_int_equal(secret_text_load(NULL, value, &text), 0);
    assert_int_equal(secret_create(&text, &secret), 0);
    return secret;
}

static int make_secrets(void **state) {
    (void)state;
    ours = secret_of("the secret of this job");
    other = secret_of("the secret of this joB");
    return 0;
}

static int free_secrets(void **state) {
    (void)state;
    secret_free(ours);
    secret_free(other);
    return 0;
}

/* Both ends, and what they have said. */
struct talk {
    struct coordinator_auth agent, coordinator;
    struct coordinator_message greet, challenge, proof;
};

static const uint8_t *nonce(uint8_t of) {
    static uint8_t bytes[COORDINATOR_NONCE_BYTES];
    memset(bytes, of, sizeof bytes);
    return bytes;
}

static void begin(struct talk *t, uint8_t agent_nonce, uint8_t coordinator_nonce) {
    coordinator_auth_greet(&t->agent, nonce(agent_nonce), &t->greet);
    assert_int_equal(coordinator_auth_challenge(&t->coordinator, ours, kv_slice_text("job"), nonce(coordinator_nonce),
                                                &t->greet, &t->challenge),
                     0);
}

static void finish(struct talk *t) {
    assert_int_equal(coordinator_auth_prove(&t->agent, ours, kv_slice_text("job"), &t->challenge, &t->proof), 0);
    assert_int_equal(coordinator_auth_accept(&t->coordinator, ours, kv_slice_text("job"), &t->proof), 0);
}

static void put_sealed(struct coordinator_auth *auth, struct buf *out, const char *why) {
    size_t from = out->len;
    const struct coordinator_message message = {.kind = COORDINATOR_LEAVE, .text = kv_slice_text(why)};
    assert_int_equal(coordinator_wire_put(out, &message), 0);
    assert_int_equal(coordinator_auth_seal(auth, ours, out, from), 0);
}

static enum coordinator_parse open_next(struct coordinator_auth *auth, const uint8_t *bytes, size_t len,
                                        size_t *whole) {
    return coordinator_auth_open(auth, ours, bytes, len, whole);
}

static void both_know_it(void **state) {
    struct talk t;
    struct buf bytes;
    size_t len;
    (void)state;
    begin(&t, 1, 2);
    finish(&t);
    buf_init(&bytes, FRAMES_MAX);
    put_sealed(&t.agent, &bytes, "one");
    size_t first = bytes.len;
    put_sealed(&t.agent, &bytes, "two");
    for (size_t short_by = 1; short_by <= first; short_by++) {
        assert_int_equal(open_next(&t.coordinator, buf_bytes(&bytes), first - short_by, &len), COORDINATOR_MORE);
    }
    assert_int_equal(open_next(&t.coordinator, buf_bytes(&bytes), bytes.len, &len), COORDINATOR_COMPLETE);
    assert_int_equal(len, first - COORDINATOR_SEAL_BYTES);
    assert_int_equal(open_next(&t.coordinator, buf_bytes(&bytes) + first, bytes.len - first, &len),
                     COORDINATOR_COMPLETE);
    buf_clear(&bytes);
    put_sealed(&t.coordinator, &bytes, "back");
    assert_int_equal(open_next(&t.agent, buf_bytes(&bytes), bytes.len, &len), COORDINATOR_COMPLETE);
    buf_done(&bytes);
}

/* By another implementation: python3 -c 'hmac.new(b"the secret of this job", label + run id + nonces, "sha256")'. */
static void tags_are_as_documented(void **state) {
    static const uint8_t challenge[8] = {0xda, 0xcd, 0xe3, 0x08, 0xd3, 0xdb, 0x26, 0x37},
                         proof[8] = {0xdc, 0xe6, 0x27, 0xaf, 0x0b, 0xa9, 0xe5, 0xdc},
                         seal[8] = {0x10, 0x3c, 0x20, 0x1b, 0xb3, 0x7f, 0xec, 0xe0};
    struct talk t;
    struct buf bytes;
    (void)state;
    begin(&t, 1, 2);
    finish(&t);
    assert_memory_equal(t.challenge.tag, challenge, sizeof challenge);
    assert_memory_equal(t.proof.tag, proof, sizeof proof);
    buf_init(&bytes, FRAMES_MAX);
    put_sealed(&t.agent, &bytes, "one");
    put_sealed(&t.agent, &bytes, "one");
    assert_memory_equal(buf_bytes(&bytes) + bytes.len - COORDINATOR_SEAL_BYTES, seal, sizeof seal);
    buf_done(&bytes);
}

static void an_impostor_is_not_believed(void **state) {
    struct talk t;
    (void)state;
    begin(&t, 1, 2);
    assert_int_equal(coordinator_auth_prove(&t.agent, other, kv_slice_text("job"), &t.challenge, &t.proof),
                     MUSTER_EPROTOCOL);
    assert_non_null(strstr(muster_detail(), "its secret or --rdzv-id"));
    assert_int_equal(coordinator_auth_prove(&t.agent, ours, kv_slice_text("jo"), &t.challenge, &t.proof),
                     MUSTER_EPROTOCOL);
    for (size_t i = 0; i < COORDINATOR_TAG_BYTES; i++) {
        struct coordinator_message changed = t.challenge;
        changed.tag[i] ^= 0x80;
        assert_int_equal(coordinator_auth_prove(&t.agent, ours, kv_slice_text("job"), &changed, &t.proof),
                         MUSTER_EPROTOCOL);
        changed = t.challenge;
        changed.nonce[i] ^= 1;
        assert_int_equal(coordinator_auth_prove(&t.agent, ours, kv_slice_text("job"), &changed, &t.proof),
                         MUSTER_EPROTOCOL);
    }
}

static void a_wrong_proof_is_not_accepted(void **state) {
    struct talk t;
    (void)state;
    begin(&t, 1, 2);
    finish(&t);
    for (size_t i = 0; i < COORDINATOR_TAG_BYTES; i++) {
        struct coordinator_message changed = t.proof;
        changed.tag[i] ^= 1;
        assert_int_equal(coordinator_auth_accept(&t.coordinator, ours, kv_slice_text("job"), &changed),
                         MUSTER_EPROTOCOL);
    }
    assert_int_equal(coordinator_auth_accept(&t.coordinator, other, kv_slice_text("job"), &t.proof), MUSTER_EPROTOCOL);
    assert_int_equal(coordinator_auth_accept(&t.coordinator, ours, kv_slice_text("bjo"), &t.proof), MUSTER_EPROTOCOL);
}

/* What a coordinator has said, as the proof of an agent, also with its own nonce as the agent's. */
static void nothing_can_be_reflected(void **state) {
    struct talk t, back;
    (void)state;
    begin(&t, 1, 1);
    struct coordinator_message proof = {.kind = COORDINATOR_PROOF};
    memcpy(proof.tag, t.challenge.tag, sizeof proof.tag);
    assert_int_equal(coordinator_auth_accept(&t.coordinator, ours, kv_slice_text("job"), &proof), MUSTER_EPROTOCOL);
    /* An impostor of a coordinator gets an agent's proof only for a true challenge; as a challenge it is nothing. */
    finish(&t);
    begin(&back, 1, 1);
    memcpy(back.challenge.tag, t.proof.tag, sizeof back.challenge.tag);
    assert_int_equal(coordinator_auth_prove(&back.agent, ours, kv_slice_text("job"), &back.challenge, &back.proof),
                     MUSTER_EPROTOCOL);
    /* Nor does a frame go back where it comes from. */
    struct buf bytes;
    size_t len;
    buf_init(&bytes, FRAMES_MAX);
    put_sealed(&t.agent, &bytes, "one");
    assert_int_equal(open_next(&t.agent, buf_bytes(&bytes), bytes.len, &len), COORDINATOR_MALFORMED);
    buf_done(&bytes);
}

static void a_recording_is_of_no_use(void **state) {
    struct talk t, later;
    (void)state;
    begin(&t, 1, 2);
    finish(&t);
    begin(&later, 1, 3); /* the same GREET, another challenge */
    assert_int_equal(coordinator_auth_accept(&later.coordinator, ours, kv_slice_text("job"), &t.proof),
                     MUSTER_EPROTOCOL);
    begin(&later, 4, 5);
    assert_int_equal(coordinator_auth_prove(&later.agent, ours, kv_slice_text("job"), &t.challenge, &later.proof),
                     MUSTER_EPROTOCOL);
}

static void frames_keep_their_place(void **state) {
    struct talk t;
    struct buf bytes;
    size_t len;
    (void)state;
    begin(&t, 1, 2);
    finish(&t);
    buf_init(&bytes, FRAMES_MAX);
    put_sealed(&t.agent, &bytes, "one");
    size_t one = bytes.len;
    put_sealed(&t.agent, &bytes, "two");
    struct coordinator_auth fresh = t.coordinator;
    /* The second first, or the first twice. */
    assert_int_equal(open_next(&t.coordinator, buf_bytes(&bytes) + one, bytes.len - one, &len), COORDINATOR_MALFORMED);
    t.coordinator = fresh;
    assert_int_equal(open_next(&t.coordinator, buf_bytes(&bytes), one, &len), COORDINATOR_COMPLETE);
    assert_int_equal(open_next(&t.coordinator, buf_bytes(&bytes), one, &len), COORDINATOR_MALFORMED);
    assert_non_null(strstr(muster_detail(), "forged"));
    /* Any other bit. */
    for (size_t bit = 8 * 4; bit < 8 * one; bit++) {
        uint8_t copy[FRAMES_MAX];
        memcpy(copy, buf_bytes(&bytes), one);
        copy[bit / 8] ^= (uint8_t)(1U << bit % 8);
        t.coordinator = fresh;
        assert_int_equal(open_next(&t.coordinator, copy, one, &len), COORDINATOR_MALFORMED);
    }
    buf_done(&bytes);
}

static void lengths_are_looked_at_first(void **state) {
    static const uint8_t none[4], longest[4] = {0xfc, 0x1f}, longer[4] = {0xfd, 0x1f}, huge[4] = {255, 255, 255, 255};
    struct talk t;
    size_t len;
    (void)state;
    begin(&t, 1, 2);
    finish(&t);
    assert_int_equal(open_next(&t.coordinator, none, 4, &len), COORDINATOR_MALFORMED);
    assert_int_equal(open_next(&t.coordinator, longer, 4, &len), COORDINATOR_MALFORMED);
    assert_int_equal(open_next(&t.coordinator, huge, 4, &len), COORDINATOR_MALFORMED);
    assert_int_equal(open_next(&t.coordinator, longest, 4, &len), COORDINATOR_MORE);
    assert_int_equal(open_next(&t.coordinator, huge, 3, &len), COORDINATOR_MORE);
}

/* ---- the line: what is heard, and when ---- */

static enum coordinator_line_event say(struct coordinator_line *line, const struct secret *secret, struct buf *answer,
                                       const struct coordinator_message *message) {
    const struct coordinator_gate gate = {.secret = secret, .run_id = kv_slice_text("job")};
    struct coordinator_message heard;
    struct buf bytes;
    size_t used = 0;
    buf_init(&bytes, FRAMES_MAX);
    buf_clear(answer);
    if (message) {
        assert_int_equal(coordinator_wire_put(&bytes, message), 0);
    } else {
        assert_int_equal(buf_append(&bytes, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES), 0);
    }
    enum coordinator_line_event event =
        coordinator_line_take(line, &gate, buf_bytes(&bytes), bytes.len, answer, &heard, &used);
    assert_true(event >= COORDINATOR_LINE_REFUSED || used == bytes.len);
    buf_done(&bytes);
    return event;
}

static const struct coordinator_message alive = {.kind = COORDINATOR_ALIVE};

/* Each message of an agent at each stage but the one that is due. */
static void nothing_is_heard_without_a_proof(void **state) {
    static const enum coordinator_kind kinds[] = {COORDINATOR_FAILED, COORDINATOR_LEAVE,  COORDINATOR_DONE,
                                                  COORDINATOR_CLOSE,  COORDINATOR_ALIVE,  COORDINATOR_GREET,
                                                  COORDINATOR_PROOF,  COORDINATOR_STATUS, COORDINATOR_PREEMPT};
    struct buf answer;
    (void)state;
    buf_init(&answer, FRAMES_MAX);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const struct coordinator_message greet = {.kind = COORDINATOR_GREET}, said = {.kind = kinds[i]};
        struct coordinator_line line = {0};
        assert_int_equal(say(&line, ours, &answer, NULL), COORDINATOR_LINE_STEP);
        assert_int_equal(answer.len, 0);
        if (kinds[i] != COORDINATOR_GREET) {
            assert_int_equal(say(&line, ours, &answer, &said), COORDINATOR_LINE_REFUSED);
            assert_non_null(strstr(muster_detail(), "secret_file=FILE"));
            assert_int_equal(answer.len, 0);
        }
        line = (struct coordinator_line){.stage = COORDINATOR_LINE_GREETED};
        assert_int_equal(say(&line, ours, &answer, &greet), COORDINATOR_LINE_STEP);
        assert_true(answer.len > 0);
        assert_int_equal(say(&line, ours, &answer, &said), COORDINATOR_LINE_REFUSED); /* a PROOF of zeros, too */
        assert_int_equal(answer.len, 0);
        assert_true(coordinator_line_end(&line)); /* nothing new to be said of it */
    }
    buf_done(&answer);
}

static void who_goes_before_the_proof_is_noticed(void **state) {
    const struct coordinator_message greet = {.kind = COORDINATOR_GREET};
    struct coordinator_line line = {0};
    struct buf answer;
    (void)state;
    buf_init(&answer, FRAMES_MAX);
    assert_int_equal(say(&line, ours, &answer, NULL), COORDINATOR_LINE_STEP);
    assert_int_equal(say(&line, ours, &answer, &greet), COORDINATOR_LINE_STEP);
    assert_false(coordinator_line_end(&line));
    assert_non_null(strstr(muster_detail(), "its secret or --rdzv-id differs"));
    buf_done(&answer);
}

static void without_a_secret_nobody_is_asked(void **state) {
    const struct coordinator_message greet = {.kind = COORDINATOR_GREET}, proof = {.kind = COORDINATOR_PROOF};
    struct coordinator_line line = {0};
    struct buf answer;
    (void)state;
    buf_init(&answer, FRAMES_MAX);
    assert_int_equal(say(&line, NULL, &answer, NULL), COORDINATOR_LINE_STEP);
    assert_int_equal(say(&line, NULL, &answer, &alive), COORDINATOR_LINE_MESSAGE);
    assert_int_equal(say(&line, NULL, &answer, &proof), COORDINATOR_LINE_MESSAGE); /* refused by who gets it */
    assert_int_equal(say(&line, NULL, &answer, &greet), COORDINATOR_LINE_REFUSED);
    assert_non_null(strstr(muster_detail(), "has no secret"));
    buf_done(&answer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_know_it),
        cmocka_unit_test(tags_are_as_documented),
        cmocka_unit_test(an_impostor_is_not_believed),
        cmocka_unit_test(a_wrong_proof_is_not_accepted),
        cmocka_unit_test(nothing_can_be_reflected),
        cmocka_unit_test(a_recording_is_of_no_use),
        cmocka_unit_test(frames_keep_their_place),
        cmocka_unit_test(lengths_are_looked_at_first),
        cmocka_unit_test(nothing_is_heard_without_a_proof),
        cmocka_unit_test(who_goes_before_the_proof_is_noticed),
        cmocka_unit_test(without_a_secret_nobody_is_asked),
    };
    return cmocka_run_group_tests(tests, make_secrets, free_secrets);
}
