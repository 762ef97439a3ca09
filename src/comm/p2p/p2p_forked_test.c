/* A program forks children that keep the sockets of its connections open, as loaders of data are: what the process
 * closes must be over for it, or events come for ever for what has been freed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/host/bell.h"
#include "comm/p2p/p2p.h"
#include "comm/p2p/wire.h"

enum { PATIENCE_MS = 60000, TURNS = 4 };

struct fixture {
    struct comm_bell bell;
    struct p2p *p2p; /* rank 0 of 2 */
    int listener;    /* of rank 1, which is the test */
    struct wire_contact contact;
    pid_t child;
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
    (void)context;
    (void)notice;
}

static struct sockaddr_in loopback(uint16_t port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct sockaddr_in address = loopback(0);
    socklen_t len = sizeof address;
    assert_non_null(f);
    f->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(f->listener, 4), 0);
    assert_int_equal(getsockname(f->listener, (struct sockaddr *)&address, &len), 0);
    memset(f->contact.secret, 's', sizeof f->contact.secret);
    memset(f->contact.proof, 'p', sizeof f->contact.proof);
    f->contact.port = ntohs(address.sin_port);
    f->contact.address_count = 1;
    memcpy(&f->contact.addresses[0].sockaddr, &address, sizeof address);
    const struct p2p_config config = {
        .size = 2, .bell = &f->bell, .contact = get_contact, .notice = take_notice, .context = f};
    assert_int_equal(p2p_create(&config, &f->p2p), 0);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    if (f->child > 0) {
        (void)kill(f->child, SIGKILL);
        (void)waitpid(f->child, NULL, 0);
    }
    p2p_free(f->p2p);
    (void)close(f->listener);
    free(f);
    return 0;
}

/* Has every descriptor that this process has now. */
static void fork_child(struct fixture *f) {
    f->child = fork();
    if (f->child == 0) {
        for (;;) {
            (void)pause();
        }
    }
    assert_true(f->child > 0);
}

static void attend(struct fixture *f) {
    struct pollfd event = {.fd = p2p_descriptor(f->p2p), .events = POLLIN};
    assert_int_equal(poll(&event, 1, PATIENCE_MS), 1);
    p2p_attend(f->p2p);
}

static bool is_quiet(struct fixture *f) {
    struct pollfd event = {.fd = p2p_descriptor(f->p2p), .events = POLLIN};
    for (int i = 0; i < TURNS && poll(&event, 1, 0) != 0; i++) {
        p2p_attend(f->p2p);
    }
    return poll(&event, 1, 0) == 0;
}

static void wait_until_readable(int fd) {
    struct pollfd event = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&event, 1, PATIENCE_MS), 1);
}

/* The end of its connection, or its reset. */
static void expect_quiet_when_it_ends(struct fixture *f, int fd) {
    (void)close(fd);
    assert_true(is_quiet(f));
}

static void who_is_turned_away_is_gone(void **state) {
    struct fixture *f = *state;
    uint8_t bytes[P2P_CONTACT_BYTES_MAX], noise[WIRE_HELLO_BYTES] = {0};
    struct wire_contact own;
    assert_int_equal(wire_contact_decode(bytes, p2p_contact(f->p2p, bytes), &own), 0);
    const struct sockaddr_in address = loopback(own.port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    attend(f); /* accepted */
    fork_child(f);
    assert_int_equal(write(fd, noise, sizeof noise), sizeof noise);
    attend(f);                                                      /* no greeting: closed here */
    assert_int_equal(write(fd, noise, sizeof noise), sizeof noise); /* the child has it still */
    expect_quiet_when_it_ends(f, fd);
}

static void a_call_that_is_given_up_is_gone(void **state) {
    struct fixture *f = *state;
    uint8_t bytes[WIRE_HELLO_BYTES];
    assert_int_equal(p2p_watch(f->p2p, 1, INT64_MAX), 0);
    wait_until_readable(f->listener);
    int fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
    attend(f); /* connected: greets */
    wait_until_readable(fd);
    assert_int_equal(read(fd, bytes, sizeof bytes), sizeof bytes);
    fork_child(f);
    struct wire_answer answer = {.verdict = WIRE_USE_MINE};
    memcpy(answer.proof, f->contact.proof, sizeof answer.proof);
    wire_answer_encode(&answer, bytes);
    assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    attend(f); /* given up, and freed */
    assert_int_equal(write(fd, bytes, sizeof bytes), sizeof bytes);
    expect_quiet_when_it_ends(f, fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_is_turned_away_is_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_call_that_is_given_up_is_gone, setup, teardown),
    };
    return cmocka_run_group_tests_name("p2p_forked", tests, NULL, NULL);
}
