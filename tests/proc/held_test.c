/* Memory that the agent holds: its socket on a real loop, asked by the workers' side on another thread, and by
 * strangers. With the whole launcher: test_held.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

#include "agent/held/held.h"
#include "base/held/held_socket.h"
#include "base/held/held_wire.h"
#include "train/memory/holder.h"
#include "train/memory/state_region.h"

enum { NAMES_MAX = 3, LIMIT_MS = 20000, BYTES = 5000, ASKERS = 40, ROUNDS = 50, FORGOTTEN = 1000, NOBODY = 65534 };

/* ---- an agent on a thread of its own ---- */

struct agent {
    uv_loop_t loop;
    struct held *held;
    uv_async_t end;
    pthread_t thread;
    size_t count; /* as it ended */
    uint64_t bytes;
};

static void on_end(uv_async_t *async) {
    struct agent *a = async->data;
    a->count = held_count(a->held, &a->bytes);
    held_close(a->held);
    uv_close((uv_handle_t *)async, NULL);
}

static void *run_loop(void *argument) {
    struct agent *a = argument;
    return (void *)(intptr_t)uv_run(&a->loop, UV_RUN_DEFAULT);
}

static void agent_start(struct agent *a) {
    assert_int_equal(uv_loop_init(&a->loop), 0);
    assert_int_equal(held_create(&a->loop, NAMES_MAX, &a->held), 0);
    assert_int_equal(uv_async_init(&a->loop, &a->end, on_end), 0);
    a->end.data = a;
    assert_int_equal(setenv(HELD_SOCKET_VARIABLE, held_socket_name(a->held), 1), 0);
    assert_int_equal(pthread_create(&a->thread, NULL, run_loop, a), 0);
}

static int setup(void **state) {
    struct agent *a = calloc(1, sizeof *a);
    assert_non_null(a);
    agent_start(a);
    *state = a;
    return 0;
}

static void agent_end(struct agent *a) {
    void *result = NULL;
    assert_int_equal(uv_async_send(&a->end), 0);
    assert_int_equal(pthread_join(a->thread, &result), 0);
    assert_null(result);
    assert_int_equal(uv_loop_close(&a->loop), 0);
}

static int teardown(void **state) {
    agent_end(*state);
    free(*state);
    return 0;
}

/* ---- the workers' side ---- */

static struct holder *open_holder(void) {
    struct holder *holder = NULL;
    assert_int_equal(holder_open(&holder), 0);
    assert_true(holder_is_agent(holder));
    return holder;
}

static int memory_with(char byte) {
    int fd = memfd_create("held-test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &byte, 1), 1);
    return fd;
}

static void put_byte(struct holder *holder, const char *name, char byte) {
    int fd = memory_with(byte);
    assert_int_equal(holder_put(holder, name, fd), 0);
    assert_int_equal(close(fd), 0);
}

static void expect_byte(struct holder *holder, const char *name, char byte) {
    int fd = -1;
    char found = 0;
    assert_int_equal(holder_get(holder, name, &fd), 0);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(pread(fd, &found, 1, 0), 1);
    assert_int_equal(found, byte);
    assert_int_equal(close(fd), 0);
}

static void a_region_outlives_its_maker(void **state) {
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct state_region made;
        struct holder *holder;
        bool done = holder_open(&holder) == 0 && state_region_create(NULL, "parameters", BYTES, &made) == 0 &&
                    holder_put(holder, "parameters", made.segment.fd) == 0;
        if (done) {
            memset(made.memory, 9, BYTES);
            (void)raise(SIGKILL);
        }
        _exit(1);
    }
    int status = 0, fd = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    struct holder *holder = open_holder();
    struct state_region found;
    assert_int_equal(holder_get(holder, "parameters", &fd), 0);
    assert_int_equal(state_region_adopt(fd, BYTES, &found), 0);
    (void)close(fd);
    for (size_t i = 0; i < BYTES; i++) {
        assert_int_equal(((unsigned char *)found.memory)[i], 9);
    }
    state_region_free(&found);
    holder_close(holder);
}

static void names_are_replaced_and_dropped(void **state) {
    struct agent *a = *state;
    struct holder *holder = open_holder();
    int fd = -5;
    assert_int_equal(holder_get(holder, "a", &fd), MUSTER_ENOENT);
    assert_int_equal(fd, -5);
    put_byte(holder, "a", '1');
    put_byte(holder, "b", '2');
    put_byte(holder, "a", '3');
    expect_byte(holder, "a", '3');
    expect_byte(holder, "b", '2');
    assert_int_equal(holder_drop(holder, "b"), 0);
    assert_int_equal(holder_drop(holder, "b"), 0);
    assert_int_equal(holder_get(holder, "b", &fd), MUSTER_ENOENT);
    expect_byte(holder, "a", '3');
    holder_close(holder);
    agent_end(a);
    assert_int_equal(a->count, 1);
    assert_int_equal(a->bytes, 1);
    agent_start(a); /* for the teardown */
}

