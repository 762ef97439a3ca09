/* Logs of whole attempts: each scenario runs in a child process whose stdout and stderr are pipes, with shells as
 * workers. */
#include "agent/logs/logs.h"

#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/logs/logs_layout.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

/* ---- prefixes and routes ---- */

static void assert_prefix(const char *template, const char *expected) {
    char out[LOGS_PREFIX_SIZE];
    logs_prefix(template, "rr", 5, 1, out);
    assert_string_equal(out, expected);
}

static void prefixes_follow_the_template(void **state) {
    (void)state;
    assert_prefix(NULL, "[rr1]:");
    assert_prefix("", "[rr1]:");
    assert_prefix("[${role_name}:${rank}/${local_rank}/${nope}] ", "[rr:5/1/${nope}] ");
    assert_prefix("$role_name-$rank-$local_rank|", "rr-5-1|");
    assert_prefix("$$rank $${rank} $ ${ ${rank $1", "$rank ${rank} $ ${ ${rank $1");
    char longest[3000];
    memset(longest, 'p', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    char out[LOGS_PREFIX_SIZE];
    logs_prefix(longest, "rr", 0, 0, out);
    assert_int_equal(strlen(out), LOGS_PREFIX_SIZE - 1);
}

static struct launch_config plain_config(char *log_dir) {
    static char run_id[] = "run/7", role[] = "rr";
    return (struct launch_config){.run_id = run_id, .role = role, .nproc = 2, .log_dir = log_dir};
}

static void routes_follow_the_options(void **state) {
    (void)state;
    const struct logs_consoles apart = {0}, terminal = {.stderr_is_terminal = true};
    uint32_t shown[] = {0};
    struct launch_config config = plain_config(NULL);
    struct logs_route route = logs_route_of(&config, LOGS_STDERR, 0, &apart);
    assert_false(route.into_file || route.into_null || route.into_pipe); /* strict inheritance */
    config.stderr_tail_lines = 20;
    assert_true(logs_route_of(&config, LOGS_STDERR, 0, &apart).pipe_keeps_tail);
    assert_false(logs_route_of(&config, LOGS_STDERR, 0, &apart).pipe_prefixed);
    assert_false(logs_route_of(&config, LOGS_STDERR, 0, &terminal).into_pipe); /* a terminal stays a terminal */
    assert_false(logs_route_of(&config, LOGS_STDOUT, 0, &apart).into_pipe);

    config.redirects =
        (struct launch_stream_map){.is_map = true, .by_rank = {LAUNCH_STREAM_STDOUT, LAUNCH_STREAM_BOTH}};
    assert_true(logs_route_of(&config, LOGS_STDOUT, 0, &apart).into_file);
    assert_true(logs_route_of(&config, LOGS_STDERR, 0, &apart).into_pipe);
    assert_true(logs_route_of(&config, LOGS_STDERR, 1, &apart).into_file);
    assert_false(logs_route_of(&config, LOGS_STDOUT, 11, &apart).into_file); /* beyond a map's single digits */

    config.tee.all = LAUNCH_STREAM_BOTH; /* implies the file */
    route = logs_route_of(&config, LOGS_STDOUT, 0, &apart);
    assert_true(route.into_pipe && route.pipe_to_file && route.pipe_to_console && route.pipe_prefixed);

    config.local_ranks_filtered = true;
    config.local_ranks_filter = shown;
    config.local_ranks_filter_count = 1;
    assert_true(logs_route_of(&config, LOGS_STDOUT, 1, &apart).into_file);
    assert_true(logs_route_of(&config, LOGS_STDOUT, 0, &apart).pipe_to_console);
    config.tee.all = LAUNCH_STREAM_NONE;
    config.redirects = (struct launch_stream_map){0};
    assert_true(logs_route_of(&config, LOGS_STDOUT, 1, &terminal).into_null);
    route = logs_route_of(&config, LOGS_STDERR, 1, &terminal);
    assert_true(route.into_pipe && route.pipe_keeps_tail && !route.pipe_to_console);
    config.stderr_tail_lines = 0;
    assert_true(logs_route_of(&config, LOGS_STDERR, 1, &terminal).into_null);

    static char null_device[] = "/dev/null";
    config.log_dir = null_device;
    config.tee.all = config.redirects.all = LAUNCH_STREAM_BOTH;
    route = logs_route_of(&config, LOGS_STDOUT, 1, &apart);
    assert_false(route.into_file || route.into_null || route.into_pipe);
    config.merge_logs = true;
    assert_true(logs_route_of(&config, LOGS_STDOUT, 0, &apart).pipe_prefixed);
    assert_true(logs_route_of(&config, LOGS_STDOUT, 1, &apart).into_null);
}

/* stdout shares stderr's pipe where both go one way to one place, and nowhere else. */
static void streams_share_a_pipe(void **state) {
    (void)state;
    const struct logs_consoles apart = {0}, one = {.are_one = true},
                               terminal = {.stderr_is_terminal = true, .are_one = true};
    struct launch_config config = plain_config(NULL);
    assert_false(logs_route_of(&config, LOGS_STDOUT, 0, &one).with_stderr); /* both are inherited */
    config.stderr_tail_lines = 20;
    assert_true(logs_route_of(&config, LOGS_STDOUT, 0, &one).with_stderr);
    assert_false(logs_route_of(&config, LOGS_STDOUT, 0, &one).into_pipe);
    assert_false(logs_route_of(&config, LOGS_STDOUT, 0, &apart).with_stderr);
    assert_false(logs_route_of(&config, LOGS_STDOUT, 0, &terminal).with_stderr);

    config.merge_logs = true;
    assert_true(logs_route_of(&config, LOGS_STDOUT, 0, &one).with_stderr);
    assert_true(logs_route_of(&config, LOGS_STDOUT, 0, &terminal).with_stderr);
    assert_false(logs_route_of(&config, LOGS_STDOUT, 0, &apart).with_stderr);
    config.stderr_tail_lines = 0;
    assert_true(logs_route_of(&config, LOGS_STDOUT, 0, &one).with_stderr);

    for (int merges = 0; merges < 2; merges++) {
        for (unsigned streams = LAUNCH_STREAM_STDOUT; streams <= LAUNCH_STREAM_BOTH; streams++) {
            config = plain_config(NULL);
            config.stderr_tail_lines = 20;
            config.merge_logs = merges;
            config.tee.all = (uint8_t)streams;
            assert_false(logs_route_of(&config, LOGS_STDOUT, 0, &one).with_stderr);
            config.tee.all = LAUNCH_STREAM_NONE;
            config.redirects.all = (uint8_t)streams;
            assert_false(logs_route_of(&config, LOGS_STDOUT, 0, &one).with_stderr);
        }
    }
    config.redirects.all = LAUNCH_STREAM_NONE;
    config.local_ranks_filtered = true; /* no rank is shown */
    assert_false(logs_route_of(&config, LOGS_STDOUT, 0, &one).with_stderr);
}

/* ---- whole attempts ---- */

struct agent_side {
    uv_loop_t loop;
    struct logs *logs;
    const struct launch_config *config;
    bool drained;
};

static void on_drained(void *ctx) {
    ((struct agent_side *)ctx)->drained = true;
}

/* For the scenario's process: a failed check ends it with the line's number on its stderr. */
#define check(condition) check_at((condition), __LINE__, #condition)
static void check_at(bool good, int line, const char *text) {
    if (!good) {
        (void)dprintf(STDERR_FILENO, "line %d: %s (%s)\n", line, text, muster_detail());
        _exit(99);
    }
}

static void side_open(struct agent_side *side, const struct launch_config *config) {
    *side = (struct agent_side){.config = config};
    check(uv_loop_init(&side->loop) == 0);
    check(logs_create(&side->loop, config, &side->logs) == 0);
}

static pid_t start_shell(struct agent_side *side, uint32_t local_rank, const char *script) {
    int out = -2, err = -2;
    check(logs_worker_open(side->logs, local_rank, 10 + local_rank, &out, &err) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)(out >= 0 && dup2(out, 1));
        (void)(err >= 0 && dup2(err, 2));
        (void)syscall(SYS_close_range, 3, ~0u, 0);
        execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    logs_worker_opened(side->logs, local_rank);
    return pid;
}

/* Every rank runs `script` with $RANK set by the text "%u" in it. */
static void run_attempt(struct agent_side *side, uint32_t restart_count, uint64_t round, const char *script) {
    check(logs_attempt_begin(side->logs, restart_count, round) == 0);
    for (uint32_t rank = 0; rank < side->config->nproc; rank++) {
        char text[512];
        (void)snprintf(text, sizeof text, "r=%u; %s", rank, script);
        pid_t pid = start_shell(side, rank, text);
        /* One after the other, drained in between by the loop, so that the console's order is known. */
        int status;
        while (waitpid(pid, &status, WNOHANG) == 0) {
            uv_run(&side->loop, UV_RUN_NOWAIT);
        }
        for (int i = 0; i < 20; i++) {
            uv_run(&side->loop, UV_RUN_NOWAIT);
        }
    }
    side->drained = false;
    logs_drain(side->logs, false, on_drained, side);
    while (!side->drained) {
        uv_run(&side->loop, UV_RUN_ONCE);
    }
}

static void side_close(struct agent_side *side) {
    logs_close(side->logs);
    uv_run(&side->loop, UV_RUN_DEFAULT);
    check(uv_loop_close(&side->loop) == 0);
}

/* Runs `scenario` in a child with pipes for stdout and stderr; its exit code, and what came out of them. */
static int run_scenario_status(void (*scenario)(const char *folder), const char *folder, char *out, char *err,
                               size_t size) {
    int pipes[2][2];
    assert_int_equal(pipe(pipes[0]) | pipe(pipes[1]), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[0][1], 1);
        dup2(pipes[1][1], 2);
        (void)syscall(SYS_close_range, 3, ~0u, 0);
        scenario(folder);
        _exit(0); /* the sanitizers' leak check runs in the relay's own test */
    }
    char *texts[2] = {out, err};
    for (int i = 0; i < 2; i++) {
        close(pipes[i][1]);
    }
    for (int i = 0; i < 2; i++) {
        size_t held = 0;
        ssize_t n;
        while ((n = read(pipes[i][0], texts[i] + held, size - 1 - held)) > 0) {
            held += (size_t)n;
        }
        texts[i][held] = '\0';
        close(pipes[i][0]);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 77)) {
        fail_msg("scenario: status %d, stderr: %s", status, err);
    }
    return WEXITSTATUS(status);
}

