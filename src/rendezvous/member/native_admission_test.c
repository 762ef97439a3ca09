/* A node that gets its workers admitted to the store of rank 0 while that one dies: it waits for the next world, as if
 * it had never heard of this one. A whole agent's rendezvous, with a secret, and a node that is all in this test's
 * hands; on one libuv loop. And the admission alone, where nobody answers. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/log.h"
#include "base/str.h"
#include "net/port_test_support.h"
#include "rendezvous/member/admission_client.h"
#include "rendezvous/member/native_connection.h"
#include "rendezvous/rdzv.h"
#include "rendezvous/wire/secret.h"

enum { PATIENCE_MS = 20000, FIRST = 1, LAST = INT32_MAX /* process ids, which decide who is rank 0 */ };

struct fixture {
    uv_loop_t loop;
    uv_timer_t patience;
    bool is_late;
    struct secret_text text;
    struct secret *secret;
    char endpoint[64];
    struct sockaddr_in address; /* of the endpoint */
    int held;                   /* a socket that keeps others from it */
    int silent;                 /* a socket that listens, and nobody reads from it */
    uint16_t silent_port;
    struct rdzv *rdzv;
    int worlds, changes, failed;
    struct rdzv_world world; /* the last one */
    struct native_connection *session;
    int64_t pid; /* that the node in our hands has */
    uint64_t identity, last_round;
    bool is_told, is_lost;
    struct admission_client *admission;
    int admission_status;
    uint64_t began_ms;
};

static void drop_log(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    (void)text;
}

static void on_patience(uv_timer_t *timer) {
    ((struct fixture *)timer->data)->is_late = true;
}

static int listen_silently(struct sockaddr_in *at) {
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)at, sizeof *at) == 0 && listen(fd, 16) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, &len), 0);
    return fd;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct sockaddr_in at;
    assert_non_null(f);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    (void)uv_timer_init(&f->loop, &f->patience);
    f->patience.data = f;
    assert_int_equal(secret_text_load(NULL, "the secret of this job", &f->text), 0);
    assert_int_equal(secret_create(&f->text, &f->secret), 0);
    uint16_t port;
    f->held = port_hold(&port);
    f->address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)str_format(f->endpoint, sizeof f->endpoint, "127.0.0.1:%u", (unsigned)ntohs(f->address.sin_port));
    f->silent = listen_silently(&at);
    f->silent_port = ntohs(at.sin_port);
    log_set_sink(drop_log);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    native_connection_close(f->session);
    admission_client_close(f->admission);
    rdzv_free(f->rdzv);
    uv_close((uv_handle_t *)&f->patience, NULL);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT); /* ends: nothing is left open */
    assert_int_equal(uv_loop_close(&f->loop), 0);
    secret_free(f->secret);
    (void)close(f->held);
    (void)close(f->silent);
    log_set_sink(NULL);
    free(f);
    return 0;
}

/* ---- the agent ---- */

static void on_world(void *ctx, const struct rdzv_world *world) {
    struct fixture *f = ctx;
    f->worlds++;
    f->world = *world;
}

static void on_change(void *ctx, enum rdzv_change change, const char *why) {
    (void)change;
    (void)why;
    ((struct fixture *)ctx)->changes++;
}

static void on_failed(void *ctx, int status, const char *why) {
    (void)why;
    ((struct fixture *)ctx)->failed = status;
}

static void start_agent(struct fixture *f) {
    static const struct rdzv_callbacks callbacks = {
        .on_world = on_world, .on_change = on_change, .on_failed = on_failed};
    struct rdzv_options options = {.backend = RDZV_BACKEND_MUSTER,
                                   .run_id = "job",
                                   .endpoint = f->endpoint,
                                   .local_addr = "127.0.0.1", /* as the other node has */
                                   .host_name = "",
                                   .role = "default",
                                   .min_nodes = 2,
                                   .max_nodes = 2,
                                   .local_world_size = 1,
                                   .max_restarts = 100,
                                   .share_store = true,
                                   .secret = &f->text};
    rdzv_conf_init(&options.conf);
    assert_int_equal(rdzv_create(&f->loop, &options, &callbacks, f, &f->rdzv), MUSTER_OK);
    rdzv_join(f->rdzv);
}