/* A process that holds all names until it hears from us. */
static pid_t start_owner(int pipe_ends[2]) {
    int said[2];
    char byte = 0;
    assert_int_equal(pipe2(pipe_ends, O_CLOEXEC) + pipe2(said, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct holder *holder = NULL;
        int failed = holder_open(&holder);
        for (char name[] = "1"; name[0] <= '3' && !failed; name[0]++) {
            int fd = memfd_create("held-test", MFD_CLOEXEC);
            failed = write(fd, name, 1) != 1 || holder_put(holder, name, fd) != 0;
        }
        (void)close(pipe_ends[1]);
        failed = write(said[1], failed ? "n" : "y", 1) != 1;
        _exit(read(pipe_ends[0], &byte, 1) != 0 || failed);
    }
    assert_true(pid > 0);
    (void)close(said[1]);
    assert_int_equal(read(said[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    (void)close(said[0]);
    return pid;
}

static void there_is_an_end_of_names(void **state) {
    (void)state;
    int ends[2], status = 0, found = 0, fd = memory_with('4');
    pid_t pid = start_owner(ends);
    struct holder *holder = open_holder();
    assert_int_equal(holder_put(holder, "4", fd), MUSTER_ELIMIT);
    put_byte(holder, "3", '5');
    assert_int_equal(holder_drop(holder, "1"), 0);
    assert_int_equal(holder_put(holder, "4", fd), 0);
    expect_byte(holder, "3", '5');
    expect_byte(holder, "4", '4');
    assert_int_equal(holder_put(holder, "6", fd), MUSTER_ELIMIT); /* the other process lives, and has a name */
    (void)close(ends[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    (void)close(ends[0]);
    assert_int_equal(holder_put(holder, "6", fd), 0);
    assert_int_equal(holder_get(holder, "2", &found), MUSTER_ENOENT);
    expect_byte(holder, "3", '5');
    expect_byte(holder, "4", '4');
    (void)close(fd);
    holder_close(holder);
}

/* A program with ever new names: its last ones are held. */
static void names_are_put_and_forgotten(void **state) {
    (void)state;
    struct holder *holder = open_holder();
    char name[16];
    int found = 0;
    for (int i = 0; i < FORGOTTEN; i++) {
        (void)snprintf(name, sizeof name, "%d", i);
        put_byte(holder, name, (char)('a' + i % 26));
    }
    for (int i = FORGOTTEN - NAMES_MAX; i < FORGOTTEN; i++) {
        (void)snprintf(name, sizeof name, "%d", i);
        expect_byte(holder, name, (char)('a' + i % 26));
    }
    assert_int_equal(holder_get(holder, "0", &found), MUSTER_ENOENT);
    holder_close(holder);
}

static void *ask_often(void *argument) {
    uintptr_t wrong = 0;
    struct holder *holder;
    (void)argument;
    wrong |= holder_open(&holder) != 0;
    for (int i = 0; i < ROUNDS && !wrong; i++) {
        int fd = -1;
        char byte = 0;
        wrong |= holder_get(holder, "a", &fd) != 0 || pread(fd, &byte, 1, 0) != 1 || byte != 'x';
        (void)close(fd);
    }
    holder_close(holder);
    return (void *)wrong;
}

/* More of them than connections that the agent keeps. */
static void many_ask_at_once(void **state) {
    (void)state;
    pthread_t threads[ASKERS];
    struct holder *holder = open_holder();
    put_byte(holder, "a", 'x');
    for (int i = 0; i < ASKERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, NULL), 0);
    }
    for (int i = 0; i < ASKERS; i++) {
        void *wrong = NULL;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    holder_close(holder);
}

/* ---- strangers ---- */

static int connect_to(const struct agent *a) {
    struct sockaddr_un address;
    socklen_t length;
    assert_true(held_address(held_socket_name(a->held), &address, &length));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, length), 0);
    return fd;
}

static void wait_for_news(int fd) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, LIMIT_MS), 1);
}

static enum held_verdict verdict_of(int fd) {
    uint8_t bytes[HELD_ANSWER_BYTES + 1];
    struct held_received received;
    enum held_verdict verdict = HELD_NOT_A_REQUEST;
    wait_for_news(fd);
    assert_int_equal(held_receive(fd, bytes, sizeof bytes, &received), 0);
    assert_int_equal(received.fd, -1);
    assert_true(held_answer_decode(bytes, received.count, &verdict));
    return verdict;
}

static void expect_end(int fd) {
    char byte;
    struct held_received received;
    wait_for_news(fd);
    assert_int_equal(held_receive(fd, &byte, 1, &received), ECONNRESET);
    (void)close(fd);
}

static void request_of(enum held_kind kind, uint8_t bytes[HELD_REQUEST_BYTES]) {
    struct held_request request = {.kind = kind, .name = "a"};
    held_request_encode(&request, bytes);
}

