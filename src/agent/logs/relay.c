/* The relay's sources, its turns and the drain; consoles and files are relay_sink.c. See relay.h. */
#include "agent/logs/relay.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"

enum { READ_BYTES = 64 * 1024 }; /* one source's turn; also the longest beginning of a line that is copied about */
#define INPUT_BYTES_MAX (LINE_PIECE_MAX + (size_t)2 * READ_BYTES)

/* An unfinished line is looked at this often, and shown after so many looks: a progress bar (it has a '\r'), any other,
 * and one whose showing would break off another worker's unfinished line, which costs a line of the console each. */
enum { GLANCE_MS = 100, GLANCES_BAR = 2, GLANCES_TEXT = 10, GLANCES_ANOTHER = 50 };

struct relay_console_state {
    struct relay_sink sink;
    struct relay_source *first_waiting, *last_waiting; /* have lines for it; not read until it takes more */
    struct relay *relay;
};

struct relay {
    uv_loop_t *loop;
    struct relay_console_state consoles[2];
    bool shared; /* stdout and stderr are one pipe, terminal or file: consoles[0] serves both */
    struct relay_source *sources;
    uint8_t *scratch; /* 2 * READ_BYTES; taken early, so that output can be read when memory has run out */
    uint64_t read_bytes;
    uv_timer_t timer;  /* the drain's */
    uv_timer_t glance; /* runs while there are unfinished lines that are not shown */
    void (*done)(void *ctx);
    void *ctx;
    uint64_t moved_bytes; /* at the last tick of the drain */
    unsigned idle_ticks;
    bool in_hurry;
    bool closing;
    unsigned open_count; /* handles that still refer to this memory */
};

struct relay_source {
    struct relay *relay;
    struct relay_source *next, *previous;
    struct relay_source *next_waiting;
    bool ended;      /* read to its end; what is in `input` is the last */
    bool is_limited; /* others may write for ever: the drain waits for `owed_bytes` more */
    bool is_resting; /* it has read those, and reads on after the drain */
    size_t owed_bytes;
    int fd;
    uv_poll_t poll;
    struct relay_console_state *console; /* or NULL */
    char *prefix;
    size_t prefix_bytes;
    struct line_splitter splitter;
    struct buf input;      /* read, its line is not at its end yet, or waits for the console */
    size_t shown_bytes;    /* at the front of `input`: of an unfinished line, on the console already */
    unsigned glance_count; /* at the present unfinished line */
    struct relay_file *file;
    struct relay_file *matches;
    const char *const *filters;
    size_t filter_count;
    struct line_tail *tail;
};

static void relay_release(struct relay *relay) {
    assert(relay->open_count > 0);
    if (--relay->open_count == 0) {
        free(relay->scratch);
        free(relay);
    }
}

/* ---- the drain ---- */

static void on_tick(uv_timer_t *timer);

static bool is_drained(const struct relay *relay) {
    const struct relay_source *source = relay->sources;
    while (source && source->is_resting) {
        source = source->next;
    }
    return !source && relay->consoles[0].sink.out.len == 0 && relay->consoles[1].sink.out.len == 0;
}

/* `done` always comes from the loop, so it is left to the timer. */
static void check_drained(struct relay *relay) {
    if (relay->done && !relay->closing && is_drained(relay)) {
        (void)uv_timer_start(&relay->timer, on_tick, 0, RELAY_SILENCE_MS);
    }
}

/* ---- sources ---- */

static void on_source_closed(uv_handle_t *handle) {
    struct relay_source *source = handle->data;
    struct relay *relay = source->relay;
    buf_done(&source->input);
    free(source->prefix);
    free(source);
    relay_release(relay);
}

static void source_unlink(struct relay_source *source) {
    if (source->previous) {
        source->previous->next = source->next;
    } else {
        source->relay->sources = source->next;
    }
    if (source->next) {
        source->next->previous = source->previous;
    }
}

static void source_close(struct relay_source *source) {
    struct relay *relay = source->relay;
    if (source->console && source->console->sink.joint.owner == source) {
        source->console->sink.joint.owner = NULL; /* a later source may get the same address */
    }
    source_unlink(source);
    uv_close((uv_handle_t *)&source->poll, on_source_closed);
    close(source->fd);
    check_drained(relay);
}

