/* See text.h. */
#include "text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "random.h"

static const size_t TEXT_MAX = (size_t)1 << 30; /* bytes of a file */

/* ---- The alphabet ---- */

void alphabet_read(struct alphabet *alphabet, const char *folder) {
    if (folder != NULL) {
        alphabet->bpe = bpe_read(folder);
        if (alphabet->count != 0 && alphabet->count != bpe_count(alphabet->bpe)) {
            fail("the model has %d tokens, the vocabulary in %s has %d", alphabet->count, folder,
                 bpe_count(alphabet->bpe));
        }
        alphabet->count = bpe_count(alphabet->bpe);
    } else if (alphabet->count > TEXT_BYTES) {
        fail("the model has %d tokens, so that they are no characters: it needs its --vocabulary", alphabet->count);
    }
}

void alphabet_done(struct alphabet *alphabet) {
    bpe_free(alphabet->bpe);
}

/* All bytes of the text, in ascending order. */
static void take_characters(struct alphabet *alphabet, const uint8_t *text, size_t length) {
    bool is_there[TEXT_BYTES] = {false};
    for (size_t i = 0; i < length; i++) {
        is_there[text[i]] = true;
    }
    for (int i = 0; i < TEXT_BYTES; i++) {
        if (is_there[i]) {
            alphabet->characters[alphabet->count++] = (uint8_t)i;
        }
    }
}

size_t alphabet_encode(const struct alphabet *alphabet, const uint8_t *text, size_t length, int32_t *tokens) {
    int32_t token_of[TEXT_BYTES];
    if (alphabet->bpe != NULL) {
        return bpe_encode(alphabet->bpe, text, length, tokens);
    }
    memset(token_of, -1, sizeof token_of);
    for (int i = 0; i < alphabet->count; i++) {
        token_of[alphabet->characters[i]] = i;
    }
    for (size_t i = 0; i < length; i++) {
        tokens[i] = token_of[text[i]];
        if (tokens[i] < 0) {
            fail("the text that was trained on has no character number %d, as in the prompt", text[i]);
        }
    }
    return length;
}

const uint8_t *alphabet_decode(const struct alphabet *alphabet, int32_t token, size_t *length) {
    *length = 1;
    return alphabet->bpe != NULL ? bpe_decode(alphabet->bpe, token, length) : &alphabet->characters[token];
}

int32_t alphabet_first(const struct alphabet *alphabet) {
    return alphabet->bpe != NULL ? bpe_end_of_text(alphabet->bpe) : 0;
}

/* ---- The text ---- */

/* All bytes of the file. */
static uint8_t *read_bytes(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail("cannot open %s: %s", path, strerror(errno));
    }
    size_t room = (size_t)1 << 16, used = 0;
    uint8_t *bytes = allocate(room, 1);
    for (size_t got = 0; (got = fread(bytes + used, 1, room - used, file)) > 0;) {
        used += got;
        if (used == room) {
            uint8_t *larger = room < TEXT_MAX ? realloc(bytes, 2 * room) : NULL;
            if (larger == NULL) {
                fail("%s is too long", path);
            }
            bytes = larger;
            room *= 2;
        }
    }
    if (ferror(file)) {
        fail("cannot read %s: %s", path, strerror(errno));
    }
    (void)fclose(file);
    *count = used;
    return bytes;
}

void text_read(struct text *text, const char *path, const char *vocabulary, int length) {
    size_t byte_count = 0;
    *text = (struct text){.count = 0};
    uint8_t *bytes = read_bytes(path, &byte_count);
    alphabet_read(&text->alphabet, vocabulary);
    if (vocabulary == NULL) {
        take_characters(&text->alphabet, bytes, byte_count);
    }
    text->tokens = allocate(byte_count, sizeof *text->tokens);
    text->count = alphabet_encode(&text->alphabet, bytes, byte_count, text->tokens);
    free(bytes);
    text->train_count = text->count - text->count / 10;
    if (text->count - text->train_count <= (size_t)length) {
        fail("%s is too short: a tenth of it, %zu tokens, is no sequence of %d and the one that follows", path,
             text->count - text->train_count, length);
    }
}

void text_free(struct text *text) {
    free(text->tokens);
}

void text_batch(const struct text *text, const struct text_draw *draw, int batch, int length, int32_t *tokens,
                int32_t *targets) {
    bool trains = draw->part == TEXT_TRAIN;
    size_t begin = trains ? 0 : text->train_count, end = trains ? text->train_count : text->count;
    uint64_t key = random_mix(random_mix(draw->seed, RANDOM_BATCH), draw->part);
    key = random_mix(key, draw->step);
    for (int i = 0; i < batch; i++) {
        uint64_t places = end - begin - (size_t)length; /* the last one leaves room for its target */
        size_t at = begin + (size_t)(random_mix(key, draw->first + (uint64_t)i) % places);
        memcpy(tokens + (size_t)i * (size_t)length, text->tokens + at, (size_t)length * sizeof *tokens);
        memcpy(targets + (size_t)i * (size_t)length, text->tokens + at + 1, (size_t)length * sizeof *targets);
    }
}