static void run_scenario(void (*scenario)(const char *folder), const char *folder, char *out, char *err, size_t size) {
    assert_int_equal(run_scenario_status(scenario, folder, out, err, size), 0);
}

static void print_log(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    (void)dprintf(STDERR_FILENO, "%s\n", text);
}

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    (void)str_copy(folder, sizeof folder, "/tmp/muster_logs_test_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/rm", "rm", "-rf", folder, (char *)NULL);
        _exit(127);
    }
    int status;
    return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

/* Contents of the one file that matches folder/<pattern>. */
static void assert_file(const char *pattern, const char *expected) {
    char path[256], found[1024] = "";
    glob_t matches;
    (void)snprintf(path, sizeof path, "%s/%s", folder, pattern);
    assert_int_equal(glob(path, 0, NULL, &matches), 0);
    assert_int_equal(matches.gl_pathc, 1);
    FILE *file = fopen(matches.gl_pathv[0], "r");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    (void)fclose(file);
    globfree(&matches);
    assert_string_equal(found, expected);
}

static void assert_absent(const char *pattern) {
    char path[256];
    glob_t matches;
    (void)snprintf(path, sizeof path, "%s/%s", folder, pattern);
    assert_int_equal(glob(path, 0, NULL, &matches), GLOB_NOMATCH);
}

