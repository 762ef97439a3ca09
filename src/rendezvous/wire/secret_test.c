/* Where a job's secret comes from, and which ones are refused. */
#include "rendezvous/wire/secret.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

static char path[] = "/tmp/muster-secret-test-XXXXXX";
static struct secret_text text;

static int make_file(void **state) {
    int fd = mkstemp(path);
    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

static void fill(const void *bytes, size_t len, mode_t mode) {
    assert_int_equal(chmod(path, 0600), 0); /* an earlier case has left it read-only */
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(close(fd), 0);
}

static void expect_refused(const char *file, const char *value, const char *why) {
    assert_int_equal(secret_text_load(file, value, &text), MUSTER_EINVAL);
    assert_int_equal(text.len, 0);
    assert_non_null(strstr(muster_detail(), why));
}

static void nothing_is_given(void **state) {
    (void)state;
    assert_int_equal(secret_text_load(NULL, NULL, &text), 0);
    assert_int_equal(text.len, 0);
    assert_int_equal(secret_text_load("", NULL, &text), 0);
    assert_int_equal(text.len, 0);
    expect_refused("", "", "MUSTER_SECRET is set and empty");
}

static void a_file_and_a_variable_mean_the_same(void **state) {
    (void)state;
    static const char *const endings[] = {"", "\n", "\r\n"};
    for (size_t i = 0; i < 3; i++) {
        char line[64];
        int len = snprintf(line, sizeof line, "sixteen bytes ok%s", endings[i]);
        fill(line, (size_t)len, 0600);
        assert_int_equal(secret_text_load(path, NULL, &text), 0);
        assert_int_equal(text.len, 16);
        assert_memory_equal(text.bytes, "sixteen bytes ok", 16);
        assert_int_equal(secret_text_load(NULL, line, &text), 0);
        assert_int_equal(text.len, 16);
    }
    fill("one newline alone\n\n", 19, 0400);
    assert_int_equal(secret_text_load(path, "", &text), 0);
    assert_int_equal(text.len, 18);
    expect_refused(path, "sixteen bytes ok", "leave out one");
}

static void lengths_at_their_limits(void **state) {
    (void)state;
    static char bytes[SECRET_BYTES_MAX + 2];
    memset(bytes, 'x', sizeof bytes);
    bytes[SECRET_BYTES_MAX] = '\n';
    fill(bytes, SECRET_BYTES_MAX + 1, 0600);
    assert_int_equal(secret_text_load(path, NULL, &text), 0);
    assert_int_equal(text.len, SECRET_BYTES_MAX);
    bytes[SECRET_BYTES_MAX] = 'x';
    fill(bytes, SECRET_BYTES_MAX + 1, 0600);
    expect_refused(path, NULL, "too many bytes");
    fill(bytes, SECRET_BYTES_MAX + 2, 0600);
    expect_refused(path, NULL, "too many bytes");
    fill("fifteen bytes..\n", 16, 0600);
    expect_refused(path, NULL, "too few bytes");
    fill("", 0, 0600);
    expect_refused(path, NULL, "/dev/urandom");
    expect_refused(NULL, "short", "MUSTER_SECRET has too few bytes");
}

static void others_must_not_read_the_file(void **state) {
    (void)state;
    static const mode_t modes[] = {0644, 0604, 0660, 0620, 0602};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        fill("a secret of many bytes", 22, modes[i]);
        expect_refused(path, NULL, "chmod 600");
    }
    fill("a secret of many bytes", 22, 0440); /* as Kubernetes mounts it: of root's alone */
    if (geteuid() == 0) {
        assert_int_equal(secret_text_load(path, NULL, &text), 0);
    } else {
        expect_refused(path, NULL, "chmod 600");
    }
}

static void another_users_file_is_refused(void **state) {
    enum { SOMEBODY = 54321 };
    (void)state;
    fill("a secret of many bytes", 22, 0600);
    if (geteuid() != 0) { /* only root could read it and give it away */
        print_message("SKIP: not root\n");
        skip();
    }
    assert_int_equal(chown(path, SOMEBODY, (gid_t)-1), 0);
    expect_refused(path, NULL, "belongs to another user (54321)");
    assert_int_equal(chown(path, 0, (gid_t)-1), 0);
}

static void what_is_no_file(void **state) {
    (void)state;
    expect_refused("/dev", NULL, "is not a file");
    expect_refused("/dev/zero", NULL, "is not a file");
    assert_int_equal(secret_text_load("/nowhere/secret", NULL, &text), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "/nowhere/secret"));
}

static void wiping_leaves_nothing(void **state) {
    (void)state;
    static const struct secret_text empty;
    assert_int_equal(secret_text_load(NULL, "a secret of many bytes", &text), 0);
    secret_text_wipe(&text);
    assert_memory_equal(&text, &empty, sizeof text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_given),
        cmocka_unit_test(a_file_and_a_variable_mean_the_same),
        cmocka_unit_test(lengths_at_their_limits),
        cmocka_unit_test(others_must_not_read_the_file),
        cmocka_unit_test(another_users_file_is_refused),
        cmocka_unit_test(what_is_no_file),
        cmocka_unit_test(wiping_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
