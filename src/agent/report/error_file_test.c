/* Error files: what PyTorch 2.13 writes, what it would choke on, and passing files on. */
#include "agent/report/error_file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"

static char folder[] = "/tmp/muster_error_file_test_XXXXXX";
static char path[64], own[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) {
        return -1;
    }
    (void)snprintf(path, sizeof path, "%s/error.json", folder);
    (void)snprintf(own, sizeof own, "%s/own.json", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    (void)unlink(path);
    (void)unlink(own);
    return rmdir(folder); /* fails if a temporary file was left */
}

static void write_text(const char *name, const char *text) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_text(const char *name, const char *expected) {
    char found[512] = "";
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    (void)fclose(file);
    assert_string_equal(found, expected);
}

static int parse(const char *text, struct error_record *record) {
    *record = (struct error_record){0};
    return error_record_parse(text, strlen(text), record);
}

static void assert_message(const char *text, const char *message, int64_t time_s) {
    struct error_record record;
    assert_int_equal(parse(text, &record), 0);
    assert_string_equal(record.message, message);
    assert_int_equal(record.time_s, time_s);
    error_record_done(&record);
}

static void assert_corrupt(const char *text, const char *why) {
    struct error_record record;
    assert_int_equal(parse(text, &record), MUSTER_ECORRUPT);
    assert_non_null(strstr(muster_detail(), why));
    assert_null(record.message);
}

static const char recorded[] =
    "{\"message\": {\"message\": \"ValueError: boom\", \"extraInfo\": {\"py_callstack\": \"Traceback (most recent call "
    "last):\\n  ...\\nValueError: boom\\n\", \"timestamp\": \"1795254435\"}}}";

static void what_a_recorded_exception_leaves(void **state) {
    (void)state;
    struct error_record record;
    assert_int_equal(parse(recorded, &record), 0);
    assert_string_equal(record.message, "Traceback (most recent call last):\n  ...\nValueError: boom\n");
    assert_true(record.is_traceback);
    assert_int_equal(record.time_s, 1795254435);
    assert_string_equal(record.json, recorded); /* key order and spacing, too */
    error_record_done(&record);
}

static void other_shapes_that_torchelastic_takes(void **state) {
    (void)state;
    assert_message("{\"message\": \"plain\", \"timestamp\": 17}", "plain", 17);
    assert_message("{\"message\": \"plain\"}", "plain", 0);
    assert_message("{\"message\": {\"message\": \"m\", \"extraInfo\": {\"timestamp\": 18.9}}}", "m", 18);
    assert_message("{\"message\": {\"extraInfo\": {}}}", "<N/A>", 0);
    assert_message("{\"message\": {\"message\": 5, \"extraInfo\": []}}", "<N/A>", 0);
    assert_message("{\"message\": {\"message\": \"m\", \"extraInfo\": {\"timestamp\": \"soon\"}}}", "m", 0);
    assert_message("{\"message\": \"m\", \"timestamp\": -5}", "m", 0);
    assert_message("{\"message\": \"m\", \"timestamp\": 99999999999999}", "m", 0);
    assert_message("{\"message\": \"\"}", "", 0);
}

static void python_texts_beyond_the_standard(void **state) {
    (void)state;
    assert_message("{\"message\": \"a\\udc80b\"}",
                   "a\xef\xbf\xbd"
                   "b",
                   0); /* surrogateescape */
    assert_message("{\"message\": \"\\ud83d\\ude00\"}", "\xf0\x9f\x98\x80", 0);
    assert_message("{\"message\": \"\\ud83d\\u0041\"}",
                   "\xef\xbf\xbd"
                   "A",
                   0);
    assert_message("{\"message\": \"\\\\udc80\"}", "\\udc80", 0); /* an escaped backslash */
    assert_message("{\"message\": \"latin \xe9\"}", "latin ?", 0);
    assert_message("{\"message\": \"nul \\u0000 in it\"}", "nul   in it", 0);
    assert_message("{\"message\": \"\\uD83D\"}", "\xef\xbf\xbd", 0);
}

