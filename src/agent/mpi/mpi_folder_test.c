/* The folder of an MPI server: private, and gone with all that is in it, but nothing else. */
#include "agent/mpi/mpi_folder.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

enum { PATH_BYTES = 512 };

static const char *below(const char *folder, const char *name) {
    static char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void touch(const char *path) {
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
}

static void it_goes_with_all_that_is_in_it(void **state) {
    (void)state;
    char folder[PATH_BYTES], other[] = "/tmp/mpi_folder_test_XXXXXX";
    struct stat seen;
    assert_int_equal(mpi_folder_create(folder, sizeof folder), 0);
    assert_int_equal(stat(folder, &seen), 0);
    assert_int_equal(seen.st_mode & 0777, 0700);
    assert_non_null(mkdtemp(other));
    touch(below(other, "kept"));
    assert_int_equal(mkdir(below(folder, "job"), 0700), 0);
    touch(below(folder, "job/file"));
    assert_int_equal(symlink(other, below(folder, "link")), 0);
    mpi_folder_remove(folder);
    assert_int_not_equal(stat(folder, &seen), 0);
    assert_int_equal(stat(below(other, "kept"), &seen), 0);
    assert_int_equal(unlink(below(other, "kept")), 0);
    assert_int_equal(rmdir(other), 0);
}

static void nothing_is_fine(void **state) {
    (void)state;
    mpi_folder_remove("");
    mpi_folder_remove("/nonexistent/muster-mpi");
}

static void a_path_that_is_too_long_is_an_error(void **state) {
    (void)state;
    char folder[8];
    assert_int_equal(mpi_folder_create(folder, sizeof folder), MUSTER_ELIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_goes_with_all_that_is_in_it),
        cmocka_unit_test(nothing_is_fine),
        cmocka_unit_test(a_path_that_is_too_long_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
