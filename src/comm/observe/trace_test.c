/* Traces: what a process leaves in its file, however it ends. Each case runs in a child, for a trace is of a process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/folder_test_support.h"
#include "base/str.h"
#include "comm/observe/trace.h"

static char folder[64];

/* For children, where cmocka's asserts would run on into the next test. */
#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            (void)fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                              \
            _exit(99);                                                                                                 \
        }                                                                                                              \
    } while (0)

static int make_folder(void **state) {
    (void)state;
    (void)str_copy(folder, sizeof folder, "/tmp/muster-trace-test-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static bool next_file(DIR *files, char path[512]) {
    for (struct dirent *entry; (entry = readdir(files)) != NULL;) {
        if (entry->d_name[0] != '.') {
            return str_format(path, 512, "%s/%s", folder, entry->d_name);
        }
    }
    return false;
}

static int remove_folder(void **state) {
    (void)state;
    return folder_remove(folder) >= 0 ? 0 : -1;
}

/* Runs `body` in a child that is rank 3 of 4 and traced into `where`; how it ended. */
static int run(void (*body)(void), const char *where) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)setenv("MUSTER_TRACE", where, 1);
        (void)setenv("RANK", "3", 1);
        (void)setenv("WORLD_SIZE", "4", 1);
        body();
        exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* The only file in the folder; free() it. */
static char *read_trace(char path[512]) {
    char other[512];
    DIR *files = opendir(folder);
    assert_non_null(files);
    assert_true(next_file(files, path));
    assert_false(next_file(files, other));
    (void)closedir(files);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    struct stat about;
    assert_int_equal(fstat(fileno(file), &about), 0);
    char *text = calloc(1, (size_t)about.st_size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)about.st_size, file), (size_t)about.st_size);
    (void)fclose(file);
    return text;
}

/* What a viewer does with a file that is cut: the last line goes, the bracket is added. */
static json_t *parse_cut(char *text) {
    char *end = strrchr(text, '\n');
    assert_non_null(end);
    if (end[-1] == ',') {
        end--;
    }
    *end = '\0';
    char *whole = str_format_new("%s]", text);
    json_t *events = json_loads(whole, 0, NULL);
    free(whole);
    return events;
}

static json_t *load(void) {
    char path[512];
    char *text = read_trace(path);
    json_t *events = json_loads(text, 0, NULL);
    free(text);
    assert_true(json_is_array(events));
    return events;
}

static const char *text_of(const json_t *event, const char *key) {
    const char *text = json_string_value(json_object_get(event, key));
    return text != NULL ? text : "";
}

static double time_of(const json_t *event, const char *key) {
    return json_number_value(json_object_get(event, key));
}

/* The `nth` event of this phase (and name, unless ""), or NULL. */
static json_t *find(json_t *events, const char *phase, const char *name, size_t nth) {
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) {
        bool same =
            strcmp(text_of(event, "ph"), phase) == 0 && (*name == '\0' || strcmp(text_of(event, "name"), name) == 0);
        if (same && nth-- == 0) {
            return event;
        }
    }
    return NULL;
}

static void mark_steps(void) {
    muster_trace_begin("step");
    muster_trace_begin("forward");
    muster_trace_end();
    muster_trace_instant("epoch 3");
    muster_trace_end();
    trace_counter("images/s", clock_monotonic_ns(), 12.5);
}

static void an_ended_process_leaves_whole_json(void **state) {
    (void)state;
    int64_t before_ns = clock_monotonic_ns();
    assert_int_equal(run(mark_steps, folder), 0);
    int64_t after_ns = clock_monotonic_ns();
    json_t *events = load();
    json_t *header = json_object_get(find(events, "M", "muster_trace", 0), "args");
    assert_int_equal(json_integer_value(json_object_get(header, "rank")), 3);
    assert_int_equal(json_integer_value(json_object_get(header, "world_size")), 4);
    assert_true(strlen(text_of(header, "clock")) > 36); /* a boot id and more */
    json_t *step = find(events, "B", "step", 0), *forward = find(events, "B", "forward", 0);
    assert_non_null(step);
    assert_true(time_of(step, "ts") >= (double)before_ns / 1000 - 1);
    assert_true(time_of(step, "ts") <= time_of(forward, "ts"));
    assert_true(time_of(forward, "ts") <= time_of(find(events, "E", "", 0), "ts"));
    assert_true(time_of(find(events, "E", "", 1), "ts") <= (double)after_ns / 1000 + 1);
    assert_null(find(events, "E", "", 2));
    assert_non_null(find(events, "i", "epoch 3", 0));
    assert_true(
        json_number_value(json_object_get(json_object_get(find(events, "C", "images/s", 0), "args"), "value")) == 12.5);
    json_t *lane = find(events, "M", "thread_name", 0);
    assert_string_equal(text_of(json_object_get(lane, "args"), "name"), "main");
    assert_true(json_equal(json_object_get(lane, "tid"), json_object_get(step, "tid")));
    json_decref(events);
}

