/* Endpoint parsing and name resolution; see endpoint.h. Owns no socket beyond the probe of net_address_is_local(). */
#include "net/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"

enum { PORT_DIGITS_MAX = 5, PORT_MAX = 65535 };

/* The port as torchrun reads it: one to five digits, below 65536. */
static bool port_parse(const char *text, int32_t *out) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > PORT_DIGITS_MAX || text[digits] != '\0') {
        return false;
    }
    long port = strtol(text, NULL, 10);
    *out = (int32_t)port;
    return port <= PORT_MAX;
}

static bool host_is_wellformed(const char *host) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-%";
    return host[0] != '\0' && host[strspn(host, allowed)] == '\0';
}

static bool is_ipv6(const char *text) {
    struct in6_addr address;
    char plain[INET6_ADDRSTRLEN];
    size_t len = strcspn(text, "%"); /* an interface may follow */
    return len < sizeof plain && str_format(plain, sizeof plain, "%.*s", (int)len, text) &&
           inet_pton(AF_INET6, plain, &address) == 1;
}

/* "fe80::1": splitting at the last colon would leave no address. ("fe80::1:29400" is split there, as torchrun does.) */
static bool lacks_brackets(const char *text) {
    const char *colon = strrchr(text, ':');
    char host[NET_HOST_MAX];
    return is_ipv6(text) && str_format(host, sizeof host, "%.*s", (int)(colon - text), text) && !is_ipv6(host);
}

/* Splits the stripped text in place into host and port text (NULL when none is given). */
static bool split(char *text, char **out_host, char **out_port) {
    *out_port = NULL;
    if (text[0] == '[') {
        char *close = strchr(text, ']');
        if (!close || (close[1] != '\0' && close[1] != ':')) {
            return false;
        }
        *out_host = text + 1;
        *out_port = close[1] == ':' ? close + 2 : NULL;
        *close = '\0';
        return true;
    }
    *out_host = text;
    char *colon = strrchr(text, ':');
    if (colon) {
        *colon = '\0';
        *out_port = colon + 1;
    }
    return true;
}

int net_endpoint_parse(const char *text, struct net_endpoint *out) {
    static const char blanks[] = " \t\r\n\v\f";
    char copy[NET_HOST_MAX + PORT_DIGITS_MAX + 4];
    const char *begin = text + strspn(text, blanks);
    if (!str_copy(copy, sizeof copy, begin)) {
        return status_fail(MUSTER_EINVAL, "the rendezvous endpoint '%.64s...' is longer than a host name can be",
                           begin);
    }
    for (size_t len = strlen(copy); len > 0 && strchr(blanks, copy[len - 1]); len--) {
        copy[len - 1] = '\0';
    }
    struct net_endpoint parsed = {.host = "localhost", .port = -1};
    if (copy[0] != '\0') {
        char *host;
        char *port;
        if (lacks_brackets(copy)) {
            return status_fail(MUSTER_EINVAL,
                               "the rendezvous endpoint '%s' is an IPv6 address, which needs brackets: write [%s], or "
                               "[%s]:PORT",
                               text, copy, copy);
        }
        if (!split(copy, &host, &port) || !host_is_wellformed(host) || !str_copy(parsed.host, NET_HOST_MAX, host)) {
            return status_fail(
                MUSTER_EINVAL,
                "The hostname of the rendezvous endpoint '%s' must be a dot-separated list of labels, an "
                "IPv4 address, or an IPv6 address (in brackets when a port follows).",
                text);
        }
        if (port && !port_parse(port, &parsed.port)) {
            return status_fail(
                MUSTER_EINVAL,
                "The port number of the rendezvous endpoint '%s' must be an integer between 0 and 65536.", text);
        }
    }
    *out = parsed;
    return MUSTER_OK;
}

static bool is_listed(const struct net_endpoint_list *list, const struct net_endpoint *endpoint) {
    for (size_t i = 0; i < list->count; i++) {
        if (list->list[i].port == endpoint->port && strcasecmp(list->list[i].host, endpoint->host) == 0) {
            return true;
        }
    }
    return false;
}

