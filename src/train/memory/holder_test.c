/* The holder of a process without a launcher, and launchers that are absent, somebody else's, silent, or odd. With a
 * real one: tests/proc/held_test.c. */
#include "train/memory/holder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/held/held_socket.h"
#include "base/held/held_wire.h"
#include "train/memory/state_region.h"

enum { BYTES = 1000, THREADS = 4, ROUNDS = 300, NOBODY = 65534 };

/* ---- this process holds ---- */

static struct holder *open_local(void) {
    struct holder *holder = NULL;
    assert_int_equal(unsetenv(HELD_SOCKET_VARIABLE), 0);
    assert_int_equal(holder_open(&holder), 0);
    assert_false(holder_is_agent(holder));
    return holder;
}

static int memory_with(char byte) {
    int fd = memfd_create("holder-test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &byte, 1), 1);
    return fd;
}

static void expect_byte(struct holder *holder, const char *name, char byte) {
    int fd = -1;
    char read_byte = 0;
    assert_int_equal(holder_get(holder, name, &fd), 0);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(pread(fd, &read_byte, 1, 0), 1);
    assert_int_equal(read_byte, byte);
    (void)close(fd);
}

static void put_byte(struct holder *holder, const char *name, char byte) {
    int fd = memory_with(byte);
    assert_int_equal(holder_put(holder, name, fd), 0);
    assert_int_equal(close(fd), 0);
}

static void a_region_is_found_again(void **state) {
    (void)state;
    struct state_region made, found;
    struct holder *holder = open_local();
    int fd = -1;
    assert_int_equal(state_region_create(NULL, "parameters", BYTES, &made), 0);
    memset(made.memory, 7, BYTES);
    assert_int_equal(holder_put(holder, "parameters", made.segment.fd), 0);
    state_region_free(&made);
    holder_close(holder);
    holder = open_local();
    assert_int_equal(holder_get(holder, "parameters", &fd), 0);
    assert_int_equal(state_region_adopt(fd, BYTES, &found), 0);
    assert_int_equal(close(fd), 0);
    for (size_t i = 0; i < BYTES; i++) {
        assert_int_equal(((unsigned char *)found.memory)[i], 7);
    }
    state_region_free(&found);
    assert_int_equal(holder_drop(holder, "parameters"), 0);
    holder_close(holder);
}

static void names_are_replaced_and_dropped(void **state) {
    (void)state;
    struct holder *holder = open_local();
    int fd = -5;
    assert_int_equal(holder_get(holder, "a", &fd), MUSTER_ENOENT);
    assert_non_null(strstr(muster_detail(), "'a'"));
    assert_int_equal(fd, -5);
    put_byte(holder, "a", '1');
    put_byte(holder, "b", '2');
    put_byte(holder, "a", '3');
    expect_byte(holder, "a", '3');
    expect_byte(holder, "b", '2');
    assert_int_equal(holder_drop(holder, "a"), 0);
    assert_int_equal(holder_drop(holder, "a"), 0);
    assert_int_equal(holder_get(holder, "a", &fd), MUSTER_ENOENT);
    expect_byte(holder, "b", '2');
    assert_int_equal(holder_drop(holder, "b"), 0);
    holder_close(holder);
    holder_close(NULL);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    struct holder *holder = open_local();
    char name[HELD_NAME_BYTES + 1];
    int fd, memory = memory_with('x'), null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    memset(name, 'x', sizeof name);
    name[HELD_NAME_BYTES] = '\0';
    assert_int_equal(holder_put(holder, "", memory), MUSTER_EINVAL);
    assert_int_equal(holder_put(holder, name, memory), MUSTER_EINVAL);
    assert_int_equal(holder_get(holder, name, &fd), MUSTER_EINVAL);
    assert_int_equal(holder_drop(holder, ""), MUSTER_EINVAL);
    assert_int_equal(holder_put(holder, "a", null_fd), MUSTER_EINVAL);
    assert_int_equal(holder_put(holder, "a", -1), MUSTER_EINVAL);
    name[HELD_NAME_BYTES - 1] = '\0';
    assert_int_equal(holder_put(holder, name, memory), 0);
    expect_byte(holder, name, 'x');
    assert_int_equal(holder_drop(holder, name), 0);
    (void)close(memory);
    (void)close(null_fd);
    holder_close(holder);
}

static void there_is_an_end_of_names_and_descriptors(void **state) {
    (void)state;
    struct holder *holder = open_local();
    struct rlimit limit, tight;
    char name[HELD_NAME_BYTES];
    int fd, memory = memory_with('x'), put = 0;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    tight = limit;
    tight.rlim_cur = (rlim_t)memory + 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    int status = 0;
    for (; status == 0 && put < HELD_NAMES_MAX; put++) {
        (void)snprintf(name, sizeof name, "%d", put);
        status = holder_put(holder, name, memory);
    }
    int status_of_get = holder_get(holder, "0", &fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(status, MUSTER_ELIMIT);
    assert_int_equal(status_of_get, MUSTER_ELIMIT);
    for (int i = 0; i < put; i++) {
        (void)snprintf(name, sizeof name, "%d", i);
        assert_int_equal(holder_drop(holder, name), 0);
    }
    (void)close(memory);
    holder_close(holder);
}

static void *use_names(void *argument) {
    const char *name = argument;
    struct holder *holder;
    uintptr_t wrong = holder_open(&holder) != 0;
    for (int i = 0; i < ROUNDS && !wrong; i++) {
        int fd = memfd_create("holder-test", MFD_CLOEXEC), found = -1;
        char byte = (char)i, read_byte;
        wrong |= write(fd, &byte, 1) != 1 || holder_put(holder, name, fd) != 0 || holder_put(holder, "all", fd) != 0;
        wrong |= holder_get(holder, name, &found) != 0 || pread(found, &read_byte, 1, 0) != 1 || read_byte != byte;
        (void)close(fd);
        (void)close(found);
        wrong |= holder_drop(holder, name) != 0;
    }
    holder_close(holder);
    return (void *)wrong;
}

static void threads_may_have_holders_of_their_own(void **state) {
    (void)state;
    static char names[THREADS][8];
    pthread_t threads[THREADS];
    holder_close(open_local());
    for (int i = 0; i < THREADS; i++) {
        (void)snprintf(names[i], sizeof names[i], "t%d", i);
        assert_int_equal(pthread_create(&threads[i], NULL, use_names, names[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *wrong = NULL;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    struct holder *holder = open_local();
    assert_int_equal(holder_drop(holder, "all"), 0);
    holder_close(holder);
}

/* ---- launchers that are none ---- */

static int listen_as(const char *name) {
    struct sockaddr_un address;
    socklen_t length;
    assert_true(held_address(name, &address, &length));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(setenv(HELD_SOCKET_VARIABLE, name, 1), 0);
    return fd;
}

static void name_of_this_test(char *out, size_t size) {
    (void)snprintf(out, size, "muster-holder-test-%d", (int)getpid());
}

static void a_launcher_that_has_gone_is_told(void **state) {
    (void)state;
    struct holder *holder = NULL;
    char name[64], lengthy[200];
    int fd;
    name_of_this_test(name, sizeof name);
    int listener = listen_as(name);
    assert_int_equal(holder_open(&holder), 0);
    assert_true(holder_is_agent(holder));
    (void)close(listener);
    assert_int_equal(holder_get(holder, "a", &fd), MUSTER_ECONNECT);
    assert_non_null(strstr(muster_detail(), "it has ended"));
    assert_non_null(strstr(muster_detail(), name));
    assert_int_equal(holder_drop(holder, "a"), MUSTER_ECONNECT);
    holder_close(holder);
    assert_int_equal(holder_open(&holder), MUSTER_ECONNECT);
    memset(lengthy, 'x', sizeof lengthy);
    lengthy[sizeof lengthy - 1] = '\0';
    assert_int_equal(setenv(HELD_SOCKET_VARIABLE, lengthy, 1), 0);
    assert_int_equal(holder_open(&holder), MUSTER_EINVAL);
    assert_int_equal(setenv(HELD_SOCKET_VARIABLE, "", 1), 0);
    assert_int_equal(holder_open(&holder), 0);
    assert_false(holder_is_agent(holder));
    holder_close(holder);
}

struct impostor {
    int listener;
    const void *answer;
    size_t bytes;
    unsigned hang_ups; /* before it answers */
    atomic_bool is_over;
};

static void *answer_oddly(void *argument) {
    struct impostor *impostor = argument;
    for (unsigned i = 0; !impostor->is_over; i++) {
        int fd = accept4(impostor->listener, NULL, NULL, SOCK_CLOEXEC);
        char request[HELD_REQUEST_BYTES];
        if (fd >= 0 && i > impostor->hang_ups && recv(fd, request, sizeof request, 0) > 0) {
            (void)send(fd, impostor->answer, impostor->bytes, MSG_NOSIGNAL);
        }
        (void)close(fd);
    }
    return NULL;
}

static int ask_impostor(const void *answer, size_t bytes, unsigned hang_ups) {
    struct impostor impostor = {.answer = answer, .bytes = bytes, .hang_ups = hang_ups};
    struct holder *holder = NULL;
    pthread_t thread;
    char name[64];
    int fd = -1;
    name_of_this_test(name, sizeof name);
    impostor.listener = listen_as(name);
    assert_int_equal(pthread_create(&thread, NULL, answer_oddly, &impostor), 0);
    assert_int_equal(holder_open(&holder), 0);
    int status = holder_get(holder, "a", &fd);
    assert_int_equal(fd, -1);
    impostor.is_over = true;
    (void)shutdown(impostor.listener, SHUT_RDWR);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)close(impostor.listener);
    holder_close(holder);
    return status;
}

static void odd_answers_are_told(void **state) {
    (void)state;
    uint8_t answer[HELD_ANSWER_BYTES + 1] = {0};
    assert_int_equal(ask_impostor("rubbish", 7, 0), MUSTER_EPROTOCOL);
    held_answer_encode(HELD_DONE, answer);
    assert_int_equal(ask_impostor(answer, HELD_ANSWER_BYTES, 0), MUSTER_EPROTOCOL); /* without a descriptor */
    assert_int_equal(ask_impostor(answer, sizeof answer, 0), MUSTER_EPROTOCOL);
    held_answer_encode(HELD_NOT_A_REQUEST, answer);
    assert_int_equal(ask_impostor(answer, HELD_ANSWER_BYTES, 0), MUSTER_EPROTOCOL);
    held_answer_encode(HELD_FULL, answer);
    assert_int_equal(ask_impostor(answer, HELD_ANSWER_BYTES, 0), MUSTER_ELIMIT);
}

/* As one does that has no place for another connection. */
static void a_launcher_that_hangs_up_is_asked_again(void **state) {
    (void)state;
    uint8_t answer[HELD_ANSWER_BYTES];
    held_answer_encode(HELD_UNKNOWN, answer);
    assert_int_equal(ask_impostor(answer, sizeof answer, 20), MUSTER_ENOENT);
}

/* It listens, and never looks. */
static void a_silent_launcher_is_told_in_time(void **state) {
    (void)state;
    struct holder *holder = NULL;
    char name[64];
    int fd;
    name_of_this_test(name, sizeof name);
    int listener = listen_as(name);
    assert_int_equal(holder_open(&holder), 0);
    assert_int_equal(holder_get(holder, "a", &fd), MUSTER_ETIMEOUT);
    holder_close(holder);
    (void)close(listener);
}

static void another_users_socket_is_not_trusted(void **state) {
    (void)state;
    struct holder *holder = NULL;
    char name[64];
    if (geteuid() != 0) {
        skip(); /* it needs root, to become somebody else */
    }
    name_of_this_test(name, sizeof name);
    int listener = listen_as(name);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bool refused = setuid(NOBODY) == 0 && holder_open(&holder) == MUSTER_ECONNECT &&
                       strstr(muster_detail(), "another user's") != NULL;
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    (void)close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_region_is_found_again),
        cmocka_unit_test(names_are_replaced_and_dropped),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(there_is_an_end_of_names_and_descriptors),
        cmocka_unit_test(threads_may_have_holders_of_their_own),
        cmocka_unit_test(a_launcher_that_has_gone_is_told),
        cmocka_unit_test(odd_answers_are_told),
        cmocka_unit_test(a_launcher_that_hangs_up_is_asked_again),
        cmocka_unit_test(a_silent_launcher_is_told_in_time),
        cmocka_unit_test(another_users_socket_is_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
