/* Base64 of the standard alphabet, with padding and without line breaks. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Appends the text of `len` bytes to `out`. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int base64_encode(const uint8_t *bytes, size_t len, struct buf *out);

/* Appends the decoded bytes, as leniently as Python's b64decode: bytes outside the alphabet are skipped and
 * text behind the padding is ignored. MUSTER_ECORRUPT for a cut text; MUSTER_ENOMEM, MUSTER_ELIMIT. */
int base64_decode(const uint8_t *text, size_t len, struct buf *out);

#endif
