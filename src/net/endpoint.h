/* Rendezvous endpoints ("host[:port]"), and turning names into numeric addresses once. */
#ifndef NET_ENDPOINT_H
#define NET_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "net/range.h"

#define NET_HOST_MAX 256        /* bytes of a host name, terminator included */
#define NET_ADDRESS_TEXT_MAX 64 /* "[v6%scope]:port" and terminator */
#define NET_ADDRESSES_MAX 16    /* addresses kept of one name */

struct net_endpoint {
    char host[NET_HOST_MAX]; /* without brackets */
    int32_t port;            /* -1: none given */
};

/* Parses `text` by torchrun's rules: blanks stripped, empty = localhost, "[v6]:port", else the last colon splits.
 * MUSTER_EINVAL with a sentence that quotes the text. */
int net_endpoint_parse(const char *text, struct net_endpoint *out);

#define NET_ENDPOINTS_MAX 9 /* of one list */

struct net_endpoint_list {
    struct net_endpoint list[NET_ENDPOINTS_MAX]; /* with ports */
    size_t count;                                /* > 0 */
};

/* Parses "host:port,host:port"; `default_port` where none is given. MUSTER_EINVAL with a sentence: one that is none, an
 * empty one among several, one that is there twice, too many. */
int net_endpoint_list_parse(const char *text, uint16_t default_port, struct net_endpoint_list *out);

struct net_address {
    struct sockaddr_storage sockaddr;
    socklen_t len;
};

struct net_addresses {
    struct net_address list[NET_ADDRESSES_MAX];
    size_t count;
};

/* Numeric literals and "localhost" (both loopback addresses) only: no resolver is asked.
 * MUSTER_ERESOLVE when `host` is another name. */
int net_resolve_numeric(const char *host, uint16_t port, struct net_addresses *out);

/* The same for any name. BLOCKS in the system resolver: call it before the loop runs, or on a thread.
 * MUSTER_ERESOLVE with the resolver's reason. */
int net_resolve(const char *host, uint16_t port, struct net_addresses *out);

/* "10.0.0.1:29400", "[::1]:29400"; a V4-mapped address prints as IPv4. Returns `out`. */
const char *net_address_format(const struct sockaddr *address, char out[NET_ADDRESS_TEXT_MAX]);
/* The same without port and brackets, for MASTER_ADDR. */
const char *net_address_host(const struct sockaddr *address, char out[NET_ADDRESS_TEXT_MAX]);

/* The same as 16 bytes, without the port; zeros for other kinds of sockets. */
void net_address_key(const struct sockaddr *address, struct net_address_key *out);

bool net_address_is_loopback(const struct sockaddr *address);
/* May this machine bind the address? Tries it, on port 0. */
bool net_address_is_local(const struct sockaddr *address);
/* The first of them that this machine may bind; NULL: none. Borrowed from `addresses`. */
const struct sockaddr *net_addresses_first_local(const struct net_addresses *addresses);
bool net_address_equal(const struct sockaddr *a, const struct sockaddr *b); /* with the port */
uint16_t net_address_port(const struct sockaddr *address);
void net_address_set_port(struct sockaddr *address, uint16_t port);

#endif
