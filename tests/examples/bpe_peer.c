/* The half of test_gpt_bpe.py that is C: bpe_peer encode|decode FOLDER. Reads a text from stdin and writes its tokens
 * as int32, or the other way round. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpe.h"
#include "fail.h"

enum { INPUT_MAX = 16 << 20 };

static void decode(const struct bpe *bpe, const int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t length = 0;
        const uint8_t *bytes = bpe_decode(bpe, tokens[i], &length);
        (void)fwrite(bytes, 1, length, stdout);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    struct bpe *bpe = bpe_read(argv[2]);
    int32_t *tokens = allocate(INPUT_MAX, sizeof *tokens);
    if (strcmp(argv[1], "encode") == 0) {
        uint8_t *text = allocate(INPUT_MAX, 1);
        size_t length = fread(text, 1, INPUT_MAX, stdin);
        size_t count = bpe_encode(bpe, text, length, tokens);
        (void)fwrite(tokens, sizeof *tokens, count, stdout);
        free(text);
    } else {
        decode(bpe, tokens, fread(tokens, sizeof *tokens, INPUT_MAX, stdin));
    }
    free(tokens);
    bpe_free(bpe);
    return 0;
}
