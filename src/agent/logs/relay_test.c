/* The relay with real pipes, writers in child processes and readers of every kind. */
#include "agent/logs/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/logs/read_on.h"
#include "base/log.h"
#include "base/str.h"

/* ---- what the relay logged ---- */

static int log_count;
static char last_log[LOG_TEXT_MAX];

static void log_capture(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    log_count++;
    (void)snprintf(last_log, sizeof last_log, "%s", text);
}

/* ---- a reader of a console, on a thread ---- */

struct reader {
    int fd;
    size_t chunk_bytes;
    pthread_t thread;
    uint8_t *bytes;
    size_t count, capacity;
};

static void *reader_main(void *argument) {
    struct reader *reader = argument;
    for (;;) {
        if (reader->count + reader->chunk_bytes > reader->capacity) {
            reader->capacity = 2 * (reader->count + reader->chunk_bytes);
            reader->bytes = realloc(reader->bytes, reader->capacity);
        }
        ssize_t n = read(reader->fd, reader->bytes + reader->count, reader->chunk_bytes);
        if (n <= 0) {
            return NULL;
        }
        reader->count += (size_t)n;
    }
}

static void reader_start(struct reader *reader, int fd, size_t chunk_bytes) {
    *reader = (struct reader){.fd = fd, .chunk_bytes = chunk_bytes};
    assert_int_equal(pthread_create(&reader->thread, NULL, reader_main, reader), 0);
}

static void reader_join(struct reader *reader) {
    assert_int_equal(pthread_join(reader->thread, NULL), 0);
    close(reader->fd);
}

/* ---- writers ---- */

static void write_all(int fd, const void *bytes, size_t count) {
    const uint8_t *at = bytes;
    while (count > 0) {
        ssize_t n = write(fd, at, count);
        if (n < 0) {
            _exit(1);
        }
        at += n;
        count -= (size_t)n;
    }
}

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

static void fixture_init_fds(struct fixture *f) {
    memset(f, 0, sizeof *f);
    f->file.fd = f->matches.fd = -1;
    log_count = 0;
    assert_int_equal(uv_loop_init(&f->loop), 0);
}

static void fixture_init(struct fixture *f) {
    fixture_init_fds(f);
    assert_int_equal(pipe2(f->out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(f->err, O_CLOEXEC), 0);
    assert_int_equal(relay_create(&f->loop, f->out[1], f->err[1], &f->relay), 0);
}

static void start_writer(struct fixture *f, enum relay_console console, const char *prefix, writer_body *body) {
    int ends[2], index = f->writer_count;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct relay_source_options options = {.fd = ends[0],
                                           .console = console,
                                           .prefix = prefix,
                                           .file = f->file.fd > 0 && index == 0 ? &f->file : NULL,
                                           .tail = index == 0 ? &f->tail : NULL};
    static const char *const filters[] = {"needle", "\xff"};
    if (f->matches.fd > 0) {
        options.matches = &f->matches;
        options.filters = filters;
        options.filter_count = 2;
    }
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGPIPE, SIG_DFL);
        assert_int_equal(dup2(ends[1], 3), 3);
        (void)syscall(SYS_close_range, 4, ~0u, 0); /* no copies of the consoles or of others' pipes */
        body(3, index);
        _exit(0);
    }
    close(ends[1]);
    f->source_fds[index] = ends[0];
    f->writers[f->writer_count++] = pid;
    assert_int_equal(relay_source_open(f->relay, &options), 0);
}

static void on_drained(void *ctx) {
    struct fixture *f = ctx;
    assert_false(f->drained);
    f->drained = true;
    relay_close(f->relay);
    f->relay = NULL;
}

static void on_half_drained(void *ctx) {
    ((struct fixture *)ctx)->drained = true;
}

static void on_end(uv_poll_t *poll, int status, int events) {
    (void)events;
    assert_int_equal(status, 0);
    uv_close((uv_handle_t *)poll, NULL);
}

