/* The failure report against texts recorded from PyTorch 2.13 (our own lines taken out), and our own lines. */
#include "agent/report/report.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "agent/report/report_text.h"
#include "base/status.h"

/* 2026-11-21 09:47:11 UTC; main() sets TZ. */
#define START INT64_C(1795254431)

static int exit_status(int code) {
    return code << 8;
}

static char *format(const char *name, const struct report_entry *entries, size_t count) {
    struct report report = {.name = name, .host = "localhost", .entries = entries, .count = count};
    struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(report_format(&report, &out), 0);
    char *text = strndup((const char *)buf_bytes(&out), out.len);
    buf_done(&out);
    return text;
}

/* Takes out the lines that torchelastic's report does not have (these tests give no stderr). */
static void drop_our_lines(char *text) {
    char *to = text;
    for (char *line = text, *next; *line != '\0'; line = next) {
        next = strchr(line, '\n') + 1;
        if (strncmp(line, "  status    : ", 14) != 0) {
            memmove(to, line, (size_t)(next - line));
            to += next - line;
        }
    }
    *to = '\0';
}

static void assert_same_as_torch(const char *name, const struct report_entry *entries, size_t count,
                                 const char *expected) {
    char *text = format(name, entries, count);
    drop_our_lines(text);
    assert_string_equal(text, expected);
    free(text);
}

static void exit_code_with_a_stopped_neighbour(void **state) {
    (void)state;
    const struct report_entry entries[] = {
        {.rank = 0,
         .local_rank = 0,
         .pid = 22647,
         .wait_status = SIGTERM,
         .order = 8,
         .time_s = START + 1,
         .stopped_by_us = true},
        {.rank = 1, .local_rank = 1, .pid = 22648, .wait_status = exit_status(3), .order = 7, .time_s = START},
    };
    assert_same_as_torch("f1.py", entries, 2,
                         "============================================================\n"
                         "f1.py FAILED\n"
                         "------------------------------------------------------------\n"
                         "Failures:\n"
                         "[1]:\n"
                         "  time      : 2026-11-21_09:47:12\n"
                         "  host      : localhost\n"
                         "  rank      : 0 (local_rank: 0)\n"
                         "  exitcode  : -15 (pid: 22647)  (SIGTERM)\n"
                         "  error_file: <N/A>\n"
                         "  traceback : Signal 15 (SIGTERM) received by PID 22647\n"
                         "------------------------------------------------------------\n"
                         "Root Cause (first observed failure):\n"
                         "[0]:\n"
                         "  time      : 2026-11-21_09:47:11\n"
                         "  host      : localhost\n"
                         "  rank      : 1 (local_rank: 1)\n"
                         "  exitcode  : 3 (pid: 22648) \n"
                         "  error_file: <N/A>\n"
                         "  traceback : To enable traceback see: "
                         "https://pytorch.org/docs/stable/elastic/errors.html\n"
                         "============================================================\n");
}

static void a_narrow_report_has_narrow_borders(void **state) {
    (void)state;
    const struct report_entry entries[] = {
        {.rank = 0, .local_rank = 0, .pid = 22717, .wait_status = SIGSEGV, .order = 1, .time_s = START},
        {.rank = 1,
         .local_rank = 1,
         .pid = 22718,
         .wait_status = SIGTERM,
         .order = 2,
         .time_s = START + 1,
         .stopped_by_us = true},
    };
    assert_same_as_torch("f3.py", entries, 2,
                         "=======================================================\n"
                         "f3.py FAILED\n"
                         "-------------------------------------------------------\n"
                         "Failures:\n"
                         "[1]:\n"
                         "  time      : 2026-11-21_09:47:12\n"
                         "  host      : localhost\n"
                         "  rank      : 1 (local_rank: 1)\n"
                         "  exitcode  : -15 (pid: 22718)  (SIGTERM)\n"
                         "  error_file: <N/A>\n"
                         "  traceback : Signal 15 (SIGTERM) received by PID 22718\n"
                         "-------------------------------------------------------\n"
                         "Root Cause (first observed failure):\n"
                         "[0]:\n"
                         "  time      : 2026-11-21_09:47:11\n"
                         "  host      : localhost\n"
                         "  rank      : 0 (local_rank: 0)\n"
                         "  exitcode  : -11 (pid: 22717)  (SIGSEGV)\n"
                         "  error_file: <N/A>\n"
                         "  traceback : Signal 11 (SIGSEGV) received by PID 22717\n"
                         "=======================================================\n");
}

