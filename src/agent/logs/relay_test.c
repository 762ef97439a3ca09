/* The relay with real pipes: the lines of workers on consoles of every kind; who stops, or goes, is in
 * relay_end_test.c. */
#include "agent/logs/relay_test_support.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/logs/relay_sink.h"

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
    relay_test_begin();
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
        cmocka_unit_test(matching_lines_are_doubled_into_their_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
