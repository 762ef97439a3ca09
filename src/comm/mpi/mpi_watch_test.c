/* When the watch aborts the process, and when it does not; see mpi_watch.h. Looks take no time here, and are counted.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "comm/mpi/mpi_watch.h"

enum { LOOKS_PER_SECOND = 10, DEFAULT_S = 10, LOOKS_MAX = 1000, NOT_ABORTED = 7, ALREADY = 8 };

/* What the threads of the program do while the watch looks on. */
enum life { STUCK, OUTSIDE, COMES_AND_GOES, STUCK_LATER };

static enum life life;
static bool is_alone;
static int looks;
static int counter[2]; /* a pipe: a byte a look */
static int said[2];    /* another: what is logged */

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    (void)fds, (void)count, (void)timeout_ms;
    (void)!write(counter[1], "!", 1);
    looks++;
    if ((life == COMES_AND_GOES && looks % (LOOKS_PER_SECOND - 1) == 0) ||
        (life == STUCK_LATER && looks == LOOKS_PER_SECOND - 1)) {
        mpi_watch_leave(is_alone);
        mpi_watch_enter(is_alone);
    }
    if (looks == LOOKS_MAX) {
        _exit(NOT_ABORTED);
    }
    return 0;
}

struct ending {
    int status, looks;
    char text[512];
};

static void write_down(enum log_level level, const char *file, int line, const char *text) {
    (void)level, (void)file, (void)line;
    (void)!write(said[1], text, strlen(text));
}

static void watch(enum life chosen, const char *seconds) {
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0});
    log_set_sink(write_down);
    life = chosen;
    (void)(seconds ? setenv("MUSTER_MPI_STUCK_S", seconds, 1) : unsetenv("MUSTER_MPI_STUCK_S"));
    if (life != OUTSIDE) {
        mpi_watch_enter(is_alone);
    }
    mpi_watch_begin("rank 1 was killed");
    mpi_watch_begin("rank 2 was killed");
    if (seconds && strcmp(seconds, "0") == 0) {
        _exit(ALREADY);
    }
    for (;;) {
        (void)pause();
    }
}

static size_t read_all(int fd, char *out, size_t max) {
    size_t length = 0;
    for (ssize_t got; length < max && (got = read(fd, out + length, max - length)) > 0;) {
        length += (size_t)got;
    }
    (void)close(fd);
    return length;
}

static struct ending ending_of(enum life chosen, const char *seconds) {
    char counted[LOOKS_MAX];
    struct ending ending = {0};
    assert_int_equal(pipe(counter), 0);
    assert_int_equal(pipe(said), 0);
    pid_t pid = fork();
    if (pid == 0) {
        watch(chosen, seconds);
    }
    (void)close(counter[1]);
    (void)close(said[1]);
    ending.looks = (int)read_all(counter[0], counted, sizeof counted);
    (void)read_all(said[0], ending.text, sizeof ending.text - 1);
    assert_int_equal(waitpid(pid, &ending.status, 0), pid);
    return ending;
}

static void expect_abort(enum life chosen, const char *seconds, int expected_looks) {
    const struct ending ending = ending_of(chosen, seconds);
    assert_true(WIFSIGNALED(ending.status) && WTERMSIG(ending.status) == SIGABRT);
    assert_int_equal(ending.looks, expected_looks);
    assert_non_null(strstr(ending.text, "MPI does not come back"));
    assert_non_null(strstr(ending.text, "rank 1 was killed"));
}

static void who_is_stuck_is_aborted(void **state) {
    (void)state;
    expect_abort(STUCK, "2", 1 + 2 * LOOKS_PER_SECOND); /* the first look has nothing to compare with */
    expect_abort(STUCK, NULL, 1 + DEFAULT_S * LOOKS_PER_SECOND);
    expect_abort(STUCK_LATER, "1", LOOKS_PER_SECOND - 1 + LOOKS_PER_SECOND);
}

static void expect_life(enum life chosen) {
    const struct ending ending = ending_of(chosen, "1");
    assert_true(WIFEXITED(ending.status) && WEXITSTATUS(ending.status) == NOT_ABORTED);
}

static void who_comes_and_goes_lives_on(void **state) {
    (void)state;
    expect_life(COMES_AND_GOES);
    is_alone = true;
    expect_life(COMES_AND_GOES);
    is_alone = false;
    expect_life(OUTSIDE);
}

static void zero_means_never(void **state) {
    (void)state;
    const struct ending ending = ending_of(STUCK, "0");
    assert_true(WIFEXITED(ending.status) && WEXITSTATUS(ending.status) == ALREADY);
    assert_int_equal(ending.looks, 0);
}

static void no_number_is_passed_over(void **state) {
    static const char *const texts[] = {"x", "-1", "1.5", "99999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char words[64];
        expect_abort(STUCK, texts[i], 1 + DEFAULT_S * LOOKS_PER_SECOND);
        (void)snprintf(words, sizeof words, "MUSTER_MPI_STUCK_S=%s is passed over", texts[i]);
        assert_non_null(strstr(ending_of(STUCK, texts[i]).text, words));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_is_stuck_is_aborted),
                                       cmocka_unit_test(who_comes_and_goes_lives_on),
                                       cmocka_unit_test(zero_means_never), cmocka_unit_test(no_number_is_passed_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