/* Runs the loop until this writer has ended, which is later than the end of its output. */
static void run_until_ended(struct fixture *f, pid_t pid) {
    uv_poll_t poll;
    int fd = (int)syscall(SYS_pidfd_open, pid, 0), status;
    assert_true(fd >= 0);
    assert_int_equal(uv_poll_init(&f->loop, &poll, fd), 0);
    assert_int_equal(uv_poll_start(&poll, UV_READABLE, on_end), 0);
    while (!uv_is_closing((uv_handle_t *)&poll)) {
        uv_run(&f->loop, UV_RUN_ONCE);
    }
    uv_run(&f->loop, UV_RUN_NOWAIT); /* the close */
    close(fd);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Drains to the end, and closes the consoles' writing ends. */
static void drain_to_end(struct fixture *f) {
    relay_drain(f->relay, false, on_drained, f);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_true(f->drained);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    for (int i = 0; i < f->writer_count; i++) {
        int status;
        assert_int_equal(waitpid(f->writers[i], &status, 0), f->writers[i]);
        assert_int_equal(status, 0);
    }
    if (f->out[1] > 0) {
        close(f->out[1]);
        close(f->err[1]);
    }
    relay_file_close(&f->file);
    relay_file_close(&f->matches);
}

/* As the agent does: the writers end, then what they left is drained. A drain gives up on a stream that says nothing
 * for long, and a writer that still runs may. */
static void run_to_end(struct fixture *f) {
    while (f->writer_count > 0) {
        run_until_ended(f, f->writers[--f->writer_count]);
    }
    drain_to_end(f);
}

/* ---- checks ---- */

struct cursor {
    const uint8_t *at, *end;
};

/* The next line, without its '\n'; false at the end. Every line must be complete. */
static bool next_line(struct cursor *c, const uint8_t **line, size_t *length) {
    if (c->at == c->end) {
        return false;
    }
    const uint8_t *newline = memchr(c->at, '\n', (size_t)(c->end - c->at));
    assert_non_null(newline);
    *line = c->at;
    *length = (size_t)(newline - c->at);
    c->at = newline + 1;
    return true;
}

enum { FILL_MAX = 90, LINE_BYTES_MAX = FILL_MAX + 60, FEW_LINES = 20000, MANY_LINES = 200000 };

static int line_total = FEW_LINES; /* of each worker */

static size_t make_line(char *out, int index, int number) {
    int fill = (number * 7 + index * 13) % FILL_MAX;
    return (size_t)snprintf(
        out, LINE_BYTES_MAX, "worker %d line %d %.*s.\n", index, number, fill,
        "~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~");
}

/* Lines in writes whose ends fall anywhere. */
static void write_numbered(int fd, int index) {
    char *all = malloc((size_t)line_total * LINE_BYTES_MAX);
    size_t total = 0, step = 1;
    for (int i = 0; i < line_total; i++) {
        total += make_line(all + total, index, i);
    }
    for (size_t at = 0; at < total; at += step, step = step * 5 % 9973 + 1) {
        write_all(fd, all + at, total - at < step ? total - at : step);
    }
    free(all);
}

/* Every line of every worker once, whole, in order, with its prefix. */
static void check_numbered(const struct reader *reader, int workers, bool prefixed) {
    struct cursor c = {reader->bytes, reader->bytes + reader->count};
    int next[16] = {0};
    const uint8_t *line;
    size_t length;
    while (next_line(&c, &line, &length)) {
        int index = -1;
        char expected[256];
        assert_true(length > 9);
        const char *digit = memchr(line, prefixed ? ']' : ' ', length);
        assert_non_null(digit);
        index = prefixed ? digit[-1] - '0' : digit[1] - '0';
        assert_in_range(index, 0, workers - 1);
        size_t n = prefixed ? (size_t)snprintf(expected, sizeof expected, "[r%d]:", index) : 0;
        n += make_line(expected + n, index, next[index]++);
        assert_int_equal(length + 1, n);
        assert_memory_equal(line, expected, n);
    }
    for (int i = 0; i < workers; i++) {
        assert_int_equal(next[i], line_total);
    }
}

static const char *const prefixes[] = {"[r0]:", "[r1]:", "[r2]:", "[r3]:"};

static void four_workers_lose_double_and_mix_nothing(void **state) {
    (void)state;
    struct fixture f;
    struct reader out;
    fixture_init(&f);
    line_total = MANY_LINES;
    reader_start(&out, f.out[0], 65536);
    for (int i = 0; i < 4; i++) {
        start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[i], write_numbered);
    }
    run_to_end(&f);
    reader_join(&out);
    check_numbered(&out, 4, true);
    line_total = FEW_LINES;
    assert_int_equal(log_count, 0);
    free(out.bytes);
    line_tail_done(&f.tail);
    close(f.err[0]);
}

static void a_reader_of_few_bytes_gets_everything(void **state) {
    (void)state;
    struct fixture f;
    struct reader out;
    fixture_init(&f);
    (void)fcntl(f.out[0], F_SETPIPE_SZ, 4096);
    reader_start(&out, f.out[0], 613);
    for (int i = 0; i < 2; i++) {
        start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[i], write_numbered);
    }
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[2], write_numbered);
    run_to_end(&f);
    reader_join(&out);
    check_numbered(&out, 3, true);
    free(out.bytes);
    line_tail_done(&f.tail);
    close(f.err[0]);
}

static void stdout_and_stderr_on_one_pipe_do_not_mix(void **state) {
    (void)state;
    struct fixture f;
    struct reader out;
    fixture_init_fds(&f);
    assert_int_equal(pipe2(f.out, O_CLOEXEC), 0);
    f.err[1] = dup(f.out[1]);
    assert_int_equal(relay_create(&f.loop, f.out[1], f.err[1], &f.relay), 0);
    (void)fcntl(f.out[0], F_SETPIPE_SZ, 4096);
    reader_start(&out, f.out[0], 1000);
    for (int i = 0; i < 4; i++) {
        start_writer(&f, i % 2 ? RELAY_CONSOLE_STDERR : RELAY_CONSOLE_STDOUT, prefixes[i], write_numbered);
    }
    run_to_end(&f);
    reader_join(&out);
    check_numbered(&out, 4, true);
    free(out.bytes);
    line_tail_done(&f.tail);
}

static void raw_streams_keep_lines_whole(void **state) {
    (void)state;
    struct fixture f;
    struct reader err;
    fixture_init(&f);
    reader_start(&err, f.err[0], 4096);
    for (int i = 0; i < 3; i++) {
        start_writer(&f, RELAY_CONSOLE_STDERR, "", write_numbered);
    }
    run_to_end(&f);
    reader_join(&err);
    check_numbered(&err, 3, false);
    free(err.bytes);
    line_tail_done(&f.tail);
    close(f.out[0]);
}

/* ---- binary bytes, long lines, a missing last newline ---- */

enum { LONG_LINE = 3 * 1000 * 1000 };

static void write_hostile(int fd, int index) {
    (void)index;
    uint8_t *line = malloc(LONG_LINE);
    for (int i = 0; i < LONG_LINE; i++) {
        line[i] = (uint8_t)(i * 131 >> 3);
        line[i] = line[i] == '\n' ? 0 : line[i];
    }
    line[LONG_LINE - 1] = '\n';
    write_all(fd, line, LONG_LINE);
    write_all(fd, "\r\n\xff\0\n\n", 6);
    write_all(fd, line, LONG_LINE);
    write_all(fd, "no newline", 10);
    free(line);
}