enum { TEXT = 4096 };
static char out_text[TEXT], err_text[TEXT];

static void tee_scenario(const char *log_dir) {
    struct launch_config config = plain_config((char *)(uintptr_t)log_dir);
    static char *filters[] = {(char *)(uintptr_t) "2 of 1"};
    config.tee.all = LAUNCH_STREAM_BOTH;
    config.duplicate_stdout_filters = (struct launch_strings){filters, 1};
    config.stderr_tail_lines = 2;
    struct agent_side side;
    side_open(&side, &config);
    run_attempt(&side, 0, 1, "echo 1 of $r; echo 2 of $r; printf a\\\\nb\\\\nerr$r >&2");
    char tail[LOGS_TAIL_SIZE];
    check(logs_stderr_tail(side.logs, 1, tail, sizeof tail) == 6 && strcmp(tail, "b\nerr1") == 0);
    char expected[256];
    (void)snprintf(expected, sizeof expected, "%s/attempt_0/1/error.json", logs_run_directory(side.logs));
    check(strcmp(logs_error_file(side.logs, 1), expected) == 0);
    side_close(&side);
}

static void tee_writes_file_and_console(void **state) {
    (void)state;
    run_scenario(tee_scenario, folder, out_text, err_text, TEXT);
    assert_string_equal(out_text, "[rr0]:1 of 0\n[rr0]:2 of 0\n[rr1]:1 of 1\n[rr1]:2 of 1\n");
    assert_string_equal(err_text, "[rr0]:a\n[rr0]:b\n[rr0]:err0\n[rr1]:a\n[rr1]:b\n[rr1]:err1\n");
    assert_file("run_7_*/attempt_0/0/stdout.log", "1 of 0\n2 of 0\n");
    assert_file("run_7_*/attempt_0/1/stderr.log", "a\nb\nerr1");
    assert_file("run_7_*/attempt_0/filtered_stdout.log", "[rr1]:2 of 1\n");
}