static bool matches_filter(const struct relay_source *source, const uint8_t *piece, size_t count) {
    for (size_t i = 0; i < source->filter_count; i++) {
        if (memmem(piece, count, source->filters[i], strlen(source->filters[i]))) {
            return true;
        }
    }
    return false;
}

static void write_match(const struct relay_source *source, const uint8_t *piece, size_t count) {
    bool whole = piece[count - 1] == '\n';
    struct iovec parts[3] = {{source->prefix, source->prefix_bytes},
                             {(void *)(uintptr_t)piece, count},
                             {(void *)(uintptr_t) "\n", whole ? 0 : 1}};
    relay_file_write(source->matches, parts, 3);
}

static void deliver(struct relay_source *source, const uint8_t *piece, size_t count) {
    size_t shown = source->shown_bytes;
    assert(shown <= count);
    source->shown_bytes = 0;
    source->glance_count = 0; /* what follows is another line */
    if (source->console) {
        relay_sink_put(&source->console->sink, source, source->prefix, source->prefix_bytes, piece + shown,
                       count - shown);
    }
    if (source->matches && matches_filter(source, piece, count)) {
        write_match(source, piece, count);
    }
}

/* Shows the pieces at the front of `bytes` until the console is full. Returns how many bytes are dealt with. */
static size_t pump(struct relay_source *source, const uint8_t *bytes, size_t count) {
    if (!source->console && !source->matches) {
        return count;
    }
    size_t at = 0;
    while (at < count && !(source->console && source->console->sink.blocked)) {
        bool by_line = source->prefix_bytes > 0 || source->matches;
        size_t piece = by_line ? line_splitter_next(&source->splitter, bytes + at, count - at, source->ended)
                               : line_splitter_run(&source->splitter, bytes + at, count - at, source->ended);
        if (piece == 0) {
            break;
        }
        deliver(source, bytes + at, piece);
        at += piece;
    }
    if (source->console && !source->console->sink.blocked) {
        relay_sink_flush(&source->console->sink);
    }
    return at;
}

static void on_readable(uv_poll_t *poll, int status, int events);

/* ---- lines that do not end ---- */