static void binary_bytes_and_megabyte_lines_arrive_whole(void **state) {
    (void)state;
    struct fixture f;
    struct reader out;
    fixture_init(&f);
    reader_start(&out, f.out[0], 65536);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_hostile);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[1], write_hostile);
    run_to_end(&f);
    reader_join(&out);
    struct cursor c = {out.bytes, out.bytes + out.count};
    const size_t lengths[] = {LONG_LINE - 1, 1, 2, 0, LONG_LINE - 1, 10};
    const char *const texts[] = {NULL, "\r", "\xff\0", "", NULL, "no newline"};
    int next[2] = {0};
    const uint8_t *line;
    size_t length;
    while (next_line(&c, &line, &length)) {
        assert_true(length >= 5);
        int index = line[2] - '0', n = next[index]++;
        assert_memory_equal(line, prefixes[index], 5);
        assert_in_range(n, 0, 5);
        assert_int_equal(length - 5, lengths[n]);
        if (texts[n]) {
            assert_memory_equal(line + 5, texts[n], lengths[n]);
        }
        for (size_t i = 0; !texts[n] && i < lengths[n]; i++) {
            uint8_t byte = (uint8_t)((int)i * 131 >> 3);
            assert_int_equal(line[5 + i], byte == '\n' ? 0 : byte);
        }
    }
    assert_int_equal(next[0], 6);
    assert_int_equal(next[1], 6);
    free(out.bytes);
    line_tail_done(&f.tail);
    close(f.err[0]);
}

static void write_endless_line(int fd, int index) {
    (void)index;
    uint8_t *line = malloc(LINE_PIECE_MAX);
    memset(line, 'e', LINE_PIECE_MAX);
    write_all(fd, line, LINE_PIECE_MAX);
    write_all(fd, line, LINE_PIECE_MAX / 2);
    write_all(fd, "\n", 1);
    free(line);
}

/* Alone on the console even a line beyond the limit keeps its bytes: its pieces follow each other. */
static void a_line_beyond_the_limit_comes_in_pieces(void **state) {
    (void)state;
    struct fixture f;
    struct reader out;
    fixture_init(&f);
    reader_start(&out, f.out[0], 65536);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_endless_line);
    run_to_end(&f);
    reader_join(&out);
    assert_int_equal(out.count, 5 + LINE_PIECE_MAX + LINE_PIECE_MAX / 2 + 1);
    assert_int_equal(out.bytes[out.count - 1], '\n');
    assert_null(memchr(out.bytes, '\n', out.count - 1));
    free(out.bytes);
    line_tail_done(&f.tail);
    close(f.err[0]);
}

static void write_half(int fd, int index) {
    write_all(fd, index == 0 ? "half" : "other\n", index == 0 ? 4 : 6);
}

static void an_unfinished_line_is_completed_for_the_next_worker(void **state) {
    (void)state;
    struct fixture f;
    struct reader out, err;
    fixture_init(&f);
    reader_start(&out, f.out[0], 100);
    reader_start(&err, f.err[0], 100);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_half);
    while (!f.tail.written_bytes || f.tail.written_bytes < 4) {
        uv_run(&f.loop, UV_RUN_ONCE);
    }
    for (int i = 0; i < 3; i++) { /* its end has been read, too */
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[1], write_half);
    run_to_end(&f);
    reader_join(&out);
    reader_join(&err);
    /* The end of a stream is noticed when it is read, so either may come first; glued they may not be. */
    assert_int_equal(out.count, 21);
    assert_true(memcmp(out.bytes, "[r0]:half\n[r1]:other\n", 21) == 0 ||
                memcmp(out.bytes, "[r1]:other\n[r0]:half\n", 21) == 0);
    assert_int_equal(err.count, 0);
    free(out.bytes);
    free(err.bytes);
    line_tail_done(&f.tail);
}

/* A progress bar, or another worker's line. The bar goes on when the test has seen its beginning. */
static void write_bar(int fd, int index) {
    sigset_t go;
    int number;
    if (index == 0) {
        write_all(fd, "\r 10%", 5);
        (void)sigemptyset(&go);
        (void)sigaddset(&go, SIGUSR1);
        (void)sigwait(&go, &number);
    }
    write_all(fd, index == 0 ? "\r 20%\n" : "other\n", 6);
}

static void run_until_shown(struct fixture *f, char *shown, size_t size, const char *text) {
    while (!strstr(shown, text)) {
        uv_run(&f->loop, UV_RUN_ONCE);
        size_t used = strlen(shown);
        ssize_t n = read(f->out[0], shown + used, size - 1 - used);
        shown[used + (size_t)(n > 0 ? n : 0)] = '\0';
    }
}

static void a_progress_bar_moves(void **state) {
    struct fixture f;
    sigset_t go, before;
    char shown[128] = "";
    (void)state;
    (void)sigemptyset(&go);
    (void)sigaddset(&go, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &go, &before); /* for the writer, who is to find it waiting */
    fixture_init(&f);
    assert_int_equal(fcntl(f.out[0], F_SETFL, O_NONBLOCK), 0);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_bar);
    run_until_shown(&f, shown, sizeof shown, "[r0]:\r 10%");
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[1], write_bar);
    run_until_shown(&f, shown, sizeof shown, "other\n");
    assert_int_equal(kill(f.writers[0], SIGUSR1), 0);
    run_until_shown(&f, shown, sizeof shown, "20%\n");
    run_to_end(&f);
    assert_string_equal(shown, "[r0]:\r 10%\n[r1]:other\n[r0]:\r 20%\n"); /* what was shown is not repeated */
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    line_tail_done(&f.tail);
    close(f.out[0]);
    close(f.err[0]);
}

