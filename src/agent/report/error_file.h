/* torchelastic's error files: reading a worker's, passing one on to whoever started the launcher, writing our own.
 *
 * A worker's file is untrusted: bounded in size, and one that cannot be understood is a note in the report, nothing
 * more. */
#ifndef AGENT_ERROR_FILE_H
#define AGENT_ERROR_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Largest file that is read. */
#define ERROR_FILE_BYTES_MAX ((size_t)1024 * 1024)

struct error_record {
    char *message;     /* owned: what the report shows, never NULL in a filled record; NULs have become blanks */
    bool is_traceback; /* the message was an object (with a call stack, as a rule), not a plain text */
    int64_t time_s;    /* 0: not given */
    char *json;        /* owned: the whole object again, in Python's spacing, ASCII only; for events */
};

/* Understands the bytes of a file. Tolerates what Python's json module writes beyond the standard: lone surrogates, raw
 * bytes that are no UTF-8 are replaced. MUSTER_ECORRUPT (the detail says what is wrong), MUSTER_ELIMIT, MUSTER_ENOMEM;
 * `out` is written only on success; free it with error_record_done(). */
int error_record_parse(const void *bytes, size_t count, struct error_record *out);
void error_record_done(struct error_record *record); /* accepts a zeroed one */

/* Reads a worker's file. MUSTER_ENOENT: it wrote none. Else as above, and MUSTER_ESYSTEM. Never blocks on a FIFO. */
int error_file_read(const char *path, struct error_record *out);

/* Copies a worker's file to `own_path` (the launcher's TORCHELASTIC_ERROR_FILE), with "errorCode" inside its message
 * when that is an object and `exit_code` is not 0. What was there is replaced. Errors as above. */
int error_file_propagate(const char *path, int exit_code, const char *own_path);

/* Writes an error of the launcher itself. */
int error_file_write(const char *own_path, const char *message, const char *call_stack, int64_t time_s);

#endif
