/* A text as numbers. Each distinct byte of the file is a token; with a vocabulary, tokens are GPT-2's (bpe.h). The
 * first nine tenths are for training, the rest tests. */
#ifndef EXAMPLES_GPT_TEXT_H
#define EXAMPLES_GPT_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "bpe.h"

enum { TEXT_BYTES = 256 };

/* Tokens are the places in `characters`, in ascending order of the bytes. */
struct alphabet {
    int count;
    uint8_t characters[TEXT_BYTES];
    struct bpe *bpe; /* NULL: tokens are characters */
};

/* Takes the tokens of the vocabulary in `folder`; NULL leaves characters. Fails if the alphabet has a count already,
 * that of a trained model, which is another one. */
void alphabet_read(struct alphabet *alphabet, const char *folder);
void alphabet_done(struct alphabet *alphabet);

/* Writes the tokens of `length` bytes; returns how many. Fails if one of the bytes is no character of the alphabet.
 * tokens: room for `length` of them. */
size_t alphabet_encode(const struct alphabet *alphabet, const uint8_t *text, size_t length, int32_t *tokens);

/* The bytes of a token, borrowed. */
const uint8_t *alphabet_decode(const struct alphabet *alphabet, int32_t token, size_t *length);

/* What a text begins with that has no other beginning: GPT-2's end of the text before, or the first character, which is
 * a line feed in most texts. */
int32_t alphabet_first(const struct alphabet *alphabet);

struct text {
    struct alphabet alphabet;
    int32_t *tokens;
    size_t count, train_count;
};

enum text_part { TEXT_TRAIN, TEXT_TEST };

/* vocabulary: its folder; NULL: tokens are characters. Fails if the file cannot be read, or if a part is too short for
 * a sequence of `length` tokens and its target. The alphabet is the caller's to release. */
void text_read(struct text *text, const char *path, const char *vocabulary, int length);
void text_free(struct text *text);

/* Which sequences: number `first` and those after it of the step. The same whoever draws them. */
struct text_draw {
    enum text_part part;
    uint64_t seed, step, first;
};

/* `batch` sequences of `length` tokens, from places that are drawn. targets: what follows each token. */
void text_batch(const struct text *text, const struct text_draw *draw, int batch, int length, int32_t *tokens,
                int32_t *targets);

#endif