/* Two workers that write all the time, so that a line of each is nearly always unfinished, though none for long. They
 * write from the relay's loop: a machine that stalls stalls both. */
struct busy_writers {
    int fds[2];
    int ticks;
};

enum { BUSY_TICK_MS = 20, BUSY_TICKS = 100 }; /* twice the time after which an unfinished line is shown */

static void on_busy_tick(uv_timer_t *timer) {
    struct busy_writers *writers = timer->data;
    for (int i = 0; i < 2; i++) {
        write_all(writers->fds[i], "end\nbegin ", 10);
    }
    if (++writers->ticks == BUSY_TICKS) {
        for (int i = 0; i < 2; i++) {
            write_all(writers->fds[i], "end\n", 4);
            close(writers->fds[i]);
        }
        uv_close((uv_handle_t *)timer, NULL);
    }
}

static void busy_workers_lines_stay_whole(void **state) {
    (void)state;
    struct fixture f;
    struct reader out;
    struct busy_writers writers = {.ticks = 0};
    uv_timer_t timer = {.data = &writers};
    fixture_init(&f);
    reader_start(&out, f.out[0], 4096);
    for (int i = 0; i < 2; i++) {
        int ends[2];
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        writers.fds[i] = ends[1];
        write_all(ends[1], "begin ", 6);
        assert_int_equal(relay_source_open(f.relay, &(struct relay_source_options){.fd = ends[0],
                                                                                   .console = RELAY_CONSOLE_STDOUT,
                                                                                   .prefix = prefixes[i]}),
                         0);
    }
    assert_int_equal(uv_timer_init(&f.loop, &timer), 0);
    assert_int_equal(uv_timer_start(&timer, on_busy_tick, BUSY_TICK_MS, BUSY_TICK_MS), 0);
    while (writers.ticks < BUSY_TICKS) {
        uv_run(&f.loop, UV_RUN_ONCE);
    }
    drain_to_end(&f);
    reader_join(&out);
    struct cursor c = {out.bytes, out.bytes + out.count};
    const uint8_t *line;
    size_t length;
    int count = 0;
    for (; next_line(&c, &line, &length); count++) {
        assert_int_equal(length, 14);
        assert_memory_equal(line + 5, "begin end", 9);
    }
    assert_int_equal(count, 2 * (BUSY_TICKS + 1));
    free(out.bytes);
    close(f.err[0]);
}

/* A raw stream is passed on as it is: not even a last newline is added, and a progress bar moves. */
static void write_progress(int fd, int index) {
    (void)index;
    write_all(fd, "\r 10%\r 20%\r\nend", 15);
}

static void a_lone_raw_stream_is_unchanged(void **state) {
    (void)state;
    struct fixture f;
    struct reader err;
    fixture_init(&f);
    reader_start(&err, f.err[0], 100);
    start_writer(&f, RELAY_CONSOLE_STDERR, "", write_progress);
    run_to_end(&f);
    reader_join(&err);
    assert_int_equal(err.count, 15);
    assert_memory_equal(err.bytes, "\r 10%\r 20%\r\nend", 15);
    free(err.bytes);
    line_tail_done(&f.tail);
    close(f.out[0]);
}

/* ---- consoles of other kinds; nobody's flags change ---- */

static void write_few(int fd, int index) {
    char line[64];
    for (int i = 0; i < 2000; i++) {
        write_all(fd, line, (size_t)snprintf(line, sizeof line, "%d: %d\n", index, i));
    }
}

static void check_few(const uint8_t *bytes, size_t count) {
    struct cursor c = {bytes, bytes + count};
    int next[2] = {0};
    const uint8_t *line;
    size_t length;
    while (next_line(&c, &line, &length)) {
        char expected[64];
        int index = line[2] - '0';
        assert_in_range(index, 0, 1);
        assert_int_equal(length, snprintf(expected, sizeof expected, "[r%d]:%d: %d", index, index, next[index]++));
        assert_memory_equal(line, expected, length);
    }
    assert_int_equal(next[0], 2000);
    assert_int_equal(next[1], 2000);
}

static void run_on_console(int fd) {
    struct fixture f;
    fixture_init_fds(&f);
    int flags = fcntl(fd, F_GETFL);
    f.out[1] = fd;
    f.err[1] = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_int_equal(relay_create(&f.loop, fd, f.err[1], &f.relay), 0);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_few);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[1], write_few);
    while (f.tail.written_bytes == 0) {
        uv_run(&f.loop, UV_RUN_ONCE);
    }
    assert_int_equal(fcntl(fd, F_GETFL), flags);
    run_to_end(&f);
    assert_int_equal(log_count, 0);
    line_tail_done(&f.tail);
}

static void a_socket_console_works_and_keeps_its_flags(void **state) {
    (void)state;
    int ends[2], small = 2048;
    struct reader out;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    (void)setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    reader_start(&out, ends[0], 500);
    run_on_console(ends[1]);
    reader_join(&out);
    check_few(out.bytes, out.count);
    free(out.bytes);
}

/* From now on kcmp() answers EPERM, as in many containers. */
static void forbid_kcmp(void) {
    static struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        _exit(1);
    }
}

enum { OF_ONE_OPEN = 1, ANEW = 2, ANEW_FARTHER = 4, BOTH_APPEND = 8, ONE_APPENDS = 16 };

