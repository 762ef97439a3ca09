/* Joining traces: files as ranks leave them, and as crashes, disks and strangers leave them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder_test_support.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/trace/trace_merge.h"

static char folder[64], joined[96];
static struct buf notes, reported;

static int make_folder(void **state) {
    (void)state;
    (void)str_copy(folder, sizeof folder, "/tmp/muster-merge-test-XXXXXX");
    buf_init(&notes, TRACE_NOTES_BYTES_MAX);
    return mkdtemp(folder) != NULL && str_format(joined, sizeof joined, "%s/joined", folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    buf_done(&notes);
    buf_done(&reported);
    return folder_remove(folder) >= 0 ? 0 : -1;
}

static void write_file(const char *name, const char *text, size_t length) {
    char path[512];
    assert_true(str_format(path, sizeof path, "%s/%s", folder, name));
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* The file of a rank: its header, `events`, and an end unless it was killed. */
static void write_trace(int rank, const char *host, int64_t monotonic_ns, int64_t realtime_us, const char *events,
                        bool is_ended) {
    char name[64], *text;
    (void)str_format(name, sizeof name, "rank-%05d.%s.%d.json", rank, host, 100 + rank);
    text = str_format_new(
        "[\n{\"ph\":\"M\",\"pid\":%d,\"tid\":1,\"name\":\"muster_trace\",\"args\":{\"version\":1,\"rank\":%d,"
        "\"world_size\":2,\"process\":%d,\"host\":\"%s\",\"clock\":\"boot of %s\",\"monotonic_ns\":%" PRId64
        ",\"realtime_us\":%" PRId64 "}},\n%s%s",
        100 + rank, rank, 100 + rank, host, host, monotonic_ns, realtime_us, events,
        is_ended ? "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"muster_trace_end\"}\n]\n" : "");
    assert_non_null(text);
    write_file(name, text, strlen(text));
    free(text);
}

static json_t *merge(void) {
    assert_int_equal(trace_merge(folder, joined, &notes), 0);
    json_t *whole = json_load_file(joined, 0, NULL);
    assert_true(json_is_array(json_object_get(whole, "traceEvents")));
    assert_int_equal(buf_append(&notes, "", 1), 0);
    return whole;
}

static bool has_note(const char *text) {
    return strstr((const char *)buf_bytes(&notes), text) != NULL;
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static json_t *find(json_t *whole, const char *name, size_t nth) {
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(whole, "traceEvents"), i, event) {
        if (strcmp(text_of(event, "name"), name) == 0 && nth-- == 0) {
            return event;
        }
    }
    return NULL;
}

static json_int_t number(const json_t *event, const char *key) {
    return json_integer_value(json_object_get(event, key));
}

static double time_of(const json_t *event) {
    return json_real_value(json_object_get(event, "ts"));
}

#define MARK(name, ts) "{\"ph\":\"B\",\"pid\":100,\"tid\":4711,\"name\":\"" name "\",\"ts\":" ts "},\n"
#define CALL(sequence, ts, duration)                                                                                   \
    "{\"ph\":\"X\",\"pid\":100,\"tid\":4194305,\"name\":\"all_reduce\",\"ts\":" ts ",\"dur\":" duration                \
    ",\"args\":{\"sequence\":" sequence ",\"synchronizing\":true,\"group\":\"world\"}},\n"

