/* The rendezvous port: can it be served here, does it answer elsewhere, and who is there; see gather_impl.h. Runs in a
 * child process, so that waiting here keeps nobody. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/status.h"
#include "base/str.h"
#include "doctor/gather_impl.h"
#include "net/event_loop.h"
#include "net/socket.h"
#include "rendezvous/member/native_connection.h"
#include "store/client/kv_client.h"

enum { CONNECT_MS = 1500, ASK_MS = 1000 };

/* ---- who is there ---- */

struct asking {
    uv_loop_t *loop;
    struct kv_client *client;
    struct native_connection *session;
    uv_timer_t timer;
    bool is_store, is_muster_store, is_coordinator;
};

static void on_too_late(uv_timer_t *timer) {
    uv_stop(timer->loop);
}

static void on_store(void *ctx, int status) {
    struct asking *asking = ctx;
    asking->is_store = status == 0;
    asking->is_muster_store = asking->is_store && kv_client_server_is_muster(asking->client);
    uv_stop(asking->loop);
}

/* Any frame in answer tells: the report, or why there is none. */
static void on_frame(void *ctx, const struct coordinator_message *message) {
    struct asking *asking = ctx;
    (void)message;
    asking->is_coordinator = true;
    uv_stop(asking->loop);
}

static void on_open(void *ctx) {
    struct asking *asking = ctx;
    struct coordinator_message message = {.kind = COORDINATOR_STATUS};
    if (native_connection_send(asking->session, &message) != 0) {
        uv_stop(asking->loop);
    }
}

static void on_lost(void *ctx, int status) {
    struct asking *asking = ctx;
    (void)status;
    uv_stop(asking->loop);
}

static void wait_for_answer(struct asking *asking) {
    (void)uv_timer_start(&asking->timer, on_too_late, ASK_MS, 0);
    (void)uv_run(asking->loop, UV_RUN_DEFAULT);
}

/* First as a client of the store, then as an agent of the native backend. */
static enum doctor_peer identify(const struct sockaddr *address) {
    static const struct native_connection_callbacks callbacks = {on_open, on_frame, on_lost};
    uv_loop_t loop;
    struct asking asking = {.loop = &loop};
    if (event_loop_init(&loop) != 0) {
        return DOCTOR_PEER_OTHER;
    }
    (void)uv_timer_init(&loop, &asking.timer);
    if (kv_client_create(&loop, address, ASK_MS, on_store, &asking, &asking.client) == 0) {
        wait_for_answer(&asking);
        kv_client_close(asking.client);
    }
    /* A job with a secret lets no stranger use its store, but says so to one who asks the coordinator. */
    if (asking.is_store == asking.is_muster_store &&
        native_connection_open(&loop, address, NULL, &callbacks, &asking, &asking.session) == 0) {
        wait_for_answer(&asking);
        native_connection_close(asking.session);
    }
    uv_close((uv_handle_t *)&asking.timer, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    return asking.is_coordinator    ? DOCTOR_PEER_COORDINATOR
           : asking.is_muster_store ? DOCTOR_PEER_MUSTER_STORE
           : asking.is_store        ? DOCTOR_PEER_STORE
                                    : DOCTOR_PEER_OTHER;
}

/* ---- the port ---- */

static void note_errno(struct doctor_port *port, enum doctor_port_state state, int error_number) {
    port->state = state;
    (void)str_format(port->reason, sizeof port->reason, "%s", strerror(error_number));
}

static void note_served(struct doctor_port *port, const struct sockaddr *address) {
    port->state = DOCTOR_PORT_SERVED;
    port->peer = identify(address);
}

static void try_here(struct doctor_port *port, const struct sockaddr *address) {
    int fd = -1;
    if (net_socket_listen(address, true, &fd) == 0) {
        (void)close(fd);
        port->state = DOCTOR_PORT_FREE;
    } else if (errno == EADDRINUSE) {
        note_served(port, address);
    } else {
        note_errno(port, DOCTOR_PORT_FORBIDDEN, errno);
    }
}

/* 0 or an errno; ETIMEDOUT when nothing came. */
static int connect_once(const struct sockaddr *address) {
    int fd = -1;
    if (net_socket_connect(address, &fd) != 0) {
        return errno;
    }
    struct pollfd waiting = {.fd = fd, .events = POLLOUT};
    int error_number = poll(&waiting, 1, CONNECT_MS) == 1 ? net_socket_connect_result(fd) : ETIMEDOUT;
    (void)close(fd);
    return error_number;
}

static void try_there(struct doctor_port *port, const struct sockaddr *address) {
    int error_number = connect_once(address);
    if (error_number == 0) {
        note_served(port, address);
    } else if (error_number == ECONNREFUSED) {
        port->state = DOCTOR_PORT_REFUSED;
    } else if (error_number == ETIMEDOUT) {
        port->state = DOCTOR_PORT_SILENT;
    } else {
        note_errno(port, DOCTOR_PORT_UNREACHABLE, error_number);
    }
}

void doctor_ask_port(const struct aside_job *job) {
    const struct net_endpoint *endpoint = job->question;
    struct doctor_port *port = job->answer;
    struct net_addresses addresses;
    *port = (struct doctor_port){.port = (uint16_t)endpoint->port};
    (void)str_copy(port->host, sizeof port->host, endpoint->host);
    if (net_resolve(endpoint->host, port->port, &addresses) != 0) {
        return;
    }
    /* As the launcher does it: an address of this machine means that the store would be served here. */
    const struct sockaddr *address = (const struct sockaddr *)&addresses.list[0].sockaddr;
    for (size_t i = 0; i < addresses.count && !port->is_here; i++) {
        const struct sockaddr *candidate = (const struct sockaddr *)&addresses.list[i].sockaddr;
        port->is_here = net_address_is_local(candidate);
        address = port->is_here ? candidate : address;
    }
    (void)net_address_format(address, port->address);
    if (port->is_here) {
        try_here(port, address);
    } else {
        try_there(port, address);
    }
}
