/* What the kernel refuses to watch: a timer, a connection, the listener. Nobody waits for events that cannot come:
 * links fail at once, with a sentence, and peers see it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/host/bell.h"
#include "comm/p2p/p2p_impl.h"

enum { PATIENCE_MS = 60000 };

struct fixture {
    struct comm_bell bell;
    struct p2p *p2p;             /* rank 0 of 2 */
    struct wire_contact contact; /* of rank 1: an address where nobody listens */
    int notice_count;
    char sentence[P2P_SENTENCE_MAX]; /* of the last notice */
};

static int get_contact(void *context, uint32_t peer, int64_t deadline_ns, uint8_t out[P2P_CONTACT_BYTES_MAX],
                       size_t *out_len) {
    const struct fixture *f = context;
    (void)peer;
    (void)deadline_ns;
    *out_len = wire_contact_encode(&f->contact, out);
    return 0;
}

static void take_notice(void *context, const struct p2p_notice *notice) {
    struct fixture *f = context;
    f->notice_count++;
    (void)snprintf(f->sentence, sizeof f->sentence, "%s", notice->sentence);
}

static struct sockaddr_in loopback(uint16_t port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    const struct sockaddr_in nobody = loopback(1);
    assert_non_null(f);
    f->contact.port = 1;
    f->contact.address_count = 1;
    memcpy(&f->contact.addresses[0].sockaddr, &nobody, sizeof nobody);
    const struct p2p_config config = {
        .size = 2, .bell = &f->bell, .contact = get_contact, .notice = take_notice, .context = f};
    assert_int_equal(p2p_create(&config, &f->p2p), 0);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    p2p_free(f->p2p);
    free(f);
    return 0;
}

/* From now on the kernel refuses what only a descriptor of that kind can do. */
static void break_descriptor(int fd) {
    int other = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(other >= 0 && dup2(other, fd) == fd);
    (void)close(other);
}

static int call(struct fixture *f, struct wire_contact *own) {
    uint8_t bytes[P2P_CONTACT_BYTES_MAX];
    assert_int_equal(wire_contact_decode(bytes, p2p_contact(f->p2p, bytes), own), 0);
    const struct sockaddr_in address = loopback(own->port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void await(int fd) {
    struct pollfd event = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&event, 1, PATIENCE_MS), 1);
}

static void without_a_timer_nothing_waits_for_its_time(void **state) {
    struct fixture *f = *state;
    break_descriptor(f->p2p->timer);
    assert_int_equal(p2p_watch(f->p2p, 1, INT64_MAX), 0);
    assert_int_equal(f->notice_count, 1);
    assert_non_null(strstr(f->sentence, "rank 0 cannot connect to rank 1"));
}

static void a_connection_without_events_fails_its_link(void **state) {
    struct fixture *f = *state;
    struct wire_contact own;
    int fd = call(f, &own);
    struct wire_hello hello = {.from = 1, .to = 0, .purpose = WIRE_PURPOSE_STREAM, .stream_count = 1};
    uint8_t bytes[WIRE_HELLO_BYTES];
    memcpy(hello.secret, own.secret, sizeof hello.secret);
    wire_hello_encode(&hello, bytes);
    break_descriptor(f->p2p->data_epoll);
    await(p2p_descriptor(f->p2p));
    p2p_attend(f->p2p); /* accepted */
    assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    await(p2p_descriptor(f->p2p));
    p2p_attend(f->p2p);
    assert_int_equal(f->notice_count, 1);
    assert_non_null(strstr(f->sentence, "watch the connection to rank 1"));
    await(fd);
    assert_int_equal(read(fd, bytes, sizeof bytes), sizeof bytes); /* the answer */
    await(fd);
    assert_true(read(fd, bytes, sizeof bytes) <= 0); /* the end */
    (void)close(fd);
}

static void who_calls_a_listener_without_events_is_refused(void **state) {
    struct fixture *f = *state;
    struct wire_contact own;
    struct rlimit all, none;
    uint8_t byte;
    int fd = call(f, &own);
    break_descriptor(f->p2p->attend_epoll);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = all.rlim_max};
    p2p_lock(f->p2p);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    greet_accept(f->p2p); /* cannot, and cannot try again later */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
    p2p_unlock(f->p2p);
    assert_int_equal(f->p2p->listener, -1);
    await(fd);
    assert_true(read(fd, &byte, sizeof byte) <= 0);
    (void)close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_a_timer_nothing_waits_for_its_time, setup, teardown),
        cmocka_unit_test_setup_teardown(a_connection_without_events_fails_its_link, setup, teardown),
        cmocka_unit_test_setup_teardown(who_calls_a_listener_without_events_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests_name("p2p_unwatched", tests, NULL, NULL);
}
