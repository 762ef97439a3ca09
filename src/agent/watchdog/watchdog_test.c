/* The watchdog on a real loop and FIFO: a client as torchelastic's, expiry, strangers, rubbish, clean-up. */
#include "agent/watchdog/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/clock.h"

enum { WORKER = 4242, STRANGER = 1, LIMIT_MS = 30000 };

struct fixture {
    uv_loop_t loop;
    struct watchdog *watchdog;
    char folder[64];
    char path[128];
    unsigned expired_count;
    unsigned asked_count; /* messages that came so far as to have their sender looked at */
    pid_t pid;
    int signal_number;
    char scope[64];
};

static bool is_worker(void *ctx, pid_t pid) {
    ((struct fixture *)ctx)->asked_count++;
    return pid == WORKER;
}

static void on_expired(void *ctx, const struct watchdog_expiry *expiry) {
    struct fixture *f = ctx;
    f->expired_count++;
    f->pid = expiry->pid;
    f->signal_number = expiry->signal_number;
    (void)snprintf(f->scope, sizeof f->scope, "%s", expiry->scope);
}

static const struct watchdog_callbacks callbacks = {is_worker, on_expired};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    (void)snprintf(f->folder, sizeof f->folder, "/tmp/watchdog_test.XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    (void)snprintf(f->path, sizeof f->path, "%s/timer", f->folder);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    assert_int_equal(watchdog_create(&f->loop, f->path, &callbacks, f, &f->watchdog), MUSTER_OK);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    watchdog_close(f->watchdog);
    assert_int_equal(uv_run(&f->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    assert_int_equal(access(f->path, F_OK), -1);
    assert_int_equal(rmdir(f->folder), 0);
    free(f);
    return 0;
}

/* Opens, writes once, closes, as the Python client does for each message. */
static void client_write(const char *path, const char *bytes, size_t length) {
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, length), (ssize_t)length);
    assert_int_equal(close(fd), 0);
}

static void client_send(const char *path, pid_t pid, const char *scope, double expires_s, int signal_number) {
    char line[256];
    int length = snprintf(line, sizeof line,
                          "{\"version\": 1, \"pid\": %d, \"scope_id\": \"%s\", \"expiration_time\": %.6f, "
                          "\"signal\": %d}\n",
                          (int)pid, scope, expires_s, signal_number);
    client_write(path, line, (size_t)length);
}

static void on_limit(uv_timer_t *timer) {
    *(bool *)timer->data = true;
}

static void until(struct fixture *f, const unsigned *counter, unsigned value) {
    bool limit_reached = false;
    uv_timer_t limit;
    assert_int_equal(uv_timer_init(&f->loop, &limit), 0);
    limit.data = &limit_reached;
    assert_int_equal(uv_timer_start(&limit, on_limit, LIMIT_MS, 0), 0);
    while (*counter < value && !limit_reached) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&limit, NULL);
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    assert_false(limit_reached);
}

static double now_s(void) {
    return (double)clock_realtime_us() / 1e6;
}

static void a_timer_runs_out(void **state) {
    struct fixture *f = *state;
    double due_s = now_s() + 0.05;
    client_send(f->path, WORKER, "step", due_s, SIGTERM);
    until(f, &f->expired_count, 1);
    assert_true(now_s() >= due_s);
    assert_int_equal(f->pid, WORKER);
    assert_int_equal(f->signal_number, SIGTERM);
    assert_string_equal(f->scope, "step");
}

static void a_time_in_the_past_and_zero(void **state) {
    struct fixture *f = *state;
    client_send(f->path, WORKER, "past", 1.5, SIGKILL);
    until(f, &f->expired_count, 1);
    client_send(f->path, WORKER, "zero", 0, SIGKILL);
    until(f, &f->expired_count, 2);
    assert_string_equal(f->scope, "zero");
}

static void released_and_prolonged(void **state) {
    struct fixture *f = *state;
    client_send(f->path, WORKER, "released", now_s() + 0.02, SIGKILL);
    client_send(f->path, WORKER, "released", -1, 0);
    client_send(f->path, WORKER, "prolonged", now_s() + 0.02, SIGKILL);
    client_send(f->path, WORKER, "prolonged", now_s() + 1e6, SIGKILL);
    client_send(f->path, WORKER, "never", 1e18, SIGKILL);
    client_send(f->path, WORKER, "last", now_s() + 0.05, 0);
    until(f, &f->expired_count, 1);
    assert_string_equal(f->scope, "last"); /* the two before it would have come first */
    assert_int_equal(f->signal_number, 0);
}

