/* See relay_test_support.h. */
#include "agent/logs/relay_test_support.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- what the relay logged ---- */

int log_count;
char last_log[LOG_TEXT_MAX];

static void log_capture(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    log_count++;
    (void)snprintf(last_log, sizeof last_log, "%s", text);
}

void relay_test_begin(void) {
    signal(SIGPIPE, SIG_IGN);
    log_set_sink(log_capture);
}

/* ---- a reader of a console, on a thread ---- */

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

void reader_start(struct reader *reader, int fd, size_t chunk_bytes) {
    *reader = (struct reader){.fd = fd, .chunk_bytes = chunk_bytes};
    assert_int_equal(pthread_create(&reader->thread, NULL, reader_main, reader), 0);
}

void reader_join(struct reader *reader) {
    assert_int_equal(pthread_join(reader->thread, NULL), 0);
    close(reader->fd);
}

/* ---- writers ---- */

void write_all(int fd, const void *bytes, size_t count) {
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

void fixture_init_fds(struct fixture *f) {
    memset(f, 0, sizeof *f);
    f->file.fd = f->matches.fd = -1;
    log_count = 0;
    assert_int_equal(uv_loop_init(&f->loop), 0);
}

void fixture_init(struct fixture *f) {
    fixture_init_fds(f);
    assert_int_equal(pipe2(f->out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(f->err, O_CLOEXEC), 0);
    assert_int_equal(relay_create(&f->loop, f->out[1], f->err[1], &f->relay), 0);
}

void start_writer(struct fixture *f, enum relay_console console, const char *prefix, writer_body *body) {
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

void on_half_drained(void *ctx) {
    ((struct fixture *)ctx)->drained = true;
}

static void on_end(uv_poll_t *poll, int status, int events) {
    (void)events;
    assert_int_equal(status, 0);
    uv_close((uv_handle_t *)poll, NULL);
}

void run_until_ended(struct fixture *f, pid_t pid) {
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

void drain_to_end(struct fixture *f) {
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

void run_to_end(struct fixture *f) {
    while (f->writer_count > 0) {
        run_until_ended(f, f->writers[--f->writer_count]);
    }
    drain_to_end(f);
}

/* ---- checks and texts ---- */

const char *const prefixes[] = {"[r0]:", "[r1]:", "[r2]:", "[r3]:"};

bool next_line(struct cursor *c, const uint8_t **line, size_t *length) {
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

void write_half(int fd, int index) {
    write_all(fd, index == 0 ? "half" : "other\n", index == 0 ? 4 : 6);
}

void write_few(int fd, int index) {
    char line[64];
    for (int i = 0; i < 2000; i++) {
        write_all(fd, line, (size_t)snprintf(line, sizeof line, "%d: %d\n", index, i));
    }
}