static void damage_is_described(void **state) {
    (void)state;
    assert_corrupt("", "it is empty");
    assert_corrupt("{\"message\": {\"mess", "it is not JSON");
    assert_corrupt("[]", "no \"message\"");
    assert_corrupt("{}", "no \"message\"");
    assert_corrupt("{\"message\": 3}", "no \"message\"");
    assert_corrupt("{\"message\": null}", "no \"message\"");
    assert_corrupt("\\", "it is not JSON");
    assert_corrupt("\"\\u", "it is not JSON");
    char deep[5000];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    assert_corrupt(deep, "it is not JSON");
}

static void every_truncation_is_survived(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof recorded - 1; n++) {
        struct error_record record = {0};
        assert_int_equal(error_record_parse(recorded, n, &record), MUSTER_ECORRUPT);
    }
}

static void files_that_are_none(void **state) {
    (void)state;
    struct error_record record;
    assert_int_equal(error_file_read(path, &record), MUSTER_ENOENT);
    assert_int_equal(error_file_read("/dev/null/error.json", &record), MUSTER_ENOENT);
    assert_int_equal(error_file_read(folder, &record), MUSTER_ECORRUPT);
    assert_int_equal(error_file_read("/dev/zero", &record), MUSTER_ECORRUPT);
    assert_int_equal(mkfifo(path, 0600), 0); /* would block a careless reader */
    assert_int_equal(error_file_read(path, &record), MUSTER_ECORRUPT);
    assert_int_equal(unlink(path), 0);
}

static void too_large_a_file_is_not_read(void **state) {
    (void)state;
    struct error_record record;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
    close(fd);
    assert_int_equal(error_file_read(path, &record), MUSTER_ELIMIT);
    assert_int_equal(unlink(path), 0);
}

static void a_file_is_passed_on_with_the_exit_code(void **state) {
    (void)state;
    write_text(path, "{\"message\": {\"message\": \"m\", \"extraInfo\": {\"timestamp\": \"5\"}}, \"x\": [1, 2.5]}");
    write_text(own, "an older file, longer than the new one ........................................................"
                    "...............................................");
    assert_int_equal(error_file_propagate(path, 1, own), 0);
    assert_text(own, "{\"message\": {\"message\": \"m\", \"extraInfo\": {\"timestamp\": \"5\"}, \"errorCode\": 1}, "
                     "\"x\": [1, 2.5]}");
    assert_int_equal(error_file_propagate(path, 0, own), 0);
    assert_text(own, "{\"message\": {\"message\": \"m\", \"extraInfo\": {\"timestamp\": \"5\"}}, \"x\": [1, 2.5]}");
    write_text(path, "{\"message\": \"plain\"}");
    assert_int_equal(error_file_propagate(path, -11, own), 0);
    assert_text(own, "{\"message\": \"plain\"}");
    write_text(path, "broken");
    assert_int_equal(error_file_propagate(path, 1, own), MUSTER_ECORRUPT);
    assert_text(own, "{\"message\": \"plain\"}"); /* untouched */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(error_file_propagate(path, 1, own), MUSTER_ENOENT);
}

static void the_launcher_writes_its_own(void **state) {
    (void)state;
    assert_int_equal(error_file_write(own, "SignalException: \"15\"\xff", "", 1795254435), 0);
    assert_text(own, "{\"message\": {\"message\": \"SignalException: \\\"15\\\"?\", \"extraInfo\": {\"py_callstack\": "
                     "\"\", \"timestamp\": \"1795254435\"}}}");
    assert_int_equal(error_file_write("/nonexistent/folder/e.json", "m", "", 0), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "/nonexistent/folder/e.json"));
    assert_int_equal(error_file_write("/dev/full", "m", "", 0), MUSTER_ESYSTEM);
    struct stat st;
    assert_int_equal(error_file_write("/dev/null", "m", "", 0), 0); /* written to, not replaced */
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_recorded_exception_leaves), cmocka_unit_test(other_shapes_that_torchelastic_takes),
        cmocka_unit_test(python_texts_beyond_the_standard), cmocka_unit_test(damage_is_described),
        cmocka_unit_test(every_truncation_is_survived),     cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(too_large_a_file_is_not_read),     cmocka_unit_test(a_file_is_passed_on_with_the_exit_code),
        cmocka_unit_test(the_launcher_writes_its_own),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
