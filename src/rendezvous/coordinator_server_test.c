/* The coordinator on a store's port, over real sockets: rounds, failures, departures, strangers of all kinds. The
 * server runs on a libuv loop, the agents are raw sockets in the same thread: nobody sleeps. */
#include "rendezvous/coordinator_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/log.h"
#include "store/kv_server.h"

enum { PATIENCE_MS = 20000, AGENTS_MAX = 64, INPUT_BYTES_MAX = 64 * 1024, WARNINGS_MAX = 20 };
#define LONG_MS INT64_C(3600000)

struct fixture {
    uv_loop_t loop;
    struct kv_server *store;
    struct coordinator_server *server;
    struct sockaddr_in address;
    unsigned warnings;
    char warning[1500];
};

/* An agent as seen from outside: a socket and what has come on it. */
struct agent {
    int fd;
    struct buf in;
    struct coordinator_message heard; /* its slices live in `frame` */
    uint8_t frame[COORDINATOR_FRAME_BYTES_MAX];
};

static struct fixture *logged; /* the log knows no context */

static void keep_warning(enum log_level level, const char *file, int line, const char *text) {
    (void)file;
    (void)line;
    if (level == LOG_LEVEL_WARNING) {
        logged->warnings++;
        (void)snprintf(logged->warning, sizeof logged->warning, "%s", text);
    }
}

static struct coordinator_server_options options_of(uint32_t min_nodes, uint32_t max_nodes) {
    return (struct coordinator_server_options){.coordinator = {.run_id = "job",
                                                               .min_nodes = min_nodes,
                                                               .max_nodes = max_nodes,
                                                               .last_call_timeout_ms = LONG_MS},
                                               .join_patience_ms = LONG_MS};
}

static void open_server(struct fixture *f, const struct coordinator_server_options *options) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&any};
    assert_int_equal(coordinator_server_create(&f->loop, options, &f->server), MUSTER_OK);
    const struct kv_server_options store = {
        .addresses = addresses, .address_count = 1, .guest = coordinator_server_guest(f->server)};
    assert_int_equal(kv_server_create(&f->loop, &store, &f->store), MUSTER_OK);
    f->address = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(kv_server_port(f->store))};
    (void)uv_run(&f->loop, UV_RUN_NOWAIT); /* from now on its descriptor says when there is something to do */
}

static void start(struct fixture *f, uint32_t min_nodes, uint32_t max_nodes) {
    const struct coordinator_server_options options = options_of(min_nodes, max_nodes);
    open_server(f, &options);
}

static int set_up(void **out) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    logged = f;
    log_set_sink(keep_warning);
    *out = f;
    return 0;
}

static void close_server(struct fixture *f) {
    kv_server_close(f->store);
    coordinator_server_close(f->server);
    f->store = NULL;
    f->server = NULL;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    close_server(f);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT); /* ends: nothing is left open */
    assert_int_equal(uv_loop_close(&f->loop), 0);
    log_set_sink(NULL);
    free(f);
    return 0;
}

/* ---- agents ---- */

/* `last`: the last byte of the loopback address that it calls from. */
static void call(const struct fixture *f, struct agent *agent, uint8_t last) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1U + last)};
    agent->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(agent->fd >= 0);
    buf_init(&agent->in, INPUT_BYTES_MAX);
    assert_int_equal(bind(agent->fd, (const struct sockaddr *)&own, sizeof own), 0);
    int rc = connect(agent->fd, (const struct sockaddr *)&f->address, sizeof f->address);
    assert_true(rc == 0 || errno == EINPROGRESS); /* the backlog takes it */
}

static void hang_up(struct agent *agent) {
    (void)close(agent->fd);
    buf_done(&agent->in);
}