static void a_traceback_is_indented(void **state) {
    (void)state;
    const struct report_entry entry = {.rank = 1,
                                       .local_rank = 1,
                                       .pid = 22663,
                                       .wait_status = exit_status(1),
                                       .time_s = START + 4,
                                       .error_file = "/logs/attempt_0/1/error.json",
                                       .message_is_traceback = true,
                                       .message = "Traceback (most recent call last):\n  File \"f2.py\", line 5, in "
                                                  "main\n    raise ValueError(\"boom\")\nValueError: boom\n"};
    assert_same_as_torch("f2.py", &entry, 1,
                         "================================================\n"
                         "f2.py FAILED\n"
                         "------------------------------------------------\n"
                         "Failures:\n"
                         "  <NO_OTHER_FAILURES>\n"
                         "------------------------------------------------\n"
                         "Root Cause (first observed failure):\n"
                         "[0]:\n"
                         "  time      : 2026-11-21_09:47:15\n"
                         "  host      : localhost\n"
                         "  rank      : 1 (local_rank: 1)\n"
                         "  exitcode  : 1 (pid: 22663) \n"
                         "  error_file: /logs/attempt_0/1/error.json\n"
                         "  traceback : Traceback (most recent call last):\n"
                         "    File \"f2.py\", line 5, in main\n"
                         "      raise ValueError(\"boom\")\n"
                         "  ValueError: boom\n"
                         "  \n"
                         "================================================\n");
}

static void a_plain_message_and_a_signal_without_a_name(void **state) {
    (void)state;
    const struct report_entry entries[] = {
        {.rank = 5,
         .local_rank = 0,
         .pid = 4,
         .wait_status = exit_status(2),
         .order = 1,
         .time_s = START + 5,
         .error_file = "/tmp/logs/run_abcdefgh/0/error.json",
         .message = "plain text of two\nlines"},
        {.rank = 6, .local_rank = 1, .pid = 5, .wait_status = 40, .order = 2, .time_s = START + 9},
    };
    assert_same_as_torch("sh", entries, 2,
                         "=================================================\n"
                         "sh FAILED\n"
                         "-------------------------------------------------\n"
                         "Failures:\n"
                         "[1]:\n"
                         "  time      : 2026-11-21_09:47:20\n"
                         "  host      : localhost\n"
                         "  rank      : 6 (local_rank: 1)\n"
                         "  exitcode  : -40 (pid: 5) \n"
                         "  error_file: <N/A>\n"
                         "  traceback : Signal 40 (<N/A>) received by PID 5\n"
                         "-------------------------------------------------\n"
                         "Root Cause (first observed failure):\n"
                         "[0]:\n"
                         "  time      : 2026-11-21_09:47:16\n"
                         "  host      : localhost\n"
                         "  rank      : 5 (local_rank: 0)\n"
                         "  exitcode  : 2 (pid: 4) \n"
                         "  error_file: /tmp/logs/run_abcdefgh/0/error.json\n"
                         "  traceback : plain text of two\n"
                         "lines\n"
                         "=================================================\n");
}

/* ---- the root cause ---- */

static void the_root_is_the_first_to_die_by_itself(void **state) {
    (void)state;
    struct report_entry entries[] = {
        {.rank = 0, .order = 5, .wait_status = SIGKILL, .time_s = START + 9}, /* clocks prove nothing */
        {.rank = 1, .order = 2, .wait_status = SIGTERM, .stopped_by_us = true, .time_s = START},
        {.rank = 2, .order = 3, .wait_status = exit_status(1), .time_s = START + 10},
    };
    struct report report = {.entries = entries, .count = 3};
    assert_int_equal(report_root(&report), 2);
    entries[2].order = 6;
    assert_int_equal(report_root(&report), 0);
    entries[0].stopped_by_us = entries[2].stopped_by_us = true; /* nobody failed by itself */
    assert_int_equal(report_root(&report), 1);
}