/* Which pairs of descriptors of one file pass for the same. */
static int find_same(void) {
    char path[] = "/tmp/muster_relay_test_XXXXXX";
    int fd = mkstemp(path), twin = dup(fd);
    int anew = open(path, O_RDWR | O_CLOEXEC), farther = open(path, O_RDWR | O_CLOEXEC);
    int append = open(path, O_RDWR | O_APPEND | O_CLOEXEC), also = open(path, O_RDWR | O_APPEND | O_CLOEXEC);
    unlink(path);
    (void)lseek(farther, 7, SEEK_SET);
    (void)lseek(also, 7, SEEK_SET);
    return (relay_sink_is_same(fd, twin) ? OF_ONE_OPEN : 0) | (relay_sink_is_same(fd, anew) ? ANEW : 0) |
           (relay_sink_is_same(fd, farther) ? ANEW_FARTHER : 0) | (relay_sink_is_same(append, also) ? BOTH_APPEND : 0) |
           (relay_sink_is_same(append, fd) ? ONE_APPENDS : 0);
}

static int find_same_in_child(bool is_forbidden) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (is_forbidden) {
            forbid_kcmp();
        }
        _exit(find_same());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void one_file_is_one_console(void **state) {
    (void)state;
    bool is_known = syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, 0UL, 0UL) == 0;
    assert_int_equal(find_same_in_child(false), OF_ONE_OPEN | BOTH_APPEND | (is_known ? 0 : ANEW));
    assert_int_equal(find_same_in_child(true), OF_ONE_OPEN | BOTH_APPEND | ANEW);
}

/* Redirected with >>: what is there stays, and the offset is shared with whoever wrote it. */
static void a_file_console_is_appended_to(void **state) {
    (void)state;
    char path[] = "/tmp/muster_relay_test_XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "[r0]:0: 0\n", 10), 10);
    assert_int_equal(lseek(fd, 0, SEEK_END), 10);
    int keep = dup(fd);
    run_on_console(fd);
    struct stat st;
    assert_int_equal(fstat(keep, &st), 0);
    uint8_t *bytes = malloc((size_t)st.st_size);
    assert_int_equal(pread(keep, bytes, (size_t)st.st_size, 0), st.st_size);
    assert_int_equal(lseek(keep, 0, SEEK_CUR), st.st_size);
    check_few(bytes + 10, (size_t)st.st_size - 10);
    free(bytes);
    close(keep);
    unlink(path);
}

static void a_terminal_console_works_and_keeps_its_flags(void **state) {
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(terminal >= 0);
    struct reader out;
    reader_start(&out, master, 300);
    run_on_console(terminal); /* the last close makes the master's read fail */
    reader_join(&out);
    size_t kept = 0; /* the terminal shows "\r\n" */
    for (size_t i = 0; i < out.count; i++) {
        if (out.bytes[i] != '\r') {
            out.bytes[kept++] = out.bytes[i];
        }
    }
    check_few(out.bytes, kept);
    free(out.bytes);
}

/* /proc gives no second way to the pipe (another user's, or no /proc): simulated through the sink's own switch. */
static void on_ready(void *owner) {
    (void)owner;
}

static void a_console_that_cannot_be_opened_anew_never_blocks(void **state) {
    (void)state;
    uv_loop_t loop;
    int ends[2];
    struct relay_sink sink;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    relay_sink_init(&sink, &loop, ends[1], "stdout", on_ready, &sink);
    assert_true(sink.opened_fd >= 0);
    close(sink.opened_fd);
    sink.opened_fd = -1;
    sink.fd = ends[1];
    sink.careful = true;
    static uint8_t big[300000];
    memset(big, 'b', sizeof big);
    relay_sink_put(&sink, &loop, "", 0, big, sizeof big); /* would block for ever if it blocked */
    assert_true(sink.blocked);
    int flags = fcntl(ends[1], F_GETFL);
    assert_int_equal(flags & O_NONBLOCK, 0);
    struct reader out;
    reader_start(&out, ends[0], 1000);
    while (sink.blocked) {
        uv_run(&loop, UV_RUN_ONCE);
    }
    assert_int_equal(fcntl(ends[1], F_GETFL), flags);
    relay_sink_close(&sink, on_ready);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    close(ends[1]);
    reader_join(&out);
    assert_int_equal(out.count, sizeof big);
    free(out.bytes);
}

/* ---- readers that stop, or go ---- */

/* Without memory a console that takes everything still shows everything, the launcher's own words above all. */
static void a_console_without_memory_is_written_through(void **state) {
    (void)state;
    uv_loop_t loop;
    int ends[2];
    struct relay_sink sink;
    char text[64] = "";
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(pipe(ends), 0);
    relay_sink_init(&sink, &loop, ends[1], "stdout", on_ready, &sink);
    sink.out.max = 0; /* nothing can be queued */
    relay_sink_put(&sink, &loop, "[0]:", 4, (const uint8_t *)"one\n", 4);
    relay_sink_add(&sink, "two\n", 4);
    relay_sink_give_up(&sink, "the test says so");
    relay_sink_add(&sink, "why it ends\n", 12);
    assert_int_equal(read(ends[0], text, sizeof text - 1), 24);
    assert_string_equal(text, "[0]:one\ntwo\nwhy it ends\n");
    relay_sink_close(&sink, on_ready);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void write_much(int fd, int index) {
    (void)index;
    static char line[1001];
    memset(line, 'm', 1000);
    line[1000] = '\n';
    for (int i = 0; i < 5000; i++) {
        write_all(fd, line, sizeof line);
    }
}

static bool is_full(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) == 0;
}

/* A line at a time, each read before the next is written, until the pipe fills for the first time: the console gets
 * short writes until then, and its pipe counts as full while its last page still has room. */
static void write_much_slowly(int fd, int index) {
    (void)index;
    static char line[1001];
    bool was_full = false;
    memset(line, 'm', 1000);
    line[1000] = '\n';
    for (int i = 0; i < 5000; i++) {
        write_all(fd, line, sizeof line);
        for (int unread = 1; unread > 0 && !was_full;) {
            (void)sched_yield();
            was_full = is_full(fd);
            if (ioctl(fd, FIONREAD, &unread) != 0) {
                _exit(1);
            }
        }
    }
}