static void ranks_of_a_host_share_its_clock(void **state) {
    (void)state;
    write_trace(1, "a", 5, 5, MARK("late", "2000.5"), true);
    write_trace(0, "a", 5, 5,
                MARK("early", "1000.25") "{\"ph\":\"b\",\"pid\":100,\"tid\":7,\"id\":\"100.1\",\"ts\":1001}\n", true);
    json_t *whole = merge();
    json_t *early = find(whole, "early", 0), *late = find(whole, "late", 0);
    assert_true(time_of(early) == 0.0);
    assert_true(time_of(late) == 1000.25);
    assert_int_equal(number(early, "pid"), 1); /* rank 0: viewers keep process 0 for the kernel */
    assert_int_equal(number(late, "pid"), 2);
    assert_int_not_equal(number(early, "tid"), number(late, "tid")); /* though both files say 4711 */
    assert_string_equal(text_of(json_object_get(find(whole, "process_name", 0), "args"), "name"),
                        "rank 0 (a, process 100)");
    assert_non_null(find(whole, "process_sort_index", 1));
    assert_string_equal(text_of(find(whole, "", 0), "id"), "1.100.1");
    assert_int_equal(number(json_object_get(whole, "otherData"), "begin_monotonic_ns"), 1000250);
    assert_true(has_note("2 traces from 1 host, 3 events\n"));
    assert_false(has_note("has no end"));
    json_decref(whole);
}

/* Host b booted later: its clock shows 5 s less. */
static void hosts_are_compared_by_their_calls(void **state) {
    (void)state;
    write_trace(0, "a", 5, 5, CALL("1", "9000000", "50") CALL("2", "9001000", "20"), true);
    write_trace(1, "b", 5, 5, CALL("1", "4000030", "30") CALL("2", "4001010", "5"), true);
    json_t *whole = merge();
    /* Call 1: offset within [4999930+..]: a 9000000..50, b 30..60 of 4000000; call 2: a 1000..1020, b 1010..1015.
     * lower = max(9000000-4000060, 9001000-4001015) = 4999985, upper = min(9000050-4000030, 9001020-4001010) = 5000010
     */
    double expected = 4000030.0 + 4999997.5 - 9000000.0;
    assert_true(time_of(find(whole, "all_reduce", 2)) - expected < 0.01);
    assert_true(time_of(find(whole, "all_reduce", 2)) - expected > -0.01);
    assert_true(has_note("clock of b: known to 12.5 us, by 2 calls"));
    json_decref(whole);
}

static void hosts_without_a_common_call_go_by_the_time_of_day(void **state) {
    (void)state;
    write_trace(0, "a", 1000000000, 2000000, MARK("one", "1000000"), true);
    write_trace(1, "b", 500000000, 2000000, MARK("two", "500000"), true);
    json_t *whole = merge();
    assert_true(time_of(find(whole, "one", 0)) == 0.0);
    assert_true(time_of(find(whole, "two", 0)) == 0.0);
    assert_true(has_note("clock of b: no call was shared"));
    json_decref(whole);
}

static void a_cut_file_is_read_as_far_as_it_goes(void **state) {
    (void)state;
    write_trace(0, "a", 5, 5, MARK("whole", "10") "{\"ph\":\"B\",\"pid\":100,\"ti", false);
    json_t *whole = merge();
    assert_non_null(find(whole, "whole", 0));
    assert_true(has_note("1 damaged line left out"));
    assert_true(has_note("has no end: the process was killed"));
    json_decref(whole);
}

static void damaged_lines_are_left_out(void **state) {
    (void)state;
    char *text = malloc(200000);
    assert_non_null(text);
    size_t n = (size_t)snprintf(
        text, 200000, "%s",
        MARK("before",
             "10") "nonsense\n{}\n[1,2]\n"
                   "{\"ph\":\"B\",\"pid\":1,\"tid\":1,\"name\":\"no time\"},\n"
                   "{\"ph\":\"B\",\"pid\":1,\"tid\":1,\"name\":\"bad time\",\"ts\":-4},\n"
                   "{\"ph\":\"B\",\"pid\":1,\"tid\":1,\"name\":\"huge time\",\"ts\":1e300},\n"
                   "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"bad end\",\"ts\":4,\"dur\":\"x\"},\n"
                   "{\"ph\":\"BB\",\"pid\":1,\"tid\":1,\"ts\":4},\n{\"ph\":\"B\",\"pid\":\"1\",\"tid\":1,\"ts\":4},\n");
    memset(text + n, 'x', 100000); /* a line longer than any */
    n += 100000;
    (void)snprintf(text + n, 200000 - n, "\n%s", MARK("after", "20"));
    write_trace(0, "a", 5, 5, text, true);
    free(text);
    json_t *whole = merge();
    assert_true(time_of(find(whole, "before", 0)) == 0.0);
    assert_true(time_of(find(whole, "after", 0)) == 10.0);
    assert_int_equal(json_array_size(json_object_get(whole, "traceEvents")), 4);
    assert_true(has_note("10 damaged lines left out"));
    json_decref(whole);
}

