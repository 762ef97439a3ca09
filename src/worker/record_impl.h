/* Shared by record.c (composing and writing, safe in a signal handler) and record_signal.c (handlers). */
#ifndef WORKER_RECORD_IMPL_H
#define WORKER_RECORD_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Text in a fixed buffer, put together without the C library's formatting, which a signal handler may not use. What
 * does not fit is left out. */
struct record_text {
    char *bytes;
    size_t size, length;
};
void record_text_put(struct record_text *text, const char *string);
void record_text_put_bytes(struct record_text *text, const char *bytes, size_t count);
void record_text_put_decimal(struct record_text *text, int64_t value);
void record_text_put_hex(struct record_text *text, uintptr_t value);

/* The record that this process is writing. Memory is static: a crash must not need any. */
#define RECORD_STACK_BYTES_MAX ((size_t)16 * 1024)
struct record {
    struct record_text message; /* one line */
    struct record_text stack;   /* several */
};

/* Takes the one record for the calling thread, emptied, waiting for another thread that has it. NULL when this thread
 * has it already: a crash while recording. Safe in a signal handler, as all of the following. */
struct record *record_take(void);
void record_release(struct record *record);

/* Appends the call stack to record->stack, from the frame whose address is `from`, or, when that is not among
 * them, leaving out the first `skip` frames. */
void record_add_backtrace(struct record *record, uintptr_t from, int skip);

/* First use of backtrace() loads a library, which a signal handler must not do. */
void record_prime_backtrace(void);

/* Takes note of TORCHELASTIC_ERROR_FILE. MUSTER_ELIMIT. record_has_file(): there is one, and this process (not a fork
 * of it) is to write it. */
int record_find_file(void);
bool record_has_file(void);

/* Writes the record as torchelastic's JSON, aside and then renamed. 0 or an errno. */
int record_write(const struct record *record);

/* muster_record_error() has written a record. */
extern volatile bool record_was_reported;

#endif