struct watched_fd {
    int fd;
    bool active;
};

static void look_at_handle(uv_handle_t *handle, void *ctx) {
    struct watched_fd *watched = ctx;
    uv_os_fd_t fd;
    if (handle->type == UV_POLL && uv_fileno(handle, &fd) == 0 && fd == watched->fd) {
        watched->active = uv_is_active(handle) != 0;
    }
}

/* Until the relay no longer reads this writer, because its console takes nothing more. A pipe that counts as full is
 * less than that: the relay need not have met it. */
static void run_until_waiting(struct fixture *f, int index) {
    struct watched_fd watched = {.fd = f->source_fds[index], .active = true};
    while (watched.active) {
        uv_run(&f->loop, UV_RUN_ONCE);
        uv_walk(&f->loop, look_at_handle, &watched);
    }
}

/* While stdout takes nothing, stderr's workers go on; when it is read again, nothing is missing. */
static void a_stuck_reader_slows_only_its_own_writers(void **state) {
    (void)state;
    struct fixture f;
    struct reader out, err;
    fixture_init(&f);
    reader_start(&err, f.err[0], 65536);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_much);
    run_until_waiting(&f, 0);
    start_writer(&f, RELAY_CONSOLE_STDERR, prefixes[1], write_few);
    start_writer(&f, RELAY_CONSOLE_STDERR, prefixes[2], write_few);
    run_until_ended(&f, f.writers[1]); /* it could write all */
    f.writers[1] = f.writers[--f.writer_count];
    assert_true(is_full(f.out[1]));
    reader_start(&out, f.out[0], 65536);
    run_to_end(&f);
    reader_join(&out);
    reader_join(&err);
    assert_int_equal(out.count, (size_t)5000 * (1001 + 5));
    free(out.bytes);
    free(err.bytes);
    line_tail_done(&f.tail);
}

static void a_reader_that_goes_does_not_stop_the_job(void **state) {
    (void)state;
    char path[] = "/tmp/muster_relay_test_XXXXXX";
    close(mkstemp(path));
    struct fixture f;
    fixture_init(&f);
    assert_int_equal(relay_file_open(&f.file, path), 0);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_much);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[1], write_much);
    run_until_waiting(&f, 0);
    close(f.out[0]);
    run_to_end(&f);
    assert_int_equal(log_count, 1);
    assert_non_null(strstr(last_log, "stdout: its reader has gone"));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 5000 * 1001);
    unlink(path);
    line_tail_done(&f.tail);
    close(f.err[0]);
}

static void a_full_disk_ends_the_file_not_the_console(void **state) {
    (void)state;
    struct fixture f;
    struct reader out;
    fixture_init(&f);
    assert_int_equal(relay_file_open(&f.file, "/dev/full"), 0);
    reader_start(&out, f.out[0], 65536);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_much);
    run_to_end(&f);
    reader_join(&out);
    assert_int_equal(log_count, 1);
    assert_non_null(strstr(last_log, "/dev/full: No space left on device"));
    assert_int_equal(out.count, (size_t)5000 * (1001 + 5));
    free(out.bytes);
    line_tail_done(&f.tail);
    close(f.err[0]);
}

static void a_pipe_held_open_is_given_up(void **state) {
    (void)state;
    struct fixture f;
    struct reader out;
    fixture_init(&f);
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct relay_source_options options = {.fd = ends[0], .console = RELAY_CONSOLE_STDOUT, .prefix = "[r0]:"};
    assert_int_equal(relay_source_open(f.relay, &options), 0);
    write_all(ends[1], "last words", 10);
    reader_start(&out, f.out[0], 100);
    run_to_end(&f);
    reader_join(&out);
    assert_int_equal(log_count, 1);
    assert_non_null(strstr(last_log, "held open"));
    assert_int_equal(out.count, 16);
    assert_memory_equal(out.bytes, "[r0]:last words\n", 16);
    free(out.bytes);
    close(ends[1]);
    close(f.err[0]);
}

static void write_for_ever(int fd, int index) {
    (void)index;
    for (;;) {
        write_all(fd, "on and on\n", 10);
    }
}

/* A process that is left alone (--detached=leave) and never stops writing, one that is silent with a line begun: the
 * drain waits for what is there when it begins, and they are read on after it. In the second run the console of the
 * first is full then. */
static void who_writes_on_holds_up_no_drain(void **state) {
    (void)state;
    for (int fills = 0; fills < 2; fills++) {
        struct fixture f;
        struct reader out;
        int ends[2], status;
        char text[32] = "";
        fixture_init(&f);
        (void)fcntl(f.out[1], F_SETPIPE_SZ, 4096);
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        struct relay_source_options options = {.fd = ends[0], .console = RELAY_CONSOLE_STDERR, .prefix = "[r1]:"};
        assert_int_equal(relay_source_open(f.relay, &options), 0);
        write_all(ends[1], "half", 4);
        start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_for_ever);
        if (fills) {
            run_until_waiting(&f, 0);
        }
        reader_start(&out, f.out[0], 65536);
        while (!f.tail.written_bytes) {
            uv_run(&f.loop, UV_RUN_ONCE);
        }
        relay_drain(f.relay, true, on_half_drained, &f);
        while (!f.drained) {
            uv_run(&f.loop, UV_RUN_ONCE);
        }
        f.drained = false;
        (void)kill(f.writers[0], SIGKILL);
        assert_int_equal(waitpid(f.writers[0], &status, 0), f.writers[0]);
        f.writer_count = 0;
        assert_true(relay_has_writers(f.relay));
        write_all(ends[1], "and more\n", 9);
        close(ends[1]);
        assert_true(relay_has_writers(f.relay));
        run_to_end(&f);
        reader_join(&out);
        assert_int_equal(log_count, 0);
        assert_true(out.count > 0 && out.bytes[out.count - 1] == '\n');
        free(out.bytes);
        assert_int_equal(read(f.err[0], text, sizeof text), 24);
        assert_string_equal(text, "[r1]:half\n[r1]:and more\n");
        line_tail_done(&f.tail);
        close(f.err[0]);
    }
}

