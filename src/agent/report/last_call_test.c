/* What is told about a worker's last call, from true, damaged, missing and odd records. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/status.h>
#include <muster/types.h>

#include "agent/report/last_call.h"
#include "base/call_record.h"

static char folder[] = "/tmp/last-call-test-XXXXXX";
static char error_file[64], record_file[64];
static uint8_t record[CALL_RECORD_FILE_BYTES];

static void put(size_t offset, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        record[offset + i] = (uint8_t)(value >> 8 * i);
    }
}

/* Call `number`: an all_reduce of 1024 float32 that began `number` seconds after the file was made. */
static void put_call(uint64_t number, enum call_record_state state) {
    size_t at = CALL_RECORD_HEADER_BYTES + (size_t)(number - 1) * CALL_RECORD_ENTRY_BYTES;
    put(at, number, 8);
    put(at + 8, number + 10, 8);
    put(at + 20, 2, 1); /* all_reduce */
    put(at + 21, MUSTER_FLOAT32, 1);
    put(at + 23, state, 1);
    put(at + 24, 1024, 8);
    put(at + 32, 5000000000 + number * 1000000000, 8);
    put(at + 40, state == CALL_RECORD_BEGUN ? 0 : 5500000000 + number * 1000000000, 8);
    put(at + 48, CALL_RECORD_NO_PEER, 4);
    put(56, number, 8);
}