/* By the raw socket, since the workers' side refuses them itself. */
static void only_memory_is_held(void **state) {
    const struct agent *a = *state;
    uint8_t put[HELD_REQUEST_BYTES], get[HELD_REQUEST_BYTES];
    int pipes[2], fd = connect_to(a);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    const int others[] = {pipes[0],
                          open("/dev/zero", O_RDWR | O_CLOEXEC),
                          open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                          open("/proc/self/exe", O_RDONLY | O_CLOEXEC),
                          fd,
                          -1 /* none at all */};
    request_of(HELD_PUT, put);
    request_of(HELD_GET, get);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(held_send(fd, put, sizeof put, others[i]), 0);
        assert_int_equal(verdict_of(fd), HELD_NO_MEMORY);
        if (others[i] >= 0 && others[i] != fd) {
            assert_int_equal(close(others[i]), 0);
        }
    }
    /* What does not belong there is not kept open either: the writing end finds no reader. */
    struct pollfd broken = {.fd = pipes[1], .events = POLLOUT};
    for (int waited_ms = 0; waited_ms < LIMIT_MS && !(broken.revents & POLLERR); waited_ms++) {
        assert_true(poll(&broken, 1, 0) >= 0);
        (void)poll(NULL, 0, 1);
    }
    assert_true(broken.revents & POLLERR);
    (void)close(pipes[1]);
    assert_int_equal(held_send(fd, get, sizeof get, -1), 0);
    assert_int_equal(verdict_of(fd), HELD_UNKNOWN);
    (void)close(fd);
}

static void rubbish_is_answered_and_disconnected(void **state) {
    const struct agent *a = *state;
    uint8_t bytes[HELD_REQUEST_BYTES + 1] = {0};
    request_of(HELD_GET, bytes);
    const size_t lengths[] = {1, HELD_REQUEST_BYTES - 1, HELD_REQUEST_BYTES + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int fd = connect_to(a), memory = memory_with('x');
        assert_int_equal(held_send(fd, bytes, lengths[i], memory), 0);
        (void)close(memory);
        assert_int_equal(verdict_of(fd), HELD_NOT_A_REQUEST);
        expect_end(fd);
    }
    int silent = connect_to(a);
    assert_int_equal(send(silent, "", 0, MSG_NOSIGNAL), 0); /* a message without bytes */
    expect_end(silent);
    struct holder *holder = open_holder();
    put_byte(holder, "a", 'x');
    expect_byte(holder, "a", 'x');
    holder_close(holder);
}

/* Some stay and say nothing, more than the agent keeps; others ask and never read. */
static void nobody_is_in_the_way(void **state) {
    const struct agent *a = *state;
    int fds[3 * HELD_CONNECTIONS_MAX];
    uint8_t get[HELD_REQUEST_BYTES];
    request_of(HELD_GET, get);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        fds[i] = connect_to(a);
    }
    struct holder *holder = open_holder();
    put_byte(holder, "a", 'x');
    expect_byte(holder, "a", 'x');
    int greedy = connect_to(a);
    for (int error_number = 0; error_number != EPIPE && error_number != ECONNRESET;) {
        error_number = held_send(greedy, get, sizeof get, -1);
        struct pollfd wait = {.fd = greedy, .events = POLLOUT};
        assert_int_equal(poll(&wait, 1, LIMIT_MS), 1);
    }
    (void)close(greedy);
    expect_byte(holder, "a", 'x');
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        (void)close(fds[i]);
    }
    holder_close(holder);
}

static void another_user_is_disconnected(void **state) {
    const struct agent *a = *state;
    if (geteuid() != 0) {
        skip(); /* it needs root, to become somebody else */
    }
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char byte;
        if (setuid(NOBODY) != 0) {
            _exit(1);
        }
        int fd = connect_to(a);
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        _exit(poll(&wait, 1, LIMIT_MS) == 1 && recv(fd, &byte, 1, 0) == 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- its descriptors, and its end ---- */

static size_t descriptor_count(void) {
    size_t count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

static void nothing_is_left_open(void **state) {
    (void)state;
    size_t before = descriptor_count();
    for (int i = 0; i < 3; i++) {
        void *agent = NULL;
        assert_int_equal(setup(&agent), 0);
        struct holder *holder = open_holder();
        put_byte(holder, "a", '1');
        put_byte(holder, "a", '2');
        put_byte(holder, "b", '3');
        int idle = connect_to(agent);
        holder_close(holder);
        assert_int_equal(teardown(&agent), 0);
        (void)close(idle);
    }
    if (before != descriptor_count()) { /* the pool's threads, which the first release starts, keep none */
        fail_msg("%zu descriptors, and %zu before", descriptor_count(), before);
    }
}

#define AGENT_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        AGENT_TEST(a_region_outlives_its_maker),
        AGENT_TEST(names_are_replaced_and_dropped),
        AGENT_TEST(there_is_an_end_of_names),
        AGENT_TEST(names_are_put_and_forgotten),
        AGENT_TEST(many_ask_at_once),
        AGENT_TEST(only_memory_is_held),
        AGENT_TEST(rubbish_is_answered_and_disconnected),
        AGENT_TEST(nobody_is_in_the_way),
        AGENT_TEST(another_user_is_disconnected),
        cmocka_unit_test(nothing_is_left_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
