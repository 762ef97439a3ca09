/* Frames over a real socket pair: whole, in pieces, with descriptors, against a reader that does not read. */
#include "agent/guardian/guardian_channel.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

enum { QUEUE_BYTES = 4 << 20 };

struct ends {
    struct guardian_channel a, b;
};

static int setup(void **state) {
    struct ends *e = malloc(sizeof *e);
    int pair[2];
    assert_non_null(e);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    guardian_channel_init(&e->a, pair[0], QUEUE_BYTES);
    guardian_channel_init(&e->b, pair[1], QUEUE_BYTES);
    *state = e;
    return 0;
}

static int teardown(void **state) {
    struct ends *e = *state;
    guardian_channel_done(&e->a);
    guardian_channel_done(&e->b);
    free(e);
    return 0;
}

static void frames_arrive_in_order(void **state) {
    struct ends *e = *state;
    struct guardian_frame frame;
    const uint8_t *body;
    assert_int_equal(guardian_channel_send(&e->a, 1, "one", 3, NULL, 0), MUSTER_OK);
    assert_int_equal(guardian_channel_send(&e->a, 2, NULL, 0, NULL, 0), MUSTER_OK);
    assert_int_equal(guardian_channel_send(&e->a, 3, "three", 5, NULL, 0), MUSTER_OK);
    assert_int_equal(guardian_channel_receive(&e->b), MUSTER_OK);
    assert_true(guardian_channel_next(&e->b, &frame, &body));
    assert_int_equal(frame.kind, 1);
    assert_memory_equal(body, "one", 3);
    assert_true(guardian_channel_next(&e->b, &frame, &body));
    assert_int_equal(frame.length, 0);
    assert_true(guardian_channel_next(&e->b, &frame, &body));
    assert_memory_equal(body, "three", 5);
    assert_false(guardian_channel_next(&e->b, &frame, &body));
    assert_int_equal(guardian_channel_receive(&e->b), MUSTER_OK); /* nothing there is no error */
}

static void byte_by_byte(void **state) {
    struct ends *e = *state;
    struct guardian_frame head = {.kind = 9, .length = 4};
    struct guardian_frame frame;
    const uint8_t *body;
    uint8_t bytes[sizeof head + 4];
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, "slow", 4);
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_int_equal(write(e->a.fd, bytes + i, 1), 1);
        assert_int_equal(guardian_channel_receive(&e->b), MUSTER_OK);
        assert_int_equal(guardian_channel_next(&e->b, &frame, &body), i + 1 == sizeof bytes);
    }
    assert_memory_equal(body, "slow", 4);
}

static bool same_file(int a, int b) {
    struct stat seen_a;
    struct stat seen_b;
    return fstat(a, &seen_a) == 0 && fstat(b, &seen_b) == 0 && seen_a.st_ino == seen_b.st_ino &&
           seen_a.st_dev == seen_b.st_dev;
}

/* Large frames with descriptors, queued because nobody reads: they arrive whole, each with its own, and the sender's
 * copies may be closed at once. */
static void queue_keeps_descriptors(void **state) {
    enum { FRAMES = 8, BYTES = 300 * 1024 };
    struct ends *e = *state;
    int originals[FRAMES];
    char *large = calloc(1, BYTES);
    assert_non_null(large);
    for (uint32_t i = 0; i < FRAMES; i++) {
        int pair[2];
        assert_int_equal(pipe(pair), 0);
        large[0] = (char)i;
        assert_int_equal(guardian_channel_send(&e->a, i, large, BYTES, &pair[1], 1), MUSTER_OK);
        assert_int_equal(close(pair[1]), 0);
        originals[i] = pair[0];
    }
    free(large);
    assert_true(guardian_channel_waits(&e->a));
    struct guardian_frame frame;
    const uint8_t *body;
    for (uint32_t i = 0; i < FRAMES;) {
        assert_int_equal(guardian_channel_flush(&e->a), MUSTER_OK);
        assert_int_equal(guardian_channel_receive(&e->b), MUSTER_OK);
        while (guardian_channel_next(&e->b, &frame, &body)) {
            assert_int_equal(frame.kind, i);
            assert_int_equal(frame.length, BYTES);
            assert_int_equal(body[0], i);
            int fd = guardian_channel_take_fd(&e->b);
            assert_true(fd >= 0);
            assert_true(same_file(fd, originals[i]));
            assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
            assert_int_equal(close(fd), 0);
            assert_int_equal(close(originals[i++]), 0);
        }
    }
    assert_false(guardian_channel_waits(&e->a));
    assert_int_equal(e->a.queued_bytes, 0);
    assert_int_equal(guardian_channel_take_fd(&e->b), -1);
}

static void limits(void **state) {
    struct ends *e = *state;
    char *large = calloc(1, GUARDIAN_FRAME_BYTES_MAX);
    assert_non_null(large);
    assert_int_equal(guardian_channel_send(&e->a, 1, large, GUARDIAN_FRAME_BYTES_MAX, NULL, 0), MUSTER_ELIMIT);
    assert_int_equal(guardian_channel_send(&e->a, 1, large, QUEUE_BYTES, NULL, 0), MUSTER_OK);
    assert_int_equal(guardian_channel_send(&e->a, 1, large, QUEUE_BYTES, NULL, 0), MUSTER_ELIMIT);
    free(large);
}

static void frame_too_large_is_refused(void **state) {
    struct ends *e = *state;
    struct guardian_frame head = {.kind = 1, .length = GUARDIAN_FRAME_BYTES_MAX + 1};
    assert_int_equal(write(e->a.fd, &head, sizeof head), sizeof head);
    assert_int_equal(guardian_channel_receive(&e->b), MUSTER_EPROTOCOL);
}

static void peer_gone(void **state) {
    struct ends *e = *state;
    struct guardian_frame frame;
    const uint8_t *body;
    assert_int_equal(guardian_channel_send(&e->a, 1, "last", 4, NULL, 0), MUSTER_OK);
    assert_int_equal(shutdown(e->a.fd, SHUT_RDWR), 0);
    assert_int_equal(guardian_channel_receive(&e->b), MUSTER_OK);
    assert_true(guardian_channel_next(&e->b, &frame, &body)); /* what was said before the end counts */
    assert_int_equal(guardian_channel_receive(&e->b), MUSTER_ECLOSED);
    assert_int_equal(guardian_channel_send(&e->b, 1, "x", 1, NULL, 0), MUSTER_ECLOSED);
}

static void bad_descriptor_is_an_error(void **state) {
    struct ends *e = *state;
    int bad = fcntl(e->a.fd, F_DUPFD_CLOEXEC, 500);
    assert_int_equal(close(bad), 0);
    assert_int_equal(guardian_channel_send(&e->a, 1, "x", 1, &bad, 1), MUSTER_ESYSTEM);
    assert_false(guardian_channel_waits(&e->a));
}

#define CHANNEL_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CHANNEL_TEST(frames_arrive_in_order),
        CHANNEL_TEST(byte_by_byte),
        CHANNEL_TEST(queue_keeps_descriptors),
        CHANNEL_TEST(limits),
        CHANNEL_TEST(peer_gone),
        CHANNEL_TEST(frame_too_large_is_refused),
        CHANNEL_TEST(bad_descriptor_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