/* ---- the node in our hands ---- */

static void on_session_open(void *ctx) {
    struct fixture *f = ctx;
    const struct coordinator_message join = {.kind = COORDINATOR_JOIN,
                                             .node = {.run_id = kv_slice_text("job"),
                                                      .addr = kv_slice_text("127.0.0.1"),
                                                      .host_name = kv_slice_text("127.0.0.1"),
                                                      .role = kv_slice_text("default"),
                                                      .wished_rank = COORDINATOR_NO_RANK,
                                                      .pid = f->pid,
                                                      .identity = {f->identity, 7},
                                                      .min_nodes = 2,
                                                      .max_nodes = 2,
                                                      .local_world_size = 1,
                                                      .store_port = f->silent_port,
                                                      .uses_agent_store = true}};
    assert_int_equal(native_connection_send(f->session, &join), MUSTER_OK);
}

static void on_session_message(void *ctx, const struct coordinator_message *message) {
    struct fixture *f = ctx;
    f->is_told |= message->kind == COORDINATOR_WORLD;
}

static void on_session_lost(void *ctx, int status) {
    (void)status;
    ((struct fixture *)ctx)->is_lost = true;
}

static void come(struct fixture *f, int64_t pid) {
    static const struct native_connection_callbacks callbacks = {
        .on_open = on_session_open, .on_message = on_session_message, .on_lost = on_session_lost};
    const struct native_connection_key key = {.secret = f->secret, .run_id = "job"};
    f->pid = pid;
    f->identity++;
    f->is_told = f->is_lost = false;
    assert_int_equal(native_connection_open(&f->loop, (struct sockaddr *)&f->address, &key, &callbacks, f, &f->session),
                     MUSTER_OK);
}

static void go(struct fixture *f) {
    native_connection_close(f->session);
    f->session = NULL;
}

/* ---- what happens ---- */

typedef bool predicate(const struct fixture *f);

static void run_until(struct fixture *f, predicate *done) {
    f->is_late = false;
    (void)uv_timer_start(&f->patience, on_patience, PATIENCE_MS, 0);
    while (!done(f) && !f->is_late) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    (void)uv_timer_stop(&f->patience);
    assert_false(f->is_late);
}

static bool is_told(const struct fixture *f) {
    return f->is_told;
}

/* The agent has begun to ask at the store that does not answer. */
static bool is_asked(const struct fixture *f) {
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    int fd = accept4(f->silent, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        (void)close(fd);
    }
    return fd >= 0;
}

static bool has_world(const struct fixture *f) {
    return f->worlds > 0;
}

static void rank_0_dies_before_it_has_let_the_workers_in(void **state) {
    struct fixture *f = *state;
    start_agent(f);
    for (int i = 0; i < 3; i++) { /* not once only */
        come(f, FIRST);
        run_until(f, is_told);
        run_until(f, is_asked);
        go(f);
    }
    come(f, LAST);
    run_until(f, has_world);
    assert_int_equal(f->worlds, 1);
    assert_int_equal(f->world.round, 4);
    assert_int_equal(f->world.group_rank, 0);
    assert_int_equal(f->changes, 0);
    assert_int_equal(f->failed, 0);
}

/* Of the attempt before, told late. In the world that the agent has not been told yet no worker has failed. */
static void a_late_failure_does_not_end_the_next_world(void **state) {
    struct fixture *f = *state;
    const struct rdzv_cause late = {.rank = 1, .pid = 4711, .wait_status = 1 << 8, .is_told = true};
    start_agent(f);
    come(f, FIRST);
    run_until(f, is_told);
    run_until(f, is_asked);
    rdzv_worker_failed(f->rdzv, &late);
    go(f);
    come(f, LAST);
    run_until(f, has_world);
    assert_int_equal(f->world.round, 2);
    assert_int_equal(f->world.restart_count, 0); /* failures alone count */
}

