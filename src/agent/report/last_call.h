/* What a worker of libmuster was doing on its process groups when it ended: read from the record that it kept beside
 * its error file, which a SIGKILL does not take away. Trusts nothing in that file. */
#ifndef AGENT_LAST_CALL_H
#define AGENT_LAST_CALL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/call_record.h"

/* Bytes of a sentence, terminator included. */
#define LAST_CALL_SIZE 256

struct last_call {
    /* One clause about the call that had been begun and not finished (the oldest of them, if several threads made
     * calls), or else about the last one: "all_reduce of 1024 float32, sum (call 17 of group 'world'), begun at
     * 14:03:07.123". Times are shown by TZ. Empty: the worker kept no record (it is no program of libmuster), made no
     * call, or the file is damaged. */
    char text[LAST_CALL_SIZE];
    /* The call that ended last has failed because another rank is gone: a worker that ends then is that rank's victim.
     */
    bool was_bereft;
};

/* Reads one small file. */
void last_call_read(const char *error_file, struct last_call *out);

/* What carries out the calls of a worker's root group, and why, as the same record says, also while the worker runs:
 * "mpi (as asked for)". Empty: no record, or no group yet. Reads one small file. */
void last_call_engine(const char *error_file, char out[CALL_RECORD_ENGINE_BYTES]);

#endif
