/* Memory that is read-only on purpose, for the record of a crash: whoever writes there is told what it is. */
#ifndef BASE_HELD_READ_ONLY_H
#define BASE_HELD_READ_ONLY_H

#include <stddef.h>

enum { READ_ONLY_MAX = 64 }; /* pieces at a time; further ones are not told of */

/* `words` (static) are to stand behind the address of a write to these bytes: "in the committed state, ...". Any
 * thread. */
void read_only_note(const void *begin, size_t bytes, const char *words);
/* Before the memory goes. What was not noted is ignored. */
void read_only_forget(const void *begin);

/* The words of the piece that has the address; NULL: it is in none. Safe in a signal handler. */
const char *read_only_words(const void *address);

#endif
