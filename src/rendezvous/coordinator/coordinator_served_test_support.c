/* See coordinator_served_test_support.h. */
#include "rendezvous/coordinator/coordinator_served_test_support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"

static struct served *logged; /* the log knows no context */

/* ---- the coordinator ---- */

static void keep_warning(enum log_level level, const char *file, int line, const char *text) {
    (void)file;
    (void)line;
    if (level == LOG_LEVEL_WARNING) {
        logged->warnings++;
        (void)snprintf(logged->warning, sizeof logged->warning, "%s", text);
    }
}

void served_begin(struct served *served) {
    assert_int_equal(uv_loop_init(&served->loop), 0);
    logged = served;
    log_set_sink(keep_warning);
}

void served_end(struct served *served) {
    served_close(served);
    (void)uv_run(&served->loop, UV_RUN_DEFAULT); /* ends: nothing is left open */
    assert_int_equal(uv_loop_close(&served->loop), 0);
    log_set_sink(NULL);
}

static void listen_with(struct served *served, struct kv_server_options store) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&at};
    store.addresses = addresses;
    store.address_count = 1;
    assert_int_equal(kv_server_create(&served->loop, &store, &served->store), MUSTER_OK);
    served->address = at;
    served->address.sin_port = htons(kv_server_port(served->store));
    (void)uv_run(&served->loop, UV_RUN_NOWAIT); /* from now on its descriptor says when there is something to do */
}

void served_listen(struct served *served, const struct kv_guest *guest, size_t strangers_max) {
    listen_with(served, (struct kv_server_options){.strangers_max = strangers_max, .guest = guest});
}

void served_open_with(struct served *served, const struct coordinator_server_options *options,
                      struct kv_server_options store) {
    assert_int_equal(coordinator_server_create(&served->loop, options, &served->server), MUSTER_OK);
    store.guest = coordinator_server_guest(served->server);
    listen_with(served, store);
}

void served_open(struct served *served, const struct secret *secret, const struct tls_context *tls,
                 int64_t join_patience_ms, size_t strangers_max) {
    const struct coordinator_server_options options = {
        .coordinator = {.run_id = "job", .min_nodes = 2, .max_nodes = 2, .last_call_timeout_ms = SERVED_LONG_MS},
        .secret = secret,
        .tls = tls,
        .join_patience_ms = join_patience_ms};
    served_open_with(served, &options, (struct kv_server_options){.strangers_max = strangers_max});
}

void served_close(struct served *served) {
    kv_server_close(served->store);
    coordinator_server_close(served->server);
    served->store = NULL;
    served->server = NULL;
}

size_t served_member_count(const struct served *served) {
    struct coordinator_view view;
    coordinator_server_look(served->server, &view);
    return view.member_count;
}

void served_run_until_members(struct served *served, size_t count) {
    while (served_member_count(served) != count) {
        (void)uv_run(&served->loop, UV_RUN_ONCE);
    }
}

void served_run_until_warned(struct served *served, unsigned count) {
    while (served->warnings < count) {
        (void)uv_run(&served->loop, UV_RUN_ONCE);
    }
}

/* ---- agents ---- */

struct coordinator_message served_join(unsigned number) {
    return (struct coordinator_message){
        .kind = COORDINATOR_JOIN,
        .node = {.run_id = kv_slice_text("job"),
                 .addr = kv_slice_text(number ? "10.0.0.2" : "10.0.0.1"),
                 .role = kv_slice_text("default"),
                 .pid = 100 + (int64_t)number,
                 .identity = {number, 7},
                 .min_nodes = 2,
                 .max_nodes = 2,
                 .local_world_size = 1,
                 .store_port = 29500},
    };
}

static void on_open(void *ctx) {
    struct served_node *node = ctx;
    const struct coordinator_message ask = {.kind = COORDINATOR_STATUS}, join = served_join(node->number);
    node->is_open = true;
    assert_int_equal(native_connection_send(node->session, node->asks ? &ask : &join), 0);
}