/* Both died in one turn of the loop, and the order of that is not known. */
static void a_victim_is_not_the_root(void **state) {
    (void)state;
    struct report_entry entries[] = {
        {.rank = 0, .order = 1, .wait_status = exit_status(1), .is_victim = true, .time_s = START},
        {.rank = 1, .order = 2, .wait_status = SIGKILL, .time_s = START},
    };
    struct report report = {.entries = entries, .count = 2};
    assert_int_equal(report_root(&report), 1);
    report.count = 1; /* of another node's rank */
    assert_int_equal(report_root(&report), 0);
}

#define S_US 1000000

/* The victim has ended before the killed worker could be waited for. */
static void who_is_killed_at_the_same_moment_is_the_root(void **state) {
    (void)state;
    struct report_entry entries[] = {
        {.rank = 0, .order = 2, .wait_status = SIGKILL, .early_us = 4000, .ended_us = 1 * S_US + 3000},
        {.rank = 1, .order = 1, .wait_status = exit_status(1), .ended_us = 1 * S_US},
    };
    struct report report = {.entries = entries, .count = 2};
    assert_int_equal(report_root(&report), 0);
    entries[0].ended_us += 2000; /* later than a victim's end can explain */
    assert_int_equal(report_root(&report), 1);
}

/* Rank 0 raises, and needs four seconds to die; rank 1 fails because of it, and is dead before. */
static void an_error_file_is_older_than_a_death(void **state) {
    (void)state;
    struct report_entry entries[] = {
        {.rank = 0, .order = 2, .wait_status = exit_status(1), .error_us = 1 * S_US, .ended_us = 5 * S_US},
        {.rank = 1, .order = 1, .wait_status = exit_status(1), .ended_us = 2 * S_US},
    };
    struct report report = {.entries = entries, .count = 2};
    assert_int_equal(report_root(&report), 0);
    entries[1].error_us = 2 * S_US; /* the victim has one, too */
    assert_int_equal(report_root(&report), 0);
    entries[0].error_us = 3 * S_US; /* then rank 1 was the first */
    assert_int_equal(report_root(&report), 1);
}

/* A file's time lags by a tick: a victim that writes one within that of a death is no cause. */
static void deaths_decide_where_file_times_are_too_coarse(void **state) {
    (void)state;
    struct report_entry entries[] = {
        {.rank = 0, .order = 2, .wait_status = exit_status(1), .error_us = S_US - 4000, .ended_us = 2 * S_US},
        {.rank = 1, .order = 1, .wait_status = SIGKILL, .ended_us = S_US},
    };
    struct report report = {.entries = entries, .count = 2};
    assert_int_equal(report_root(&report), 1);
    entries[1].error_us = S_US;
    assert_int_equal(report_root(&report), 1);
    entries[0].stopped_by_us = true;
    entries[0].error_us = 1; /* written after it was told to end, by a clock that is wrong: a victim all the same */
    assert_int_equal(report_root(&report), 1);
}

static char *format_with_peers(const struct report_entry *entries, size_t count, const struct report_peer *peers,
                               size_t peer_count) {
    struct report report = {
        .name = "x", .host = "h", .entries = entries, .count = count, .peers = peers, .peer_count = peer_count};
    struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(report_format(&report, &out), 0);
    char *text = strndup((const char *)buf_bytes(&out), out.len);
    buf_done(&out);
    return text;
}

