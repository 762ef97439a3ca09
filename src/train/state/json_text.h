/* jansson's output into our buffers. (Its own allocations, which a program can replace, stay inside it.) */
#ifndef TRAIN_JSON_TEXT_H
#define TRAIN_JSON_TEXT_H

#include <stddef.h>

#include "base/buf.h"

struct json_t;

/* Appends the tree's text; flags are jansson's. MUSTER_ELIMIT (the buffer's maximum), MUSTER_ENOMEM. */
int json_text_append(const struct json_t *tree, size_t flags, struct buf *out);

/* Reads one object, whose names are unique in each object. On success *out is the caller's to json_decref().
 * MUSTER_ECORRUPT, with a sentence that begins with `what`; MUSTER_ENOMEM. */
int json_text_parse(const char *what, const void *bytes, size_t count, struct json_t **out);

#endif
