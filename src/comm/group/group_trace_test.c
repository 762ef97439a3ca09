/* What calls of a group leave in the traces of its ranks, and in the log with MUSTER_DEBUG=DETAIL. The file itself:
 * trace_test.c. */
#include <muster/collective.h>
#include <muster/group.h>

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "comm/group/ranks_test_support.h"

enum { LARGE_COUNT = 100000, TEXT_BYTES = 1 << 20 };

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    (void)str_copy(folder, sizeof folder, "/tmp/muster-group-trace-XXXXXX");
    return mkdtemp(folder) != NULL && setenv("MUSTER_TRACE", folder, 1) == 0 ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    (void)unsetenv("MUSTER_TRACE");
    (void)unsetenv("MUSTER_DEBUG");
    return folder_remove(folder) >= 0 ? 0 : -1;
}

/* The only file whose name begins so; borrowed until the next call. */
static char *read_file(const char *beginning) {
    static char text[TEXT_BYTES];
    glob_t files;
    char pattern[128];
    (void)str_format(pattern, sizeof pattern, "%s/%s*", folder, beginning);
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    assert_int_equal(files.gl_pathc, 1);
    FILE *file = fopen(files.gl_pathv[0], "re");
    globfree(&files);
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    return text;
}

/* Has a line all of the words (the list ends with NULL)? */
static bool has_line(const char *text, ...) {
    char line[2048];
    bool found = false;
    for (const char *at = text; *at && !found; at += strcspn(at, "\n"), at += *at == '\n') {
        (void)snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        va_list words;
        va_start(words, text);
        found = true;
        for (const char *word; (word = va_arg(words, const char *)) != NULL;) {
            found = found && strstr(line, word) != NULL;
        }
        va_end(words);
    }
    return found;
}

/* Two ranks: a reduction, a short and a long message, one taken from anybody. With an argument, rank 0's lines of the
 * log go into that file. */
