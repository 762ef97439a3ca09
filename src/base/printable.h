/* Text from outside (other agents, workers, files, variables) on its way to a terminal or a log. Pure.
 *
 * Whatever prints such text passes it through here: tools/lint looks after it that nothing else in src/ prints. */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Is this code point one that a terminal obeys in place of showing it: U+0000 to U+001F, U+007F to U+009F? */
bool printable_is_control(unsigned code_point);

/* Replaces in place, byte by byte, what is a control character or no UTF-8 by '?'. Tabs stay, newlines if they are
 * wanted: the length does not change. */
void printable_clean(char *text, size_t count, bool keeps_newlines);

#endif
