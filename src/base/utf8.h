/* UTF-8, one sequence at a time. Pure, and safe in a signal handler. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid sequence at the front of [bytes, bytes + count), or 0 when there is none (overlong forms,
 * surrogates and values above U+10FFFF are not valid). count > 0. */
size_t utf8_length(const uint8_t *bytes, size_t count);

/* Is all of the text valid? */
bool utf8_is_valid(const char *text);

/* The code point of a valid sequence of `length` bytes. */
uint32_t utf8_decode(const uint8_t *bytes, size_t length);

#endif