static void send_bytes(const struct agent *agent, const void *bytes, size_t len) {
    assert_int_equal(send(agent->fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len); /* little enough for the socket */
}

static void say(const struct agent *agent, const struct coordinator_message *message) {
    struct buf frame;
    buf_init(&frame, COORDINATOR_FRAME_BYTES_MAX);
    assert_int_equal(coordinator_wire_put(&frame, message), MUSTER_OK);
    send_bytes(agent, buf_bytes(&frame), frame.len);
    buf_done(&frame);
}

static void say_kind(const struct agent *agent, enum coordinator_kind kind, const char *text) {
    say(agent, &(struct coordinator_message){.kind = kind, .text = kv_slice_text(text)});
}

/* Waits until `fd` can be read or the server has something to do, which it then does. True for the former. */
static bool serve_once(struct fixture *f, int fd) {
    int timeout_ms = uv_backend_timeout(&f->loop);
    struct pollfd fds[2] = {{.fd = uv_backend_fd(&f->loop), .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    int ready = poll(fds, fd >= 0 ? 2 : 1, timeout_ms >= 0 && timeout_ms < PATIENCE_MS ? timeout_ms : PATIENCE_MS);
    assert_true(ready > 0 || (timeout_ms >= 0 && timeout_ms < PATIENCE_MS)); /* else out of patience */
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    return fds[1].revents != 0;
}

/* What has come; false at the end of the connection. */
static bool receive(struct fixture *f, struct agent *agent) {
    uint8_t bytes[4096];
    while (!serve_once(f, agent->fd)) {
    }
    ssize_t got = recv(agent->fd, bytes, sizeof bytes, 0);
    if (got > 0) {
        assert_int_equal(buf_append(&agent->in, bytes, (size_t)got), 0);
    }
    return got > 0;
}

/* The next message. */
static const struct coordinator_message *hear(struct fixture *f, struct agent *agent, enum coordinator_kind expected) {
    size_t used = 0;
    enum coordinator_parse parse;
    for (;;) {
        size_t len = agent->in.len < sizeof agent->frame ? agent->in.len : sizeof agent->frame;
        if (len > 0) {
            memcpy(agent->frame, buf_bytes(&agent->in), len);
        }
        parse = coordinator_wire_get(agent->frame, len, false, &agent->heard, &used);
        if (parse != COORDINATOR_MORE) {
            break;
        }
        assert_true(receive(f, agent));
    }
    assert_int_equal(parse, COORDINATOR_COMPLETE);
    buf_consume(&agent->in, used);
    assert_string_equal(coordinator_kind_name(agent->heard.kind), coordinator_kind_name(expected));
    return &agent->heard;
}

static void expect_end(struct fixture *f, struct agent *agent) {
    assert_int_equal(agent->in.len, 0);
    assert_false(receive(f, agent));
    hang_up(agent);
}

static bool heard_text(const struct agent *agent, const char *part) {
    return memmem(agent->heard.text.data, agent->heard.text.len, part, strlen(part)) != NULL;
}

static struct coordinator_message join_of(unsigned number, const char *addr, uint32_t min_nodes, uint32_t max_nodes) {
    return (struct coordinator_message){
        .kind = COORDINATOR_JOIN,
        .node = {.run_id = kv_slice_text("job"),
                 .addr = kv_slice_text(addr),
                 .role = kv_slice_text("default"),
                 .pid = 100 + (int64_t)number,
                 .identity = {number, 7},
                 .min_nodes = min_nodes,
                 .max_nodes = max_nodes,
                 .local_world_size = 2,
                 .store_port = (uint16_t)(29500 + number)},
    };
}

static void join_again(const struct agent *agent, unsigned number, const char *addr, uint32_t nodes, uint64_t round) {
    struct coordinator_message join = join_of(number, addr, nodes, nodes);
    join.node.last_round = round;
    join.node.last_world_size = nodes;
    say(agent, &join);
}

/* Connects, and joins a job of `min` to `max` nodes. */
static void join_some(const struct fixture *f, struct agent *agent, unsigned number, uint32_t min, uint32_t max) {
    const struct coordinator_message message = join_of(number, "", min, max);
    call(f, agent, (uint8_t)(number + 1));
    send_bytes(agent, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    say(agent, &message);
}

static void join(const struct fixture *f, struct agent *agent, unsigned number, uint32_t nodes) {
    join_some(f, agent, number, nodes, nodes);
}

/* A job of `count` agents in its first round. */
static void form(struct fixture *f, struct agent *agents, uint32_t count) {
    for (unsigned i = 0; i < count; i++) {
        join(f, &agents[i], i, count);
    }
    for (unsigned i = 0; i < count; i++) {
        const struct coordinator_world *world = &hear(f, &agents[i], COORDINATOR_WORLD)->world;
        assert_int_equal(world->group_world_size, count);
        assert_int_equal(world->group_rank, i); /* by address */
    }
}

static struct coordinator_view look(const struct fixture *f) {
    struct coordinator_view view;
    coordinator_server_look(f->server, &view);
    return view;
}

/* Until so many are members. */
static void serve_until_members(struct fixture *f, size_t count) {
    while (look(f).member_count != count) {
        (void)serve_once(f, -1);
    }
}

/* ---- rounds ---- */

static void everybody_gets_the_world(void **state) {
    struct fixture *f = *state;
    struct agent agents[3];
    start(f, 3, 3);
    for (unsigned i = 0; i < 3; i++) {
        join(f, &agents[i], i, 3);
    }
    for (unsigned i = 0; i < 3; i++) {
        const struct coordinator_world *world = &hear(f, &agents[i], COORDINATOR_WORLD)->world;
        assert_int_equal(world->round, 1);
        assert_int_equal(world->group_rank, i);
        assert_int_equal(world->group_world_size, 3);
        assert_int_equal(world->base_global_rank, 2 * i);
        assert_int_equal(world->global_world_size, 6);
        assert_int_equal(world->master_port, 29500);
        assert_true(kv_slice_equal(world->master_addr, kv_slice_text("127.0.0.1"))); /* where rank 0 calls from */
    }
    assert_int_equal(look(f).phase, COORDINATOR_RUNNING);
    for (unsigned i = 0; i < 3; i++) {
        hang_up(&agents[i]);
    }
    serve_until_members(f, 0);
    assert_int_equal(f->warnings, 0);
}

/* What says nothing is replaced by where the connection comes from; what says something stays. */
static void addresses_come_from_the_connection(void **state) {
    static const struct {
        const char *said, *used;
    } cases[] = {
        {"", "127.0.0.9"},        {"0.0.0.0", "127.0.0.9"}, {"::", "127.0.0.9"}, {"0::0", "127.0.0.9"},
        {"10.1.2.3", "10.1.2.3"}, {"node-a", "node-a"},     {"::1", "::1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture *f = *state;
        struct agent agent;
        start(f, 1, 1);
        const struct coordinator_message message = join_of(0, cases[i].said, 1, 1);
        call(f, &agent, 9);
        send_bytes(&agent, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
        say(&agent, &message);
        const struct coordinator_world *world = &hear(f, &agent, COORDINATOR_WORLD)->world;
        assert_true(kv_slice_equal(world->master_addr, kv_slice_text(cases[i].used)));
        hang_up(&agent);
        close_server(f);
    }
}

static void a_failure_is_told_and_the_world_formed_anew(void **state) {
    struct fixture *f = *state;
    struct agent agents[3];
    start(f, 3, 3);
    form(f, agents, 3);
    say_kind(&agents[1], COORDINATOR_FAILED, "rank 2 has ended with exit code 1");
    for (unsigned i = 0; i < 3; i += 2) {
        assert_int_equal(hear(f, &agents[i], COORDINATOR_CHANGE)->change, COORDINATOR_NODE_FAILED);
        assert_true(heard_text(&agents[i], "exit code 1"));
        assert_true(heard_text(&agents[i], "127.0.0.2"));
    }
    for (unsigned i = 0; i < 3; i++) {
        join_again(&agents[i], i, "", 3, 1);
    }
    for (unsigned i = 0; i < 3; i++) {
        const struct coordinator_message *message = hear(f, &agents[i], COORDINATOR_WORLD);
        assert_int_equal(message->world.round, 2);
        assert_int_equal(message->world.group_rank, i);
        assert_true(heard_text(&agents[i], "exit code 1"));
        hang_up(&agents[i]);
    }
}

static void a_lost_connection_is_a_departure(void **state) {
    struct fixture *f = *state;
    struct agent agents[3], late;
    start(f, 3, 3);
    form(f, agents, 3);
    hang_up(&agents[0]);
    for (unsigned i = 1; i < 3; i++) {
        assert_int_equal(hear(f, &agents[i], COORDINATOR_CHANGE)->change, COORDINATOR_NODE_LEFT);
        join_again(&agents[i], i, "", 3, 1);
    }
    join(f, &late, 5, 3);
    assert_int_equal(hear(f, &late, COORDINATOR_WORLD)->world.group_rank, 2);
    assert_int_equal(hear(f, &agents[1], COORDINATOR_WORLD)->world.group_rank, 0);
    assert_int_equal(hear(f, &agents[2], COORDINATOR_WORLD)->world.group_rank, 1);
    hang_up(&agents[1]);
    hang_up(&agents[2]);
    hang_up(&late);
}

static void leaving_ends_the_connection(void **state) {
    struct fixture *f = *state;
    struct agent agents[2];
    start(f, 2, 2);
    form(f, agents, 2);
    say_kind(&agents[0], COORDINATOR_LEAVE, "a signal");
    expect_end(f, &agents[0]);
    assert_int_equal(hear(f, &agents[1], COORDINATOR_CHANGE)->change, COORDINATOR_NODE_LEFT);
    assert_true(heard_text(&agents[1], "a signal"));
    assert_int_equal(look(f).member_count, 1);
    assert_int_equal(f->warnings, 0);
    hang_up(&agents[1]);
}

static void the_end_of_a_good_job(void **state) {
    struct fixture *f = *state;
    struct agent agents[2], late;
    start(f, 2, 2);
    form(f, agents, 2);
    say_kind(&agents[1], COORDINATOR_DONE, "");
    say_kind(&agents[0], COORDINATOR_DONE, "");
    (void)hear(f, &agents[0], COORDINATOR_ALL_DONE);
    (void)hear(f, &agents[1], COORDINATOR_ALL_DONE);
    join(f, &late, 2, 2);
    assert_int_equal(hear(f, &late, COORDINATOR_REFUSED)->status, MUSTER_ECLOSED);
    expect_end(f, &late);
    hang_up(&agents[0]);
    hang_up(&agents[1]);
    assert_int_equal(f->warnings, 0);
}

static void a_closed_job_is_told_to_everybody(void **state) {
    struct fixture *f = *state;
    struct agent agents[2], spare;
    start(f, 2, 2);
    form(f, agents, 2);
    join(f, &spare, 2, 2);
    (void)hear(f, &spare, COORDINATOR_SPARE);
    say_kind(&agents[0], COORDINATOR_CLOSE, "no restarts are left");
    (void)hear(f, &agents[1], COORDINATOR_CLOSED);
    assert_true(heard_text(&agents[1], "no restarts are left"));
    (void)hear(f, &spare, COORDINATOR_CLOSED);
    hang_up(&agents[0]);
    hang_up(&agents[1]);
    hang_up(&spare);
}

/* The only thing that happens is that time passes. */
static void the_last_call_ends_by_the_clock(void **state) {
    struct fixture *f = *state;
    struct agent agents[2];
    struct coordinator_server_options options = options_of(2, 3);
    options.coordinator.last_call_timeout_ms = 20;
    open_server(f, &options);
    for (unsigned i = 0; i < 2; i++) {
        join_some(f, &agents[i], i, 2, 3);
    }
    assert_int_equal(hear(f, &agents[0], COORDINATOR_WORLD)->world.group_world_size, 2);
    assert_int_equal(hear(f, &agents[1], COORDINATOR_WORLD)->world.group_world_size, 2);
    hang_up(&agents[0]);
    hang_up(&agents[1]);
}

/* Nobody of the world is left to be waited for: the departure itself starts the clock. */
static void a_last_call_begins_with_a_departure(void **state) {
    struct fixture *f = *state;
    struct agent agents[2], late;
    struct coordinator_server_options options = options_of(1, 2);
    options.coordinator.last_call_timeout_ms = 20;
    open_server(f, &options);
    for (unsigned i = 0; i < 2; i++) {
        join_some(f, &agents[i], i, 1, 2);
    }
    (void)hear(f, &agents[0], COORDINATOR_WORLD);
    (void)hear(f, &agents[1], COORDINATOR_WORLD);
    hang_up(&agents[0]);
    (void)hear(f, &agents[1], COORDINATOR_CHANGE);
    join_some(f, &late, 2, 1, 2);
    serve_until_members(f, 2);
    hang_up(&agents[1]);
    const struct coordinator_world *world = &hear(f, &late, COORDINATOR_WORLD)->world;
    assert_int_equal(world->group_world_size, 1);
    assert_int_equal(world->round, 2);
    hang_up(&late);
}

/* ---- bytes ---- */

static void messages_in_single_bytes(void **state) {
    struct fixture *f = *state;
    struct agent agent;
    struct buf bytes;
    const struct coordinator_message message = join_of(0, "", 1, 1);
    const struct coordinator_message failed = {.kind = COORDINATOR_FAILED, .text = kv_slice_text("oh")};
    const struct coordinator_message leave = {.kind = COORDINATOR_LEAVE};
    start(f, 1, 1);
    buf_init(&bytes, INPUT_BYTES_MAX);
    assert_int_equal(buf_append(&bytes, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES), 0);
    assert_int_equal(coordinator_wire_put(&bytes, &message), 0);
    assert_int_equal(coordinator_wire_put(&bytes, &failed), 0);
    assert_int_equal(coordinator_wire_put(&bytes, &leave), 0);
    call(f, &agent, 1);
    for (size_t i = 0; i < bytes.len; i++) {
        send_bytes(&agent, buf_bytes(&bytes) + i, 1);
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    (void)hear(f, &agent, COORDINATOR_WORLD);
    expect_end(f, &agent);
    buf_done(&bytes);
    assert_int_equal(f->warnings, 0);
}

static void the_store_serves_its_own_clients(void **state) {
    struct fixture *f = *state;
    struct agent agents[2], client;
    start(f, 2, 2);
    form(f, agents, 2);
    call(f, &client, 1);
    send_bytes(&client, "\0\xce\xf7\x85\x3c\x0dPING", 10);
    assert_true(receive(f, &client));
    assert_int_equal(client.in.len, 4);
    assert_memory_equal(buf_bytes(&client.in), "PING", 4);
    hang_up(&client);
    hang_up(&agents[0]);
    hang_up(&agents[1]);
}

/* Wrong from the first bytes on: no answer, as nobody knows what the caller speaks. */
static void strangers_are_dropped(void **state) {
    static const char *const said[] = {"M", "MUSTER", "MUSTEX", "MUSTER\r\r", "MUTTER\r\n and more", "Muster\r\n"};
    struct fixture *f = *state;
    struct agent agents[2], stranger;
    start(f, 2, 2);
    form(f, agents, 2);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        call(f, &stranger, 1);
        send_bytes(&stranger, said[i], strlen(said[i]));
        if (strncmp(said[i], COORDINATOR_HELLO, strlen(said[i])) == 0) {
            hang_up(&stranger); /* a beginning, and never more */
        } else {
            expect_end(f, &stranger);
        }
    }
    assert_int_equal(f->warnings, 4);
    say_kind(&agents[0], COORDINATOR_FAILED, "still served");
    (void)hear(f, &agents[1], COORDINATOR_CHANGE);
    hang_up(&agents[0]);
    hang_up(&agents[1]);
}

static void expect_refused(struct fixture *f, struct agent *agent, const char *part) {
    assert_int_equal(hear(f, agent, COORDINATOR_REFUSED)->status, MUSTER_EPROTOCOL);
    assert_true(heard_text(agent, part));
    expect_end(f, agent);
    assert_non_null(strstr(f->warning, part)); /* the log says the same, and who */
    assert_non_null(strstr(f->warning, "127.0.0.1"));
}

static void broken_messages_are_answered_and_dropped(void **state) {
    static const struct {
        const char *bytes;
        size_t len;
        const char *why;
    } cases[] = {
        {"\0\0\0\0", 4, "0 bytes"},          {"\xff\xff\xff\xff", 4, "4294967295 bytes"},
        {"\1\0\0\0\x63", 5, "kind 99"},      {"\1\0\0\0\x10", 5, "WORLD"}, /* nothing that an agent says */
        {"\3\0\0\0\2\0\0", 7, "FAILED"},                                   /* without having joined */
        {"\1\0\0\0\4", 5, "DONE"},           {"\3\0\0\0\3\0\0", 7, "LEAVE"},
        {"\3\0\0\0\5\0\0", 7, "CLOSE"},      {"\3\0\0\0\1\2\0", 7, "version 2"},
        {"\3\0\0\0\1\1\0", 7, "do not fit"},
    };
    struct fixture *f = *state;
    struct agent agent;
    start(f, 2, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        call(f, &agent, 1);
        send_bytes(&agent, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
        send_bytes(&agent, cases[i].bytes, cases[i].len);
        expect_refused(f, &agent, cases[i].why);
    }
    assert_int_equal(f->warnings, sizeof cases / sizeof *cases);
    assert_int_equal(look(f).member_count, 0);
}

/* A member that breaks the protocol is gone, like one whose connection ends. */
static void a_broken_member_is_a_departure(void **state) {
    struct fixture *f = *state;
    struct agent agents[2];
    start(f, 2, 2);
    form(f, agents, 2);
    send_bytes(&agents[0], "\1\0\0\0\x63", 5);
    expect_refused(f, &agents[0], "kind 99");
    assert_int_equal(hear(f, &agents[1], COORDINATOR_CHANGE)->change, COORDINATOR_NODE_LEFT);
    hang_up(&agents[1]);
}

static void another_job_is_refused_in_words(void **state) {
    struct fixture *f = *state;
    struct agent agent;
    struct coordinator_message message = join_of(0, "", 2, 2);
    start(f, 2, 2);
    message.node.run_id = kv_slice_text("another");
    call(f, &agent, 1);
    send_bytes(&agent, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    say(&agent, &message);
    assert_int_equal(hear(f, &agent, COORDINATOR_REFUSED)->status, MUSTER_EINVAL);
    expect_end(f, &agent);
    assert_int_equal(f->warnings, 0); /* it was told; that is its own log's business */
}

/* ---- who does not join ---- */

static void whoever_does_not_join_in_time_is_dropped(void **state) {
    struct fixture *f = *state;
    struct agent member, silent, half, greeted;
    struct coordinator_server_options options = options_of(2, 2);
    options.join_patience_ms = 50;
    open_server(f, &options);
    join(f, &member, 0, 2);
    serve_until_members(f, 1);
    call(f, &silent, 1);
    send_bytes(&silent, "M", 1);
    call(f, &greeted, 1);
    send_bytes(&greeted, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    call(f, &half, 1);
    send_bytes(&half, COORDINATOR_HELLO "\x40\0\0\0\1", COORDINATOR_HELLO_BYTES + 5);
    expect_end(f, &silent);
    expect_end(f, &greeted);
    expect_end(f, &half);
    assert_int_equal(f->warnings, 3);
    assert_non_null(strstr(f->warning, "within 50 ms"));
    assert_int_equal(look(f).member_count, 1); /* it waits for the other node, as long as that takes */
    hang_up(&member);
}

static void a_flood_of_strangers_ends_the_oldest(void **state) {
    struct fixture *f = *state;
    struct agent strangers[4], agents[2];
    struct coordinator_server_options options = options_of(2, 2);
    options.strangers_max = 2;
    open_server(f, &options);
    for (unsigned i = 0; i < 4; i++) {
        call(f, &strangers[i], 1);
        send_bytes(&strangers[i], COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
        if (i >= 2) {
            expect_end(f, &strangers[i - 2]);
        }
    }
    assert_int_equal(f->warnings, 2);
    join(f, &agents[0], 0, 2); /* an agent that joins at once does not mind, but takes a place for a moment */
    join(f, &agents[1], 1, 2);
    (void)hear(f, &agents[0], COORDINATOR_WORLD);
    (void)hear(f, &agents[1], COORDINATOR_WORLD);
    for (unsigned i = 0; i < 2; i++) {
        hang_up(&strangers[i + 2]);
        hang_up(&agents[i]);
    }
}

/* The log is not filled by who comes again and again. */
static void warnings_are_bounded(void **state) {
    struct fixture *f = *state;
    struct agent agent;
    start(f, 2, 2);
    for (unsigned i = 0; i < 2 * WARNINGS_MAX; i++) {
        call(f, &agent, 1);
        send_bytes(&agent, "MASTER", 6);
        expect_end(f, &agent);
    }
    assert_int_equal(f->warnings, WARNINGS_MAX);
}

/* ---- ends ---- */

static void closing_ends_all_connections(void **state) {
    struct fixture *f = *state;
    struct agent agents[2], stranger, waiting;
    start(f, 2, 2);
    form(f, agents, 2);
    join(f, &waiting, 2, 2);
    (void)hear(f, &waiting, COORDINATOR_SPARE);
    call(f, &stranger, 1);
    send_bytes(&stranger, "MUST", 4);
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    close_server(f);
    expect_end(f, &agents[0]);
    expect_end(f, &agents[1]);
    expect_end(f, &waiting);
    expect_end(f, &stranger);
}

static void a_reset_of_the_store_loses_all_members(void **state) {
    struct fixture *f = *state;
    struct agent agents[2];
    start(f, 2, 2);
    form(f, agents, 2);
    kv_server_reset(f->store);
    assert_int_equal(look(f).member_count, 0);
    expect_end(f, &agents[0]);
    expect_end(f, &agents[1]);
}

static void many_agents_come_and_go(void **state) {
    static struct agent agents[AGENTS_MAX];
    struct fixture *f = *state;
    start(f, AGENTS_MAX, AGENTS_MAX);
    form(f, agents, AGENTS_MAX);
    for (uint64_t round = 1; round < 4; round++) {
        say_kind(&agents[round], COORDINATOR_FAILED, "again");
        for (unsigned i = 0; i < AGENTS_MAX; i++) {
            if (i != round) {
                (void)hear(f, &agents[i], COORDINATOR_CHANGE);
            }
            join_again(&agents[i], i, "", AGENTS_MAX, round);
        }
        for (unsigned i = 0; i < AGENTS_MAX; i++) {
            const struct coordinator_world *world = &hear(f, &agents[i], COORDINATOR_WORLD)->world;
            assert_int_equal(world->round, round + 1);
            assert_int_equal(world->group_rank, i);
        }
    }
    for (unsigned i = 0; i < AGENTS_MAX; i++) {
        hang_up(&agents[i]);
    }
    serve_until_members(f, 0);
}

#define SERVER_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SERVER_TEST(everybody_gets_the_world),
        SERVER_TEST(addresses_come_from_the_connection),
        SERVER_TEST(a_failure_is_told_and_the_world_formed_anew),
        SERVER_TEST(a_lost_connection_is_a_departure),
        SERVER_TEST(leaving_ends_the_connection),
        SERVER_TEST(the_end_of_a_good_job),
        SERVER_TEST(a_closed_job_is_told_to_everybody),
        SERVER_TEST(the_last_call_ends_by_the_clock),
        SERVER_TEST(a_last_call_begins_with_a_departure),
        SERVER_TEST(messages_in_single_bytes),
        SERVER_TEST(the_store_serves_its_own_clients),
        SERVER_TEST(strangers_are_dropped),
        SERVER_TEST(broken_messages_are_answered_and_dropped),
        SERVER_TEST(a_broken_member_is_a_departure),
        SERVER_TEST(another_job_is_refused_in_words),
        SERVER_TEST(whoever_does_not_join_in_time_is_dropped),
        SERVER_TEST(a_flood_of_strangers_ends_the_oldest),
        SERVER_TEST(warnings_are_bounded),
        SERVER_TEST(closing_ends_all_connections),
        SERVER_TEST(a_reset_of_the_store_loses_all_members),
        SERVER_TEST(many_agents_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
