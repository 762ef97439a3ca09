/* Where a store listens; see store_host.h. */
#include "rendezvous/round/store_host.h"

#include <errno.h>

#include "base/status.h"

static bool are_loopback(const struct net_addresses *addresses) {
    for (size_t i = 0; i < addresses->count; i++) {
        if (!net_address_is_loopback((const struct sockaddr *)&addresses->list[i].sockaddr)) {
            return false;
        }
    }
    return addresses->count > 0;
}

bool store_host_is_loopback(const char *host) {
    struct net_addresses addresses;
    return net_resolve_numeric(host, 0, &addresses) == MUSTER_OK && are_loopback(&addresses);
}

const struct sockaddr *store_host_first_local(const struct net_addresses *addresses) {
    for (size_t i = 0; i < addresses->count; i++) {
        const struct sockaddr *address = (const struct sockaddr *)&addresses->list[i].sockaddr;
        if (net_address_is_local(address)) {
            return address;
        }
    }
    return NULL;
}

/* Does the kernel lack this kind of address? */
static bool is_absent(int error_number) {
    return error_number == EAFNOSUPPORT || error_number == EADDRNOTAVAIL;
}

int store_host_open(uv_loop_t *loop, const struct net_addresses *loopback, uint16_t port,
                    struct kv_server_options options, struct kv_server **out) {
    struct net_addresses everywhere;
    const struct net_addresses *where = loopback;
    if (!loopback) {
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
    options.address_count = loopback ? loopback->count : 1;
    int rc = kv_server_create(loop, &options, out);
    if (rc == MUSTER_ESYSTEM && is_absent(errno) && where->count > 1) {
        options.addresses = loopback ? addresses : addresses + 1;
        options.address_count = 1;
        rc = kv_server_create(loop, &options, out);
    }
    return rc;
}
