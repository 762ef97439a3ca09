/* Messages with descriptors over a pair of sockets, and what counts as memory. */
#include "base/held/held_socket.h"

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
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MANY = 6 };

static int pair_of[2];

static int setup(void **state) {
    (void)state;
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair_of);
}

static int teardown(void **state) {
    (void)state;
    (void)close(pair_of[0]);
    (void)close(pair_of[1]);
    return 0;
}

static int memory_of(size_t bytes) {
    int fd = memfd_create("held-socket-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    return fd;
}

/* The lowest number that is free: equal before and after, if nothing has been left open. */
static int lowest_free(void) {
    int fd = dup(STDERR_FILENO);
    assert_true(fd >= 0);
    (void)close(fd);
    return fd;
}

/* As held_send() does not do it. */
static void send_many(int socket_fd, const int *fds, size_t count) {
    char byte = 'x';
    union {
        char bytes[CMSG_SPACE(MANY * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec body = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &body,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(head), fds, count * sizeof(int));
    assert_int_equal(sendmsg(socket_fd, &message, MSG_NOSIGNAL), 1);
}

static void a_descriptor_goes_along(void **state) {
    (void)state;
    struct held_received received;
    char bytes[8], text[4];
    int memory = memory_of(100);
    assert_int_equal(pwrite(memory, "abc", 4, 0), 4);
    assert_int_equal(held_send(pair_of[0], "hello", 5, memory), 0);
    (void)close(memory);
    assert_int_equal(held_receive(pair_of[1], bytes, sizeof bytes, &received), 0);
    assert_int_equal(received.count, 5);
    assert_memory_equal(bytes, "hello", 5);
    assert_true(received.fd >= 0 && !received.is_cut);
    assert_int_equal(fcntl(received.fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(pread(received.fd, text, 4, 0), 4);
    assert_string_equal(text, "abc");
    (void)close(received.fd);
}

static void messages_stay_apart_and_ends_are_told(void **state) {
    (void)state;
    struct held_received received;
    char bytes[4];
    assert_int_equal(held_receive(pair_of[1], bytes, sizeof bytes, &received), EAGAIN);
    assert_int_equal(held_send(pair_of[0], "much too long", 13, -1), 0);
    assert_int_equal(held_send(pair_of[0], "two", 3, -1), 0);
    assert_int_equal(held_receive(pair_of[1], bytes, sizeof bytes, &received), 0);
    assert_int_equal(received.count, 4);
    assert_int_equal(held_receive(pair_of[1], bytes, sizeof bytes, &received), 0);
    assert_int_equal(received.count, 3);
    assert_int_equal(received.fd, -1);
    (void)close(pair_of[0]);
    assert_int_equal(held_receive(pair_of[1], bytes, sizeof bytes, &received), ECONNRESET);
    assert_int_equal(held_send(pair_of[1], "x", 1, -1), EPIPE);
    pair_of[0] = -1;
}

static void several_descriptors_are_none(void **state) {
    (void)state;
    struct held_received received;
    char bytes[4];
    int before = lowest_free();
    for (size_t count = 2; count <= MANY; count++) {
        const int fds[MANY] = {0, 1, 2, 0, 1, 2};
        send_many(pair_of[0], fds, count);
        assert_int_equal(held_receive(pair_of[1], bytes, sizeof bytes, &received), 0);
        assert_int_equal(received.fd, -1);
        assert_int_equal(lowest_free(), before);
    }
}

static void no_free_number_is_told(void **state) {
    (void)state;
    struct held_received received;
    struct rlimit limit, tight;
    char bytes[4];
    assert_int_equal(held_send(pair_of[0], "x", 1, STDERR_FILENO), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    tight = limit;
    tight.rlim_cur = (rlim_t)lowest_free();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    int error_number = held_receive(pair_of[1], bytes, sizeof bytes, &received);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(error_number, 0);
    assert_true(received.is_cut);
    assert_int_equal(received.fd, -1);
}

static void a_full_socket_does_not_block(void **state) {
    (void)state;
    int error_number = 0;
    for (int i = 0; i < 1000000 && error_number == 0; i++) {
        error_number = held_send(pair_of[0], "hello", 5, -1);
    }
    assert_int_equal(error_number, EAGAIN);
}

static void memory_is_told_from_files(void **state) {
    (void)state;
    uint64_t bytes = 0;
    char path[] = "/tmp/held-socket-test-XXXXXX";
    int memory = memory_of(12345), pipes[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_true(held_is_memory(memory, &bytes));
    assert_int_equal(bytes, 12345);
    const int others[] = {mkstemp(path),
                          pipes[0],
                          pipes[1],
                          open("/dev/null", O_RDWR | O_CLOEXEC),
                          open("/dev/zero", O_RDWR | O_CLOEXEC),
                          open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                          open("/proc/self/exe", O_RDONLY | O_CLOEXEC),
                          open("/proc/self/status", O_RDONLY | O_CLOEXEC),
                          socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_true(others[i] >= 0);
        assert_false(held_is_memory(others[i], &bytes));
        (void)close(others[i]);
    }
    assert_int_equal(unlink(path), 0);
    char number[64];
    (void)snprintf(number, sizeof number, "/proc/self/fd/%d", memory);
    int place = open(number, O_PATH | O_CLOEXEC); /* cannot be mapped */
    assert_true(place >= 0);
    assert_false(held_is_memory(place, &bytes));
    (void)close(place);
    assert_false(held_is_memory(-1, &bytes));
    (void)close(memory);
}

static void names_become_addresses(void **state) {
    (void)state;
    struct sockaddr_un address;
    socklen_t length;
    char name[128];
    memset(name, 'x', sizeof name);
    name[sizeof address.sun_path] = '\0';
    assert_false(held_address(name, &address, &length));
    name[sizeof address.sun_path - 1] = '\0';
    assert_true(held_address(name, &address, &length));
    assert_int_equal(length, sizeof address);
    assert_false(held_address("", &address, &length));
    assert_true(held_address("ab", &address, &length));
    assert_memory_equal(address.sun_path, "\0ab", 3);
    assert_int_equal(length, offsetof(struct sockaddr_un, sun_path) + 3);
}

static void the_peer_is_known(void **state) {
    (void)state;
    assert_true(held_peer_is_ours(pair_of[0]));
    assert_false(held_peer_is_ours(STDIN_FILENO));
}

#define PAIR_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        PAIR_TEST(a_descriptor_goes_along),       PAIR_TEST(messages_stay_apart_and_ends_are_told),
        PAIR_TEST(several_descriptors_are_none),  PAIR_TEST(no_free_number_is_told),
        PAIR_TEST(a_full_socket_does_not_block),  cmocka_unit_test(memory_is_told_from_files),
        cmocka_unit_test(names_become_addresses), PAIR_TEST(the_peer_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