static void redirect_scenario(const char *log_dir) {
    char nested[128];
    (void)snprintf(nested, sizeof nested, "%s/made/on the way/", log_dir);
    struct launch_config config = plain_config(nested);
    config.redirects = (struct launch_stream_map){.is_map = true, .by_rank = {[1] = LAUNCH_STREAM_BOTH}};
    config.stderr_tail_lines = 1;
    struct agent_side side;
    side_open(&side, &config);
    run_attempt(&side, 0, 1, "echo out $r; echo first >&2; echo err $r >&2");
    char tail[LOGS_TAIL_SIZE];
    for (uint32_t rank = 0; rank < 2; rank++) {
        check(logs_stderr_tail(side.logs, rank, tail, sizeof tail) == 6);
        check(tail[4] == (char)('0' + rank));
    }
    side_close(&side);
}

static void redirects_go_to_files_only(void **state) {
    (void)state;
    run_scenario(redirect_scenario, folder, out_text, err_text, TEXT);
    assert_string_equal(out_text, "out 0\n");
    assert_string_equal(err_text, "first\nerr 0\n");
    assert_file("made/on*/run_7_*/attempt_0/1/stdout.log", "out 1\n");
    assert_file("made/on*/run_7_*/attempt_0/1/stderr.log", "first\nerr 1\n");
}

static void rounds_scenario(const char *log_dir) {
    struct launch_config config = plain_config((char *)(uintptr_t)log_dir);
    config.nproc = 1;
    config.redirects.all = LAUNCH_STREAM_STDOUT;
    struct agent_side side;
    side_open(&side, &config);
    run_attempt(&side, 0, 4, "echo round 4");
    run_attempt(&side, 0, 6, "echo round 6"); /* members changed: the restart count stays */
    run_attempt(&side, 0, 6, "echo again 6");
    run_attempt(&side, 0, 6, "echo thrice 6");
    run_attempt(&side, 1, 7, "echo round 7");
    side_close(&side);
}

static void earlier_rounds_are_kept(void **state) {
    (void)state;
    run_scenario(rounds_scenario, folder, out_text, err_text, TEXT);
    assert_file("run_7_*/attempt_0.round_4/0/stdout.log", "round 4\n");
    assert_file("run_7_*/attempt_0.round_6/0/stdout.log", "round 6\n");
    assert_file("run_7_*/attempt_0.round_6.2/0/stdout.log", "again 6\n");
    assert_file("run_7_*/attempt_0/0/stdout.log", "thrice 6\n");
    assert_file("run_7_*/attempt_1/0/stdout.log", "round 7\n");
}

static void merge_scenario(const char *log_dir) {
    (void)log_dir;
    static char null_device[] = "/dev/null";
    struct launch_config config = plain_config(null_device);
    config.merge_logs = true;
    check(setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}> ", 1) == 0);
    struct agent_side side;
    side_open(&side, &config);
    check(strcmp(logs_run_directory(side.logs), "") == 0);
    run_attempt(&side, 0, 1, "echo out; echo err >&2");
    check(strcmp(logs_error_file(side.logs, 0), "") == 0);
    side_close(&side);
}

