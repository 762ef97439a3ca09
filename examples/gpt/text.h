/* A text as numbers: each distinct byte of the file is a token. The first nine tenths are for training, the rest tests.
 */
#ifndef EXAMPLES_GPT_TEXT_H
#define EXAMPLES_GPT_TEXT_H

#include <stddef.h>
#include <stdint.h>

enum { TEXT_BYTES = 256 };

/* Tokens are the places in `characters`, in ascending order of the bytes. */
struct alphabet {
    int count;
    uint8_t characters[TEXT_BYTES];
};

/* -1: the byte is none of them. */
int32_t alphabet_token(const struct alphabet *alphabet, uint8_t character);

struct text {
    struct alphabet alphabet;
    int32_t *tokens;
    size_t count, train_count;
};

enum text_part { TEXT_TRAIN, TEXT_TEST };

/* Fails if the file cannot be read, or if a part is too short for a sequence of `length` tokens and its target. */
void text_read(struct text *text, const char *path, int length);
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
