/* The old file or the new one, whatever fails. The linker sends the library's calls here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

enum { COUNT = 100 };

enum call { NO_CALL, WRITE, FSYNC, RENAME, CALLS };

/* What the file system can. */
enum kind { ALL, NAMED /* no files without names */, ONE_NAME /* and none with two */, KINDS };

static struct {
    enum kind kind;
    enum call fails;
    unsigned after, seen; /* the call that fails is the one after so many of its kind */
    unsigned count[CALLS];
    void (*before_link)(void); /* what another process does at that moment */
} disk;
static char folder[] = "/tmp/file_test.XXXXXX";
static char path[64], bytes[COUNT];

ssize_t __real_write(int fd, const void *data, size_t count);
ssize_t __wrap_write(int fd, const void *data, size_t count);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_open(const char *name, int flags, ...);
int __wrap_open(const char *name, int flags, unsigned mode);
int __real_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);

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

int __wrap_open(const char *name, int flags, unsigned mode) {
    if (disk.kind != ALL && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return __real_open(name, flags, mode);
}

int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    if (disk.before_link) {
        disk.before_link();
        disk.before_link = NULL;
    }
    if (disk.kind == ONE_NAME) {
        errno = EPERM;
        return -1;
    }
    return __real_linkat(from_folder, from, to_folder, to, flags);
}

static unsigned entries(void) {
    unsigned count = 0;
    DIR *stream = opendir(folder);
    assert_non_null(stream);
    for (struct dirent *entry = readdir(stream); entry; entry = readdir(stream)) {
        count += entry->d_name[0] != '.';
    }
    assert_int_equal(closedir(stream), 0);
    return count;
}

/* Nothing but the file is left, and no descriptor. */
static int publish(enum kind kind, enum file_name name, bool syncs) {
    int before = dup(0), error_number = 0;
    disk.kind = kind;
    disk.seen = 0;
    memset(disk.count, 0, sizeof disk.count);
    error_number = file_publish(path, bytes, sizeof bytes, name, syncs);
    int after = dup(0);
    assert_int_equal(after, before + 1);
    assert_int_equal(close(before) + close(after), 0);
    return error_number;
}

static int publish_failing(enum kind kind, enum call call, unsigned after) {
    disk.fails = call;
    disk.after = after;
    int error_number = publish(kind, FILE_TAKES_NAME, true);
    disk.fails = NO_CALL;
    return error_number;
}

static void assert_holds(const char *content, size_t count) {
    char held[COUNT + 1];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(held, 1, sizeof held, file), count);
    assert_memory_equal(held, content, count);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(entries(), 1);
}

