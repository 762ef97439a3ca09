/* The old file or the new one, whatever fails. The linker sends the library's write(), fsync() and rename() here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { COUNT = 100 };

enum call { NO_CALL, WRITE, FSYNC, RENAME };

static struct {
    enum call fails;
    unsigned after, seen; /* the call that fails is the one after so many of its kind */
    unsigned count[RENAME + 1];
} disk;
static char folder[] = "/tmp/file_test.XXXXXX";
static char path[64], aside[64], bytes[COUNT];

ssize_t __real_write(int fd, const void *data, size_t count);
ssize_t __wrap_write(int fd, const void *data, size_t count);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

static bool fails(enum call call) {
    disk.count[call]++;
    if (disk.fails != call || disk.seen++ < disk.after) {
        return false;
    }
    errno = call == WRITE ? ENOSPC : EIO;
    return true;
}

/* By pieces of 30 bytes, each interrupted once. */
ssize_t __wrap_write(int fd, const void *data, size_t count) {
    if (fails(WRITE)) {
        return -1;
    }
    if (disk.count[WRITE] % 2 == 1) {
        errno = EINTR;
        return -1;
    }
    return __real_write(fd, data, count < 30 ? count : 30);
}

int __wrap_fsync(int fd) {
    return fails(FSYNC) ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to) {
    return fails(RENAME) ? -1 : __real_rename(from, to);
}

static int replace(enum call failing, unsigned after, bool syncs) {
    memset(&disk, 0, sizeof disk);
    disk.fails = failing;
    disk.after = after;
    int fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    int error_number = file_replace(fd, aside, path, bytes, sizeof bytes, syncs);
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* closed */
    assert_int_equal(access(aside, F_OK), -1);
    return error_number;
}

static void assert_holds(const char *content, size_t count) {
    char held[COUNT + 1];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(held, 1, sizeof held, file), count);
    assert_memory_equal(held, content, count);
    assert_int_equal(fclose(file), 0);
}

static int put_old_file(void **state) {
    (void)state;
    FILE *file = fopen(path, "w");
    return file && fputs("old", file) >= 0 && fclose(file) == 0 ? 0 : -1;
}

static void all_goes_well(void **state) {
    (void)state;
    assert_int_equal(replace(NO_CALL, 0, false), 0);
    assert_int_equal(disk.count[FSYNC], 0);
    assert_holds(bytes, sizeof bytes);
    assert_int_equal(replace(NO_CALL, 0, true), 0);
    assert_int_equal(disk.count[FSYNC], 2); /* the file, and the folder it is in */
    assert_holds(bytes, sizeof bytes);
}

static void each_failure_leaves_the_old_file(void **state) {
    (void)state;
    assert_int_equal(replace(WRITE, 0, true), ENOSPC);
    assert_int_equal(disk.count[FSYNC] + disk.count[RENAME], 0);
    assert_int_equal(replace(WRITE, 2, true), ENOSPC); /* a part is there */
    assert_holds("old", 3);
    assert_int_equal(replace(FSYNC, 0, true), EIO);
    assert_int_equal(disk.count[RENAME], 0);
    assert_holds("old", 3);
    assert_int_equal(replace(RENAME, 0, true), EIO);
    assert_int_equal(disk.count[FSYNC], 1);
    assert_holds("old", 3);
}

/* Some file systems do not sync folders; the file is renamed by then. */
static void a_folder_that_cannot_be_synced_is_as_good_as_it_gets(void **state) {
    (void)state;
    assert_int_equal(replace(FSYNC, 1, true), 0);
    assert_holds(bytes, sizeof bytes);
}

static void a_name_without_a_folder_is_in_the_working_folder(void **state) {
    (void)state;
    assert_int_equal(chdir(folder), 0);
    memset(&disk, 0, sizeof disk);
    int fd = open("new", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    assert_int_equal(file_replace(fd, "new", "file", bytes, sizeof bytes, true), 0);
    assert_int_equal(disk.count[FSYNC], 2);
    assert_holds(bytes, sizeof bytes);
}

static void a_full_pipe_is_waited_for(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
    memset(&disk, 0, sizeof disk);
    for (size_t i = 0; i < 4096 / 16; i++) {
        assert_int_equal(__real_write(ends[1], bytes, 16), 16);
    }
    assert_int_equal(file_write_all(ends[1], bytes, 1, 0), ETIMEDOUT);
    assert_int_equal(file_write_all(ends[1], bytes, 1, 10), ETIMEDOUT);
    char room[4096];
    assert_int_equal(read(ends[0], room, sizeof room), sizeof room);
    assert_int_equal(file_write_all(ends[1], bytes, sizeof bytes, 0), 0);
    assert_int_equal(read(ends[0], room, sizeof room), sizeof bytes);
    assert_int_equal(close(ends[0]) + close(ends[1]), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(all_goes_well, put_old_file),
        cmocka_unit_test_setup(each_failure_leaves_the_old_file, put_old_file),
        cmocka_unit_test_setup(a_folder_that_cannot_be_synced_is_as_good_as_it_gets, put_old_file),
        cmocka_unit_test_setup(a_name_without_a_folder_is_in_the_working_folder, put_old_file),
        cmocka_unit_test(a_full_pipe_is_waited_for),
    };
    memset(bytes, 'n', sizeof bytes);
    if (!mkdtemp(folder)) {
        return 1;
    }
    (void)snprintf(path, sizeof path, "%s/file", folder);
    (void)snprintf(aside, sizeof aside, "%s/file.tmp", folder);
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    return failures + (unlink(path) != 0) + (rmdir(folder) != 0);
}