static void merged_lines_need_no_files(void **state) {
    (void)state;
    run_scenario(merge_scenario, folder, out_text, err_text, TEXT);
    assert_string_equal(out_text, "<10> out\n<11> out\n");
    assert_string_equal(err_text, "<10> err\n<11> err\n");
    assert_int_equal(rmdir(folder), 0); /* nothing was put there */
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void default_scenario(const char *temporary) {
    check(setenv("TMPDIR", temporary, 1) == 0);
    struct launch_config config = plain_config(NULL);
    config.stderr_tail_lines = 5;
    struct agent_side side;
    side_open(&side, &config);
    run_attempt(&side, 0, 1, "echo out; printf 'raw \\001 no newline' >&2");
    struct stat st;
    check(stat(logs_run_directory(side.logs), &st) == 0 && (st.st_mode & 0777) == 0700);
    check(str_has_prefix(logs_run_directory(side.logs), temporary));
    check(log_divert("report\n", 7)); /* the program's own text begins on a line of its own */
    side_close(&side);
    check(!log_divert("later\n", 6));
}

static void by_default_bytes_pass_unchanged_and_no_folder_is_left(void **state) {
    (void)state;
    run_scenario(default_scenario, folder, out_text, err_text, TEXT);
    assert_string_equal(out_text, "out\nout\n");
    assert_string_equal(err_text, "raw \001 no newline\nraw \001 no newline\nreport\n");
    assert_int_equal(rmdir(folder), 0); /* empty again */
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void keep_scenario(const char *temporary) {
    check(setenv("TMPDIR", temporary, 1) == 0);
    struct launch_config config = plain_config(NULL);
    struct agent_side side;
    side_open(&side, &config);
    check(logs_attempt_begin(side.logs, 0, 1) == 0);
    int out, err;
    check(logs_worker_open(side.logs, 1, 1, &out, &err) == 0 && out == -1 && err == -1);
    FILE *file = fopen(logs_error_file(side.logs, 1), "w");
    check(file && fputs("{}", file) >= 0 && fclose(file) == 0);
    side_close(&side);
}

static void a_folder_with_an_error_file_is_kept(void **state) {
    (void)state;
    run_scenario(keep_scenario, folder, out_text, err_text, TEXT);
    assert_file("torchelastic_*/run_7_*/attempt_0/1/error.json", "{}");
    assert_absent("torchelastic_*/run_7_*/attempt_0/0");
}

static void one_place_scenario(const char *log_dir) {
    struct launch_config config = plain_config((char *)(uintptr_t)log_dir);
    config.stderr_tail_lines = 3;
    (void)dup2(STDOUT_FILENO, STDERR_FILENO);
    struct agent_side side;
    side_open(&side, &config);
    run_attempt(&side, 0, 1, "echo 1 of $r; echo 2 >&2; echo 3; printf 4 >&2; echo 5; echo 6 >&2");
    char tail[LOGS_TAIL_SIZE];
    check(logs_tail_has_stdout(side.logs, 1));
    check(logs_stderr_tail(side.logs, 1, tail, sizeof tail) == 7 && strcmp(tail, "3\n45\n6\n") == 0);
    side_close(&side);
}

static void streams_that_lead_to_one_place_keep_their_order(void **state) {
    (void)state;
    run_scenario(one_place_scenario, folder, out_text, err_text, TEXT);
    assert_string_equal(out_text, "1 of 0\n2\n3\n45\n6\n1 of 1\n2\n3\n45\n6\n");
    assert_string_equal(err_text, "");
}

/* ---- full disks: a small one of our own, in a mount namespace of the scenario's process ---- */

enum { SKIPPED = 77 };

static void mount_small_disk(const char *place, const char *options) {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", place, "tmpfs", 0, options) != 0) {
        _exit(SKIPPED);
    }
}

static void no_room_for_folders_scenario(const char *log_dir) {
    mount_small_disk(log_dir, "size=64k,nr_inodes=5");
    struct launch_config config = plain_config((char *)(uintptr_t)log_dir);
    config.nproc = 8;
    struct agent_side side;
    side_open(&side, &config);
    check(logs_attempt_begin(side.logs, 0, 1) == MUSTER_ESYSTEM);
    check(strstr(muster_detail(), "No space left on device; make room there, choose another place with --log-dir"));
    side_close(&side);
}

static void no_room_for_lines_scenario(const char *log_dir) {
    mount_small_disk(log_dir, "size=64k");
    struct launch_config config = plain_config((char *)(uintptr_t)log_dir);
    config.nproc = 1;
    config.tee.all = LAUNCH_STREAM_STDOUT;
    log_set_sink(print_log);
    struct agent_side side;
    side_open(&side, &config);
    run_attempt(&side, 0, 1, "i=0; while [ $i -lt 4000 ]; do echo a line of some length $i; i=$((i+1)); done");
    side_close(&side);
}

static void a_full_disk_is_explained_and_the_console_goes_on(void **state) {
    (void)state;
    enum { LINES_BYTES = 4000 * 40 };
    char *out = malloc(LINES_BYTES), *err = malloc(LINES_BYTES);
    int status = run_scenario_status(no_room_for_folders_scenario, folder, out, err, LINES_BYTES);
    if (status == SKIPPED) {
        free(out);
        free(err);
        print_message("SKIP: no right to make mount namespaces\n");
        skip();
        return;
    }
    assert_int_equal(status, 0);
    assert_int_equal(run_scenario_status(no_room_for_lines_scenario, folder, out, err, LINES_BYTES), 0);
    char expected[64];
    const char *at = out;
    for (int i = 0; i < 4000; i++) { /* every line is there */
        int n = snprintf(expected, sizeof expected, "[rr0]:a line of some length %d\n", i);
        assert_memory_equal(at, expected, (size_t)n);
        at += n;
    }
    assert_string_equal(at, "");
    static const char words[] = "/attempt_0/0/stdout.log: No space left on device.";
    const char *told = strstr(err, words);
    assert_non_null(told);
    assert_null(strstr(told + sizeof words, "No space left")); /* once */
    free(out);
    free(err);
}

static void few_descriptors_scenario(const char *log_dir) {
    struct launch_config config = plain_config((char *)(uintptr_t)log_dir);
    config.tee.all = LAUNCH_STREAM_BOTH;
    struct agent_side side;
    side_open(&side, &config);
    check(logs_attempt_begin(side.logs, 0, 1) == 0);
    struct rlimit few = {20, 20};
    check(setrlimit(RLIMIT_NOFILE, &few) == 0);
    int held[32], count = 0, out, err;
    while ((held[count] = dup(0)) >= 0) {
        count++;
    }
    for (int left = 0; count > 0 && left < 6; left++) { /* with 0, 1, ... 5 descriptors: never enough, nothing leaks */
        check(logs_worker_open(side.logs, 0, 0, &out, &err) == MUSTER_ESYSTEM);
        uv_run(&side.loop, UV_RUN_NOWAIT);
        close(held[--count]);
    }
    check(strstr(muster_detail(), "Too many open files"));
    side_close(&side);
}

static void too_few_descriptors_are_an_error(void **state) {
    (void)state;
    run_scenario(few_descriptors_scenario, folder, out_text, err_text, TEXT);
}

/* ---- folders that cannot be ---- */

static void assert_create_fails(char *log_dir, int code, const char *words) {
    struct launch_config config = plain_config(log_dir);
    struct logs *logs = NULL;
    uv_loop_t loop;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(logs_create(&loop, &config, &logs), code);
    assert_null(logs);
    assert_non_null(strstr(muster_detail(), words));
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void impossible_folders_are_explained(void **state) {
    (void)state;
    char path[128], below[160];
    (void)snprintf(path, sizeof path, "%s/file", folder);
    (void)snprintf(below, sizeof below, "%s/file/sub", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_create_fails(path, MUSTER_EINVAL, "is a file; --log-dir must name a directory");
    assert_create_fails(below, MUSTER_ESYSTEM, "choose another place with --log-dir");
    static char no_writing[] = "/proc/muster-logs";
    assert_create_fails(no_writing, MUSTER_ESYSTEM, "cannot create log directory /proc/muster-logs");
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_follow_the_template),
        cmocka_unit_test(routes_follow_the_options),
        cmocka_unit_test(streams_share_a_pipe),
        IN_FOLDER(tee_writes_file_and_console),
        IN_FOLDER(redirects_go_to_files_only),
        IN_FOLDER(earlier_rounds_are_kept),
        IN_FOLDER(merged_lines_need_no_files),
        IN_FOLDER(by_default_bytes_pass_unchanged_and_no_folder_is_left),
        IN_FOLDER(streams_that_lead_to_one_place_keep_their_order),
        IN_FOLDER(a_folder_with_an_error_file_is_kept),
        IN_FOLDER(impossible_folders_are_explained),
        IN_FOLDER(a_full_disk_is_explained_and_the_console_goes_on),
        IN_FOLDER(too_few_descriptors_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
