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

/* The first of `named` that is this machine's, else loopback's or an interface's, which lie in `room` then. */
static const struct sockaddr *find_local(const struct net_addresses *named, struct net_addresses room[2]) {
    char text[NET_ADDRESS_TEXT_MAX];
    const struct sockaddr *local = net_addresses_first_local(named);
    if (!local) {
        (void)net_resolve_numeric("localhost", 0, &room[0]);
        local = net_addresses_first_local(&room[0]);
    }
    if (!local) { /* rare, and it takes longest to ask */
        worker_store_own_address(text);
        (void)net_resolve_numeric(text, 0, &room[1]);
        local = net_addresses_first_local(&room[1]);
    }
    return local ? local : (const struct sockaddr *)&room[0].list[0].sockaddr; /* whose error says what is wrong */
}

void store_host_own_address(const struct kv_server *server, const struct net_addresses *named,
                            struct net_address *out) {
    struct net_addresses room[2];
    const struct sockaddr *local = kv_server_address(server);
    if (!net_address_is_loopback(local)) {
        local = find_local(named, room);
    }
    *out = (struct net_address){.len = net_sockaddr_len(local)};
    memcpy(&out->sockaddr, local, out->len);
    net_address_set_port((struct sockaddr *)&out->sockaddr, kv_server_port(server));
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

static int open_at(uv_loop_t *loop, const struct net_addresses *where, struct kv_server_options options,
                   struct kv_server **out) {
    const struct sockaddr *addresses[NET_ADDRESSES_MAX];
    for (size_t i = 0; i < where->count; i++) {
        addresses[i] = (const struct sockaddr *)&where->list[i].sockaddr;
    }
    options.addresses = addresses;
    options.address_count = where->count;
    return kv_server_create(loop, &options, out);
}

int store_host_open(uv_loop_t *loop, const struct net_addresses *loopback, uint16_t port,
                    struct kv_server_options options, struct kv_server **out) {
    if (loopback) { /* a host may have but one of 127.0.0.1 and ::1 */
        options.skips_absent = true;
        return open_at(loop, loopback, options, out);
    }
    struct net_addresses everywhere;
    (void)net_resolve_numeric("::", port, &everywhere); /* takes IPv4 as well */
    int rc = open_at(loop, &everywhere, options, out);
    if (rc == MUSTER_ESYSTEM && is_absent(errno)) {
        (void)net_resolve_numeric("0.0.0.0", port, &everywhere);
        rc = open_at(loop, &everywhere, options, out);
    }
    return rc;
}
