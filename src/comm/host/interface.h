/* Which network interfaces and addresses TCP between hosts may use: the user's wish in NCCL's syntax, matched against
 * what the machine has. The parser and the choice are pure; interface_list() asks the kernel. */
#ifndef COMM_INTERFACE_H
#define COMM_INTERFACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "net/endpoint.h"

#define INTERFACE_NAME_MAX 16 /* IFNAMSIZ */
#define INTERFACE_PATTERNS_MAX 32
#define INTERFACES_MAX 64      /* addresses looked at */
#define INTERFACE_CHOSEN_MAX 8 /* addresses told to peers */

/* "eth,ib": names that begin with one of these; "=eth0": exactly; "^docker,lo" none of these; "^=eth0". */
struct interface_wish {
    bool excluded; /* '^' */
    bool exact;    /* '=' */
    uint32_t count;
    char names[INTERFACE_PATTERNS_MAX][INTERFACE_NAME_MAX];
    int family; /* AF_UNSPEC: either */
};

/* names: NULL or "" is no wish; family: NULL, "", "AF_INET" or "AF_INET6". MUSTER_EINVAL with a sentence. */
int interface_wish_parse(const char *names, const char *family, struct interface_wish *out);
/* From MUSTER_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME; MUSTER_SOCKET_FAMILY, else
 * NCCL_SOCKET_FAMILY. */
int interface_wish_from_env(struct interface_wish *out);

/* One address of an interface that is up. */
struct interface_address {
    char name[INTERFACE_NAME_MAX];
    struct net_address address; /* port 0 */
};

bool interface_wish_allows(const struct interface_wish *wish, const char *name, int family);

/* Does the name tell that it connects containers of this machine (docker, virbr, br- ...)? */
bool interface_is_bridge(const char *name);

/* Those that the wish allows, best first: without a wish, real interfaces before bridges of containers (docker, virbr,
 * br-) before loopback; loopback only when there is nothing else. At most INTERFACE_CHOSEN_MAX. Returns how many. */
size_t interface_choose(const struct interface_wish *wish, const struct interface_address *all, size_t all_count,
                        struct interface_address *out);

/* The machine's: those that are up, IPv4 and IPv6, link-local IPv6 left out. MUSTER_ESYSTEM. */
int interface_list(struct interface_address out[INTERFACES_MAX], size_t *out_count);

/* Listens on all addresses of the family (AF_UNSPEC: of both, as far as the kernel has them), on a port of the kernel's
 * choice. MUSTER_ESYSTEM. */
int interface_listen(int family, int *out_fd, uint16_t *out_port);

/* Listens on loopback alone (AF_UNSPEC: of IPv4, if the kernel has that); others of this machine reach it at *out. */
int interface_listen_on_loopback(int family, int *out_fd, struct net_address *out);

/* A host's addresses, and which of its interfaces each belongs to, numbered from 0. */
struct interface_addresses {
    const struct net_address *addresses;
    const uint8_t *interfaces; /* below 32 */
    size_t count;
};

/* One of the own addresses, and one of the peer's that the kernel's route joins it with. */
struct interface_pair {
    uint8_t own, peer;
};

/* The interface of each address of `chosen`, whose interfaces are told apart by name. */
void interface_numbers(const struct interface_address *chosen, size_t count, uint8_t *out);

/* The pairs by which two hosts are joined, in the order of the peer's addresses: no interface is in two. At most
 * INTERFACE_CHOSEN_MAX. Asks the kernel for its routes. */
size_t interface_pairs(const struct interface_addresses *own, const struct interface_addresses *peer,
                       struct interface_pair out[INTERFACE_CHOSEN_MAX]);

/* The local address from which the kernel would send to `peer`: the route decides. MUSTER_ESYSTEM: no route. */
int interface_route(const struct sockaddr *peer, struct net_address *out);

#endif
