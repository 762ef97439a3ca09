/* The workers' store and this machine's address; see worker_store.h. */
#include "rendezvous/round/worker_store.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/round/store_host.h"

#include <muster/status.h>

/* The first of `at` is loopback's; the given address follows if it is another one. False: it is a name. */
static bool add_local_addr(struct net_addresses *at, const char *local_addr) {
    struct net_addresses given;
    if (!local_addr) {
        return true;
    }
    if (net_resolve_numeric(local_addr, 0, &given) != MUSTER_OK) {
        return false;
    }
    bool is_localhost = given.count > 1; /* two addresses, of which the store has the first */
    if (!is_localhost && strcmp(local_addr, "127.0.0.1") != 0) {
        at->list[at->count++] = given.list[0];
    }
    return true;
}

/* On a host that has IPv6 alone ::1 takes the place of 127.0.0.1. False: it is none. */
static bool move_to_v6(struct net_addresses *at) {
    struct net_addresses both;
    (void)net_resolve_numeric("localhost", 0, &both);
    const struct sockaddr *local = net_addresses_first_local(&both);
    bool is_second = local == (const struct sockaddr *)&both.list[1].sockaddr;
    at->list[0] = both.list[is_second];
    return is_second;
}

static int serve(uv_loop_t *loop, const struct net_addresses *at, const struct worker_store_guard *guard,
                 struct kv_server **out) {
    const struct sockaddr *addresses[2];
    for (size_t i = 0; i < at->count; i++) {
        addresses[i] = (const struct sockaddr *)&at->list[i].sockaddr;
    }
    struct kv_server_options options = {.addresses = addresses,
                                        .address_count = at->count,
                                        .is_guarded = guard != NULL,
                                        .guest = guard ? guard->admission : NULL,
                                        .allowed = guard ? guard->allowed : NULL};
    return kv_server_create(loop, &options, out);
}

int worker_store_open(uv_loop_t *loop, struct worker_store_place place, const struct worker_store_guard *guard,
                      struct kv_server **out) {
    struct net_addresses at;
    (void)net_resolve_numeric("127.0.0.1", 0, &at);
    bool everywhere = !place.loopback || !add_local_addr(&at, place.local_addr);
    if (everywhere) {
        (void)net_resolve_numeric("::", 0, &at);
    }
    int rc = serve(loop, &at, guard, out);
    if (rc != MUSTER_OK && everywhere) { /* the kernel may have no IPv6 */
        (void)net_resolve_numeric("0.0.0.0", 0, &at);
        rc = serve(loop, &at, guard, out);
    } else if (rc != MUSTER_OK && move_to_v6(&at)) {
        rc = serve(loop, &at, guard, out);
    }
    if (rc != MUSTER_OK && at.count > 1) { /* programs that meet elsewhere need not care */
        log_warning(
            "--local-addr=%s: nothing can listen there (%s): workers that connect to this MASTER_ADDR will fail",
            place.local_addr, muster_detail());
        at.count = 1;
        rc = serve(loop, &at, guard, out);
    }
    return rc == MUSTER_OK ? rc : status_prefix(rc, "the workers' store cannot be hosted");
}

int worker_store_free_port(uv_loop_t *loop, struct worker_store_place place, uint16_t *out) {
    struct kv_server *probe;
    int rc = worker_store_open(loop, place, NULL, &probe);
    if (rc == MUSTER_OK) {
        *out = kv_server_port(probe);
        kv_server_close(probe);
    }
    return rc;
}

int worker_store_prepare(uv_loop_t *loop, struct worker_store_place place, bool is_shared,
                         const struct worker_store_guard *guard, struct kv_server **store, uint16_t *port) {
    if (!is_shared) {
        return worker_store_free_port(loop, place, port);
    }
    if (*store) {
        kv_server_reset(*store);
        return MUSTER_OK;
    }
    int rc = worker_store_open(loop, place, guard, store);
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