static void ranks_that_others_may_have_waited_for_are_named(void **state) {
    (void)state;
    const struct report_entry entry = {.rank = 0, .wait_status = exit_status(1), .ended_us = 9 * S_US};
    const struct report_peer peers[] = {{.rank = 0},
                                        {.rank = 1, .state = REPORT_PEER_ENDED_WELL, .ended_us = 7 * S_US},
                                        {.rank = 2, .state = REPORT_PEER_STOPPED},
                                        {.rank = 3, .state = REPORT_PEER_STOPPED},
                                        {.rank = 4, .state = REPORT_PEER_UNINTERRUPTIBLE},
                                        {.rank = 5, .state = REPORT_PEER_TRACED}};
    char *text = format_with_peers(&entry, 1, peers, 6);
    assert_non_null(strstr(text, "\n  others    : rank 1 had ended 2.0 s before, with exit code 0\n"));
    assert_null(strstr(text, "batches"));
    assert_non_null(strstr(text, "\n  others    : ranks 2, 3 are stopped (SIGSTOP)\n"));
    assert_non_null(strstr(text, "\n  others    : rank 4 hangs in the kernel (D state)\n"));
    assert_non_null(strstr(text, "\n  others    : rank 5 is stopped by a debugger\n"));
    free(text);
    struct report_peer crowd[40] = {{.rank = 0}};
    for (uint32_t i = 1; i < 40; i++) {
        crowd[i] = (struct report_peer){.rank = i, .state = REPORT_PEER_ENDED_WELL, .ended_us = 7 * S_US};
    }
    text = format_with_peers(&entry, 1, crowd, 40);
    assert_non_null(strstr(text, ", 15, 16 and 23 more had ended at least 2.0 s before, with exit code 0\n"));
    free(text);
    struct report_entry elsewhere = entry;
    elsewhere.ended_us = 0; /* by another node's clock, and not known here */
    text = format_with_peers(&elsewhere, 1, peers, 2);
    assert_non_null(strstr(text, "\n  others    : rank 1 had ended before, with exit code 0\n"));
    free(text);
    struct report_entry at_once = entry;
    at_once.ended_us = 7 * S_US + 20000;
    at_once.message = "RuntimeError: rank 1 on host a has left the group";
    text = format_with_peers(&at_once, 1, peers, 2);
    assert_non_null(strstr(text,
                           "\n  others    : rank 1 had ended just before, with exit code 0\n"
                           "  hint      : do ranks have different numbers of batches? In \"with model.join():\""));
    free(text);
    text = format_with_peers(&entry, 1, peers, 1);
    assert_null(strstr(text, "others"));
    free(text);
}

static char *format_report(const struct report *report) {
    struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(report_format(report, &out), 0);
    char *text = strndup((const char *)buf_bytes(&out), out.len);
    buf_done(&out);
    return text;
}

static char *format_started(const struct report_entry *entries, size_t count, int64_t started_us) {
    struct report report = {.name = "x", .host = "h", .entries = entries, .count = count, .started_us = started_us};
    return format_report(&report);
}

static void the_one_that_all_others_failed_on_is_named(void **state) {
    (void)state;
    struct report_entry entries[] = {
        {.rank = 0, .order = 1, .wait_status = exit_status(1), .ended_us = 9 * S_US},
        {.rank = 1, .order = 3, .wait_status = SIGTERM, .stopped_by_us = true},
        {.rank = 2, .order = 2, .wait_status = exit_status(1)},
    };
    static const char words[] = "\n  others    : rank 1 was the only one still running when the others had failed\n";
    char *text = format_started(entries, 3, S_US);
    assert_non_null(strstr(text, words));
    free(text);
    entries[0].wait_status = SIGKILL; /* needs no explanation */
    text = format_started(entries, 3, S_US);
    assert_null(strstr(text, words));
    free(text);
    text = format_started(entries, 2, S_US);
    assert_null(strstr(text, words));
    free(text);
    entries[0].wait_status = exit_status(1);
    text = format_started(entries, 3, 8 * S_US); /* nobody has waited for long */
    assert_null(strstr(text, words));
    free(text);
}

static size_t lines_of(const char *text) {
    size_t lines = 0;
    for (; *text; text++) {
        lines += *text == '\n';
    }
    return lines;
}

static void failures_that_say_the_same_are_grouped(void **state) {
    (void)state;
    static struct report_entry entries[64];
    for (uint32_t i = 0; i < 64; i++) {
        entries[i] = (struct report_entry){.rank = i, .order = i, .wait_status = exit_status(1)};
    }
    entries[40].wait_status = SIGSEGV;
    entries[50].message = "another";
    struct report report = {.name = "x", .host = "h", .entries = entries, .count = 64};
    char *text = format_report(&report);
    assert_non_null(strstr(text, "(53 more ended as [1] did: ranks 9 to 39, 41 to 49, 51 to 63)\n"));
    assert_non_null(strstr(text, "rank      : 40 "));
    assert_non_null(strstr(text, "rank      : 50 "));
    assert_null(strstr(text, "rank      : 41 "));
    assert_true(lines_of(text) < 120);
    free(text);
    report.plain = true; /* torchelastic's: each of them */
    text = format_report(&report);
    assert_null(strstr(text, "more ended"));
    assert_non_null(strstr(text, "rank      : 41 "));
    free(text);
    report.plain = false;
    report.count = 10;
    text = format_report(&report);
    assert_non_null(strstr(text, "(1 more ended as [1] did: rank 9)\n"));
    free(text);
}