static void on_message(void *ctx, const struct coordinator_message *message) {
    struct served_node *node = ctx;
    node->heard[message->kind]++;
    if (message->kind == COORDINATOR_REFUSED) {
        (void)snprintf(node->why, sizeof node->why, "%.*s", (int)message->text.len, (const char *)message->text.data);
    }
}

static void on_lost(void *ctx, int status) {
    struct served_node *node = ctx;
    node->is_lost = true;
    node->status = status;
    if (node->why[0] == '\0') {
        (void)snprintf(node->why, sizeof node->why, "%s", muster_detail());
    }
}

void served_node_open(struct served *served, struct served_node *node, unsigned number, const struct secret *secret,
                      const struct tls_context *tls) {
    static const struct native_connection_callbacks callbacks = {
        .on_open = on_open, .on_message = on_message, .on_lost = on_lost};
    const struct native_connection_key key = {.secret = secret, .run_id = "job", .tls = tls};
    *node = (struct served_node){.served = served, .number = number};
    assert_int_equal(native_connection_open(&served->loop, (const struct sockaddr *)&served->address, &key, &callbacks,
                                            node, &node->session),
                     0);
}

void served_run_until_heard(const struct served_node *node, enum coordinator_kind kind, unsigned count) {
    while (node->heard[kind] < count) {
        assert_false(node->is_lost);
        (void)uv_run(&node->served->loop, UV_RUN_ONCE);
    }
}

void served_run_until_lost(const struct served_node *node) {
    while (!node->is_lost) {
        (void)uv_run(&node->served->loop, UV_RUN_ONCE);
    }
}

void served_nodes_close(struct served_node *nodes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        native_connection_close(nodes[i].session);
    }
}

void served_form(struct served *served, struct served_node nodes[2], const struct secret *secret,
                 const struct tls_context *tls) {
    for (unsigned i = 0; i < 2; i++) {
        served_node_open(served, &nodes[i], i, secret, tls);
    }
    served_run_until_heard(&nodes[0], COORDINATOR_WORLD, 1);
    served_run_until_heard(&nodes[1], COORDINATOR_WORLD, 1);
}

void served_expect_unharmed(struct served *served, struct served_node nodes[2]) {
    const struct coordinator_message failed = {.kind = COORDINATOR_FAILED, .text = kv_slice_text("still served")};
    assert_int_equal(nodes[1].heard[COORDINATOR_CHANGE], 0);
    assert_int_equal(native_connection_send(nodes[0].session, &failed), 0);
    served_run_until_heard(&nodes[1], COORDINATOR_CHANGE, 1);
    assert_int_equal(served_member_count(served), 2);
    assert_false(nodes[0].is_lost || nodes[1].is_lost);
}

/* ---- callers ---- */

int served_call(const struct served *served) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    int rc = connect(fd, (const struct sockaddr *)&served->address, sizeof served->address);
    assert_true(rc == 0 || errno == EINPROGRESS); /* the backlog takes it */
    return fd;
}

size_t served_receive(struct served *served, int fd, uint8_t *bytes, size_t size) {
    for (;;) {
        ssize_t got = recv(fd, bytes, size, 0);
        if (got > 0) {
            return (size_t)got;
        }
        if (got == 0 || errno == ECONNRESET || errno == EPIPE) {
            return 0;
        }
        assert_true(errno == EAGAIN || errno == ENOTCONN);
        struct pollfd fds[2] = {{.fd = uv_backend_fd(&served->loop), .events = POLLIN}, {.fd = fd, .events = POLLIN}};
        assert_true(poll(fds, 2, uv_backend_timeout(&served->loop)) >= 0);
        (void)uv_run(&served->loop, UV_RUN_NOWAIT);
    }
}

void served_expect_end(struct served *served, int fd) {
    uint8_t bytes[4096];
    while (served_receive(served, fd, bytes, sizeof bytes) > 0) {
    }
    (void)close(fd);
}
