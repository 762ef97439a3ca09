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

int32_t alphabet_token(const struct alphabet *alphabet, uint8_t character) {
    for (int i = 0; i < alphabet->count; i++) {
        if (alphabet->characters[i] == character) {
            return i;
        }
    }
    return -1;
}

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

void text_read(struct text *text, const char *path, int length) {
    bool is_there[TEXT_BYTES] = {false};
    int32_t token_of[TEXT_BYTES] = {0};
    *text = (struct text){.count = 0};
    uint8_t *bytes = read_bytes(path, &text->count);
    for (size_t i = 0; i < text->count; i++) {
        is_there[bytes[i]] = true;
    }
    for (int i = 0; i < TEXT_BYTES; i++) {
        if (is_there[i]) {
            token_of[i] = text->alphabet.count;
            text->alphabet.characters[text->alphabet.count++] = (uint8_t)i;
        }
    }
    text->tokens = allocate(text->count, sizeof *text->tokens);
    for (size_t i = 0; i < text->count; i++) {
        text->tokens[i] = token_of[bytes[i]];
    }
    free(bytes);
    text->train_count = text->count - text->count / 10;
    if (text->count - text->train_count <= (size_t)length) {
        fail("%s is too short: a tenth of it, %zu bytes, is no sequence of %d and the one that follows", path,
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
