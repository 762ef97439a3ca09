/* See bpe.h. */
#include "bpe.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpe_words.h"
#include "fail.h"

enum { BYTES = 256, PATH_ROOM = 4096 };

/* Two tokens that become one. */
struct merge {
    int32_t left, right, merged;
    int32_t rank; /* lower ones come first; -1: the slot is free */
};

struct bpe {
    int count;
    uint8_t **tokens; /* the bytes of each */
    size_t *lengths;
    int32_t byte_tokens[BYTES];
    int32_t end_of_text;
    struct merge *merges; /* a hash table with a power of 2 slots, half of them free at least */
    size_t slot_count;
};

/* ---- Bytes as characters ---- */

/* Printable bytes stand for themselves, the others are characters from 256 on in ascending order. */
static void list_characters(uint32_t characters[BYTES]) {
    uint32_t next = BYTES;
    for (uint32_t byte = 0; byte < BYTES; byte++) {
        bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
        characters[byte] = is_printable ? byte : next++;
    }
}

/* Below 2048, which all of these characters are. */
static void write_utf8(uint32_t character, char out[3]) {
    bool is_short = character < 128;
    out[0] = (char)(is_short ? character : 0xc0 | character >> 6);
    out[1] = (char)(is_short ? 0 : 0x80 | (character & 0x3f));
    out[2] = '\0';
}

/* The bytes of a token of this text; NULL if a character stands for no byte. */
static uint8_t *read_token(const char *text, size_t *length) {
    uint32_t characters[BYTES];
    uint8_t *bytes = allocate(strlen(text) + 1, 1);
    list_characters(characters);
    *length = 0;
    for (const char *c = text; *c != '\0'; c++) {
        uint32_t first = (uint8_t)*c, byte = 0;
        if (first >= 0xc0) { /* two bytes, or more that begin as none of the characters does */
            first = first < 0xe0 ? (first & 0x1f) << 6 | ((uint8_t) * ++c & 0x3f) : UINT32_MAX;
        }
        while (byte < BYTES && characters[byte] != first) {
            byte++;
        }
        if (byte == BYTES) {
            free(bytes);
            return NULL;
        }
        bytes[(*length)++] = (uint8_t)byte;
    }
    return bytes;
}

/* ---- encoder.json ---- */

static int32_t token_of(const json_t *tree, const char *text) {
    const json_t *number = json_object_get(tree, text);
    return number == NULL ? -1 : (int32_t)json_integer_value(number);
}

static json_t *read_tree(const char *path) {
    json_error_t error;
    json_t *tree = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (tree == NULL) {
        fail("cannot read %s: %s", path, error.text);
    }
    if (!json_is_object(tree) || json_object_size(tree) == 0 || json_object_size(tree) > BPE_TOKENS_MAX) {
        fail("%s is no vocabulary: an object of 1 to %d tokens", path, BPE_TOKENS_MAX);
    }
    return tree;
}

static void read_tokens(struct bpe *bpe, json_t *tree, const char *path) {
    const char *text = NULL;
    json_t *number = NULL;
    bpe->count = (int)json_object_size(tree);
    bpe->tokens = allocate((size_t)bpe->count, sizeof *bpe->tokens);
    bpe->lengths = allocate((size_t)bpe->count, sizeof *bpe->lengths);
    json_object_foreach(tree, text, number) {
        json_int_t token = json_is_integer(number) ? json_integer_value(number) : -1;
        if (token < 0 || token >= bpe->count || bpe->tokens[token] != NULL) {
            fail("%s: the tokens are not numbered from 0 to %d: '%s'", path, bpe->count - 1, text);
        }
        bpe->tokens[token] = read_token(text, &bpe->lengths[token]);
        if (bpe->tokens[token] == NULL) {
            fail("%s: '%s' has a character that stands for no byte", path, text);
        }
    }
    uint32_t characters[BYTES];
    list_characters(characters);
    for (int byte = 0; byte < BYTES; byte++) {
        char character[3];
        write_utf8(characters[byte], character);
        bpe->byte_tokens[byte] = token_of(tree, character);
        if (bpe->byte_tokens[byte] < 0) {
            fail("%s has no token for byte %d", path, byte);
        }
    }
    int32_t end = token_of(tree, "<|endoftext|>");
    bpe->end_of_text = end < 0 ? 0 : end;
}

/* ---- vocab.bpe ---- */

/* The slot of a pair, or the free one where it belongs. */
static struct merge *find(const struct bpe *bpe, int32_t left, int32_t right) {
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
    size_t at = (size_t)(hash >> 32) & (bpe->slot_count - 1);
    while (bpe->merges[at].rank >= 0 && (bpe->merges[at].left != left || bpe->merges[at].right != right)) {
        at = (at + 1) & (bpe->slot_count - 1);
    }
    return &bpe->merges[at];
}