static void on_admitted(void *ctx, int status) {
    ((struct fixture *)ctx)->admission_status = status;
}

static bool is_admission_over(const struct fixture *f) {
    return f->admission_status != 0;
}

/* What listens there accepts, and never says anything: the time is over nevertheless. */
static void admission_is_not_waited_for_without_end(void **state) {
    struct fixture *f = *state;
    const struct native_connection_key key = {.secret = f->secret, .run_id = "job"};
    assert_int_equal(
        admission_client_open(&f->loop, "127.0.0.1", f->silent_port, &key, 100, on_admitted, f, &f->admission),
        MUSTER_OK);
    run_until(f, is_admission_over);
    assert_int_equal(f->admission_status, MUSTER_ETIMEOUT);
}

static bool has_come(const struct fixture *f) {
    return is_asked(f) || is_admission_over(f);
}

/* The time in which this process was away is not the other one's silence. */
static void admission_does_not_count_time_away(void **state) {
    enum { TIMEOUT_MS = 500 };
    struct fixture *f = *state;
    const struct native_connection_key key = {.secret = f->secret, .run_id = "job"};
    struct loop_clock clock;
    loop_clock_start(&clock, &f->loop);
    assert_int_equal(
        admission_client_open(&f->loop, "127.0.0.1", f->silent_port, &key, TIMEOUT_MS, on_admitted, f, &f->admission),
        MUSTER_OK);
    admission_client_set_clock(f->admission, &clock);
    run_until(f, has_come);
    uint64_t began_ms = uv_now(&f->loop);
    clock.absence.due_ms -= TIMEOUT_MS; /* as if its next turn had been due that long ago */
    run_until(f, is_admission_over);
    assert_true(uv_now(&f->loop) - began_ms >= TIMEOUT_MS + TIMEOUT_MS / 2);
    loop_clock_close(&clock, NULL);
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void no_way_there_may_pass(void **state) {
    struct fixture *f = *state;
    const struct native_connection_key key = {.secret = f->secret, .run_id = "job"};
    uint64_t began_ms = uv_now(&f->loop);
    assert_int_equal(admission_client_open(&f->loop, "255.255.255.255", 4711, &key, 250, on_admitted, f, &f->admission),
                     MUSTER_OK);
    run_until(f, is_admission_over);
    assert_int_equal(f->admission_status, MUSTER_ECONNECT);
    assert_true(uv_now(&f->loop) - began_ms >= 250);
}

static bool has_tried(const struct fixture *f) {
    return uv_now(&f->loop) >= f->began_ms + 300 || f->failed != 0;
}

/* A connection needs a descriptor. That there is none ends nothing: it is tried again. */
static void an_agent_waits_for_a_descriptor(void **state) {
    struct fixture *f = *state;
    struct rlimit before, none;
    start_agent(f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    f->began_ms = uv_now(&f->loop);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    run_until(f, has_tried);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(f->failed, 0);
    come(f, LAST);
    run_until(f, has_world);
    assert_int_equal(f->world.round, 1);
}

int main(void) {
    (void)signal(SIGPIPE, SIG_IGN); /* as in every agent */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rank_0_dies_before_it_has_let_the_workers_in, setup, teardown),
        cmocka_unit_test_setup_teardown(a_late_failure_does_not_end_the_next_world, setup, teardown),
        cmocka_unit_test_setup_teardown(admission_is_not_waited_for_without_end, setup, teardown),
        cmocka_unit_test_setup_teardown(admission_does_not_count_time_away, setup, teardown),
        cmocka_unit_test_setup_teardown(no_way_there_may_pass, setup, teardown),
        cmocka_unit_test_setup_teardown(an_agent_waits_for_a_descriptor, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
