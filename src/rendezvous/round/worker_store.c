/* The workers' store and this machine's address; see worker_store.h. */
#include "rendezvous/round/worker_store.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

int worker_store_open(uv_loop_t *loop, bool loopback, const struct worker_store_guard *guard, struct kv_server **out) {
    static const char *const hosts[2][2] = {{"::", "0.0.0.0"}, {"127.0.0.1", "127.0.0.1"}};
    int rc = MUSTER_OK;
    for (int i = 0; i < 2; i++) {
        struct net_addresses at;
        (void)net_resolve_numeric(hosts[loopback][i], 0, &at);
        const struct sockaddr *address = (const struct sockaddr *)&at.list[0].sockaddr;
        struct kv_server_options options = {.addresses = &address,
                                            .address_count = 1,
                                            .is_guarded = guard != NULL,
                                            .guest = guard ? guard->admission : NULL,
                                            .allowed = guard ? guard->allowed : NULL};
        rc = kv_server_create(loop, &options, out);
        if (rc == MUSTER_OK || loopback) {
            break; /* the second host is for kernels without IPv6 */
        }
    }
    return rc == MUSTER_OK ? rc : status_prefix(rc, "the workers' store cannot be hosted");
}

int worker_store_free_port(uv_loop_t *loop, bool loopback, uint16_t *out) {
    struct kv_server *probe;
    int rc = worker_store_open(loop, loopback, NULL, &probe);
    if (rc == MUSTER_OK) {
        *out = kv_server_port(probe);
        kv_server_close(probe);
    }
    return rc;
}

int worker_store_prepare(uv_loop_t *loop, bool loopback, bool is_shared, const struct worker_store_guard *guard,
                         struct kv_server **store, uint16_t *port) {
    if (!is_shared) {
        return worker_store_free_port(loop, loopback, port);
    }
    if (*store) {
        kv_server_reset(*store);
        return MUSTER_OK;
    }
    int rc = worker_store_open(loop, loopback, guard, store);
    if (rc == MUSTER_OK) {
        *port = kv_server_port(*store);
    }
    return rc;
}

static bool is_global_v6(const struct sockaddr *address) {
    struct sockaddr_in6 v6;
    if (address->sa_family != AF_INET6) {
        return false;
    }
    memcpy(&v6, address, sizeof v6);
    return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

void worker_store_own_address(char out[NET_ADDRESS_TEXT_MAX]) {
    uv_interface_address_t *list = NULL;
    int count = 0;
    (void)str_copy(out, NET_ADDRESS_TEXT_MAX, "127.0.0.1");
    if (uv_interface_addresses(&list, &count) != 0) {
        return;
    }
    bool found = false;
    for (int want_v6 = 0; want_v6 < 2 && !found; want_v6++) {
        for (int i = 0; i < count && !found; i++) {
            const struct sockaddr *address = (const struct sockaddr *)&list[i].address;
            found = !list[i].is_internal && (want_v6 ? is_global_v6(address) : address->sa_family == AF_INET);
            if (found) {
                (void)net_address_host(address, out);
            }
        }
    }
    uv_free_interface_addresses(list, count);
}

void worker_store_told_address(const char *given, const struct sockaddr *connection, bool all_on_loopback, char *out,
                               size_t size) {
    char text[NET_ADDRESS_TEXT_MAX];
    if (given) {
        (void)str_copy(out, size, given);
        return;
    }
    if (connection && (all_on_loopback || !net_address_is_loopback(connection))) {
        (void)net_address_host(connection, text);
    } else {
        worker_store_own_address(text);
    }
    (void)str_copy(out, size, text);
}