static void strangers_are_refused(void **state) {
    struct fixture *f = *state;
    client_send(f->path, STRANGER, "evil", 1, SIGKILL);
    client_send(f->path, getpid(), "evil", 1, SIGKILL);
    client_send(f->path, WORKER, "good", 2, SIGKILL);
    until(f, &f->expired_count, 1);
    assert_int_equal(f->asked_count, 3);
    assert_string_equal(f->scope, "good");
}

static void rubbish_is_survived(void **state) {
    struct fixture *f = *state;
    static const char first_half[] = "{\"version\": 1, \"pid\": 4242, \"scope_id\": \"pieces\", ";
    static const char second_half[] = "\"expiration_time\": 1, \"signal\": 9}\n";
    char large[PIPE_BUF + 100];
    memset(large, 'x', sizeof large);
    large[sizeof large - 1] = '\n';
    client_write(f->path, large, sizeof large);
    client_write(f->path, "\n\n{\n\0\n\xff\xfe\n", 9);
    client_write(f->path, first_half, strlen(first_half));
    client_write(f->path, second_half, strlen(second_half));
    until(f, &f->expired_count, 1);
    assert_string_equal(f->scope, "pieces");
}

static void forgotten_and_reset(void **state) {
    struct fixture *f = *state;
    client_send(f->path, WORKER, "forgotten", now_s() + 0.05, SIGKILL);
    until(f, &f->asked_count, 1);
    watchdog_forget(f->watchdog, WORKER);
    client_send(f->path, WORKER, "unread", 1, SIGKILL);
    watchdog_reset(f->watchdog);
    client_send(f->path, WORKER, "fresh", now_s() + 0.1, SIGKILL);
    until(f, &f->expired_count, 1);
    assert_string_equal(f->scope, "fresh");
}

static void fifo_is_private_and_replaced(void **state) {
    struct fixture *f = *state;
    struct stat seen;
    assert_int_equal(stat(f->path, &seen), 0);
    assert_true(S_ISFIFO(seen.st_mode));
    assert_int_equal(seen.st_mode & 0777, 0600);
    watchdog_close(f->watchdog);
    assert_int_equal(mkfifo(f->path, 0644), 0); /* left by an agent that was killed */
    assert_int_equal(watchdog_create(&f->loop, f->path, &callbacks, f, &f->watchdog), MUSTER_OK);
    client_send(f->path, WORKER, "x", 1, SIGKILL);
    until(f, &f->expired_count, 1);
}

static void other_files_are_not_replaced(void **state) {
    struct fixture *f = *state;
    struct watchdog *second = NULL;
    char path[160];
    (void)snprintf(path, sizeof path, "%s/data", f->folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(watchdog_create(&f->loop, path, &callbacks, f, &second), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), path));
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/nowhere/timer", f->folder);
    assert_int_equal(watchdog_create(&f->loop, path, &callbacks, f, &second), MUSTER_ESYSTEM);
    assert_null(second);
}

static void a_name_of_its_own(void **state) {
    struct fixture *f = *state;
    struct watchdog *second = NULL;
    char path[256];
    assert_int_equal(setenv("TMPDIR", f->folder, 1), 0);
    assert_int_equal(watchdog_create(&f->loop, NULL, &callbacks, f, &second), MUSTER_OK);
    assert_int_equal(unsetenv("TMPDIR"), 0);
    (void)snprintf(path, sizeof path, "%s", watchdog_path(second));
    assert_int_equal(strncmp(path, f->folder, strlen(f->folder)), 0);
    assert_non_null(strstr(path, "/watchdog_timer_"));
    assert_int_equal(access(path, W_OK), 0);
    watchdog_close(second);
    assert_int_equal(access(path, F_OK), -1);
}

#define WATCHDOG_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        WATCHDOG_TEST(a_timer_runs_out),
        WATCHDOG_TEST(a_time_in_the_past_and_zero),
        WATCHDOG_TEST(released_and_prolonged),
        WATCHDOG_TEST(strangers_are_refused),
        WATCHDOG_TEST(rubbish_is_survived),
        WATCHDOG_TEST(forgotten_and_reset),
        WATCHDOG_TEST(fifo_is_private_and_replaced),
        WATCHDOG_TEST(other_files_are_not_replaced),
        WATCHDOG_TEST(a_name_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