/* One of several. */
static int append_endpoint(struct net_endpoint_list *list, const char *text, size_t len, uint16_t default_port) {
    char one[NET_HOST_MAX + PORT_DIGITS_MAX + 4];
    struct net_endpoint endpoint;
    if (len >= sizeof one) {
        return status_fail(MUSTER_EINVAL, "the endpoint '%.64s...' is longer than a host name can be", text);
    }
    memcpy(one, text, len);
    one[len] = '\0';
    if (one[strspn(one, " \t\r\n\v\f")] == '\0') {
        return status_fail(MUSTER_EINVAL, "an endpoint of the list is empty: HOST:PORT,HOST:PORT is expected");
    }
    if (list->count == NET_ENDPOINTS_MAX) {
        return status_fail(MUSTER_EINVAL, "more than %d endpoints: three or five are enough", NET_ENDPOINTS_MAX);
    }
    int rc = net_endpoint_parse(one, &endpoint);
    if (rc != MUSTER_OK) {
        return rc;
    }
    endpoint.port = endpoint.port < 0 ? default_port : endpoint.port;
    if (endpoint.port == 0) {
        return status_fail(MUSTER_EINVAL,
                           "the endpoint '%s' of the list needs a port: others cannot know one that the "
                           "kernel chooses",
                           one);
    }
    if (is_listed(list, &endpoint)) {
        return status_fail(MUSTER_EINVAL, "the endpoint '%s' is in the list twice", one);
    }
    list->list[list->count++] = endpoint;
    return MUSTER_OK;
}

int net_endpoint_list_parse(const char *text, uint16_t default_port, struct net_endpoint_list *out) {
    struct net_endpoint_list list = {.count = 0};
    int rc = MUSTER_OK;
    if (!strchr(text, ',')) {
        rc = net_endpoint_parse(text, &list.list[0]);
        list.list[0].port = list.list[0].port < 0 ? default_port : list.list[0].port;
        list.count = 1;
    } else {
        for (const char *at = text; at && rc == MUSTER_OK;) {
            const char *comma = strchr(at, ',');
            rc = append_endpoint(&list, at, comma ? (size_t)(comma - at) : strlen(at), default_port);
            at = comma ? comma + 1 : NULL;
        }
    }
    if (rc == MUSTER_OK) {
        *out = list;
    }
    return rc;
}

static void append_results(const struct addrinfo *results, struct net_addresses *out) {
    for (const struct addrinfo *at = results; at && out->count < NET_ADDRESSES_MAX; at = at->ai_next) {
        if (at->ai_family != AF_INET && at->ai_family != AF_INET6) {
            continue;
        }
        struct net_address *slot = &out->list[out->count++];
        memcpy(&slot->sockaddr, at->ai_addr, at->ai_addrlen);
        slot->len = at->ai_addrlen;
    }
}

/* getaddrinfo with `flags`; 0 or the EAI code. */
static int lookup(const char *host, uint16_t port, int flags, struct net_addresses *out) {
    char service[8];
    (void)snprintf(service, sizeof service, "%u", (unsigned)port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    struct addrinfo *results = NULL;
    int rc = getaddrinfo(host, service, &hints, &results);
    if (rc == 0) {
        append_results(results, out);
        freeaddrinfo(results);
    }
    return rc;
}

/* An address in its usual form needs no memory, and so cannot fail to be read. */
static bool append_literal(const char *host, uint16_t port, struct net_addresses *out) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct net_address *slot = &out->list[out->count];
    memset(&slot->sockaddr, 0, sizeof slot->sockaddr);
    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        memcpy(&slot->sockaddr, &v4, sizeof v4);
        slot->len = sizeof v4;
    } else if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
        memcpy(&slot->sockaddr, &v6, sizeof v6);
        slot->len = sizeof v6;
    } else {
        return false;
    }
    out->count++;
    return true;
}

int net_resolve_numeric(const char *host, uint16_t port, struct net_addresses *out) {
    *out = (struct net_addresses){.count = 0};
    if (strcasecmp(host, "localhost") == 0) {
        (void)append_literal("127.0.0.1", port, out);
        (void)append_literal("::1", port, out);
    } else if (!append_literal(host, port, out)) {
        (void)lookup(host, port, AI_NUMERICHOST, out); /* 127.1, fe80::1%eth0 */
    }
    if (out->count == 0) {
        return status_fail(MUSTER_ERESOLVE, "'%s' is a name, not an address", host);
    }
    return MUSTER_OK;
}

