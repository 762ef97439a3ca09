/* From the workers' pipes to the console and to log files, by whole lines.
 *
 * Each source is the reading end of one worker stream. What it brings goes, unchanged, to its log file as it is read;
 * and by whole lines, with a prefix, to its console; an unfinished line (a progress bar, a question) after a short
 * time, and what another worker prints then begins a new line. While a console takes nothing more, the sources that
 * have lines for it are not read: their pipes fill and those workers wait, nobody else does. Nothing is lost or
 * doubled; the order within a source is kept; waiting sources take turns.
 *
 * Failures do not stop the job: a console whose reader has gone, or a file on a full disk, is reported once through
 * the log and dropped, and the rest goes on. SIGPIPE and SIGXFSZ must be ignored in this process. */
#ifndef AGENT_RELAY_H
#define AGENT_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "agent/logs/line_tail.h"
#include "agent/logs/relay_sink.h"

struct relay;
struct relay_source;

enum relay_console { RELAY_CONSOLE_NONE = 0, RELAY_CONSOLE_STDOUT, RELAY_CONSOLE_STDERR };

/* `out_fd` and `err_fd` are the console streams (borrowed, open until relay_close()). MUSTER_ENOMEM. */
int relay_create(uv_loop_t *loop, int out_fd, int err_fd, struct relay **out);

struct relay_source_options {
    int fd;                     /* reading end of a pipe; taken, also on failure */
    enum relay_console console; /* where its lines are shown */
    const char *prefix;         /* copied; "" = lines unchanged, and a lone '\r' shows what is before it */
    struct relay_file *file;    /* borrowed until the source has ended; every byte, or NULL */
    struct relay_file *matches; /* borrowed likewise: prefixed lines that hold one of `filters`, or NULL */
    const char *const *filters; /* borrowed likewise */
    size_t filter_count;
    struct line_tail *tail; /* borrowed likewise, or NULL */
};

/* Starts reading. MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int relay_source_open(struct relay *relay, const struct relay_source_options *options);

/* The workers have ended: reads all to the end, completes unfinished prefixed lines, flushes the consoles,
 * and then calls `done` from the loop. Sources opened since relay_create() or the last drain take part. A pipe that
 * somebody still holds open but leaves silent is given up after RELAY_SILENCE_MS, with a warning; a console that
 * takes nothing is waited for, unless relay_hurry() was called. writers_live: others, which are left alone, may have
 * the pipes and go on writing. The drain waits only for what is in these pipes by now, and they are read on after it.
 */
void relay_drain(struct relay *relay, bool writers_live, void (*done)(void *ctx), void *ctx);
#define RELAY_SILENCE_MS 1000

/* From now on a drain gives up consoles that have taken nothing for RELAY_HURRY_MS. */
void relay_hurry(struct relay *relay);
#define RELAY_HURRY_MS 2000

/* Writes the launcher's own text (whole lines) to the stderr console, behind an unfinished line of a worker. Does not
 * block: text that the console does not take now waits, up to RELAY_OWN_BYTES_MAX. More text is dropped, and so is all
 * text after the console was given up. False for one text that is larger than the maximum: the caller has to write it.
 * Everything before it has been written then (this blocks, as relay_close() does). */
bool relay_print(struct relay *relay, const char *text, size_t bytes);
#define RELAY_OWN_BYTES_MAX ((size_t)1024 * 1024)

/* Completes an unfinished line on the consoles, so that the caller can print to them itself. */
void relay_finish_lines(struct relay *relay);

/* ---- after the launcher: a process of its own reads for those that are left alone (read_on.h) ---- */

/* Does anybody have, or has anybody left something in, a pipe that is still read? */
bool relay_has_writers(const struct relay *relay);

/* Blocks as relay_close() does. */
void relay_flush(struct relay *relay);

/* What is queued for the consoles is another process's to write. */
void relay_hand_over(struct relay *relay);

/* All descriptors that the sources need, in no order, and some twice; malloc'd. NULL: no memory. */
int *relay_descriptors(const struct relay *relay, size_t *count);

/* In a fork of the process that has the relay: reads on `loop`, which is new, until nobody has a pipe any more. The old
 * loop is not touched again. MUSTER_ESYSTEM. */
int relay_read_on(struct relay *relay, uv_loop_t *loop);

/* Stops reading at once and frees; handles close during later turns of the loop. Blocks for what still waits for a
 * console that is slow: until that has taken nothing for RELAY_LAST_WORDS_MS (RELAY_HURRY_MS in a hurry). NULL
 * accepted. */
#define RELAY_LAST_WORDS_MS 10000
void relay_close(struct relay *relay);

#endif
