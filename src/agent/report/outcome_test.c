/* The outcome's JSON, read back by a parser; and the file, which is the old one or the new one. */
#include "agent/report/outcome.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

enum { EXITED_3 = 3 << 8 };

static const struct outcome_job job = {.run_id = "a \"job\"",
                                       .name = "train.py",
                                       .entry_point = "python3",
                                       .role = "default",
                                       .backend = "c10d",
                                       .host = "node1",
                                       .launcher_pid = 77,
                                       .started_us = 1700000000000001,
                                       .has_world = true,
                                       .group_rank = 1,
                                       .group_world_size = 2,
                                       .world_size = 4,
                                       .round = 5,
                                       .restarts = 1,
                                       .max_restarts = 3};

static json_t *format(const struct outcome_job *of, const struct outcome_end *end, const struct outcome_worker *workers,
                      size_t count) {
    struct buf head, text;
    buf_init(&head, OUTCOME_BYTES_MAX);
    buf_init(&text, OUTCOME_BYTES_MAX);
    assert_int_equal(outcome_format_job(of, &head), 0);
    assert_int_equal(buf_append(&head, "", 1), 0);
    assert_int_equal(outcome_format((const char *)buf_bytes(&head), end, workers, count, &text), 0);
    json_t *root = json_loadb((const char *)buf_bytes(&text), text.len, 0, NULL);
    assert_non_null(root);
    buf_done(&head);
    buf_done(&text);
    return root;
}

static const char *string_of(const json_t *object, const char *name) {
    const char *text = json_string_value(json_object_get(object, name));
    assert_non_null(text);
    return text;
}

static long long number_of(const json_t *object, const char *name) {
    assert_true(json_is_integer(json_object_get(object, name)));
    return json_integer_value(json_object_get(object, name));
}

static void assert_json_null(const json_t *object, const char *name) {
    assert_true(json_is_null(json_object_get(object, name)));
}

static void a_failed_job(void **state) {
    (void)state;
    struct outcome_worker workers[] = {
        {.rank = 2,
         .role_rank = 2,
         .pid = 100,
         .has_ended = true,
         .wait_status = SIGTERM,
         .stopped_by_launcher = true,
         .started_us = 1700000001500000,
         .ended_us = 1700000003250000},
        {.local_rank = 1,
         .rank = 3,
         .role_rank = 3,
         .pid = 101,
         .has_ended = true,
         .wait_status = EXITED_3,
         .ended_us = 1700000002000000,
         .error_file = "/tmp/e.json",
         .error_json = "{\"message\": \"no\"}",
         .message = "no",
         .timestamp_s = 1700000001,
         .status = "exited with code 3"},
        {.local_rank = 2, .rank = 4, .pid = 102, .has_ended = true},
        {.local_rank = 3, .rank = 5},
    };
    struct outcome_end end = {.result = "failed",
                              .has_exit_code = true,
                              .exit_code = 1,
                              .ended_us = 1700000004000000,
                              .root = &workers[1],
                              .root_host = "node1"};
    json_t *root = format(&job, &end, workers, 4);
    assert_int_equal(number_of(root, "version"), 1);
    assert_string_equal(string_of(root, "run_id"), "a \"job\"");
    assert_string_equal(string_of(root, "host"), "node1");
    assert_int_equal(number_of(root, "round"), 5);
    assert_int_equal(number_of(root, "group_rank"), 1);
    assert_int_equal(number_of(root, "restarts"), 1);
    assert_string_equal(string_of(root, "result"), "failed");
    assert_int_equal(number_of(root, "exit_code"), 1);
    assert_json_null(root, "signal");
    assert_int_equal(number_of(json_object_get(root, "root_cause"), "rank"), 3);
    assert_int_equal(number_of(json_object_get(root, "root_cause"), "local_rank"), 1);
    assert_string_equal(string_of(json_object_get(root, "root_cause"), "host"), "node1");
    assert_int_equal(number_of(json_object_get(root, "root_cause"), "exitcode"), 3);
    const json_t *list = json_object_get(root, "workers"), *stopped = json_array_get(list, 0);
    assert_int_equal(json_array_size(list), 4);
    assert_string_equal(string_of(stopped, "state"), "stopped");
    assert_int_equal(number_of(stopped, "exitcode"), -SIGTERM);
    assert_string_equal(string_of(stopped, "signal"), "SIGTERM");
    assert_string_equal(string_of(stopped, "message"), "Signal 15 (SIGTERM) received by PID 100");
    assert_int_equal(number_of(stopped, "timestamp"), 1700000003);
    assert_true(json_real_value(json_object_get(stopped, "ended")) == 1700000003.25);
    assert_json_null(stopped, "error_file");
    const json_t *failed = json_array_get(list, 1);
    assert_string_equal(string_of(failed, "state"), "failed");
    assert_int_equal(number_of(failed, "exitcode"), 3);
    assert_json_null(failed, "signal");
    assert_string_equal(string_of(failed, "error_file"), "/tmp/e.json");
    assert_string_equal(string_of(json_object_get(failed, "error"), "message"), "no");
    assert_string_equal(string_of(failed, "message"), "no");
    assert_int_equal(number_of(failed, "timestamp"), 1700000001);
    assert_string_equal(string_of(json_array_get(list, 2), "state"), "succeeded");
    assert_json_null(json_array_get(list, 2), "timestamp");
    assert_string_equal(string_of(json_array_get(list, 3), "state"), "not_started");
    assert_json_null(json_array_get(list, 3), "exitcode");
    json_decref(root);
}

