/* JSON files that end with their own checksum, so that damage to any byte is seen: all bytes before the comma in front
 * of the last member are checked, and what follows them is exactly `,\n  "checksum": "0e27a754225fb211"\n}\n`. Pure. */
#ifndef TRAIN_SEALED_JSON_H
#define TRAIN_SEALED_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct json_t;

/* Appends the object, which is not empty, with its checksum. flags: jansson's. MUSTER_ELIMIT: it needs more than `most`
 * bytes; MUSTER_ENOMEM. */
int sealed_json_append(const struct json_t *tree, size_t flags, size_t most, struct buf *out);

/* Checks the checksum, which is also what *out_id gets. MUSTER_ECORRUPT: it does not fit; the sentence begins with
 * `what` ("the manifest"). */
int sealed_json_check(const char *what, const uint8_t *bytes, size_t count, uint64_t *out_id);

/* Reads the object whose checksum has been checked. A text that is not understood then is no damage, but
 * MUSTER_EUNSUPPORTED: another program or version wrote it. MUSTER_ENOMEM. On success *out is the caller's to
 * json_decref(). */
int sealed_json_parse(const uint8_t *bytes, size_t count, struct json_t **out);

/* Is this the format and version that is expected? MUSTER_EUNSUPPORTED. */
int sealed_json_is_format(const struct json_t *tree, const char *format, int version);

/* The code and sentence of what is whole but not understood, from the failure of before. */
int sealed_json_not_understood(const char *what, int code);

/* ---- members ---- */

/* A checksum or another 64-bit number as 16 lowercase hexadecimal digits; NULL: no memory. */
struct json_t *sealed_json_hex(uint64_t number);
/* False: not of this one spelling. json: may be NULL. */
bool sealed_json_read_hex(const struct json_t *json, uint64_t *out);
/* A whole number >= 0; false: the object has none of this name. */
bool sealed_json_read_count(const struct json_t *tree, const char *name, uint64_t *out);

#endif
