/* What ddp and fsdp do alike with the lists of a caller: check the names in them, and copy lists and names into one
 * block of memory. Pure. */
#ifndef TRAIN_MODEL_COPY_H
#define TRAIN_MODEL_COPY_H

#include <stddef.h>

/* Bytes of a name, terminator included. */
#define MODEL_NAME_MAX ((size_t)256)

/* Is it a name, of at most MODEL_NAME_MAX, of one line? Ranks compare their models line by line (agreement.h).
 * what, index: of what it is the name, for the sentence. MUSTER_EINVAL. */
int model_check_name(const char *what, size_t index, const char *name);

/* Two of a name could not be told apart in what ranks compare, nor in a sentence. first: the first name; each of the
 * others stands `stride` bytes behind the one before. MUSTER_EINVAL, MUSTER_ENOMEM. */
int model_check_unique(const char *what, const char *const *first, size_t stride, size_t count);

/* Cuts a piece off a block that was made for all of them, aligned for any type; *used: bytes so far. With block NULL it
 * only counts. */
void *model_carve(void *block, size_t *used, size_t bytes);

/* Copies a name to *room, which ends behind it then. */
const char *model_keep_name(char **room, const char *name);

#endif
