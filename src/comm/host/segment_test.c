/* Segments: seen by another process, found only by their true name, fixed in size, and gone with their users. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

#include "comm/host/segment.h"

enum { BYTES = 100000 };

static struct segment made;
static struct segment_name name;

static int make(void **state) {
    (void)state;
    return segment_create(BYTES, "segment-test", 0, &made, &name);
}

static int unmake(void **state) {
    (void)state;
    segment_close(&made);
    return 0;
}

static unsigned char *contents(const struct segment *segment) {
    return (unsigned char *)segment->memory + SEGMENT_HEADER_BYTES;
}

static void it_begins_zeroed(void **state) {
    (void)state;
    for (size_t i = 0; i < BYTES - SEGMENT_HEADER_BYTES; i++) {
        assert_int_equal(contents(&made)[i], 0);
    }
    assert_int_equal((uintptr_t)made.memory % 4096, 0);
    assert_int_equal(name.pid, getpid());
}

static void another_process_sees_it(void **state) {
    (void)state;
    contents(&made)[5] = 42;
    pid_t child = fork();
    if (child == 0) {
        struct segment opened;
        if (segment_open(&name, &opened) != 0 || opened.memory == made.memory || contents(&opened)[5] != 42) {
            _exit(1);
        }
        contents(&opened)[6] = 43;
        segment_close(&opened);
        _exit(0);
    }
    int ended = -1;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    assert_int_equal(contents(&made)[6], 43);
}

static void it_outlives_its_maker_where_it_is_mapped(void **state) {
    (void)state;
    struct segment opened;
    assert_int_equal(segment_open(&name, &opened), 0);
    contents(&made)[0] = 7;
    segment_close(&made);
    assert_int_equal(contents(&opened)[0], 7);
    segment_close(&opened);
    assert_null(opened.memory);
    segment_close(&opened); /* twice is harmless */
    assert_int_equal(make(NULL), 0);
}

static void expect_refused(struct segment_name wrong, int code) {
    struct segment opened = {.bytes = 1};
    assert_int_equal(segment_open(&wrong, &opened), code);
    assert_int_equal(opened.bytes, 1); /* untouched */
    assert_true(strlen(muster_detail()) > 0);
}

static void only_the_true_name_opens_it(void **state) {
    (void)state;
    struct segment_name wrong = name;
    wrong.cookie++;
    expect_refused(wrong, MUSTER_ECORRUPT);
    wrong = name, wrong.bytes++;
    expect_refused(wrong, MUSTER_ECORRUPT);
    wrong = name, wrong.bytes = 8;
    expect_refused(wrong, MUSTER_ECORRUPT);
    wrong = name, wrong.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    expect_refused(wrong, MUSTER_ECORRUPT);
    (void)close(wrong.fd);
    expect_refused(wrong, MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "MUSTER_SHM=0"));
    wrong = name, wrong.pid = 0x7fffffff;
    expect_refused(wrong, MUSTER_ESYSTEM);
}

/* An ordinary file of the right size could shrink under us. */
static void an_unsealed_file_is_refused(void **state) {
    (void)state;
    int fd = memfd_create("segment-test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)name.bytes), 0);
    struct segment_name wrong = name;
    wrong.fd = fd;
    expect_refused(wrong, MUSTER_ECORRUPT);
    (void)close(fd);
}

static void its_size_is_fixed(void **state) {
    (void)state;
    assert_int_not_equal(ftruncate(made.fd, 10), 0);
    assert_int_not_equal(ftruncate(made.fd, BYTES * 2), 0);
}

static void too_much_is_an_error(void **state) {
    (void)state;
    struct segment segment = {.bytes = 1};
    struct segment_name other;
    /* Should it try all the same, the kernel is not to let it. */
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    const struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(segment_create((size_t)1 << 50, "segment-test", 0, &segment, &other), MUSTER_ENOMEM);
    assert_int_equal(segment.bytes, 1);
    assert_int_equal(segment_create(1, "segment-test", 1, &segment, &other), 0);
    assert_int_equal(other.bytes, SEGMENT_HEADER_BYTES);
    segment_close(&segment);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_begins_zeroed, make, unmake),
        cmocka_unit_test_setup_teardown(another_process_sees_it, make, unmake),
        cmocka_unit_test_setup_teardown(it_outlives_its_maker_where_it_is_mapped, make, unmake),
        cmocka_unit_test_setup_teardown(only_the_true_name_opens_it, make, unmake),
        cmocka_unit_test_setup_teardown(an_unsealed_file_is_refused, make, unmake),
        cmocka_unit_test_setup_teardown(its_size_is_fixed, make, unmake),
        cmocka_unit_test_setup_teardown(too_much_is_an_error, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