static void call_collectives(void) {
    struct trace_collective mark = {.name = "all_reduce",
                                    .group = "world",
                                    .sequence = 7,
                                    .is_synchronizing = true,
                                    .type = "float32",
                                    .count = 256,
                                    .bytes = 1024,
                                    .algorithm = "ring",
                                    .queued_ns = 900000,
                                    .begin_ns = 1000000,
                                    .transfer_ns = 1500500,
                                    .end_ns = 2000000};
    trace_collective(&mark);
    mark = (struct trace_collective){
        .name = "broadcast", .group = "pair \"0\"", .begin_ns = 5000, .end_ns = 6000, .status = MUSTER_ETIMEOUT};
    trace_collective(&mark);
    trace_async("bucket 1", "ddp", 3000, 9000, "bytes", 4096);
    trace_async("bucket 2", "ddp", 4000, 8000, NULL, 0);
    trace_span("optimizer", "train", 1000, 2500, "step", 9);
}

static void a_collective_has_its_wait_and_its_transfer(void **state) {
    (void)state;
    assert_int_equal(run(call_collectives, folder), 0);
    json_t *events = load();
    json_t *whole = find(events, "X", "all_reduce", 0), *wait = find(events, "X", "wait", 0);
    json_t *transfer = find(events, "X", "transfer", 0), *args = json_object_get(whole, "args");
    assert_true(time_of(whole, "ts") == 1000.0 && time_of(whole, "dur") == 1000.0);
    assert_true(time_of(wait, "ts") == 1000.0 && time_of(wait, "dur") == 500.5);
    assert_true(time_of(transfer, "ts") == 1500.5 && time_of(transfer, "dur") == 499.5);
    assert_true(json_equal(json_object_get(wait, "tid"), json_object_get(whole, "tid")));
    assert_int_equal(json_integer_value(json_object_get(args, "sequence")), 7);
    assert_string_equal(text_of(args, "group"), "world");
    assert_string_equal(text_of(args, "algorithm"), "ring");
    assert_true(time_of(args, "queued_us") == 100.0);
    assert_true(json_is_true(json_object_get(args, "synchronizing")));

    json_t *other = find(events, "X", "broadcast", 0);
    assert_false(json_equal(json_object_get(other, "tid"), json_object_get(whole, "tid")));
    assert_string_equal(text_of(json_object_get(other, "args"), "group"), "pair \"0\"");
    assert_string_equal(text_of(json_object_get(other, "args"), "failed"), "timed out");
    assert_null(find(events, "X", "wait", 1)); /* it has no parts */

    json_t *begin = find(events, "b", "bucket 1", 0), *end = find(events, "e", "bucket 1", 0);
    assert_true(time_of(begin, "ts") == 3.0 && time_of(end, "ts") == 9.0);
    assert_true(json_equal(json_object_get(begin, "id"), json_object_get(end, "id")));
    assert_false(json_equal(json_object_get(begin, "id"), json_object_get(find(events, "b", "bucket 2", 0), "id")));
    assert_true(time_of(find(events, "X", "optimizer", 0), "dur") == 1.5);
    json_decref(events);
}

static void flush_and_die(void) {
    muster_trace_begin("flushed");
    REQUIRE(muster_trace_flush() == 0);
    muster_trace_begin("lost");
    (void)raise(SIGKILL);
}

