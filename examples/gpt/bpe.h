/* GPT-2's tokens: byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019).
 *
 * The vocabulary is two files of a folder: encoder.json, an object of every token's text and number, and vocab.bpe, the
 * pairs that become one token, in the order in which they do. In both a byte stands as a printable character.
 *
 * A text falls into words first (bpe_words.h), and a word into its bytes. Then, again and again, that pair of
 * neighbours becomes one token that stands first in the list. What is decoded is what was encoded, whatever bytes it
 * has. Special tokens, such as <|endoftext|>, are never made from text. */
#ifndef EXAMPLES_GPT_BPE_H
#define EXAMPLES_GPT_BPE_H

#include <stddef.h>
#include <stdint.h>

enum { BPE_TOKENS_MAX = 1 << 20 };

struct bpe;

/* Fails if a file cannot be read or does not fit the other. */
struct bpe *bpe_read(const char *folder);
void bpe_free(struct bpe *bpe); /* NULL is accepted */

/* Number of tokens in the vocabulary; they are 0, 1, ... */
int bpe_count(const struct bpe *bpe);

/* <|endoftext|>, which stands before each text that GPT-2 has learned; 0 if the vocabulary lacks it. */
int32_t bpe_end_of_text(const struct bpe *bpe);

/* Writes the tokens of a text of `length` bytes; returns how many. tokens: room for `length` of them. */
size_t bpe_encode(const struct bpe *bpe, const uint8_t *text, size_t length, int32_t *tokens);

/* The bytes of a token, borrowed; they need not be whole characters. */
const uint8_t *bpe_decode(const struct bpe *bpe, int32_t token, size_t *length);

#endif