static void read_to_end(int fd, char *out, size_t size) {
    size_t held = 0;
    for (ssize_t n; held < size - 1 && (n = read(fd, out + held, size - 1 - held)) > 0;) {
        held += (size_t)n;
    }
    out[held] = '\0';
}

/* After the relay a process reads for those that are left alone. It has nothing else of this one's, and ends with them.
 */
static void who_is_left_alone_keeps_a_reader(void **state) {
    (void)state;
    struct fixture f;
    int ends[2], other[2], status;
    char text[64], path[] = "/tmp/muster_relay_test_XXXXXX";
    close(mkstemp(path));
    fixture_init(&f);
    assert_int_equal(pipe2(ends, O_CLOEXEC) | pipe2(other, O_CLOEXEC), 0);
    assert_int_equal(relay_file_open(&f.file, path), 0);
    struct relay_source_options options = {
        .fd = ends[0], .console = RELAY_CONSOLE_STDERR, .prefix = "[r1]:", .file = &f.file};
    assert_int_equal(relay_source_open(f.relay, &options), 0);
    relay_drain(f.relay, true, on_half_drained, &f);
    while (!f.drained) {
        uv_run(&f.loop, UV_RUN_NOWAIT); /* it reads on: to wait would be for that */
    }
    write_all(ends[1], "begun", 5);
    read_on_begin(f.relay);
    relay_close(f.relay);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    relay_file_close(&f.file);
    close(f.out[1]);
    close(f.err[1]);
    close(other[1]);

    read_to_end(other[0], text, sizeof text); /* the reader has neither this pipe nor the console for stdout */
    read_to_end(f.out[0], text, sizeof text);
    assert_string_equal(text, "");
    write_all(ends[1], " and ended\nhalf", 15);
    close(ends[1]);
    read_to_end(f.err[0], text, sizeof text);
    assert_string_equal(text, "[r1]:begun and ended\n[r1]:half\n");
    assert_true(wait(&status) > 0);
    assert_int_equal(status, 0);
    assert_int_equal(wait(&status), -1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    read_to_end(fd, text, sizeof text);
    assert_string_equal(text, "begun and ended\nhalf");
    close(fd);
    unlink(path);
    close(other[0]);
    close(f.out[0]);
    close(f.err[0]);
}

/* A launcher that gets no processor for longer than the drain's patience has heard nothing, but not because nobody
 * spoke: what lies in the pipe is read before it is given up. */
static void a_starved_drain_reads_what_is_there(void **state) {
    (void)state;
    struct fixture f;
    struct reader out;
    fixture_init(&f);
    reader_start(&out, f.out[0], 100);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_half);
    int status;
    assert_int_equal(waitpid(f.writers[0], &status, 0), f.writers[0]);
    assert_int_equal(status, 0);
    f.writer_count = 0;
    relay_drain(f.relay, false, on_half_drained, &f);
    assert_int_equal(poll(NULL, 0, RELAY_SILENCE_MS + 1), 0); /* the time without a processor */
    while (!f.drained) {
        uv_run(&f.loop, UV_RUN_ONCE);
    }
    f.drained = false;
    run_to_end(&f);
    reader_join(&out);
    assert_int_equal(log_count, 0);
    assert_int_equal(out.count, 10);
    assert_memory_equal(out.bytes, "[r0]:half\n", 10);
    free(out.bytes);
    line_tail_done(&f.tail);
    close(f.err[0]);
}

/* More than a console of one page takes, and no more than the relay and the smallest pipe hold beside it. */
static void write_two_pages(int fd, int index) {
    (void)index;
    static char line[1001];
    memset(line, 'm', 1000);
    line[1000] = '\n';
    for (int i = 0; i < 8; i++) {
        write_all(fd, line, sizeof line);
    }
}

static void a_hurried_drain_gives_up_a_stuck_console(void **state) {
    (void)state;
    struct fixture f;
    fixture_init(&f);
    (void)fcntl(f.out[1], F_SETPIPE_SZ, 4096);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_two_pages);
    relay_hurry(f.relay);
    run_to_end(&f);
    assert_int_equal(log_count, 1);
    assert_non_null(strstr(last_log, "stdout: nobody reads it"));
    line_tail_done(&f.tail);
    close(f.out[0]);
    close(f.err[0]);
}

/* The launcher's own lines: never inside a worker's line, never blocking, not lost when the reader comes back. */
static void the_launchers_lines_wait_their_turn(void **state) {
    (void)state;
    struct fixture f;
    struct reader err;
    fixture_init(&f);
    start_writer(&f, RELAY_CONSOLE_STDERR, "[r0]:", write_much_slowly);
    run_until_waiting(&f, 0);
    for (int i = 0; i < 100; i++) {
        assert_true(relay_print(f.relay, "own line\n", 9)); /* nobody reads: it returns all the same */
    }
    size_t bytes = RELAY_OWN_BYTES_MAX;
    char *large = malloc(bytes);
    memset(large, 'l', bytes);
    assert_true(relay_print(f.relay, large, bytes)); /* too much while nobody reads: dropped */
    free(large);
    reader_start(&err, f.err[0], 65536);
    run_to_end(&f);
    reader_join(&err);
    struct cursor c = {err.bytes, err.bytes + err.count};
    const uint8_t *line;
    size_t length, own = 0, theirs = 0;
    while (next_line(&c, &line, &length)) {
        bool is_own = length == 8;
        assert_int_equal(length, is_own ? 8 : 1005);
        assert_memory_equal(line, is_own ? "own line" : "[r0]:mmm", 8);
        own += is_own;
        theirs += !is_own;
    }
    assert_int_equal(own, 100);
    assert_int_equal(theirs, 5000);
    free(err.bytes);
    line_tail_done(&f.tail);
    close(f.out[0]);
}