/* A line is two tokens with a space between them; it may be changed. */
static void add_merge(struct bpe *bpe, const json_t *tree, char *line, int32_t rank, const char *path) {
    char *space = strchr(line, ' ');
    struct merge merge = {-1, -1, -1, rank};
    if (space != NULL) {
        *space = '\0';
        merge.left = token_of(tree, line);
        merge.right = token_of(tree, space + 1);
        memmove(space, space + 1, strlen(space + 1) + 1);
        merge.merged = token_of(tree, line);
    }
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
        fail("%s: pair number %d is not two tokens that are one together", path, (int)rank + 1);
    }
    struct merge *slot = find(bpe, merge.left, merge.right);
    if (slot->rank < 0) {
        *slot = merge;
    }
}

/* As many pairs as tokens at most, because each makes a token of its own. */
static void make_table(struct bpe *bpe) {
    bpe->slot_count = 1;
    while (bpe->slot_count < 2 * (size_t)bpe->count) {
        bpe->slot_count *= 2;
    }
    bpe->merges = allocate(bpe->slot_count, sizeof *bpe->merges);
    for (size_t i = 0; i < bpe->slot_count; i++) {
        bpe->merges[i].rank = -1;
    }
}

static void read_merges(struct bpe *bpe, const json_t *tree, const char *path) {
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    int32_t rank = 0;
    if (file == NULL) {
        fail("cannot open %s: %s", path, strerror(errno));
    }
    make_table(bpe);
    while (getline(&line, &room, file) >= 0) {
        line[strcspn(line, "\r\n")] = '\0';
        bool is_header = rank == 0 && strncmp(line, "#version", strlen("#version")) == 0;
        if (is_header || line[0] == '\0') {
            continue;
        }
        if (rank == bpe->count) {
            fail("%s has more pairs than there are tokens", path);
        }
        add_merge(bpe, tree, line, rank++, path);
    }
    if (ferror(file)) {
        fail("cannot read %s: %s", path, strerror(errno));
    }
    free(line);
    (void)fclose(file);
}

/* ---- The vocabulary ---- */

struct bpe *bpe_read(const char *folder) {
    char path[PATH_ROOM];
    struct bpe *bpe = allocate(1, sizeof *bpe);
    if ((size_t)snprintf(path, sizeof path, "%s/encoder.json", folder) >= sizeof path) {
        fail("the name of the vocabulary's folder is too long");
    }
    json_t *tree = read_tree(path);
    read_tokens(bpe, tree, path);
    (void)snprintf(path, sizeof path, "%s/vocab.bpe", folder);
    read_merges(bpe, tree, path);
    json_decref(tree);
    return bpe;
}

void bpe_free(struct bpe *bpe) {
    if (bpe == NULL) {
        return;
    }
    for (int token = 0; token < bpe->count; token++) {
        free(bpe->tokens[token]);
    }
    free(bpe->tokens);
    free(bpe->lengths);
    free(bpe->merges);
    free(bpe);
}

int bpe_count(const struct bpe *bpe) {
    return bpe->count;
}

int32_t bpe_end_of_text(const struct bpe *bpe) {
    return bpe->end_of_text;
}

const uint8_t *bpe_decode(const struct bpe *bpe, int32_t token, size_t *length) {
    *length = bpe->lengths[token];
    return bpe->tokens[token];
}

/* ---- Encoding ---- */

/* The pair of neighbours that is to become one token next; NULL: none is. */
static const struct merge *next_merge(const struct bpe *bpe, const int32_t *tokens, size_t count) {
    const struct merge *next = NULL;
    for (size_t i = 0; i + 1 < count; i++) {
        const struct merge *merge = find(bpe, tokens[i], tokens[i + 1]);
        if (merge->rank >= 0 && (next == NULL || merge->rank < next->rank)) {
            next = merge;
        }
    }
    return next;
}

/* Merges the tokens of a word, in place. Returns how many are left. Each pass merges all places of one pair, so that
 * long words of few different bytes take few passes. */
static size_t merge_word(const struct bpe *bpe, int32_t *tokens, size_t count) {
    const struct merge *merge = NULL;
    while ((merge = next_merge(bpe, tokens, count)) != NULL) {
        size_t left = 0;
        for (size_t i = 0; i < count; left++) {
            bool is_pair = i + 1 < count && tokens[i] == merge->left && tokens[i + 1] == merge->right;
            tokens[left] = is_pair ? merge->merged : tokens[i];
            i += is_pair ? 2 : 1;
        }
        count = left;
    }
    return count;
}

size_t bpe_encode(const struct bpe *bpe, const uint8_t *text, size_t length, int32_t *tokens) {
    size_t count = 0;
    for (size_t at = 0; at < length;) {
        size_t word = bpe_word_length(text + at, length - at);
        for (size_t i = 0; i < word; i++) {
            tokens[count + i] = bpe->byte_tokens[text[at + i]];
        }
        count += merge_word(bpe, tokens + count, word);
        at += word;
    }
    return count;
}
