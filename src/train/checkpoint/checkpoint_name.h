/* Names of a checkpoint's files (docs/formats/checkpoint.md). Pure.
 *
 *   checkpoint-10.json                                   the record: with it the checkpoint is complete
 *   checkpoint-10-8c1d9f02a4b3e675.json                  the map
 *   checkpoint-10-8c1d9f02a4b3e675-3.safetensors         what rank 3 has written
 *   checkpoint-10-8c1d9f02a4b3e675.tmp                   the record while it is written
 *
 * The hexadecimal number is drawn for each save, so that files of two saves of one step are never taken for one. */
#ifndef TRAIN_CHECKPOINT_NAME_H
#define TRAIN_CHECKPOINT_NAME_H

#include <stdint.h>

enum { CHECKPOINT_NAME_MAX = 80 }; /* the longest is 65 bytes */

enum checkpoint_kind {
    CHECKPOINT_OTHER, /* not ours */
    CHECKPOINT_RECORD,
    CHECKPOINT_MAP,
    CHECKPOINT_PART,
    CHECKPOINT_TEMPORARY,
};

struct checkpoint_name {
    enum checkpoint_kind kind;
    uint32_t part; /* PART only */
    int64_t step;
    uint64_t token; /* not of a RECORD */
};

/* Gives CHECKPOINT_OTHER for whatever checkpoint_name_write() would spell in another way. */
struct checkpoint_name checkpoint_name_parse(const char *text);
/* The name of a file of any kind of ours. */
void checkpoint_name_write(char out[CHECKPOINT_NAME_MAX], const struct checkpoint_name *name);

#endif
