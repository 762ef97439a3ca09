/* This machine's names and loopback; see host_name.h. */
#include "net/host_name.h"

#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/str.h"

enum { LOOKUP_BYTES_MAX = 16384 }; /* names and addresses of one host; more are as good as none */

void net_host_name(char out[NET_HOST_MAX]) {
    if (gethostname(out, NET_HOST_MAX) != 0) {
        out[0] = '\0';
    }
    out[NET_HOST_MAX - 1] = '\0';
}

static const char *choose(const struct hostent *host) {
    if (strchr(host->h_name, '.')) {
        return host->h_name;
    }
    for (char **alias = host->h_aliases; *alias; alias++) {
        if (strchr(*alias, '.')) {
            return *alias;
        }
    }
    return host->h_name;
}

/* Back from the address to its names. */
static void look_back(const struct sockaddr *address, char out[NET_HOST_MAX]) {
    char room[LOOKUP_BYTES_MAX];
    struct hostent host, *found = NULL;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    int error_number = 0;
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        (void)gethostbyaddr_r(&v4.sin_addr, sizeof v4.sin_addr, AF_INET, &host, room, sizeof room, &found,
                              &error_number);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        (void)gethostbyaddr_r(&v6.sin6_addr, sizeof v6.sin6_addr, AF_INET6, &host, room, sizeof room, &found,
                              &error_number);
    }
    if (found && found->h_name && strlen(choose(found)) < NET_HOST_MAX) {
        (void)str_copy(out, NET_HOST_MAX, choose(found));
    }
}

void net_full_host_name(char out[NET_HOST_MAX]) {
    struct addrinfo *list = NULL;
    net_host_name(out);
    if (out[0] != '\0' && getaddrinfo(out, NULL, NULL, &list) == 0) {
        look_back(list->ai_addr, out);
        freeaddrinfo(list);
    }
}

bool net_loopback_is_down(void) {
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is_known = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return is_known && !(request.ifr_flags & IFF_UP);
}