static int talk(struct rank *rank, void *log) {
    static float numbers[LARGE_COUNT];
    int32_t words[3] = {0};
    struct muster_message message;
    if (log && rank->rank == 0) {
        (void)setenv("MUSTER_DEBUG", "DETAIL", 1);
        rank_check(rank, freopen(log, "w", stderr) != NULL);
    }
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, muster_all_reduce(group, numbers, numbers, LARGE_COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL),
                    0);
    if (rank->rank == 0) {
        rank_check_code(rank, muster_send(group, words, 3, MUSTER_INT32, 1, 5, NULL), 0);
        rank_check_code(rank, muster_send(group, numbers, LARGE_COUNT, MUSTER_FLOAT32, 1, 6, NULL), 0);
        rank_check_code(rank, muster_receive(group, words, 3, MUSTER_INT32, MUSTER_ANY_RANK, 7, &message, NULL), 0);
        rank_check(rank, message.count == 2);
    } else {
        rank_check_code(rank, muster_receive(group, words, 3, MUSTER_INT32, 0, 5, NULL, NULL), 0);
        rank_check_code(rank, muster_receive(group, numbers, LARGE_COUNT, MUSTER_FLOAT32, 0, 6, NULL, NULL), 0);
        rank_check_code(rank, muster_send(group, words, 2, MUSTER_INT32, 0, 7, NULL), 0);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void check_messages(void) {
    const char *text = read_file("rank-00000");
    assert_true(has_line(text, "\"ph\":\"b\"", "\"name\":\"send\"", "\"cat\":\"message\"", "\"tag\":5", "\"bytes\":12",
                         "\"type\":\"int32\"", "\"group\":\"world\"", "\"peer\":\"to 1\"", NULL));
    assert_true(has_line(text, "\"ph\":\"b\"", "\"name\":\"send\"", "\"tag\":6", "\"bytes\":400000", NULL));
    /* Who sent it, and how much that was. */
    assert_true(has_line(text, "\"ph\":\"b\"", "\"name\":\"receive\"", "\"tag\":7", "\"bytes\":8",
                         "\"peer\":\"from 1\"", NULL));
    assert_true(has_line(text, "\"ph\":\"e\"", "\"name\":\"receive\"", NULL));
    text = read_file("rank-00001");
    assert_true(has_line(text, "\"ph\":\"b\"", "\"name\":\"receive\"", "\"tag\":5", "\"bytes\":12",
                         "\"peer\":\"from 0\"", NULL));
    assert_true(has_line(text, "\"ph\":\"b\"", "\"name\":\"receive\"", "\"tag\":6", "\"bytes\":400000", NULL));
    assert_true(has_line(text, "\"ph\":\"b\"", "\"name\":\"send\"", "\"tag\":7", "\"peer\":\"to 0\"", NULL));
}

static void calls_within_a_host(void **state) {
    (void)state;
    ranks_run(2, talk, NULL);
    check_messages();
    const char *text = read_file("rank-00000");
    bool is_mpi = ranks_use_engine("mpi");
    assert_true(has_line(text, "\"name\":\"all_reduce\"",
                         is_mpi ? "\"algorithm\":\"MPI_I" : "\"algorithm\":\"two stage\"", NULL) ||
                has_line(text, "\"name\":\"all_reduce\"", "\"algorithm\":\"staged\"", NULL));
    assert_true(
        has_line(text, "\"name\":\"barrier\"", is_mpi ? "\"algorithm\":\"MPI_I" : "\"algorithm\":\"staged\"", NULL));
}

static void calls_between_hosts(void **state) {
    (void)state;
    struct ranks_options options = {.ranks_per_host = 1};
    ranks_run_with(2, talk, NULL, &options);
    check_messages();
    for (int rank = 0; rank < 2; rank++) {
        const char *text = read_file(rank == 0 ? "rank-00000" : "rank-00001");
        assert_true(has_line(text, "\"name\":\"all_reduce\"", "\"algorithm\":\"", NULL));
        assert_false(has_line(text, "\"name\":\"all_reduce\"", "unknown", NULL));
        bool has_parts = !ranks_use_engine("mpi"); /* which does not tell when it waits */
        assert_int_equal(has_line(text, "\"name\":\"wait\"", NULL), has_parts);
        assert_int_equal(has_line(text, "\"name\":\"transfer\"", NULL), has_parts);
    }
}

static void the_log_has_calls_and_messages(void **state) {
    (void)state;
    char path[128];
    (void)str_format(path, sizeof path, "%s/log", folder);
    ranks_run(2, talk, path);
    const char *text = read_file("log");
    assert_true(has_line(text, "rank 0: group 'world' call 1, all_reduce of 100000 float32, sum: success after ",
                         " us (", ranks_use_engine("mpi") ? "MPI_I" : "stage", NULL));
    assert_true(has_line(text, "group 'world', send of 3 int32 to rank 1, tag 5: success after ", NULL));
    assert_true(has_line(text, "group 'world', receive of 2 int32 from rank 1, tag 7: success after ", NULL));
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

static int wish_for_rubbish(struct rank *rank, void *log) {
    (void)setenv("MUSTER_DEBUG", "loud\033[2J", 1);
    rank_check(rank, freopen(log, "w", stderr) != NULL);
    muster_group_free(rank_group(rank, NULL));
    return 0;
}

static void no_line_obeys_a_variable(void **state) {
    (void)state;
    char log[128];
    (void)str_format(log, sizeof log, "%s/log", folder);
    ranks_run(1, wish_for_rubbish, log);
    const char *text = read_file("log");
    assert_true(has_line(text, "muster: rank 0: ", "MUSTER_DEBUG=loud?[2J is not known", NULL));
    assert_null(strchr(text, '\033'));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(calls_within_a_host),
        IN_FOLDER(calls_between_hosts),
        IN_FOLDER(the_log_has_calls_and_messages),
        IN_FOLDER(no_line_obeys_a_variable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
