/* A coordinator's line with a secret: what anybody sends, mixed with what an agent sends that knows the secret.
 *
 * Input: pieces of one byte that says what comes, one number, and perhaps as many bytes. A piece is bytes as they are,
 * or what the good agent says next (greeting, GREET, PROOF, and then messages), as it is, with one byte changed, or
 * again. Only what the good agent has said, whole and in order from the beginning, is ever heard. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "rendezvous/wire/coordinator_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_BYTES_MAX = 64 * 1024, PIECES_MAX = 64 };
enum action { RAW, NEXT, CHANGED, AGAIN, ACTIONS };
enum step { HELLO, GREET, PROOF, MESSAGES };

struct scene {
    struct coordinator_line line;
    struct coordinator_auth agent;
    struct buf in, answer, last; /* of the coordinator; from it; what the agent said last */
    enum step step;
    size_t said, heard; /* messages */
    bool is_good;       /* nothing but the agent's words has come */
    bool is_over;
};

static struct coordinator_gate gate;

static void put(struct buf *out, const struct coordinator_message *message) {
    int code = coordinator_wire_put(out, message);
    assert(code == 0);
}

/* Takes in what there is. */
static void serve(struct scene *scene) {
    while (!scene->is_over) {
        struct coordinator_message message;
        size_t used = 0;
        if (scene->in.len == 0) {
            return;
        }
        switch (coordinator_line_take(&scene->line, &gate, buf_bytes(&scene->in), scene->in.len, &scene->answer,
                                      &message, &used)) {
        case COORDINATOR_LINE_MORE:
            scene->is_over = scene->in.len >= COORDINATOR_LINE_BYTES_MAX; /* kv_guest.h */
            return;
        case COORDINATOR_LINE_STEP:
            break;
        case COORDINATOR_LINE_MESSAGE:
            scene->heard++;
            assert(scene->is_good && scene->heard <= scene->said && message.kind == COORDINATOR_FAILED);
            break;
        default:
            assert(!scene->is_good);
            scene->is_over = true;
            return;
        }
        assert(used > 0 && used <= scene->in.len);
        buf_consume(&scene->in, used);
    }
}

/* What the agent says next, if it has heard what it waits for. */
static void speak(struct scene *scene) {
    static const uint8_t nonce[COORDINATOR_NONCE_BYTES] = {7};
    const struct coordinator_message failed = {.kind = COORDINATOR_FAILED, .text = kv_slice_text("oh")};
    struct coordinator_message message, challenge;
    size_t used = 0;
    buf_clear(&scene->last);
    switch (scene->step) {
    case HELLO:
        (void)buf_append(&scene->last, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
        scene->step = GREET;
        return;
    case GREET:
        coordinator_auth_greet(&scene->agent, nonce, &message);
        put(&scene->last, &message);
        scene->step = PROOF;
        return;
    case PROOF:
        if (scene->answer.len == 0 || coordinator_wire_get(buf_bytes(&scene->answer), scene->answer.len, false,
                                                           &challenge, &used) != COORDINATOR_COMPLETE) {
            return;
        }
        assert(challenge.kind == COORDINATOR_CHALLENGE);
        if (coordinator_auth_prove(&scene->agent, gate.secret, gate.run_id, &challenge, &message) == 0) {
            put(&scene->last, &message);
            scene->step = MESSAGES;
        }
        return;
    default:
        put(&scene->last, &failed);
        int code = coordinator_auth_seal(&scene->agent, gate.secret, &scene->last, 0);
        assert(code == 0);
        scene->said++;
    }
}

static void play(struct scene *scene, const uint8_t *data, size_t size) {
    for (unsigned i = 0; i < PIECES_MAX && size >= 2; i++) {
        enum action action = data[0] % ACTIONS;
        size_t number = data[1];
        data += 2;
        size -= 2;
        if (action == RAW) {
            number = number < size ? number : size;
            scene->is_good = scene->is_good && number == 0;
            (void)buf_append(&scene->in, data, number);
            data += number;
            size -= number;
        } else {
            if (action != AGAIN) {
                speak(scene);
            }
            size_t len = scene->last.len;
            scene->is_good = scene->is_good && (action == NEXT || len == 0);
            if (action == CHANGED && len > 0) {
                buf_bytes(&scene->last)[number % len] ^= (uint8_t)(1U << number % 8);
            }
            (void)buf_append(&scene->in, len > 0 ? buf_bytes(&scene->last) : NULL, len);
        }
        serve(scene);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct secret *secret;
    if (!secret) {
        struct secret_text text;
        int code = secret_text_load(NULL, "the secret of this job", &text);
        code = code ? code : secret_create(&text, &secret);
        assert(code == 0);
        gate = (struct coordinator_gate){.secret = secret, .run_id = kv_slice_text("job")};
    }
    struct scene scene = {.is_good = true};
    buf_init(&scene.in, INPUT_BYTES_MAX);
    buf_init(&scene.answer, INPUT_BYTES_MAX);
    buf_init(&scene.last, INPUT_BYTES_MAX);
    play(&scene, data, size);
    assert(!scene.is_good || scene.heard == scene.said);
    (void)coordinator_line_end(&scene.line);
    buf_done(&scene.in);
    buf_done(&scene.answer);
    buf_done(&scene.last);
    return 0;
}
