/* The relay with real pipes: readers that stop or go, the end of the output, and what the launcher itself says. */
#include "agent/logs/relay_test_support.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/logs/read_on.h"

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

int main(void) {
    relay_test_begin();
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
