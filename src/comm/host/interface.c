/* Parsing the wish for interfaces, choosing among them, and asking the kernel; see interface.h. */
#include "comm/host/interface.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "net/socket.h"

_Static_assert(INTERFACE_NAME_MAX == IF_NAMESIZE, "the kernel's limit");

/* ---- the wish ---- */

static int family_parse(const char *family, int *out) {
    *out = AF_UNSPEC;
    if (!family || !*family) {
        return 0;
    }
    if (strcmp(family, "AF_INET") != 0 && strcmp(family, "AF_INET6") != 0) {
        return status_fail(MUSTER_EINVAL, "the socket family '%s' is neither AF_INET nor AF_INET6", family);
    }
    *out = strcmp(family, "AF_INET") == 0 ? AF_INET : AF_INET6;
    return 0;
}

static int name_add(struct interface_wish *wish, const char *name, size_t length) {
    if (length == 0) {
        return 0;
    }
    if (length >= INTERFACE_NAME_MAX) {
        return status_fail(MUSTER_EINVAL, "'%.*s...' is longer than the name of a network interface can be",
                           INTERFACE_NAME_MAX, name);
    }
    if (wish->count == INTERFACE_PATTERNS_MAX) {
        return status_fail(MUSTER_EINVAL, "more than %d names of network interfaces", INTERFACE_PATTERNS_MAX);
    }
    memcpy(wish->names[wish->count], name, length);
    wish->names[wish->count++][length] = '\0';
    return 0;
}

int interface_wish_parse(const char *names, const char *family, struct interface_wish *out) {
    memset(out, 0, sizeof *out);
    int result = family_parse(family, &out->family);
    const char *at = names ? names : "";
    if (*at == '^') {
        out->excluded = true;
        at++;
    }
    if (*at == '=') {
        out->exact = true;
        at++;
    }
    while (result == 0) {
        size_t length = strcspn(at, ",");
        result = name_add(out, at, length);
        if (at[length] == '\0') {
            break;
        }
        at += length + 1;
    }
    return result;
}

int interface_wish_from_env(struct interface_wish *out) {
    static const char *const name_variables[] = {"MUSTER_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"};
    static const char *const family_variables[] = {"MUSTER_SOCKET_FAMILY", "NCCL_SOCKET_FAMILY"};
    const char *names = NULL, *names_variable = NULL, *family = NULL, *family_variable = NULL;
    for (size_t i = 0; i < sizeof name_variables / sizeof *name_variables && (!names || !*names); i++) {
        names = getenv(name_variables[i]);
        names_variable = name_variables[i];
    }
    for (size_t i = 0; i < sizeof family_variables / sizeof *family_variables && (!family || !*family); i++) {
        family = getenv(family_variables[i]);
        family_variable = family_variables[i];
    }
    int code = interface_wish_parse(names, family, out);
    return code ? status_prefix(code, "%s, %s", names && *names ? names_variable : "no interfaces named",
                                family && *family ? family_variable : "any family")
                : 0;
}

bool interface_wish_allows(const struct interface_wish *wish, const char *name, int family) {
    if (wish->family != AF_UNSPEC && wish->family != family) {
        return false;
    }
    bool named = wish->count == 0;
    for (uint32_t i = 0; i < wish->count && !named; i++) {
        named = wish->exact ? strcmp(name, wish->names[i]) == 0 : str_has_prefix(name, wish->names[i]);
    }
    return wish->count == 0 || named != wish->excluded;
}

/* ---- the choice ---- */

enum rank { REAL, BRIDGE, LOOPBACK, RANK_COUNT };

bool interface_is_bridge(const char *name) {
    static const char *const bridges[] = {"docker", "virbr", "br-", "veth", "cni", "flannel", "lxc"};
    bool is_bridge = false;
    for (size_t i = 0; i < sizeof bridges / sizeof *bridges && !is_bridge; i++) {
        is_bridge = str_has_prefix(name, bridges[i]);
    }
    return is_bridge;
}

static enum rank rank_of(const struct interface_address *address) {
    if (net_address_is_loopback((const struct sockaddr *)&address->address.sockaddr)) {
        return LOOPBACK;
    }
    return interface_is_bridge(address->name) ? BRIDGE : REAL;
}

size_t interface_choose(const struct interface_wish *wish, const struct interface_address *all, size_t all_count,
                        struct interface_address *out) {
    size_t count = 0;
    for (int rank = REAL; rank < RANK_COUNT; rank++) {
        if (rank == LOOPBACK && count > 0 && wish->count == 0) {
            break;
        }
        for (size_t i = 0; i < all_count && count < INTERFACE_CHOSEN_MAX; i++) {
            if ((int)rank_of(&all[i]) == rank &&
                interface_wish_allows(wish, all[i].name, all[i].address.sockaddr.ss_family)) {
                out[count++] = all[i];
            }
        }
    }
    return count;
}

/* ---- the machine ---- */

static bool is_usable(const struct ifaddrs *entry) {
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP)) {
        return false;
    }
    if (entry->ifa_addr->sa_family == AF_INET6) {
        return !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)entry->ifa_addr)->sin6_addr);
    }
    return entry->ifa_addr->sa_family == AF_INET;
}