static void put_old_file(void) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("old", file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void all_goes_well(void **state) {
    (void)state;
    for (enum kind kind = ALL; kind < KINDS; kind++) {
        for (int is_there = 0; is_there < 2; is_there++) {
            (void)unlink(path);
            if (is_there) {
                put_old_file();
            }
            assert_int_equal(publish(kind, FILE_TAKES_NAME, false), 0);
            assert_int_equal(disk.count[FSYNC], 0);
            assert_holds(bytes, sizeof bytes);
            assert_int_equal(publish(kind, FILE_TAKES_NAME, true), 0);
            assert_int_equal(disk.count[FSYNC], 2); /* the file, and the folder it is in */
            assert_holds(bytes, sizeof bytes);
        }
    }
}

static void each_failure_leaves_the_old_file(void **state) {
    (void)state;
    put_old_file();
    for (enum kind kind = ALL; kind < KINDS; kind++) {
        assert_int_equal(publish_failing(kind, WRITE, 0), ENOSPC);
        assert_int_equal(disk.count[FSYNC] + disk.count[RENAME], 0);
        assert_int_equal(publish_failing(kind, WRITE, 2), ENOSPC); /* a part is there */
        assert_holds("old", 3);
        assert_int_equal(publish_failing(kind, FSYNC, 0), EIO);
        assert_int_equal(disk.count[RENAME], 0);
        assert_holds("old", 3);
        assert_int_equal(publish_failing(kind, RENAME, 0), EIO);
        assert_int_equal(disk.count[FSYNC], 1);
        assert_holds("old", 3);
    }
}

/* Some file systems do not sync folders; the file is published by then. */
static void a_folder_that_cannot_be_synced_is_as_good_as_it_gets(void **state) {
    (void)state;
    assert_int_equal(publish_failing(ALL, FSYNC, 1), 0);
    assert_holds(bytes, sizeof bytes);
}

static void a_new_file_takes_no_name(void **state) {
    (void)state;
    for (enum kind kind = ALL; kind < KINDS; kind++) {
        put_old_file();
        assert_int_equal(publish(kind, FILE_IS_NEW, true), EEXIST);
        assert_holds("old", 3);
        disk.before_link = put_old_file; /* a file that comes at the last moment */
        assert_int_equal(unlink(path), 0);
        assert_int_equal(publish(kind, FILE_IS_NEW, true), EEXIST);
        assert_holds("old", 3);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(publish(kind, FILE_IS_NEW, true), 0);
        assert_holds(bytes, sizeof bytes);
        assert_int_equal(unlink(path), 0);
    }
}

/* Without a second name an empty file holds the place of a new one. */
static void a_place_that_is_held_is_given_back(void **state) {
    (void)state;
    disk.fails = RENAME;
    disk.after = 0;
    assert_int_equal(publish(ONE_NAME, FILE_IS_NEW, true), EIO);
    disk.fails = NO_CALL;
    assert_int_equal(entries(), 0);
}

/* It is the link that makes way, and is refused, and never what it leads to. */
static void a_link_is_not_followed(void **state) {
    (void)state;
    char victim[80], held[4];
    (void)snprintf(victim, sizeof victim, "%s/victim", folder);
    for (enum kind kind = ALL; kind < KINDS; kind++) {
        for (enum file_name name = FILE_TAKES_NAME; name <= FILE_IS_NEW; name++) {
            put_old_file();
            assert_int_equal(rename(path, victim), 0);
            assert_int_equal(symlink("victim", path), 0);
            assert_int_equal(publish(kind, name, false), name == FILE_IS_NEW ? EEXIST : 0);
            FILE *file = fopen(victim, "r");
            assert_non_null(file);
            assert_int_equal(fread(held, 1, sizeof held, file), 3);
            assert_int_equal(fclose(file), 0);
            assert_int_equal(unlink(path) + unlink(victim), 0);
            assert_int_equal(entries(), 0);
        }
    }
}

static void names_may_be_as_long_as_they_get(void **state) {
    (void)state;
    char before[sizeof path], name[NAME_MAX + 2];
    memcpy(before, path, sizeof path);
    assert_int_equal(chdir(folder), 0);
    for (enum kind kind = ALL; kind < KINDS; kind++) {
        for (size_t length = NAME_MAX - 1; length <= NAME_MAX + 1; length++) {
            memset(name, 'n', length);
            name[length] = '\0';
            int expected = length > NAME_MAX ? ENAMETOOLONG : 0;
            disk.kind = kind;
            assert_int_equal(file_publish(name, bytes, sizeof bytes, FILE_IS_NEW, false), expected);
            assert_int_equal(file_publish(name, bytes, sizeof bytes, FILE_TAKES_NAME, false), expected);
            assert_int_equal(unlink(name), expected ? -1 : 0);
            assert_int_equal(entries(), 0);
        }
    }
}

static void a_name_without_a_folder_is_in_the_working_folder(void **state) {
    (void)state;
    assert_int_equal(chdir(folder), 0);
    for (enum kind kind = ALL; kind < KINDS; kind++) {
        disk.kind = kind;
        memset(disk.count, 0, sizeof disk.count);
        assert_int_equal(file_publish("file", bytes, sizeof bytes, FILE_TAKES_NAME, true), 0);
        assert_int_equal(disk.count[FSYNC], 2);
        assert_holds(bytes, sizeof bytes);
    }
}

/* Many at once: one of them has it, and every reader meets a whole file. */
static void of_many_one_succeeds(void **state) {
    (void)state;
    enum { PROCESSES = 8, ROUNDS = 25 };
    for (int round = 0; round < KINDS * ROUNDS; round++) {
        int start[2], successes = 0, status = 0;
        disk.kind = (enum kind)(round % KINDS);
        assert_int_equal(pipe2(start, O_CLOEXEC), 0);
        for (int i = 0; i < PROCESSES; i++) {
            pid_t pid = fork();
            if (pid == 0) {
                char go;
                (void)close(start[1]);
                memset(bytes, 'a' + i, sizeof bytes);
                _exit(read(start[0], &go, 1) != 0 || file_publish(path, bytes, sizeof bytes, FILE_IS_NEW, false));
            }
            assert_true(pid > 0);
        }
        assert_int_equal(close(start[0]) + close(start[1]), 0);
        for (int i = 0; i < PROCESSES; i++) {
            assert_true(wait(&status) > 0);
            successes += status == 0;
        }
        assert_int_equal(successes, 1);
        char held[COUNT + 1], first;
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        assert_int_equal(fread(held, 1, sizeof held, file), COUNT);
        assert_int_equal(fclose(file), 0);
        first = held[0];
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(held[i], first);
        }
        assert_int_equal(entries(), 1);
        assert_int_equal(unlink(path), 0);
    }
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

static int empty_folder(void **state) {
    (void)state;
    memset(&disk, 0, sizeof disk);
    return unlink(path) == 0 || errno == ENOENT ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(all_goes_well, empty_folder),
        cmocka_unit_test_setup(each_failure_leaves_the_old_file, empty_folder),
        cmocka_unit_test_setup(a_folder_that_cannot_be_synced_is_as_good_as_it_gets, empty_folder),
        cmocka_unit_test_setup(a_new_file_takes_no_name, empty_folder),
        cmocka_unit_test_setup(a_place_that_is_held_is_given_back, empty_folder),
        cmocka_unit_test_setup(a_link_is_not_followed, empty_folder),
        cmocka_unit_test_setup(names_may_be_as_long_as_they_get, empty_folder),
        cmocka_unit_test_setup(a_name_without_a_folder_is_in_the_working_folder, empty_folder),
        cmocka_unit_test_setup(of_many_one_succeeds, empty_folder),
        cmocka_unit_test(a_full_pipe_is_waited_for),
    };
    memset(bytes, 'n', sizeof bytes);
    if (!mkdtemp(folder)) {
        return 1;
    }
    (void)snprintf(path, sizeof path, "%s/file", folder);
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return failures + (rmdir(folder) != 0);
}