int net_resolve(const char *host, uint16_t port, struct net_addresses *out) {
    if (net_resolve_numeric(host, port, out) == MUSTER_OK) {
        return MUSTER_OK;
    }
    int rc = lookup(host, port, 0, out);
    if (rc == EAI_SYSTEM) {
        return status_fail(MUSTER_ERESOLVE, "the name '%s' does not resolve: %s", host, strerror(errno));
    }
    if (rc != 0 || out->count == 0) {
        return status_fail(MUSTER_ERESOLVE, "the name '%s' does not resolve: %s", host,
                           rc != 0 ? gai_strerror(rc) : "it has no IPv4 or IPv6 address");
    }
    return MUSTER_OK;
}

/* The IPv4 address inside a V4-mapped one; false for any other address. */
static bool mapped_v4(const struct sockaddr *address, struct in_addr *out) {
    if (address->sa_family != AF_INET6) {
        return false;
    }
    struct sockaddr_in6 v6;
    memcpy(&v6, address, sizeof v6);
    if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        return false;
    }
    memcpy(out, &v6.sin6_addr.s6_addr[12], sizeof *out);
    return true;
}

const char *net_address_host(const struct sockaddr *address, char out[NET_ADDRESS_TEXT_MAX]) {
    struct in_addr v4;
    socklen_t len = address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (mapped_v4(address, &v4)) {
        (void)inet_ntop(AF_INET, &v4, out, NET_ADDRESS_TEXT_MAX);
    } else if (getnameinfo(address, len, out, NET_ADDRESS_TEXT_MAX, NULL, 0, NI_NUMERICHOST) != 0) {
        (void)str_copy(out, NET_ADDRESS_TEXT_MAX, "?");
    }
    return out;
}

const char *net_address_format(const struct sockaddr *address, char out[NET_ADDRESS_TEXT_MAX]) {
    char host[NET_ADDRESS_TEXT_MAX];
    (void)net_address_host(address, host);
    bool v6 = strchr(host, ':') != NULL;
    (void)str_format(out, NET_ADDRESS_TEXT_MAX, "%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "",
                     (unsigned)net_address_port(address));
    return out;
}

void net_address_key(const struct sockaddr *address, struct net_address_key *out) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    memset(out, 0, sizeof *out);
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        out->bytes[10] = out->bytes[11] = 0xff;
        memcpy(out->bytes + 12, &v4.sin_addr, sizeof v4.sin_addr);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        memcpy(out->bytes, &v6.sin6_addr, sizeof v6.sin6_addr);
    }
}

bool net_address_is_loopback(const struct sockaddr *address) {
    struct in_addr v4;
    if (address->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        v4 = in.sin_addr;
    } else if (!mapped_v4(address, &v4)) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
    }
    return (ntohl(v4.s_addr) >> 24) == 127;
}

bool net_address_is_local(const struct sockaddr *address) {
    struct sockaddr_storage probe = {0};
    socklen_t len = address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    memcpy(&probe, address, len);
    net_address_set_port((struct sockaddr *)&probe, 0);
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    /* Without a port: the kernel could give it the very one that another agent is about to serve. */
    const int without_port = 1;
    (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &without_port, sizeof without_port);
    bool local = bind(fd, (struct sockaddr *)&probe, len) == 0;
    (void)close(fd);
    return local;
}

const struct sockaddr *net_addresses_first_local(const struct net_addresses *addresses) {
    for (size_t i = 0; i < addresses->count; i++) {
        const struct sockaddr *address = (const struct sockaddr *)&addresses->list[i].sockaddr;
        if (net_address_is_local(address)) {
            return address;
        }
    }
    return NULL;
}

bool net_address_equal(const struct sockaddr *a, const struct sockaddr *b) {
    struct net_address_key left, right;
    net_address_key(a, &left);
    net_address_key(b, &right);
    return net_address_port(a) == net_address_port(b) && memcmp(&left, &right, sizeof left) == 0;
}

uint16_t net_address_port(const struct sockaddr *address) {
    /* The port lies at the same place in both families. */
    struct sockaddr_in in;
    memcpy(&in, address, sizeof in);
    return ntohs(in.sin_port);
}

void net_address_set_port(struct sockaddr *address, uint16_t port) {
    uint16_t wire = htons(port);
    memcpy((uint8_t *)address + offsetof(struct sockaddr_in, sin_port), &wire, sizeof wire);
}
