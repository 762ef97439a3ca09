/* See coordinator_talk_test_support.h. */
#include "rendezvous/coordinator/coordinator_talk_test_support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000 };

struct coordinator_server_options talk_options(uint32_t min_nodes, uint32_t max_nodes) {
    return (struct coordinator_server_options){.coordinator = {.run_id = "job",
                                                               .min_nodes = min_nodes,
                                                               .max_nodes = max_nodes,
                                                               .last_call_timeout_ms = SERVED_LONG_MS},
                                               .join_patience_ms = SERVED_LONG_MS};
}

void talk_start(struct served *f, uint32_t min_nodes, uint32_t max_nodes) {
    const struct coordinator_server_options options = talk_options(min_nodes, max_nodes);
    served_open_with(f, &options, (struct kv_server_options){0});
}

int talk_set_up(void **out) {
    struct served *f = calloc(1, sizeof *f);
    assert_non_null(f);
    served_begin(f);
    *out = f;
    return 0;
}

int talk_tear_down(void **state) {
    served_end(*state);
    free(*state);
    return 0;
}

/* `last`: the last byte of the loopback address that it calls from. */
void talk_call(const struct served *f, struct talker *agent, uint8_t last) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1U + last)};
    agent->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(agent->fd >= 0);
    buf_init(&agent->in, TALK_INPUT_BYTES_MAX);
    assert_int_equal(bind(agent->fd, (const struct sockaddr *)&own, sizeof own), 0);
    int rc = connect(agent->fd, (const struct sockaddr *)&f->address, sizeof f->address);
    assert_true(rc == 0 || errno == EINPROGRESS); /* the backlog takes it */
}

void talk_hang_up(struct talker *agent) {
    (void)close(agent->fd);
    buf_done(&agent->in);
}

void talk_send(const struct talker *agent, const void *bytes, size_t len) {
    assert_int_equal(send(agent->fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len); /* little enough for the socket */
}

void talk_say(const struct talker *agent, const struct coordinator_message *message) {
    struct buf frame;
    buf_init(&frame, COORDINATOR_FRAME_BYTES_MAX);
    assert_int_equal(coordinator_wire_put(&frame, message), MUSTER_OK);
    talk_send(agent, buf_bytes(&frame), frame.len);
    buf_done(&frame);
}

void talk_say_kind(const struct talker *agent, enum coordinator_kind kind, const char *text) {
    talk_say(agent, &(struct coordinator_message){.kind = kind, .text = kv_slice_text(text)});
}

/* Waits until `fd` can be read or the server has something to do, which it then does. True for the former. */
bool talk_serve_once(struct served *f, int fd) {
    int timeout_ms = uv_backend_timeout(&f->loop);
    struct pollfd fds[2] = {{.fd = uv_backend_fd(&f->loop), .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    int ready = poll(fds, fd >= 0 ? 2 : 1, timeout_ms >= 0 && timeout_ms < PATIENCE_MS ? timeout_ms : PATIENCE_MS);
    assert_true(ready > 0 || (timeout_ms >= 0 && timeout_ms < PATIENCE_MS)); /* else out of patience */
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    return fds[1].revents != 0;
}

/* What has come; false at the end of the connection. */
bool talk_receive(struct served *f, struct talker *agent) {
    uint8_t bytes[4096];
    while (!talk_serve_once(f, agent->fd)) {
    }
    ssize_t got = recv(agent->fd, bytes, sizeof bytes, 0);
    if (got > 0) {
        assert_int_equal(buf_append(&agent->in, bytes, (size_t)got), 0);
    }
    return got > 0;
}

/* The next message. */
const struct coordinator_message *talk_hear(struct served *f, struct talker *agent, enum coordinator_kind expected) {
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
        assert_true(talk_receive(f, agent));
    }
    assert_int_equal(parse, COORDINATOR_COMPLETE);
    buf_consume(&agent->in, used);
    assert_string_equal(coordinator_kind_name(agent->heard.kind), coordinator_kind_name(expected));
    return &agent->heard;
}

void talk_expect_end(struct served *f, struct talker *agent) {
    assert_int_equal(agent->in.len, 0);
    assert_false(talk_receive(f, agent));
    talk_hang_up(agent);
}

bool talk_has_text(const struct talker *agent, const char *part) {
    return memmem(agent->heard.text.data, agent->heard.text.len, part, strlen(part)) != NULL;
}

struct coordinator_message talk_join_of(unsigned number, const char *addr, uint32_t min_nodes, uint32_t max_nodes) {
    return (struct coordinator_message){
        .kind = COORDINATOR_JOIN,
        .node = {.run_id = kv_slice_text("job"),
                 .addr = kv_slice_text(addr),
                 .role = kv_slice_text("default"),
                 .pid = 100 + (int64_t)number,
                 .identity = {number, 7},
                 .session = 1,
                 .min_nodes = min_nodes,
                 .max_nodes = max_nodes,
                 .local_world_size = 2,
                 .store_port = (uint16_t)(29500 + number)},
    };
}

void talk_join_again(const struct talker *agent, unsigned number, const char *addr, uint32_t nodes, uint64_t round) {
    struct coordinator_message join = talk_join_of(number, addr, nodes, nodes);
    join.node.last_round = round;
    join.node.last_world_size = nodes;
    talk_say(agent, &join);
}

/* Connects, and joins a job of `min` to `max` nodes. */
void talk_join_some(const struct served *f, struct talker *agent, unsigned number, uint32_t min, uint32_t max) {
    const struct coordinator_message message = talk_join_of(number, "", min, max);
    talk_call(f, agent, (uint8_t)(number + 1));
    talk_send(agent, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    talk_say(agent, &message);
}

void talk_join(const struct served *f, struct talker *agent, unsigned number, uint32_t nodes) {
    talk_join_some(f, agent, number, nodes, nodes);
}

/* A job of `count` agents in its first round. */
void talk_form(struct served *f, struct talker *agents, uint32_t count) {
    for (unsigned i = 0; i < count; i++) {
        talk_join(f, &agents[i], i, count);
    }
    for (unsigned i = 0; i < count; i++) {
        const struct coordinator_world *world = &talk_hear(f, &agents[i], COORDINATOR_WORLD)->world;
        assert_int_equal(world->group_world_size, count);
        assert_int_equal(world->group_rank, i); /* by address */
    }
}

struct coordinator_view talk_look(const struct served *f) {
    struct coordinator_view view;
    coordinator_server_look(f->server, &view);
    return view;
}

/* Until so many are members. */
void talk_serve_until_members(struct served *f, size_t count) {
    while (talk_look(f).member_count != count) {
        (void)talk_serve_once(f, -1);
    }
}