static void other_files_are_left_out(void **state) {
    (void)state;
    write_trace(0, "a", 5, 5, MARK("one", "10"), true);
    write_file("other.json", "{\"traceEvents\":[]}\n", 19);
    write_file("empty.json", "", 0);
    write_file("notes.txt", "hello", 5);
    write_file("newer.json",
               "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"muster_trace\",\"args\":{\"version\":2,\"rank\":0,"
               "\"world_size\":2,\"process\":1,\"host\":\"a\",\"clock\":\"c\",\"monotonic_ns\":1,"
               "\"realtime_us\":1}},\n",
               164);
    json_t *whole = merge();
    assert_non_null(find(whole, "one", 0));
    assert_true(has_note("other.json: left out"));
    assert_true(has_note("empty.json: left out"));
    assert_true(has_note("newer.json: version 2 of the format"));
    assert_false(has_note("notes.txt"));
    assert_true(has_note("1 trace from 1 host"));
    json_decref(whole);
}

/* After a restart rank 0 wrote a second file. */
static void attempts_of_a_rank_stay_apart(void **state) {
    (void)state;
    write_trace(0, "a", 5, 5, MARK("second", "500"), true);
    write_trace(0, "b", 5, 5, MARK("first", "10"), false);
    write_trace(1, "a", 5, 5, MARK("other", "20"), true);
    json_t *whole = merge();
    assert_int_equal(number(find(whole, "first", 0), "pid"), 1);
    assert_int_equal(number(find(whole, "other", 0), "pid"), 2);
    assert_int_equal(number(find(whole, "second", 0), "pid"), 3);
    json_decref(whole);
}

static void no_trace_is_an_error_with_advice(void **state) {
    (void)state;
    assert_int_equal(trace_merge(folder, joined, &notes), MUSTER_ENOENT);
    assert_non_null(strstr(muster_detail(), "MUSTER_TRACE="));
    assert_int_equal(access(joined, F_OK), -1);
    assert_int_equal(trace_merge("/nonexistent", joined, &notes), MUSTER_ESYSTEM);
}

static void a_failed_write_leaves_nothing(void **state) {
    (void)state;
    char path[128];
    (void)str_format(path, sizeof path, "%s/no/such/folder", folder);
    write_trace(0, "a", 5, 5, MARK("one", "10"), true);
    assert_int_equal(trace_merge(folder, path, &notes), MUSTER_ESYSTEM);
    assert_int_equal(trace_merge(folder, folder, &notes), MUSTER_ESYSTEM); /* a folder cannot be replaced */
}