int interface_list(struct interface_address out[INTERFACES_MAX], size_t *out_count) {
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0) {
        return status_fail_errno(errno, "ask for the network interfaces");
    }
    size_t count = 0;
    for (const struct ifaddrs *entry = list; entry && count < INTERFACES_MAX; entry = entry->ifa_next) {
        if (is_usable(entry) && str_copy(out[count].name, sizeof out[count].name, entry->ifa_name)) {
            memset(&out[count].address, 0, sizeof out[count].address);
            out[count].address.len = net_sockaddr_len(entry->ifa_addr);
            memcpy(&out[count].address.sockaddr, entry->ifa_addr, out[count].address.len);
            net_address_set_port((struct sockaddr *)&out[count].address.sockaddr, 0);
            count++;
        }
    }
    freeifaddrs(list);
    *out_count = count;
    return 0;
}

int interface_listen(int family, int *out_fd, uint16_t *out_port) {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    int fd = -1, code = MUSTER_ESYSTEM;
    if (family != AF_INET) {
        code = net_socket_listen((const struct sockaddr *)&v6, family == AF_INET6, &fd);
    }
    if (code != 0 && family != AF_INET6) { /* a kernel without IPv6 */
        code = net_socket_listen((const struct sockaddr *)&v4, false, &fd);
    }
    if (code != 0) {
        return code;
    }
    struct sockaddr_storage own;
    socklen_t len = sizeof own;
    if (getsockname(fd, (struct sockaddr *)&own, &len) != 0) {
        code = status_fail_errno(errno, "ask for the port of a socket");
        (void)close(fd);
        return code;
    }
    *out_fd = fd;
    *out_port = net_address_port((const struct sockaddr *)&own);
    return 0;
}

int interface_listen_on_loopback(int family, int *out_fd, struct net_address *out) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct net_address own;
    socklen_t len = sizeof own.sockaddr;
    int fd = -1, code = MUSTER_ESYSTEM;
    if (family != AF_INET6) {
        code = net_socket_listen((const struct sockaddr *)&v4, false, &fd);
    }
    if (code != 0 && family != AF_INET) {
        code = net_socket_listen((const struct sockaddr *)&v6, true, &fd);
    }
    if (code != 0) {
        return code;
    }
    memset(&own, 0, sizeof own);
    if (getsockname(fd, (struct sockaddr *)&own.sockaddr, &len) != 0) {
        code = status_fail_errno(errno, "ask for the port of a socket");
        (void)close(fd);
        return code;
    }
    own.len = len;
    *out_fd = fd;
    *out = own;
    return 0;
}

int interface_route(const struct sockaddr *peer, struct net_address *out) {
    char text[NET_ADDRESS_TEXT_MAX];
    /* Connecting a datagram socket sends nothing: it only asks the routing table. */
    int fd = socket(peer->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return status_fail_errno(errno, "open a socket for %s", net_address_format(peer, text));
    }
    memset(out, 0, sizeof *out);
    out->len = sizeof out->sockaddr;
    int result = 0;
    if (connect(fd, peer, net_sockaddr_len(peer)) != 0 ||
        getsockname(fd, (struct sockaddr *)&out->sockaddr, &out->len) != 0) {
        result = status_fail_errno(errno, "find a route to %s", net_address_format(peer, text));
    } else {
        net_address_set_port((struct sockaddr *)&out->sockaddr, 0);
    }
    (void)close(fd);
    return result;
}

void interface_numbers(const struct interface_address *chosen, size_t count, uint8_t *out) {
    uint8_t next = 0;
    for (size_t i = 0; i < count; i++) {
        size_t same = 0;
        while (strcmp(chosen[same].name, chosen[i].name) != 0) {
            same++;
        }
        out[i] = same < i ? out[same] : next++;
    }
}

static bool same_host(const struct net_address *a, const struct net_address *b) {
    struct net_address_key keys[2];
    net_address_key((const struct sockaddr *)&a->sockaddr, &keys[0]);
    net_address_key((const struct sockaddr *)&b->sockaddr, &keys[1]);
    return memcmp(&keys[0], &keys[1], sizeof keys[0]) == 0;
}

/* Which of our addresses leads to the peer's; UINT8_MAX: none of those that may be used. */
static uint8_t own_address(const struct interface_addresses *own, const struct net_address *peer) {
    struct net_address local;
    if (interface_route((const struct sockaddr *)&peer->sockaddr, &local) != 0 || same_host(&local, peer)) {
        return UINT8_MAX; /* there is no route, or it is an address of our own: bridges have the same on many hosts */
    }
    for (size_t i = 0; i < own->count; i++) {
        if (same_host(&local, &own->addresses[i])) {
            return (uint8_t)i;
        }
    }
    return UINT8_MAX;
}

size_t interface_pairs(const struct interface_addresses *own, const struct interface_addresses *peer,
                       struct interface_pair out[INTERFACE_CHOSEN_MAX]) {
    uint32_t ours = 0, theirs = 0; /* interfaces that are in a pair, as bits */
    size_t count = 0;
    for (size_t i = 0; i < peer->count && count < INTERFACE_CHOSEN_MAX; i++) {
        uint32_t their = 1u << peer->interfaces[i];
        uint8_t at = theirs & their ? UINT8_MAX : own_address(own, &peer->addresses[i]);
        if (at != UINT8_MAX && !(ours >> own->interfaces[at] & 1)) {
            ours |= 1u << own->interfaces[at];
            theirs |= their;
            out[count++] = (struct interface_pair){at, (uint8_t)i};
        }
    }
    return count;
}