static bool can_read(const struct relay_source *source) {
    struct pollfd p = {.fd = source->fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* Somebody has the other end of the pipe. */
static bool has_writer(const struct relay_source *source) {
    struct pollfd p = {.fd = source->fd};
    return poll(&p, 1, 0) == 0;
}

static size_t count_unread(const struct relay_source *source) {
    int count = 0;
    return ioctl(source->fd, FIONREAD, &count) == 0 ? (size_t)count : 0;
}

/* The end of a line may have come while this process had no time to read it. */
static bool is_due(const struct relay_source *source) {
    const struct line_joint *joint = &source->console->sink.joint;
    size_t hidden = source->input.len - source->shown_bytes;
    bool is_bar = memchr(buf_bytes(&source->input) + source->shown_bytes, '\r', hidden) != NULL;
    unsigned wanted = joint->open && joint->owner != source ? GLANCES_ANOTHER : is_bar ? GLANCES_BAR : GLANCES_TEXT;
    return source->glance_count >= wanted && !source->console->sink.blocked && !can_read(source);
}

static void show_unfinished(struct relay_source *source) {
    relay_sink_put(&source->console->sink, source, source->prefix, source->prefix_bytes,
                   buf_bytes(&source->input) + source->shown_bytes, source->input.len - source->shown_bytes);
    source->shown_bytes = source->input.len;
    source->glance_count = 0;
    if (!source->console->sink.blocked) {
        relay_sink_flush(&source->console->sink);
    }
}

static bool has_hidden(const struct relay_source *source) {
    return source->console && !source->ended && source->input.len > source->shown_bytes;
}

static void on_glance(uv_timer_t *timer) {
    struct relay *relay = timer->data;
    bool is_needed = false;
    for (struct relay_source *source = relay->sources; source; source = source->next) {
        if (has_hidden(source)) {
            source->glance_count++;
            if (is_due(source)) {
                show_unfinished(source);
            }
            is_needed |= has_hidden(source);
        }
    }
    if (!is_needed) {
        (void)uv_timer_stop(timer);
    }
}

static void note_unfinished(struct relay_source *source) {
    if (!has_hidden(source)) {
        source->glance_count = 0;
    } else if (!uv_is_active((uv_handle_t *)&source->relay->glance)) {
        (void)uv_timer_start(&source->relay->glance, on_glance, GLANCE_MS, GLANCE_MS);
    }
}

static void source_wait(struct relay_source *source) {
    struct relay_console_state *console = source->console;
    (void)uv_poll_stop(&source->poll);
    source->next_waiting = NULL;
    *(console->last_waiting ? &console->last_waiting->next_waiting : &console->first_waiting) = source;
    console->last_waiting = source;
}

/* Nothing is held back while it rests: the line that it is in has been written by a worker. */
static void source_rest(struct relay_source *source) {
    (void)uv_poll_stop(&source->poll);
    source->is_resting = true;
    if (has_hidden(source) && !source->console->sink.blocked) {
        show_unfinished(source);
    }
    check_drained(source->relay);
}

/* After a pump that left `left` bytes: wait for the console, end, or read on. */
static void source_continue(struct relay_source *source, size_t left) {
    bool blocked = source->console && source->console->sink.blocked;
    note_unfinished(source);
    if (source->ended && left == 0) {
        source_close(source);
    } else if (blocked && left > 0) {
        source_wait(source);
    } else if (source->is_limited && source->owed_bytes == 0) {
        source_rest(source);
    } else if (!uv_is_active((uv_handle_t *)&source->poll)) {
        (void)uv_poll_start(&source->poll, UV_READABLE, on_readable);
    }
}

static void note_bytes(struct relay_source *source, const uint8_t *bytes, size_t count) {
    source->relay->read_bytes += count;
    if (source->file) {
        relay_file_write(source->file, &(struct iovec){(void *)(uintptr_t)bytes, count}, 1);
    }
    if (source->tail) {
        line_tail_add(source->tail, bytes, count);
    }
}

/* Of what read_pipe() returned, if not negative. */
static bool is_last(struct relay_source *source, size_t count) {
    source->owed_bytes -= count < source->owed_bytes ? count : source->owed_bytes;
    return count == 0;
}

/* Keeps `count` bytes for later, in place of what `input` holds. */
static void keep_input(struct relay_source *source, const uint8_t *bytes, size_t count) {
    buf_clear(&source->input);
    if (buf_append(&source->input, bytes, count) != 0) {
        source->splitter.scanned_bytes = source->shown_bytes = 0;
        log_error("%zu bytes of a worker's output are lost: %s", count, muster_detail());
    }
}

/* read() into `at`; 0 at the end, negative when nothing is there yet. */
static ssize_t read_pipe(struct relay_source *source, uint8_t *at) {
    for (;;) {
        ssize_t n = read(source->fd, at, READ_BYTES);
        if (n >= 0 || errno == EAGAIN) {
            return n;
        }
        if (errno != EINTR) {
            log_error("cannot read a worker's output any further: %s", strerror(errno));
            return 0;
        }
    }
}

/* The usual case: whatever is pending is short, so it is worked on in the relay's scratch memory and idle sources
 * hold next to nothing. */
static void read_short(struct relay_source *source, uint8_t *scratch) {
    size_t held = source->input.len;
    ssize_t n = read_pipe(source, scratch + held);
    if (n < 0) {
        return;
    }
    if (held > 0) {
        memcpy(scratch, buf_bytes(&source->input), held);
    }
    note_bytes(source, scratch + held, (size_t)n);
    source->ended = is_last(source, (size_t)n);
    size_t count = held + (size_t)n, shown = pump(source, scratch, count);
    keep_input(source, scratch + shown, count - shown);
    source_continue(source, source->input.len);
}

/* A long line is coming in: read behind its beginning. */
static void read_long(struct relay_source *source) {
    uint8_t *at = buf_reserve(&source->input, READ_BYTES);
    if (!at) {
        log_error("a worker's output is lost: %s", muster_detail());
        buf_clear(&source->input);
        source->splitter.scanned_bytes = source->shown_bytes = 0;
        return;
    }
    ssize_t n = read_pipe(source, at);
    if (n < 0) {
        return;
    }
    buf_commit(&source->input, (size_t)n);
    note_bytes(source, at, (size_t)n);
    source->ended = is_last(source, (size_t)n);
    buf_consume(&source->input, pump(source, buf_bytes(&source->input), source->input.len));
    source_continue(source, source->input.len);
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    (void)status; /* the read tells */
    (void)events;
    struct relay_source *source = poll->data;
    if (source->input.len <= READ_BYTES) {
        read_short(source, source->relay->scratch);
    } else {
        read_long(source);
    }
}

static void source_resume(struct relay_source *source) {
    buf_consume(&source->input, pump(source, buf_bytes(&source->input), source->input.len));
    source_continue(source, source->input.len);
}

/* The console takes more: those who wait go on in the order in which they came. Whoever fills it again goes to the end
 * of the queue. */
static void on_console_ready(void *owner) {
    struct relay_console_state *console = owner;
    while (console->first_waiting && !console->sink.blocked) {
        struct relay_source *source = console->first_waiting;
        console->first_waiting = source->next_waiting;
        if (!console->first_waiting) {
            console->last_waiting = NULL;
        }
        source_resume(source);
    }
    check_drained(console->relay);
}

int relay_source_open(struct relay *relay, const struct relay_source_options *options) {
    struct relay_source *source = calloc(1, sizeof *source);
    char *prefix = strdup(options->prefix);
    if (!source || !prefix || uv_poll_init(relay->loop, &source->poll, options->fd) != 0) {
        free(source);
        free(prefix);
        close(options->fd);
        return status_fail(MUSTER_ENOMEM, "no memory to follow a worker's output");
    }
    source->relay = relay;
    source->fd = options->fd;
    source->poll.data = source;
    source->prefix = prefix;
    source->prefix_bytes = strlen(prefix);
    source->file = options->file;
    source->matches = options->matches;
    source->filters = options->filters;
    source->filter_count = options->filter_count;
    source->tail = options->tail;
    if (options->console != RELAY_CONSOLE_NONE) {
        source->console = &relay->consoles[options->console == RELAY_CONSOLE_STDERR && !relay->shared];
    }
    line_splitter_init(&source->splitter, LINE_PIECE_MAX, source->prefix_bytes == 0);
    buf_init(&source->input, INPUT_BYTES_MAX);
    source->next = relay->sources;
    if (source->next) {
        source->next->previous = source;
    }
    relay->sources = source;
    relay->open_count++;
    (void)uv_poll_start(&source->poll, UV_READABLE, on_readable);
    return MUSTER_OK;
}

/* ---- the relay ---- */

int relay_create(uv_loop_t *loop, int out_fd, int err_fd, struct relay **out) {
    struct relay *relay = calloc(1, sizeof *relay);
    uint8_t *scratch = malloc((size_t)2 * READ_BYTES); /* pages that nothing touches cost nothing */
    if (!relay || !scratch) {
        free(relay);
        free(scratch);
        return status_fail(MUSTER_ENOMEM, "no memory for the log relay");
    }
    relay->loop = loop;
    relay->scratch = scratch;
    relay->open_count = 4; /* two timers and two consoles */
    (void)uv_timer_init(loop, &relay->timer);
    (void)uv_timer_init(loop, &relay->glance);
    relay->timer.data = relay->glance.data = relay;
    relay->shared = relay_sink_is_same(out_fd, err_fd);
    static const char *const names[2] = {"stdout", "stderr"};
    for (int i = 0; i < 2; i++) {
        struct relay_console_state *console = &relay->consoles[i];
        console->relay = relay;
        relay_sink_init(&console->sink, loop, i == 0 ? out_fd : err_fd, names[i], on_console_ready, console);
    }
    *out = relay;
    return MUSTER_OK;
}

/* Somebody may write on, for ever: what the workers wrote is what is there now. */
static void limit_sources(struct relay *relay) {
    for (struct relay_source *source = relay->sources, *next; source; source = next) {
        next = source->next;
        source->is_limited = has_writer(source);
        source->owed_bytes = count_unread(source);
        if (source->is_limited && source->owed_bytes == 0 && uv_is_active((const uv_handle_t *)&source->poll)) {
            source_rest(source);
        }
    }
}

static void unlimit_sources(struct relay *relay) {
    for (struct relay_source *source = relay->sources; source; source = source->next) {
        source->is_limited = source->is_resting = false;
        (void)uv_poll_start(&source->poll, UV_READABLE, on_readable);
    }
}

static void source_end(struct relay_source *source) {
    source->ended = true;
    source_resume(source);
}

static void give_up_sources(struct relay *relay) {
    unsigned count = 0;
    for (struct relay_source *source = relay->sources, *next; source; source = next) {
        next = source->next;
        count += !source->is_resting;
        if (!source->is_resting) {
            source_end(source);
        }
    }
    log_warning("%u worker output pipe(s) are still held open by a process that the launcher could not end; they are "
                "no longer read",
                count);
}

static void give_up_consoles(struct relay *relay) {
    for (int i = 0; i < 2; i++) {
        struct relay_console_state *console = &relay->consoles[i];
        if (console->sink.blocked) {
            relay_sink_give_up(&console->sink, "nobody reads it and the launcher was told to end");
            on_console_ready(console);
        }
    }
}

static void finish_prefixed_lines(struct relay *relay) {
    for (int i = 0; i < 2; i++) {
        if (relay->consoles[i].sink.last_had_prefix) {
            relay_sink_finish_line(&relay->consoles[i].sink);
        }
    }
}

static void drain_finish(struct relay *relay) {
    finish_prefixed_lines(relay);
    if (!is_drained(relay)) { /* even that newline had to wait */
        return;
    }
    (void)uv_timer_stop(&relay->timer);
    unlimit_sources(relay);
    void (*done)(void *ctx) = relay->done;
    relay->done = NULL;
    done(relay->ctx);
}

static uint64_t count_moved(const struct relay *relay) {
    return relay->read_bytes + relay->consoles[0].sink.written_bytes + relay->consoles[1].sink.written_bytes;
}

/* A source that is read has something to read: the loop comes late, and silence cannot be told yet. */
static bool has_unread(const struct relay *relay) {
    for (const struct relay_source *source = relay->sources; source; source = source->next) {
        if (uv_is_active((const uv_handle_t *)&source->poll) && can_read(source)) {
            return true;
        }
    }
    return false;
}

static void on_tick(uv_timer_t *timer) {
    struct relay *relay = timer->data;
    if (is_drained(relay)) {
        drain_finish(relay);
        return;
    }
    uint64_t moved = count_moved(relay);
    bool blocked = relay->consoles[0].sink.blocked || relay->consoles[1].sink.blocked;
    relay->idle_ticks = moved == relay->moved_bytes && !has_unread(relay) ? relay->idle_ticks + 1 : 0;
    relay->moved_bytes = moved;
    if (relay->idle_ticks >= 1 && !blocked) {
        give_up_sources(relay);
    } else if (relay->idle_ticks >= RELAY_HURRY_MS / RELAY_SILENCE_MS && relay->in_hurry) {
        give_up_consoles(relay);
    }
}

void relay_drain(struct relay *relay, bool writers_live, void (*done)(void *ctx), void *ctx) {
    assert(!relay->done && done);
    relay->done = done;
    relay->ctx = ctx;
    relay->moved_bytes = count_moved(relay);
    relay->idle_ticks = 0;
    if (writers_live) {
        limit_sources(relay);
    }
    (void)uv_timer_start(&relay->timer, on_tick, is_drained(relay) ? 0 : RELAY_SILENCE_MS, RELAY_SILENCE_MS);
}

void relay_hurry(struct relay *relay) {
    relay->in_hurry = true;
}

static int relay_patience_ms(const struct relay *relay) {
    return relay->in_hurry ? RELAY_HURRY_MS : RELAY_LAST_WORDS_MS;
}

void relay_finish_lines(struct relay *relay) {
    relay_sink_finish_line(&relay->consoles[0].sink);
    relay_sink_finish_line(&relay->consoles[1].sink);
}

bool relay_print(struct relay *relay, const char *text, size_t bytes) {
    struct relay_sink *sink = &relay->consoles[!relay->shared].sink;
    relay_sink_finish_line(sink);
    if (bytes > RELAY_OWN_BYTES_MAX && !sink->dead) {
        relay_sink_wait(sink, relay_patience_ms(relay));
        return false;
    }
    if (sink->out.len + bytes <= RELAY_OWN_BYTES_MAX || !sink->blocked) {
        relay_sink_add(sink, text, bytes);
    }
    return true;
}

static void on_timer_closed(uv_handle_t *handle) {
    relay_release(handle->data);
}

static void on_console_closed(void *owner) {
    struct relay_console_state *console = owner;
    relay_release(console->relay);
}

/* ---- after the launcher ---- */

bool relay_has_writers(const struct relay *relay) {
    for (const struct relay_source *source = relay->sources; source; source = source->next) {
        if (has_writer(source) || count_unread(source) > 0 || has_hidden(source)) {
            return true;
        }
    }
    return false;
}

void relay_flush(struct relay *relay) {
    for (int i = 0; i < 2; i++) {
        relay_sink_wait(&relay->consoles[i].sink, relay_patience_ms(relay));
    }
}

void relay_hand_over(struct relay *relay) {
    buf_clear(&relay->consoles[0].sink.out);
    buf_clear(&relay->consoles[1].sink.out);
}

static int *add_descriptor(int *out, int fd) {
    *out = fd;
    return out + (fd >= 0);
}

int *relay_descriptors(const struct relay *relay, size_t *count) {
    enum { OF_ONE = 4 };
    size_t sources = 0;
    for (const struct relay_source *source = relay->sources; source; source = source->next) {
        sources++;
    }
    int *out = calloc(sources * OF_ONE + 1, sizeof *out), *at = out;
    for (const struct relay_source *source = relay->sources; out && source; source = source->next) {
        at = add_descriptor(at, source->fd);
        at = add_descriptor(at, source->console ? source->console->sink.fd : -1);
        at = add_descriptor(at, source->file ? source->file->fd : -1);
        at = add_descriptor(at, source->matches ? source->matches->fd : -1);
    }
    *count = out ? (size_t)(at - out) : 0;
    return out;
}

/* A console that nobody has anything for is closed in this process. */
static void console_move(struct relay_console_state *console, uv_loop_t *loop) {
    bool is_used = false;
    for (const struct relay_source *source = console->relay->sources; source; source = source->next) {
        is_used = is_used || source->console == console;
    }
    console->first_waiting = console->last_waiting = NULL;
    relay_sink_move(&console->sink, loop, is_used);
}

int relay_read_on(struct relay *relay, uv_loop_t *loop) {
    int status = uv_timer_init(loop, &relay->glance);
    relay->done = NULL;
    console_move(&relay->consoles[0], loop);
    console_move(&relay->consoles[1], loop);
    for (struct relay_source *source = relay->sources, *next; source && status == 0; source = next) {
        next = source->next;
        status = uv_poll_init(loop, &source->poll, source->fd);
        source->is_limited = false;
        if (status == 0) {
            source_resume(source);
        }
    }
    if (status != 0) {
        return status_fail(MUSTER_ESYSTEM, "cannot read on: %s", uv_strerror(status));
    }
    (void)uv_run(loop, UV_RUN_DEFAULT);
    finish_prefixed_lines(relay);
    relay_flush(relay);
    return MUSTER_OK;
}

/* ---- the end ---- */

void relay_close(struct relay *relay) {
    if (!relay) {
        return;
    }
    relay->closing = true;
    while (relay->sources) {
        source_close(relay->sources);
    }
    uv_close((uv_handle_t *)&relay->timer, on_timer_closed);
    uv_close((uv_handle_t *)&relay->glance, on_timer_closed);
    relay_flush(relay);
    relay_sink_close(&relay->consoles[0].sink, on_console_closed);
    relay_sink_close(&relay->consoles[1].sink, on_console_closed);
}
