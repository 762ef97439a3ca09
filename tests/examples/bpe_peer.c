/* The half of test_gpt_bpe.py that is C: bpe_peer encode|decode|words FOLDER. Reads a text from stdin and writes its
 * tokens as int32, or the other way round, or the bytes of each word as int32. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpe.h"
#include "bpe_words.h"
#include "fail.h"

enum { INPUT_MAX = 16 << 20 };

static void decode(const struct bpe *bpe, const int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t length = 0;
        const uint8_t *bytes = bpe_decode(bpe, tokens[i], &length);
        (void)fwrite(bytes, 1, length, stdout);
    }
}

static size_t split(const uint8_t *text, size_t length, int32_t *lengths) {
    size_t count = 0;
    for (size_t at = 0; at < length; count++) {
        size_t word = bpe_word_length(text + at, length - at);
        lengths[count] = (int32_t)word;
        at += word;
    }
    return count;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    struct bpe *bpe = bpe_read(argv[2]);
    int32_t *tokens = allocate(INPUT_MAX, sizeof *tokens);
    uint8_t *text = allocate(INPUT_MAX, 1);
    if (strcmp(argv[1], "decode") == 0) {
        decode(bpe, tokens, fread(tokens, sizeof *tokens, INPUT_MAX, stdin));
    } else {
        size_t length = fread(text, 1, INPUT_MAX, stdin);
        bool encodes = strcmp(argv[1], "encode") == 0;
        size_t count = encodes ? bpe_encode(bpe, text, length, tokens) : split(text, length, tokens);
        (void)fwrite(tokens, sizeof *tokens, count, stdout);
    }
    free(text);
    free(tokens);
    bpe_free(bpe);
    return 0;
}