static void a_kill_loses_only_what_was_not_flushed(void **state) {
    (void)state;
    assert_int_equal(run(flush_and_die, folder), SIGKILL);
    char path[512];
    char *text = read_trace(path);
    assert_null(json_loads(text, 0, NULL)); /* it is cut */
    json_t *events = parse_cut(text);
    assert_non_null(find(events, "B", "flushed", 0));
    assert_null(find(events, "B", "lost", 0));
    assert_null(find(events, "M", "muster_trace_end", 0));
    json_decref(events);
    free(text);
}

/* Old events are written when a new one comes, without anybody asking. */
static void record_old_and_new(void) {
    int64_t now_ns = clock_monotonic_ns();
    trace_span("old", "test", now_ns - 1, now_ns, NULL, 0);
    now_ns += 2 * TRACE_FLUSH_MS * CLOCK_NS_PER_MS;
    trace_span("new", "test", now_ns - 1, now_ns, NULL, 0);
    (void)raise(SIGKILL);
}

static void old_events_are_written_by_themselves(void **state) {
    (void)state;
    assert_int_equal(run(record_old_and_new, folder), SIGKILL);
    char path[512];
    char *text = read_trace(path);
    json_t *events = parse_cut(text);
    assert_non_null(find(events, "X", "old", 0));
    assert_non_null(find(events, "X", "new", 0));
    json_decref(events);
    free(text);
}

enum { THREADS = 4, MARKS = 2000 };

static void *mark_much(void *name) {
    for (int i = 0; i < MARKS; i++) {
        muster_trace_begin(name);
        muster_trace_end();
    }
    return NULL;
}

