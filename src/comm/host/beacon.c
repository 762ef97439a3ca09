/* Lighting and watching the beacon; see beacon.h. */
#include "comm/host/beacon.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/host/interface.h"
#include "net/socket.h"

/* ---- rank 0 ---- */

static void put_address(const struct sockaddr *address, uint8_t out[IDENTITY_ADDRESS_BYTES]) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (address->sa_family == AF_INET) {
        memcpy(out, mapped, sizeof mapped);
        memcpy(out + sizeof mapped, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
    } else {
        memcpy(out, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, IDENTITY_ADDRESS_BYTES);
    }
}

static void put_addresses(const struct interface_wish *wish, struct identity *out) {
    struct interface_address *all = malloc(INTERFACES_MAX * sizeof *all);
    struct interface_address chosen[INTERFACE_CHOSEN_MAX];
    size_t count = 0;
    count = all && interface_list(all, &count) == 0 ? interface_choose(wish, all, count, chosen) : 0;
    free(all);
    for (size_t i = 0; i < count && i < IDENTITY_ADDRESSES_MAX; i++) {
        put_address((const struct sockaddr *)&chosen[i].address.sockaddr, out->beacon_addresses[i]);
        out->beacon_address_count = (uint8_t)(i + 1);
    }
}

int beacon_light(bool on_loopback, struct identity *out) {
    struct interface_wish wish;
    int fd = -1;
    out->beacon_address_count = 0;
    struct net_address loopback;
    if (!on_loopback && interface_wish_from_env(&wish) == 0 &&
        interface_listen(wish.family, &fd, &out->beacon_port) == 0) {
        put_addresses(&wish, out);
    } else if (on_loopback && interface_listen_on_loopback(AF_UNSPEC, &fd, &loopback) == 0) {
        out->beacon_port = net_address_port((const struct sockaddr *)&loopback.sockaddr);
        put_address((const struct sockaddr *)&loopback.sockaddr, out->beacon_addresses[0]);
        out->beacon_address_count = 1;
    }
    return fd;
}

/* ---- the others ---- */

static void get_address(const struct identity *identity, uint32_t at, struct sockaddr_storage *out) {
    struct in6_addr address;
    memset(out, 0, sizeof *out);
    memcpy(&address, identity->beacon_addresses[at], sizeof address);
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)out;
        v4->sin_family = AF_INET;
        memcpy(&v4->sin_addr, identity->beacon_addresses[at] + 12, 4);
    } else {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
        v6->sin6_family = AF_INET6;
        v6->sin6_addr = address;
    }
    net_address_set_port((struct sockaddr *)out, identity->beacon_port);
}

void beacon_watch_begin(struct beacon_watch *watch, const struct identity *identity) {
    *watch = (struct beacon_watch){.identity = *identity, .fd = -1};
}

static void hang_up(struct beacon_watch *watch) {
    if (watch->fd >= 0) {
        (void)close(watch->fd);
    }
    watch->fd = -1;
    watch->is_connected = false;
}

void beacon_watch_end(struct beacon_watch *watch) {
    hang_up(watch);
}

bool beacon_is_in_sight(const struct beacon_watch *watch) {
    return watch->at < watch->identity.beacon_address_count;
}

/* Is the address one of this machine's, and the beacon on another? */
static bool misleads(const struct beacon_watch *watch, const struct sockaddr *address) {
    uint8_t own[16] = {0};
    (void)identity_boot(own);
    return memcmp(own, watch->identity.host.boot_id, sizeof own) != 0 && net_address_is_local(address);
}

static void call(struct beacon_watch *watch) {
    struct sockaddr_storage address;
    for (; beacon_is_in_sight(watch); watch->at++) {
        get_address(&watch->identity, watch->at, &address);
        if (!misleads(watch, (struct sockaddr *)&address) &&
            net_socket_connect((struct sockaddr *)&address, &watch->fd) == 0) {
            return;
        }
        watch->fd = -1;
    }
}

/* The attempt has come to an end. true: refused where it was lit before. */
static bool is_refused(struct beacon_watch *watch) {
    int error_number = net_socket_connect_result(watch->fd);
    if (error_number == 0) {
        watch->is_connected = watch->was_connected = true;
        return false;
    }
    hang_up(watch);
    if (!watch->was_connected) {
        watch->at++;
    }
    return watch->was_connected && error_number == ECONNREFUSED;
}

bool beacon_is_out(struct beacon_watch *watch) {
    if (watch->fd < 0) {
        call(watch);
    }
    struct pollfd look = {.fd = watch->fd, .events = (short)(watch->is_connected ? POLLIN : POLLOUT)};
    if (watch->fd < 0 || poll(&look, 1, 0) <= 0) {
        return false;
    }
    if (!watch->is_connected) {
        return is_refused(watch);
    }
    hang_up(watch); /* nothing is ever sent: it has ended */
    call(watch);
    return false;
}