static void a_native_program_is_not_sent_to_pytorch(void **state) {
    (void)state;
    struct report_entry entry = {.rank = 0, .wait_status = exit_status(1)};
    struct report report = {.name = "x", .host = "h", .entries = &entry, .count = 1, .native = true};
    char *text = format_report(&report);
    assert_null(strstr(text, "pytorch.org"));
    assert_non_null(strstr(text, "traceback : none was recorded\n"));
    assert_non_null(strstr(text, "hint      : a C program that calls muster_record_start() (muster/record.h)"));
    free(text);
    entry.message = "src/train.c:12";
    text = format_report(&report);
    assert_null(strstr(text, "hint"));
    free(text);
    entry.message = NULL;
    report.plain = true;
    text = format_report(&report);
    assert_non_null(strstr(text, "pytorch.org"));
    free(text);
}

static void victims_stand_by_rank(void **state) {
    (void)state;
    struct report_entry entries[] = {
        {.rank = 0, .order = 4, .wait_status = SIGTERM, .stopped_by_us = true},
        {.rank = 1, .order = 3, .wait_status = exit_status(2)},
        {.rank = 2, .order = 2, .wait_status = SIGTERM, .stopped_by_us = true},
        {.rank = 3, .order = 1, .wait_status = exit_status(1)},
    };
    char *text = format("x", entries, 4);
    static const char *const expected[] = {
        "[1]:", "rank      : 1", "[2]:", "rank      : 0", "[3]:", "rank      : 2", "Root", "[0]:", "rank      : 3"};
    const char *at = text;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        at = strstr(at, expected[i]);
        assert_non_null(at);
    }
    free(text);
}

/* ---- our lines ---- */

