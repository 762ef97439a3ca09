/* Characters that look like those of a command line and are others, as word processors and web pages put them in. */
#ifndef CLI_LOOKALIKE_H
#define CLI_LOOKALIKE_H

#include <stdbool.h>
#include <stddef.h>

/* Is there one in the first `count` words: a dash in an option's name, a quotation mark around a word or a value, a
 * blank that does not separate? Writes a sentence about the first one. For whom the line has not been understood: such
 * words can be meant. */
bool lookalike_find(int count, char *const *words, char *out, size_t size);

#endif