static void a_job_without_a_world(void **state) {
    (void)state;
    const struct outcome_job early = {.run_id = "none", .started_us = 1};
    const struct outcome_end end = {.result = "launcher_killed", .message = "\xff line\n", .signal_number = SIGHUP};
    json_t *root = format(&early, &end, NULL, 0);
    assert_json_null(root, "round");
    assert_json_null(root, "exit_code");
    assert_json_null(root, "root_cause");
    assert_json_null(root, "ended");
    assert_string_equal(string_of(root, "signal"), "SIGHUP");
    assert_string_equal(string_of(root, "message"), "\xEF\xBF\xBD line\n");
    assert_int_equal(json_array_size(json_object_get(root, "workers")), 0);
    json_decref(root);
}

static void assert_file(const char *path, const char *expected) {
    char text[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    assert_int_equal(fclose(file), 0);
    assert_string_equal(text, expected);
}

static int write_text(const char *path, const char *text) {
    struct buf out;
    buf_init(&out, 64);
    assert_int_equal(buf_append(&out, text, strlen(text)), 0);
    int code = outcome_write(path, &out);
    buf_done(&out);
    return code;
}

#define EARLIER "{\"kind\": \"muster outcome\", \"version\": 1}\n"

static void put_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* `--outcome train.py` must cost nobody a program. */
static void a_file_of_somebody_else_stays(void **state) {
    (void)state;
    char folder[] = "/tmp/muster-outcome-XXXXXX", path[64], behind[80];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/train.py", folder);
    (void)snprintf(behind, sizeof behind, "%s/behind", folder);
    static const char *const others[] = {"import torch\n", "{", "{\"kind\": \"muster report\"}"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        put_file(path, others[i]);
        assert_int_equal(outcome_prepare(path), MUSTER_EINVAL);
        assert_non_null(strstr(muster_detail(), "not one that --outcome wrote"));
        assert_file(path, others[i]);
    }
    put_file(path, "");
    assert_int_equal(outcome_prepare(path), 0);
    assert_int_equal(access(path, F_OK), -1);
    put_file(behind, EARLIER);
    assert_int_equal(symlink(behind, path), 0);
    assert_int_equal(outcome_prepare(path), 0); /* nor may one of an earlier job be found there */
    assert_int_equal(access(path, F_OK), -1);
    assert_file(behind, EARLIER);
    assert_int_equal(unlink(behind), 0);
    assert_int_equal(symlink(behind, path), 0);
    assert_int_equal(outcome_prepare(path), 0); /* a link to nothing: it goes when there is a file in its place */
    assert_int_equal(write_text(path, EARLIER), 0);
    assert_file(path, EARLIER);
    assert_int_equal(access(behind, F_OK), -1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* `--outcome=/dev/stdout >log`: the log stays the file that stdout is, and what it holds already stays in it. (By
 * a name in a folder in which nobody can make files: a mistake must not replace the machine's /dev/stdout.) */
static void a_stream_of_ours_is_written_to_directly(void **state) {
    (void)state;
    char path[] = "/tmp/muster-outcome-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool good = dup2(fd, STDOUT_FILENO) == STDOUT_FILENO && write(STDOUT_FILENO, "log\n", 4) == 4 &&
                    outcome_prepare("/proc/self/fd/1") == 0 && write_text("/proc/self/fd/1", "end\n") == 0;
        _exit(!good);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_file(path, "log\nend\n");
    assert_int_equal(unlink(path), 0);
    close(fd);
}

enum { LONG_BYTES = 300000 /* more than a pipe holds */ };

static int write_long(const char *path) {
    struct buf out;
    buf_init(&out, LONG_BYTES);
    uint8_t *at = buf_reserve(&out, LONG_BYTES);
    memset(at, 'o', LONG_BYTES);
    buf_commit(&out, LONG_BYTES);
    int code = outcome_write(path, &out);
    buf_done(&out);
    return code;
}

static void a_slow_reader_gets_all_of_it(void **state) {
    (void)state;
    char folder[] = "/tmp/muster-outcome-XXXXXX", path[64], text[4096];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(outcome_prepare(path), 0);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int filler = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(fd >= 0 && filler >= 0);
    size_t filled = 0, count = 0; /* the writer meets a pipe that takes nothing, whoever is faster */
    for (ssize_t n; (n = write(filler, text, sizeof text)) > 0;) {
        filled += (size_t)n;
    }
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(filler);
        _exit(write_long(path) != 0);
    }
    int status, child_fd = (int)syscall(SYS_pidfd_open, child, 0);
    assert_true(child_fd >= 0);
    for (bool goes_on = true; goes_on;) {
        struct pollfd waits[2] = {{.fd = fd, .events = POLLIN}, {.fd = child_fd, .events = POLLIN}};
        assert_true(poll(waits, 2, -1) > 0);
        bool has_ended = waits[1].revents != 0;
        ssize_t n = read(fd, text, sizeof text);
        count += n > 0 ? (size_t)n : 0;
        goes_on = n > 0 || !has_ended;
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(count, filled + LONG_BYTES);
    close(child_fd);
    close(filler);
    close(fd);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void a_file_is_replaced_as_a_whole(void **state) {
    (void)state;
    char folder[] = "/tmp/muster-outcome-XXXXXX", path[64], other[80];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/outcome", folder);
    (void)snprintf(other, sizeof other, "%s/other", folder);
    assert_int_equal(outcome_prepare(path), 0);
    assert_int_equal(write_text(path, EARLIER), 0);
    assert_int_equal(link(path, other), 0);
    assert_int_equal(write_text(path, EARLIER "2"), 0);
    assert_file(path, EARLIER "2");
    assert_file(other, EARLIER); /* who has the old file open reads on in it */
    assert_int_equal(outcome_prepare(path), 0);
    assert_int_equal(access(path, F_OK), -1);
    put_file(path, "somebody's, made during the job");
    assert_int_equal(write_text(path, EARLIER), MUSTER_ESYSTEM);
    assert_file(path, "somebody's, made during the job");
    put_file(path, "");
    assert_int_equal(write_text(path, EARLIER), 0);
    assert_int_equal(unlink(path) + unlink(other), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else is left */
}

static void paths_that_cannot_be_written(void **state) {
    (void)state;
    assert_int_equal(outcome_prepare("/no/such/folder/outcome"), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "--outcome=/no/such/folder/outcome cannot be written"));
    assert_int_equal(outcome_prepare("/tmp"), MUSTER_EINVAL);
    assert_int_equal(outcome_prepare("/dev/null"), 0);
    assert_int_equal(write_text("/no/such/folder/outcome", "x"), MUSTER_ESYSTEM);
    assert_int_equal(write_text("/dev/null", "x"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_job),
        cmocka_unit_test(a_job_without_a_world),
        cmocka_unit_test(a_file_is_replaced_as_a_whole),
        cmocka_unit_test(a_file_of_somebody_else_stays),
        cmocka_unit_test(a_stream_of_ours_is_written_to_directly),
        cmocka_unit_test(a_slow_reader_gets_all_of_it),
        cmocka_unit_test(paths_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
