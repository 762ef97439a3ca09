/* Where a store listens; see store_host.h. */
#include "rendezvous/round/store_host.h"

#include <errno.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "net/socket.h"
#include "rendezvous/round/worker_store.h"

bool store_host_are_loopback(const struct net_addresses *addresses) {
    for (size_t i = 0; i < addresses->count; i++) {
        if (!net_address_is_loopback((const struct sockaddr *)&addresses->list[i].sockaddr)) {
            return false;
        }
    }
    return addresses->count > 0;
}

bool store_host_is_loopback(const char *host) {
    struct net_addresses addresses;
    return net_resolve_numeric(host, 0, &addresses) == MUSTER_OK && store_host_are_loopback(&addresses);
}

void store_host_own_address(const struct net_addresses *named, struct net_address *out) {
    struct net_addresses loopback, interface;
    char text[NET_ADDRESS_TEXT_MAX];
    (void)net_resolve_numeric("localhost", 0, &loopback);
    const struct sockaddr *local = net_addresses_first_local(named);
    local = local ? local : net_addresses_first_local(&loopback);
    if (!local) { /* rare, and it takes longest to ask */
        worker_store_own_address(text);
        (void)net_resolve_numeric(text, 0, &interface);
        local = net_addresses_first_local(&interface);
    }
    local = local ? local : (const struct sockaddr *)&loopback.list[0].sockaddr; /* whose error says what is wrong */
    *out = (struct net_address){.len = net_sockaddr_len(local)};
    memcpy(&out->sockaddr, local, out->len);
}

/* It is loopback then, on each node. */
static void hint_of_none(const char *own, uint16_t port, bool is_served_here, char out[STORE_HOST_HINT_SIZE]) {
    (void)str_format(
        out, STORE_HOST_HINT_SIZE,
        is_served_here ? "--rdzv-endpoint is not given: nodes on other hosts cannot find this job, and would each make "
                         "one of their own. Give all nodes the same one, such as --rdzv-endpoint=%s:%u for this host"
                       : "--rdzv-endpoint is not given: this node looks for the job on its own host alone (%s), port "
                         "%u. Give all nodes the --rdzv-endpoint of the host that serves",
        own, (unsigned)port);
}

const char *store_host_hint(const char *host, uint16_t port, bool is_served_here, char out[STORE_HOST_HINT_SIZE]) {
    char own[NET_ADDRESS_TEXT_MAX], address[NET_ADDRESS_TEXT_MAX + 2];
    worker_store_own_address(own);
    const bool is_v6 = strchr(own, ':') != NULL;
    (void)str_format(address, sizeof address, "%s%s%s", is_v6 ? "[" : "", own, is_v6 ? "]" : "");
    out[0] = '\0';
    if (store_host_is_loopback(own)) {
        return out;
    }
    if (!host) {
        hint_of_none(address, port, is_served_here, out);
    } else if (is_served_here) {
        (void)str_format(out, STORE_HOST_HINT_SIZE,
                         "%.64s leads each host to itself: this node serves on all its addresses, and nodes on other "
                         "hosts find it at its name, or at %s:%u",
                         host, address, (unsigned)port);
    } else {
        (void)str_format(out, STORE_HOST_HINT_SIZE,
                         "%.64s leads each host to itself: give this node the name or address of the host that serves, "
                         "if that is another one",
                         host);
    }
    return out;
}

/* Does the kernel lack this kind of address? */
static bool is_absent(int error_number) {
    return error_number == EAFNOSUPPORT || error_number == EADDRNOTAVAIL;
}

/* A host may have but one of 127.0.0.1 and ::1. With none of them the kernel says so. */
static void keep_local(const struct net_addresses *all, struct net_addresses *out) {
    out->count = 0;
    for (size_t i = 0; i < all->count; i++) {
        if (net_address_is_local((const struct sockaddr *)&all->list[i].sockaddr)) {
            out->list[out->count++] = all->list[i];
        }
    }
    if (out->count == 0) {
        *out = *all;
    }
}

int store_host_open(uv_loop_t *loop, const struct net_addresses *loopback, uint16_t port,
                    struct kv_server_options options, struct kv_server **out) {
    struct net_addresses everywhere, here;
    const struct net_addresses *where = &here;
    if (loopback) {
        keep_local(loopback, &here);
    } else {
        struct net_addresses v4;
        (void)net_resolve_numeric("::", port, &everywhere); /* takes IPv4 as well */
        (void)net_resolve_numeric("0.0.0.0", port, &v4);
        everywhere.list[everywhere.count++] = v4.list[0];
        where = &everywhere;
    }
    const struct sockaddr *addresses[NET_ADDRESSES_MAX];
    for (size_t i = 0; i < where->count; i++) {
        addresses[i] = (const struct sockaddr *)&where->list[i].sockaddr;
    }
    options.addresses = addresses;
    options.address_count = loopback ? where->count : 1;
    int rc = kv_server_create(loop, &options, out);
    if (rc == MUSTER_ESYSTEM && is_absent(errno) && !loopback) {
        options.addresses = addresses + 1;
        options.address_count = 1;
        rc = kv_server_create(loop, &options, out);
    }
    return rc;
}
