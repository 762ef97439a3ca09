/* How GPT-2 splits a text into words, before it looks for tokens in them. Its pattern, tried from left to right:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Characters are UTF-8. Which are letters or numbers is known for ASCII and for Latin, Greek, Cyrillic, Armenian,
 * Georgian, Hebrew, Arabic, Devanagari, Thai, kana, Hangul and Chinese characters (Unicode 14.0). Characters of other
 * scripts, and bytes that are no UTF-8, count as neither. There tokens may differ from GPT-2's; they mean the same
 * text.
 */
#ifndef EXAMPLES_GPT_BPE_WORDS_H
#define EXAMPLES_GPT_BPE_WORDS_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the first word of a text of `length` > 0 bytes. The words of a text, one after the other, are the text. */
size_t bpe_word_length(const uint8_t *text, size_t length);

#endif