static void a_plain_report_is_torchelastics(void **state) {
    (void)state;
    static const char tail[] = "last words";
    struct report_entry entry = {
        .wait_status = exit_status(1), .stderr_tail = tail, .stderr_tail_bytes = sizeof tail - 1};
    struct report report = {.name = "x", .host = "h", .entries = &entry, .count = 1, .plain = true};
    struct buf out;
    buf_init(&out, 10000);
    assert_int_equal(report_format(&report, &out), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_non_null(strstr((const char *)buf_bytes(&out), "traceback : To enable"));
    assert_null(strstr((const char *)buf_bytes(&out), "status"));
    assert_null(strstr((const char *)buf_bytes(&out), "last words"));
    buf_done(&out);
}

static void assert_status(struct report_entry entry, const char *expected) {
    struct buf out;
    buf_init(&out, 1000);
    assert_int_equal(report_describe_status(&entry, &out), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((const char *)buf_bytes(&out), expected);
    buf_done(&out);
}

static void statuses_in_words(void **state) {
    (void)state;
    enum { CORE = 0x80 };
    assert_status((struct report_entry){.wait_status = exit_status(3)}, "exited with code 3");
    assert_status((struct report_entry){.wait_status = exit_status(127)},
                  "exited with code 127 (shells: command not found)");
    static const char linker[] =
        "./x: error while loading shared libraries: libgone.so: cannot open shared object file";
    assert_status((struct report_entry){.wait_status = exit_status(127),
                                        .stderr_tail = linker,
                                        .stderr_tail_bytes = sizeof linker - 1},
                  "exited with code 127 (the program could not be loaded: a shared library is missing)");
    assert_status((struct report_entry){.wait_status = exit_status(139)},
                  "exited with code 139 (shells: a command was killed by SIGSEGV)");
    assert_status((struct report_entry){.wait_status = exit_status(255)}, "exited with code 255");
    assert_status((struct report_entry){.wait_status = exit_status(1), .stopped_by_us = true},
                  "exited with code 1 after the launcher had told it to stop");
    assert_status((struct report_entry){.wait_status = SIGSEGV | CORE},
                  "killed by SIGSEGV (Segmentation fault), core dumped");
    assert_status((struct report_entry){.wait_status = SIGTERM, .stopped_by_us = true},
                  "stopped by the launcher with SIGTERM");
    assert_status((struct report_entry){.wait_status = SIGINT, .stopped_by_us = true},
                  "stopped by the launcher with SIGINT");
    assert_status((struct report_entry){.wait_status = SIGABRT | CORE, .stopped_by_us = true},
                  "killed by SIGABRT (Aborted), core dumped after the launcher had told it to stop");
    assert_status((struct report_entry){.wait_status = SIGTERM, .stopped_by_us = true, .stuck = true},
                  "stopped by the launcher with SIGTERM: it hung in the kernel (uninterruptible sleep, D state)");
    assert_status((struct report_entry){.wait_status = SIGKILL, .timer_expired = true},
                  "killed by SIGKILL (Killed): its watchdog timer ran out");
    assert_status((struct report_entry){.wait_status = SIGKILL, .guardian_lost = true},
                  "killed by SIGKILL (Killed): the launcher's guardian process, which held it, was killed");
    assert_status(
        (struct report_entry){.wait_status = SIGKILL, .cpu_limit_s = 60},
        "killed by SIGKILL (Killed): it had used up the processor time that a process may take here (ulimit -t: 60 s)");
    assert_status((struct report_entry){.wait_status = SIGKILL, .oom_killed = true},
                  "killed by SIGKILL (Killed): the out-of-memory killer ended it (memory limit of the cgroup, or of "
                  "the machine)");
    assert_status((struct report_entry){.wait_status = SIGKILL},
                  "killed by SIGKILL (Killed); not by the launcher (if memory was short, the kernel's log names the "
                  "process)");
    assert_status((struct report_entry){.wait_status = 40}, "killed by signal 40");
}

static void the_last_lines_of_stderr_are_quoted(void **state) {
    (void)state;
    static const char tail[] = "step 1\rstep 2\n\x1b[31mred\x1b[0m \xff\x01\xc2\x9b caf\xc3\xa9\nlast";
    struct report_entry entry = {
        .wait_status = exit_status(1), .pid = 1, .stderr_tail = tail, .stderr_tail_bytes = sizeof tail - 1};
    char *text = format("x", &entry, 1);
    assert_non_null(strstr(text,
                           "\n  traceback : none was recorded; what stderr says last may be the cause\n"
                           "  stderr    : its last 3 lines\n    step 2\n    red \xef\xbf\xbd caf\xc3\xa9\n    last\n"
                           "  status    : exited with code 1\n====="));
    assert_null(strstr(text, "To enable traceback"));
    assert_null(strstr(text, "hint"));
    assert_null(strstr(text, "\xc2\x9b"));
    free(text);
    entry.message = "Traceback:\n  ...\nModuleNotFoundError: No module named 'torch'";
    text = format("x", &entry, 1);
    assert_non_null(strstr(text, "\n  hint      : the workers' Python has no torch: activate"));
    free(text);
    entry.message = "Traceback:\n  ...\nKeyError: 5\n";
    text = format("x", &entry, 1);
    assert_non_null(strstr(text, "stderr    : its last 3 lines"));
    free(text);
    entry.message = "Traceback:\n  ...\nlast\n"; /* the same again */
    text = format("x", &entry, 1);
    assert_null(strstr(text, "stderr"));
    free(text);
    entry.message = NULL;
    entry.stopped_by_us = true; /* what a victim says on being stopped explains nothing */
    text = format("x", &entry, 1);
    assert_null(strstr(text, "stderr"));
    free(text);
}

static void only_the_first_failures_are_quoted(void **state) {
    (void)state;
    struct report_entry entries[REPORT_TAILS_MAX + 3];
    for (size_t i = 0; i < REPORT_TAILS_MAX + 3; i++) {
        entries[i] = (struct report_entry){.rank = (uint32_t)i,
                                           .order = i,
                                           .wait_status = exit_status(1),
                                           .stderr_tail = "e\n",
                                           .stderr_tail_bytes = 2};
    }
    char *text = format("x", entries, REPORT_TAILS_MAX + 3);
    size_t quoted = 0;
    for (const char *at = text; (at = strstr(at, "its last line")) != NULL; at++) {
        quoted++;
    }
    assert_int_equal(quoted, REPORT_TAILS_MAX);
    free(text);
}

static void an_unusable_error_file_is_a_note(void **state) {
    (void)state;
    struct report_entry entry = {
        .wait_status = exit_status(1), .error_file = "/e.json", .error_file_problem = "it is empty"};
    char *text = format("x", &entry, 1);
    assert_non_null(strstr(text, "  error_file: /e.json\n  traceback : To enable traceback see: "));
    assert_non_null(strstr(text, "\n  note      : the error file cannot be used: it is empty\n  status    : exited"));
    free(text);
}

static void a_report_that_does_not_fit_is_an_error(void **state) {
    (void)state;
    struct report_entry entry = {.wait_status = exit_status(1)};
    struct report report = {.name = "x", .host = "h", .entries = &entry, .count = 1};
    for (size_t max = 0; max < 400; max += 7) {
        struct buf out;
        buf_init(&out, max);
        int code = report_format(&report, &out);
        assert_true(code == MUSTER_ELIMIT || (code == 0 && max > 300));
        buf_done(&out);
    }
}

static void a_huge_message_is_cut(void **state) {
    (void)state;
    size_t bytes = 3 * REPORT_MESSAGE_BYTES_MAX;
    char *message = malloc(bytes + 1);
    memset(message, 'z', bytes);
    message[bytes] = '\0';
    struct report_entry entry = {.wait_status = exit_status(1), .message = message};
    char *text = format("x", &entry, 1);
    assert_true(strlen(text) < REPORT_MESSAGE_BYTES_MAX + 2000);
    assert_non_null(strstr(text, "... (cut)\n"));
    free(text);
    free(message);
}

/* ---- text ---- */

static void width_is_counted_in_characters(void **state) {
    (void)state;
    assert_int_equal(report_text_width("caf\xc3\xa9", 5), 4);
    assert_int_equal(report_text_width("", 0), 0);
}

static void assert_clean(const char *line, const char *expected, size_t max) {
    struct buf out;
    buf_init(&out, 1000);
    assert_int_equal(report_text_clean(&out, line, strlen(line), max), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((const char *)buf_bytes(&out), expected);
    buf_done(&out);
}

static void terminal_codes_are_taken_out(void **state) {
    (void)state;
    assert_clean("a\tb\r", "a\tb", 100);
    assert_clean("10%\r20%\r\r", "20%", 100);
    assert_clean("\x1b]0;title\aX\x1b]2;t\x1b\\Y\x1b[1;2HZ\x1b", "XYZ", 100);
    assert_clean("\x1b[", "", 100);
    assert_clean("\x1b]never ended", "", 100);
    assert_clean("bell\a del\x7f", "bell del", 100);
    assert_clean("0123456789", "01234 ...", 5);
}

static void exit_codes_are_torchelastics(void **state) {
    (void)state;
    assert_int_equal(report_exit_code(SIGSEGV | 0x80), -11);
    assert_int_equal(report_exit_code(exit_status(255)), 255);
}

int main(void) {
    (void)setenv("TZ", "UTC", 1);
    tzset();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_code_with_a_stopped_neighbour),
        cmocka_unit_test(a_narrow_report_has_narrow_borders),
        cmocka_unit_test(a_traceback_is_indented),
        cmocka_unit_test(a_plain_message_and_a_signal_without_a_name),
        cmocka_unit_test(the_root_is_the_first_to_die_by_itself),
        cmocka_unit_test(a_victim_is_not_the_root),
        cmocka_unit_test(who_is_killed_at_the_same_moment_is_the_root),
        cmocka_unit_test(an_error_file_is_older_than_a_death),
        cmocka_unit_test(deaths_decide_where_file_times_are_too_coarse),
        cmocka_unit_test(ranks_that_others_may_have_waited_for_are_named),
        cmocka_unit_test(the_one_that_all_others_failed_on_is_named),
        cmocka_unit_test(failures_that_say_the_same_are_grouped),
        cmocka_unit_test(a_native_program_is_not_sent_to_pytorch),
        cmocka_unit_test(victims_stand_by_rank),
        cmocka_unit_test(a_plain_report_is_torchelastics),
        cmocka_unit_test(statuses_in_words),
        cmocka_unit_test(the_last_lines_of_stderr_are_quoted),
        cmocka_unit_test(only_the_first_failures_are_quoted),
        cmocka_unit_test(an_unusable_error_file_is_a_note),
        cmocka_unit_test(a_report_that_does_not_fit_is_an_error),
        cmocka_unit_test(a_huge_message_is_cut),
        cmocka_unit_test(width_is_counted_in_characters),
        cmocka_unit_test(terminal_codes_are_taken_out),
        cmocka_unit_test(exit_codes_are_torchelastics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