static void last_words_reach_a_slow_reader(void **state) {
    (void)state;
    struct fixture f;
    struct reader err;
    fixture_init(&f);
    (void)fcntl(f.err[1], F_SETPIPE_SZ, 4096);
    char report[20000];
    memset(report, 'r', sizeof report - 1);
    report[sizeof report - 1] = '\n';
    assert_true(relay_print(f.relay, report, sizeof report));
    assert_true(is_full(f.err[1]));
    reader_start(&err, f.err[0], 100);
    relay_close(f.relay);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    close(f.err[1]);
    reader_join(&err);
    assert_int_equal(err.count, sizeof report);
    free(err.bytes);
    close(f.out[0]);
    close(f.out[1]);
}

static void the_launchers_line_follows_an_unfinished_one(void **state) {
    (void)state;
    struct fixture f;
    struct reader err;
    fixture_init(&f);
    reader_start(&err, f.err[0], 100);
    start_writer(&f, RELAY_CONSOLE_STDERR, "", write_half);
    run_until_ended(&f, f.writers[--f.writer_count]);
    relay_drain(f.relay, false, on_half_drained, &f);
    while (!f.drained) {
        uv_run(&f.loop, UV_RUN_ONCE);
    }
    assert_true(relay_print(f.relay, "report\n", 7));
    f.drained = false;
    run_to_end(&f);
    reader_join(&err);
    assert_int_equal(err.count, 12);
    assert_memory_equal(err.bytes, "half\nreport\n", 12);
    free(err.bytes);
    line_tail_done(&f.tail);
    close(f.out[0]);
}

static void closing_in_mid_stream_leaks_nothing(void **state) {
    (void)state;
    struct fixture f;
    fixture_init(&f);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_much);
    run_until_waiting(&f, 0);
    relay_hurry(f.relay);
    relay_close(f.relay);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    int status;
    assert_int_equal(waitpid(f.writers[0], &status, 0), f.writers[0]);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
    line_tail_done(&f.tail);
    for (int i = 0; i < 2; i++) {
        close(f.out[i]);
        close(f.err[i]);
    }
}

static void write_haystack(int fd, int index) {
    (void)index;
    write_all(fd, "hay\na needle here\nhay\n\xff\nneedle", 30);
}

static void matching_lines_are_doubled_into_their_file(void **state) {
    (void)state;
    char path[] = "/tmp/muster_relay_test_XXXXXX", found[128] = "";
    close(mkstemp(path));
    struct fixture f;
    struct reader out;
    fixture_init(&f);
    assert_int_equal(relay_file_open(&f.matches, path), 0);
    reader_start(&out, f.out[0], 100);
    start_writer(&f, RELAY_CONSOLE_STDOUT, prefixes[0], write_haystack);
    run_to_end(&f);
    reader_join(&out);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(read(fd, found, sizeof found - 1) > 0);
    assert_string_equal(found, "[r0]:a needle here\n[r0]:\xff\n[r0]:needle\n");
    close(fd);
    unlink(path);
    free(out.bytes);
    line_tail_done(&f.tail);
    close(f.err[0]);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    log_set_sink(log_capture);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_workers_lose_double_and_mix_nothing),
        cmocka_unit_test(a_reader_of_few_bytes_gets_everything),
        cmocka_unit_test(stdout_and_stderr_on_one_pipe_do_not_mix),
        cmocka_unit_test(raw_streams_keep_lines_whole),
        cmocka_unit_test(binary_bytes_and_megabyte_lines_arrive_whole),
        cmocka_unit_test(a_line_beyond_the_limit_comes_in_pieces),
        cmocka_unit_test(an_unfinished_line_is_completed_for_the_next_worker),
        cmocka_unit_test(a_progress_bar_moves),
        cmocka_unit_test(busy_workers_lines_stay_whole),
        cmocka_unit_test(a_lone_raw_stream_is_unchanged),
        cmocka_unit_test(a_socket_console_works_and_keeps_its_flags),
        cmocka_unit_test(one_file_is_one_console),
        cmocka_unit_test(a_file_console_is_appended_to),
        cmocka_unit_test(a_terminal_console_works_and_keeps_its_flags),
        cmocka_unit_test(a_console_that_cannot_be_opened_anew_never_blocks),
        cmocka_unit_test(a_console_without_memory_is_written_through),
        cmocka_unit_test(a_stuck_reader_slows_only_its_own_writers),
        cmocka_unit_test(a_reader_that_goes_does_not_stop_the_job),
        cmocka_unit_test(a_full_disk_ends_the_file_not_the_console),
        cmocka_unit_test(a_pipe_held_open_is_given_up),
        cmocka_unit_test(who_writes_on_holds_up_no_drain),
        cmocka_unit_test(who_is_left_alone_keeps_a_reader),
        cmocka_unit_test(a_starved_drain_reads_what_is_there),
        cmocka_unit_test(a_hurried_drain_gives_up_a_stuck_console),
        cmocka_unit_test(the_launchers_lines_wait_their_turn),
        cmocka_unit_test(last_words_reach_a_slow_reader),
        cmocka_unit_test(the_launchers_line_follows_an_unfinished_one),
        cmocka_unit_test(closing_in_mid_stream_leaks_nothing),
        cmocka_unit_test(matching_lines_are_doubled_into_their_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
