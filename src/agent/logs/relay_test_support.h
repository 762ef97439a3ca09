/* For tests of the relay: writers in child processes, readers on threads, and the relay between them. */
#ifndef AGENT_LOGS_RELAY_TEST_SUPPORT_H
#define AGENT_LOGS_RELAY_TEST_SUPPORT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "agent/logs/relay.h"
#include "base/log.h"

/* What was logged since the last fixture_init(). */
extern int log_count;
extern char last_log[LOG_TEXT_MAX];

void relay_test_begin(void);

/* A reader of a console, on a thread. */
struct reader {
    int fd;
    size_t chunk_bytes;
    pthread_t thread;
    uint8_t *bytes;
    size_t count, capacity;
};

void reader_start(struct reader *reader, int fd, size_t chunk_bytes);
/* Once nobody writes any more; the bytes are the caller's to free. */
void reader_join(struct reader *reader);

typedef void writer_body(int fd, int index);

struct fixture {
    uv_loop_t loop;
    struct relay *relay;
    int out[2], err[2]; /* console pipes: [0] is read by the test */
    struct relay_file file;
    struct relay_file matches;
    struct line_tail tail;
    pid_t writers[16];
    int source_fds[16]; /* what the relay reads of each writer */
    int writer_count;
    bool drained;
};

void fixture_init_fds(struct fixture *f);
void fixture_init(struct fixture *f);
void start_writer(struct fixture *f, enum relay_console console, const char *prefix, writer_body *body);

/* Runs the loop until this writer has ended, which is later than the end of its output. */
void run_until_ended(struct fixture *f, pid_t pid);
void on_half_drained(void *ctx);
/* Drains to the end, and closes the consoles' writing ends. */
void drain_to_end(struct fixture *f);
/* As the agent does: the writers end, then what they left is drained. A drain gives up on a stream that says nothing
 * for long, and a writer that still runs may. */
void run_to_end(struct fixture *f);

struct cursor {
    const uint8_t *at, *end;
};

/* The next line, without its '\n'; false at the end. Every line must be complete. */
bool next_line(struct cursor *c, const uint8_t **line, size_t *length);

extern const char *const prefixes[4];

/* All of the bytes, or the end of the process. */
void write_all(int fd, const void *bytes, size_t count);
/* "half" for index 0, else a line. */
void write_half(int fd, int index);
/* 2000 short lines with numbers. */
void write_few(int fd, int index);

#endif