static void mark_from_threads(void) {
    pthread_t threads[THREADS];
    static char names[THREADS][16];
    for (size_t i = 0; i < THREADS; i++) {
        (void)str_format(names[i], sizeof names[i], "mark %zu", i);
        REQUIRE(pthread_create(&threads[i], NULL, mark_much, names[i]) == 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
}

static void threads_have_lanes_of_their_own(void **state) {
    (void)state;
    assert_int_equal(run(mark_from_threads, folder), 0);
    json_t *events = load();
    size_t i, begun[THREADS] = {0}, ended[THREADS] = {0};
    int64_t lanes[THREADS] = {0};
    json_t *event;
    for (size_t t = 0; t < THREADS; t++) {
        char name[16];
        (void)str_format(name, sizeof name, "mark %zu", t);
        lanes[t] = json_integer_value(json_object_get(find(events, "B", name, 0), "tid"));
        for (size_t other = 0; other < t; other++) {
            assert_int_not_equal(lanes[t], lanes[other]);
        }
    }
    json_array_foreach(events, i, event) {
        for (size_t t = 0; t < THREADS; t++) {
            bool here = json_integer_value(json_object_get(event, "tid")) == lanes[t];
            begun[t] += here && text_of(event, "ph")[0] == 'B';
            ended[t] += here && text_of(event, "ph")[0] == 'E';
        }
    }
    for (size_t t = 0; t < THREADS; t++) {
        assert_int_equal(begun[t], MARKS);
        assert_int_equal(ended[t], MARKS);
    }
    json_decref(events);
}

static void mark_odd_names(void) {
    char long_name[3 * MUSTER_TRACE_NAME_MAX];
    memset(long_name, '"', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    muster_trace_instant("tab\tquote\"back\\slash \xc3\xa9 bad\xff");
    muster_trace_instant(long_name);
    muster_trace_instant("");
    for (int i = 0; i < TRACE_LANES_MAX + 3; i++) { /* more groups than lanes */
        char group[32];
        (void)str_format(group, sizeof group, "group %d", i);
        trace_collective(&(struct trace_collective){.name = "barrier", .group = group, .begin_ns = 1, .end_ns = 2});
    }
    trace_span("backwards", "test", 5000, 4000, NULL, 0);
}

static void odd_names_stay_json(void **state) {
    (void)state;
    assert_int_equal(run(mark_odd_names, folder), 0);
    json_t *events = load();
    assert_non_null(find(events, "i", "tab?quote\"back\\slash \xc3\xa9 bad?", 0));
    assert_int_equal(strlen(text_of(find(events, "i", "", 1), "name")), MUSTER_TRACE_NAME_MAX - 1);
    assert_non_null(find(events, "X", "barrier", TRACE_LANES_MAX + 2));
    assert_true(time_of(find(events, "X", "backwards", 0), "dur") == 0.0);
    json_decref(events);
}

static void fork_and_mark(void) {
    muster_trace_instant("parent");
    pid_t child = fork();
    if (child == 0) {
        muster_trace_instant("child");
        exit(muster_trace_enabled() ? 1 : 0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    muster_trace_instant("parent again");
}

static void a_forked_child_stays_out(void **state) {
    (void)state;
    assert_int_equal(run(fork_and_mark, folder), 0);
    json_t *events = load();
    assert_non_null(find(events, "i", "parent", 0));
    assert_non_null(find(events, "i", "parent again", 0));
    assert_null(find(events, "i", "parent", 1));
    assert_null(find(events, "i", "child", 0));
    json_decref(events);
}

static void rank_is_told_later(void) {
    muster_trace_instant("before");
    trace_rank(1, 2);
    trace_rank(1, 2);
}

static void the_group_says_the_rank(void **state) {
    (void)state;
    assert_int_equal(run(rank_is_told_later, folder), 0);
    json_t *events = load();
    json_t *last = json_object_get(find(events, "M", "muster_trace", 1), "args");
    assert_int_equal(json_integer_value(json_object_get(last, "rank")), 1);
    assert_int_equal(json_integer_value(json_object_get(last, "world_size")), 2);
    assert_null(find(events, "M", "muster_trace", 2));
    json_decref(events);
}

static void mark_without_a_place(void) {
    int ends[2];
    char told[256] = "";
    REQUIRE(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    muster_trace_begin("nowhere");
    REQUIRE(read(ends[0], told, sizeof told - 1) > 0 && strstr(told, "no trace from now on: MUSTER_TRACE=") != NULL);
    muster_trace_end();
    exit(!muster_trace_enabled() && muster_trace_flush() == MUSTER_ESYSTEM &&
                 strstr(muster_detail(), "/nowhere") != NULL
             ? 42
             : 1);
}

static void a_folder_that_cannot_be_made_stops_nothing(void **state) {
    (void)state;
    char path[96];
    (void)str_format(path, sizeof path, "%s/a/nowhere", folder);
    assert_int_equal(WEXITSTATUS(run(mark_without_a_place, path)), 42);
}

/* The file system is full (a limit on file size gives the same error): the program goes on. */
static void fill_the_disk(void) {
    struct rlimit limit = {4096, 4096};
    (void)signal(SIGXFSZ, SIG_IGN);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (int i = 0; i < MARKS; i++) {
        muster_trace_instant("one more");
    }
    exit(muster_trace_flush() == MUSTER_ESYSTEM && !muster_trace_enabled() ? 42 : 1);
}

static void a_full_disk_stops_nothing(void **state) {
    (void)state;
    assert_int_equal(WEXITSTATUS(run(fill_the_disk, folder)), 42);
    char path[512];
    char *text = read_trace(path);
    assert_int_equal(strlen(text), 4096);
    json_t *events = parse_cut(text);
    assert_non_null(find(events, "i", "one more", 9));
    json_decref(events);
    free(text);
}

static void mark_untraced(void) {
    mark_steps();
    call_collectives();
    trace_rank(0, 1);
    exit(!muster_trace_enabled() && muster_trace_flush() == MUSTER_OK ? 42 : 1);
}

static void nothing_is_written_when_nobody_asked(void **state) {
    (void)state;
    assert_int_equal(WEXITSTATUS(run(mark_untraced, "")), 42);
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(an_ended_process_leaves_whole_json),
        IN_FOLDER(a_collective_has_its_wait_and_its_transfer),
        IN_FOLDER(a_kill_loses_only_what_was_not_flushed),
        IN_FOLDER(old_events_are_written_by_themselves),
        IN_FOLDER(threads_have_lanes_of_their_own),
        IN_FOLDER(odd_names_stay_json),
        IN_FOLDER(a_forked_child_stays_out),
        IN_FOLDER(the_group_says_the_rank),
        IN_FOLDER(a_folder_that_cannot_be_made_stops_nothing),
        IN_FOLDER(a_full_disk_stops_nothing),
        IN_FOLDER(nothing_is_written_when_nobody_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
