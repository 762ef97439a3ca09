/* Where relayed lines end: the launcher's stdout or stderr (shared by all workers, may be slow), and log files. */
#ifndef AGENT_RELAY_SINK_H
#define AGENT_RELAY_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <uv.h>

#include "agent/logs/line_splitter.h"
#include "base/buf.h"

/* A file written with plain blocking writes. A failing write is reported once, names the file, and ends the writing
 * to this file: what follows is missing from it rather than standing after a gap. */
struct relay_file {
    int fd;     /* owned; -1: closed or failed */
    char *path; /* owned */
};

/* Creates or empties `path`. MUSTER_ESYSTEM with a sentence that names it, MUSTER_ENOMEM. */
int relay_file_open(struct relay_file *file, const char *path);
void relay_file_write(struct relay_file *file, const struct iovec *parts, int count);
void relay_file_close(struct relay_file *file); /* accepts a zeroed one that was never opened (fd 0 is never used) */

/* One console stream. It never blocks the loop and never changes the flags of the descriptor it was given, which other
 * programs share: pipes and terminals are opened anew, sockets are written with MSG_DONTWAIT. */
struct relay_sink {
    int fd;           /* written to: `opened_fd` or the inherited one */
    int opened_fd;    /* owned; -1 when writing to the inherited descriptor */
    bool is_socket;   /* send with MSG_DONTWAIT */
    bool careful;     /* a pipe or terminal that could not be opened anew: ask first, write little */
    bool blocked;     /* `out` waits for room */
    bool dead;        /* a write failed for good; everything is dropped */
    const char *name; /* "stdout", for messages; borrowed, static */
    struct buf out;   /* formatted, not yet taken by the console */
    struct line_joint joint;
    bool last_had_prefix;
    uint64_t written_bytes; /* for noticing that nothing moves */
    int epoll_fd; /* watches `fd`; the loop watches this: watching `fd` itself would make it non-blocking for all */
    bool has_watch;
    uv_poll_t watch;
    uv_loop_t *loop;               /* borrowed */
    void (*on_ready)(void *owner); /* from the loop: no longer blocked */
    void *owner;
};

/* `fd` is borrowed and must stay open. Allocates nothing until something is written. */
void relay_sink_init(struct relay_sink *sink, uv_loop_t *loop, int fd, const char *name, void (*on_ready)(void *owner),
                     void *owner);

/* True when what is written to either descriptor comes behind what was written to the other: one pipe, terminal or
 * socket, one open file (`> log 2>&1`), or one file to which both append. They must share one sink. */
bool relay_sink_is_same(int fd_a, int fd_b);

/* Queues one piece of the stream `from` (a token), with what belongs before it, and writes when enough has come
 * together. `prefix` may be empty. Not to be called while blocked. */
void relay_sink_put(struct relay_sink *sink, const void *from, const char *prefix, size_t prefix_bytes,
                    const uint8_t *piece, size_t piece_bytes);

/* Completes an unfinished last line with '\n'. */
void relay_sink_finish_line(struct relay_sink *sink);

/* Queues whole lines that belong to no stream, also while blocked, and writes what it can. A console that was given up
 * is offered them once, without waiting. */
void relay_sink_add(struct relay_sink *sink, const char *text, size_t bytes);

/* Blocks until everything queued is written, or nothing could be for `patience_ms`. */
void relay_sink_wait(struct relay_sink *sink, int patience_ms);

/* Writes what is queued; `blocked` says whether something is left. */
void relay_sink_flush(struct relay_sink *sink);

/* Drops what is queued and everything to come, saying why once. */
void relay_sink_give_up(struct relay_sink *sink, const char *why);

/* In a fork of the process that has the sink: it goes on there, on another loop, or takes nothing any more. */
void relay_sink_move(struct relay_sink *sink, uv_loop_t *loop, bool goes_on);

/* Closes. `on_closed` comes when the memory may be freed: from the loop, or at once when nothing was watched. */
void relay_sink_close(struct relay_sink *sink, void (*on_closed)(void *owner));

#endif
