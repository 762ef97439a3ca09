/* A member's connection was reset; see coordinator_server_impl.h. Its process may have ended, or something on the way
 * has forgotten the connection. Its machine says which: nobody listens any more at the port of its workers' store, or
 * somebody does. Who does not answer is silent. */
#include <stdlib.h>

#include "base/status.h"
#include "net/endpoint.h"
#include "rendezvous/coordinator/coordinator_server_impl.h"

struct coordinator_knock {
    uv_tcp_t tcp;
    uv_connect_t request;
    struct coordinator_server *server;
    struct agent *agent; /* NULL: nobody wants to know any more */
    coordinator_knock_refused_fn *refused;
};

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

void coordinator_knock_stop(struct agent *agent) {
    struct coordinator_knock *knock = agent->knock;
    if (knock) {
        agent->knock = NULL;
        knock->agent = NULL;
        uv_close((uv_handle_t *)&knock->tcp, on_closed);
    }
}

static void on_answer(uv_connect_t *request, int status) {
    struct coordinator_knock *knock = request->data;
    struct coordinator_server *server = knock->server;
    struct agent *agent = knock->agent;
    coordinator_knock_refused_fn *refused = knock->refused;
    if (!agent) {
        return;
    }
    coordinator_knock_stop(agent);
    if (status == UV_ECONNREFUSED) {
        refused(server, agent);
    }
}

/* Where the member's process listens. False: at no address that can be asked without a name server. */
static bool find_address(const struct coordinator_member *member, struct net_addresses *out) {
    char host[COORDINATOR_NAME_BYTES_MAX + 1];
    uint16_t port = coordinator_member_port(member, host);
    return port > 0 && net_resolve_numeric(host, port, out) == MUSTER_OK && out->count > 0;
}

bool coordinator_knock_begin(struct coordinator_server *server, struct agent *agent,
                             coordinator_knock_refused_fn *refused) {
    struct net_addresses addresses = {.count = 0};
    struct coordinator_knock *knock = find_address(agent->member, &addresses) ? calloc(1, sizeof *knock) : NULL;
    if (!knock) {
        return false;
    }
    knock->server = server;
    (void)uv_tcp_init(server->loop, &knock->tcp);
    knock->tcp.data = knock->request.data = knock;
    if (uv_tcp_connect(&knock->request, &knock->tcp, (const struct sockaddr *)&addresses.list[0].sockaddr, on_answer)) {
        uv_close((uv_handle_t *)&knock->tcp, on_closed);
        return false;
    }
    knock->agent = agent;
    knock->refused = refused;
    agent->knock = knock;
    return true;
}