static void write_record(size_t bytes) {
    FILE *file = fopen(record_file, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(record, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static int begin(void **state) {
    (void)state;
    memset(record, 0, sizeof record);
    memcpy(record, CALL_RECORD_MAGIC, 8);
    put(8, CALL_RECORD_VERSION, 4);
    put(12, CALL_RECORD_ENTRIES, 4);
    put(16, CALL_RECORD_ENTRY_BYTES, 4);
    put(20, CALL_RECORD_HEADER_BYTES, 4);
    put(40, UINT64_C(3723250000), 8); /* 01:02:03.250 on the first day of 1970 */
    put(48, 5000000000, 8);
    (void)unlink(record_file);
    return 0;
}

static const char *told_of(const char *file) {
    static struct last_call call;
    memset(&call, 'x', sizeof call);
    last_call_read(file, &call);
    return call.text;
}

static bool was_bereft(void) {
    struct last_call call;
    last_call_read(error_file, &call);
    return call.was_bereft;
}

static void a_call_that_was_not_finished_is_told(void **state) {
    (void)state;
    put_call(1, CALL_RECORD_FINISHED);
    put_call(2, CALL_RECORD_BEGUN);
    put_call(3, CALL_RECORD_FINISHED);
    write_record(sizeof record);
    assert_string_equal(told_of(error_file),
                        "all_reduce of 1024 float32, sum (call 12 of group 0), begun at 01:02:05.250");
}

static void without_one_the_last_is_told(void **state) {
    (void)state;
    put_call(1, CALL_RECORD_FINISHED);
    put_call(2, CALL_RECORD_FINISHED);
    write_record(sizeof record);
    assert_string_equal(told_of(error_file),
                        "all_reduce of 1024 float32, sum (call 12 of group 0), finished at 01:02:05.750");
}

static void a_call_that_lost_its_peer_makes_a_victim(void **state) {
    (void)state;
    assert_false(was_bereft());
    put_call(1, CALL_RECORD_FINISHED);
    put_call(2, CALL_RECORD_FAILED);
    put(CALL_RECORD_HEADER_BYTES + CALL_RECORD_ENTRY_BYTES + 56, (uint32_t)MUSTER_EPEER, 4);
    put_call(3, CALL_RECORD_BEGUN);
    write_record(sizeof record);
    assert_true(was_bereft());
    assert_non_null(strstr(told_of(error_file), "(call 13 of group 0), begun"));
    put(CALL_RECORD_HEADER_BYTES + CALL_RECORD_ENTRY_BYTES + 56, (uint32_t)MUSTER_EMISMATCH, 4);
    write_record(sizeof record);
    assert_false(was_bereft());
    put(CALL_RECORD_HEADER_BYTES + CALL_RECORD_ENTRY_BYTES + 56, (uint32_t)MUSTER_EPEER, 4);
    put_call(3, CALL_RECORD_FINISHED); /* the program has gone on without that peer */
    write_record(sizeof record);
    assert_false(was_bereft());
}

static void a_group_with_a_name_is_named(void **state) {
    (void)state;
    size_t at = CALL_RECORD_HEADER_BYTES + (size_t)CALL_RECORD_ENTRIES * CALL_RECORD_ENTRY_BYTES;
    put(36, CALL_RECORD_GROUPS, 4);
    put(at + 4, CALL_RECORD_NAMED, 4);
    memset(record + at + 8, 'w', CALL_RECORD_NAME_BYTES); /* without an end */
    put_call(1, CALL_RECORD_BEGUN);
    write_record(sizeof record);
    assert_non_null(strstr(told_of(error_file), "(call 11 of group 'www"));
    assert_non_null(strstr(told_of(error_file), "w'), begun"));
    put(at + 8, 'w', 2);
    put(36, UINT32_MAX, 4); /* more than there are */
    write_record(sizeof record);
    assert_non_null(strstr(told_of(error_file), "(call 11 of group 'w'), begun"));
}

static void an_engine_is_told(void **state) {
    (void)state;
    char engine[CALL_RECORD_ENGINE_BYTES];
    size_t names = CALL_RECORD_HEADER_BYTES + (size_t)CALL_RECORD_ENTRIES * CALL_RECORD_ENTRY_BYTES;
    size_t engines = names + (size_t)CALL_RECORD_GROUPS * CALL_RECORD_GROUP_BYTES;
    last_call_engine(error_file, engine); /* there is no file */
    assert_string_equal(engine, "");
    put(36, CALL_RECORD_GROUPS, 4);
    put(names, 1, 4); /* of another group */
    put(names + 4, CALL_RECORD_NAMED, 4);
    memcpy(record + engines, "muster", 6);
    write_record(sizeof record);
    last_call_engine(error_file, engine);
    assert_string_equal(engine, "");
    put(names, CALL_RECORD_ROOT_GROUP, 4);
    memcpy(record + engines, "mpi (\x1b[2J)", 10);
    write_record(sizeof record);
    last_call_engine(error_file, engine);
    assert_string_equal(engine, "mpi (?[2J)");
    last_call_engine("", engine); /* it has no error file */
    assert_string_equal(engine, "");
}

static void clocks_that_make_no_sense_are_left_out(void **state) {
    (void)state;
    put_call(1, CALL_RECORD_BEGUN);
    put(48, UINT64_C(1) << 63, 8);
    write_record(sizeof record);
    assert_string_equal(told_of(error_file), "all_reduce of 1024 float32, sum (call 11 of group 0), begun");
}

static void nothing_is_told_of_what_is_not_there(void **state) {
    (void)state;
    assert_string_equal(told_of(error_file), "");
    assert_string_equal(told_of(""), "");
    write_record(sizeof record); /* no calls yet */
    assert_string_equal(told_of(error_file), "");
    put_call(1, CALL_RECORD_BEGUN);
    for (size_t bytes = 0; bytes < CALL_RECORD_HEADER_BYTES + CALL_RECORD_ENTRY_BYTES; bytes += 7) {
        write_record(bytes);
        assert_string_equal(told_of(error_file), "");
    }
    memset(record, 'x', 8);
    write_record(sizeof record);
    assert_string_equal(told_of(error_file), "");
}

static void odd_files_hold_nobody_up(void **state) {
    (void)state;
    assert_int_equal(mkfifo(record_file, 0600), 0);
    assert_string_equal(told_of(error_file), "");
    assert_int_equal(unlink(record_file), 0);
    put_call(1, CALL_RECORD_BEGUN);
    write_record(sizeof record);
    char elsewhere[80];
    (void)snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder);
    assert_int_equal(rename(record_file, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, record_file), 0);
    assert_string_equal(told_of(error_file), "");
    assert_int_equal(unlink(elsewhere), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_call_that_was_not_finished_is_told, begin),
        cmocka_unit_test_setup(without_one_the_last_is_told, begin),
        cmocka_unit_test_setup(a_call_that_lost_its_peer_makes_a_victim, begin),
        cmocka_unit_test_setup(a_group_with_a_name_is_named, begin),
        cmocka_unit_test_setup(an_engine_is_told, begin),
        cmocka_unit_test_setup(clocks_that_make_no_sense_are_left_out, begin),
        cmocka_unit_test_setup(nothing_is_told_of_what_is_not_there, begin),
        cmocka_unit_test_setup(odd_files_hold_nobody_up, begin),
    };
    if (setenv("TZ", "UTC0", 1) != 0 || !mkdtemp(folder)) {
        return 1;
    }
    (void)snprintf(error_file, sizeof error_file, "%s/error.json", folder);
    (void)snprintf(record_file, sizeof record_file, "%s" CALL_RECORD_SUFFIX, error_file);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(record_file);
    (void)rmdir(folder);
    return failed;
}