/* To rename a file over it would be the end of a pipe, or of /dev/null. */
static void a_pipe_is_written_to_and_stays_one(void **state) {
    (void)state;
    char path[128], text[16] = "";
    struct stat about;
    (void)str_format(path, sizeof path, "%s.pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDWR | O_CLOEXEC); /* a pipe has room for so short a trace */
    assert_true(reader >= 0);
    write_trace(0, "a", 5, 5, MARK("one", "10"), true);
    assert_int_equal(trace_merge(folder, path, &notes), 0);
    assert_int_equal(read(reader, text, sizeof text - 1), sizeof text - 1);
    assert_memory_equal(text, "{\"displayTimeUn", sizeof text - 1);
    assert_true(stat(path, &about) == 0 && S_ISFIFO(about.st_mode));
    (void)close(reader);
    assert_int_equal(unlink(path), 0);
}

/* ---- the report ---- */

static const char *report(void) {
    buf_done(&reported);
    buf_init(&reported, TRACE_REPORT_BYTES_MAX);
    assert_int_equal(trace_report(folder, &reported, &notes), 0);
    assert_int_equal(buf_append(&reported, "", 1), 0);
    return (const char *)buf_bytes(&reported);
}

static bool has_row(const char *table, const char *row) {
    bool has = strstr(table, row) != NULL;
    if (!has) {
        print_error("%s", table);
    }
    return has;
}

/* Rank 1 comes 80 ms late to both of two calls, 100 ms apart. */
static void the_slowest_rank_is_named(void **state) {
    (void)state;
#define EVENT(name, ts, dur, more)                                                                                     \
    "{\"ph\":\"X\",\"cat\":\"collective\",\"pid\":100,\"tid\":5,\"name\":\"" name "\",\"ts\":" ts ",\"dur\":" dur more \
    "},\n"
#define SYNCHRONIZING(sequence) ",\"args\":{\"sequence\":" sequence ",\"synchronizing\":true,\"group\":\"world\"}"
    write_trace(0, "a", 5, 5,
                MARK("step", "0") EVENT("all_reduce", "10000", "85000", SYNCHRONIZING("1"))
                    EVENT("wait", "10000", "80000", "") EVENT("transfer", "90000", "5000", "")
                        EVENT("all_reduce", "110000", "90000", SYNCHRONIZING("2")) EVENT("wait", "110000", "80000", ""),
                true);
    write_trace(1, "a", 5, 5,
                MARK("step", "0") EVENT("all_reduce", "90000", "5000", SYNCHRONIZING("1"))
                    EVENT("all_reduce", "190000", "10000", SYNCHRONIZING("2")),
                true);
    const char *table = report();
    assert_true(has_row(
        table, "     0  a                       0.200 s         87.5 %    80.0 %         0.0 %          0.000 s"));
    assert_true(has_row(
        table, "     1  a                       0.200 s          7.5 %     0.0 %       100.0 %          0.160 s"));
    assert_true(has_row(
        table, "slowest: rank 1 on a: it was the last to come to 100 % of the calls, and the others waited 0.160 s"));
}

static void nobody_is_blamed_where_ranks_take_turns(void **state) {
    (void)state;
    write_trace(0, "a", 5, 5,
                EVENT("all_reduce", "1000", "9000", SYNCHRONIZING("1"))
                    EVENT("all_reduce", "29000", "1000", SYNCHRONIZING("2")),
                true);
    write_trace(1, "a", 5, 5,
                EVENT("all_reduce", "9000", "1000", SYNCHRONIZING("1"))
                    EVENT("all_reduce", "21000", "9000", SYNCHRONIZING("2")),
                true);
    assert_true(has_row(report(), "no rank stands out"));
}

static void a_report_of_one_rank_and_of_none(void **state) {
    (void)state;
    buf_init(&reported, TRACE_REPORT_BYTES_MAX);
    assert_int_equal(trace_report(folder, &reported, &notes), MUSTER_ENOENT);
    write_trace(0, "a", 5, 5, EVENT("all_reduce", "1000", "9000", SYNCHRONIZING("1")), false);
    const char *text = report();
    assert_true(has_row(text, "0.009 s"));
    assert_true(has_row(text, "no rank stands out"));
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(ranks_of_a_host_share_its_clock),
        IN_FOLDER(hosts_are_compared_by_their_calls),
        IN_FOLDER(hosts_without_a_common_call_go_by_the_time_of_day),
        IN_FOLDER(a_cut_file_is_read_as_far_as_it_goes),
        IN_FOLDER(damaged_lines_are_left_out),
        IN_FOLDER(other_files_are_left_out),
        IN_FOLDER(attempts_of_a_rank_stay_apart),
        IN_FOLDER(no_trace_is_an_error_with_advice),
        IN_FOLDER(a_failed_write_leaves_nothing),
        IN_FOLDER(a_pipe_is_written_to_and_stays_one),
        cmocka_unit_test_setup_teardown(the_slowest_rank_is_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(nobody_is_blamed_where_ranks_take_turns, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_report_of_one_rank_and_of_none, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
