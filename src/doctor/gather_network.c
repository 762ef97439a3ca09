/* Names, interfaces and routes of this machine; see gather_impl.h. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "doctor/gather_impl.h"
#include "net/socket.h"
#include "rendezvous/round/worker_store.h"

/* ---- names ---- */

static const struct sockaddr *address_at(const struct net_addresses *addresses, size_t i) {
    return (const struct sockaddr *)&addresses->list[i].sockaddr;
}

static bool has_address(const struct doctor_name *name, const char *address) {
    for (uint32_t i = 0; i < name->address_count; i++) {
        if (strcmp(name->addresses[i], address) == 0) {
            return true;
        }
    }
    return false;
}

static void note_addresses(struct doctor_name *name, const struct net_addresses *addresses) {
    for (size_t i = 0; i < addresses->count && name->address_count < DOCTOR_NAME_ADDRESSES_MAX; i++) {
        char text[NET_ADDRESS_TEXT_MAX];
        if (has_address(name, net_address_host(address_at(addresses, i), text))) {
            continue;
        }
        (void)str_copy(name->addresses[name->address_count++], NET_ADDRESS_TEXT_MAX, text);
        bool is_loopback = net_address_is_loopback(address_at(addresses, i));
        name->loopback_count += is_loopback;
        name->local_count += net_address_is_local(address_at(addresses, i));
        if (!is_loopback && name->reverse_of[0] == '\0') {
            (void)str_copy(name->reverse_of, sizeof name->reverse_of, text);
        }
    }
}

static void ask_back(struct doctor_name *name, const struct net_addresses *addresses) {
    for (size_t i = 0; i < addresses->count; i++) {
        char text[NET_ADDRESS_TEXT_MAX];
        if (strcmp(net_address_host(address_at(addresses, i), text), name->reverse_of) == 0) {
            int code = getnameinfo(address_at(addresses, i), net_sockaddr_len(address_at(addresses, i)),
                                   name->reverse_name, sizeof name->reverse_name, NULL, 0, NI_NAMEREQD);
            name->reverse = code == 0 ? DOCTOR_ANSWERED : DOCTOR_FAILED;
            return;
        }
    }
}

void doctor_ask_name(const struct aside_job *job) {
    const struct doctor_name_question *question = job->question;
    struct doctor_name *name = job->answer;
    struct net_addresses addresses;
    *name = (struct doctor_name){.is_own = question->is_own};
    (void)str_copy(name->host, sizeof name->host, question->host);
    name->is_numeric = net_resolve_numeric(name->host, 0, &addresses) == 0;
    int64_t begin_ns = clock_monotonic_ns();
    if (net_resolve(name->host, 0, &addresses) != 0) {
        name->forward = DOCTOR_FAILED;
        (void)str_format(name->reason, sizeof name->reason, "%s", muster_detail());
        return;
    }
    name->forward = DOCTOR_ANSWERED;
    name->forward_ms = (uint32_t)((clock_monotonic_ns() - begin_ns) / CLOCK_NS_PER_MS);
    note_addresses(name, &addresses);
    if (name->reverse_of[0] != '\0') {
        name->reverse = DOCTOR_SILENT; /* unless the rest of this function says otherwise in time */
        aside_tell(job);
        ask_back(name, &addresses);
    }
}

/* ---- interfaces ---- */

static void read_link(struct doctor_interface *interface) {
    char text[32];
    int64_t number = 0;
    if (doctor_read_line(text, sizeof text, "/sys/class/net/%s/mtu", interface->name) && str_parse_i64(text, &number)) {
        interface->mtu = (uint32_t)number;
    }
    if (doctor_read_line(text, sizeof text, "/sys/class/net/%s/speed", interface->name) &&
        str_parse_i64(text, &number)) {
        interface->speed_mbps = (int32_t)number;
    }
    /* Where the state of the link cannot be read there is none to be missed. */
    interface->has_carrier =
        !doctor_read_line(text, sizeof text, "/sys/class/net/%s/carrier", interface->name) || strcmp(text, "0") != 0;
}

/* "eth0 00000000 0102A8C0 ...": the interface of the line whose destination and mask are zero. */
static void read_default_v4(char out[INTERFACE_NAME_MAX]) {
    char line[256];
    FILE *file = fopen("/proc/net/route", "re");
    out[0] = '\0';
    while (file && out[0] == '\0' && fgets(line, sizeof line, file)) {
        char name[INTERFACE_NAME_MAX], destination[16], mask[16];
        if (sscanf(line, "%15s %15s %*s %*s %*s %*s %*s %15s", name, destination, mask) == 3 &&
            strcmp(destination, "00000000") == 0 && strcmp(mask, "00000000") == 0) {
            (void)str_copy(out, INTERFACE_NAME_MAX, name);
        }
    }
    if (file) {
        (void)fclose(file);
    }
}

/* Destination, prefix length, ..., flags, interface. */
static void read_default_v6(char out[INTERFACE_NAME_MAX]) {
    char line[256];
    FILE *file = fopen("/proc/net/ipv6_route", "re");
    out[0] = '\0';
    while (file && out[0] == '\0' && fgets(line, sizeof line, file)) {
        char name[INTERFACE_NAME_MAX], destination[40], length[4];
        if (sscanf(line, "%39s %3s %*s %*s %*s %*s %*s %*s %*s %15s", destination, length, name) == 3 &&
            strspn(destination, "0") == 32 && strcmp(length, "00") == 0 && strcmp(name, "lo") != 0) {
            (void)str_copy(out, INTERFACE_NAME_MAX, name);
        }
    }
    if (file) {
        (void)fclose(file);
    }
}

/* As rendezvous backends decide it: the local address of a connection to the host; where that is loopback, the first
 * address of a real interface. */
static void read_told(const struct doctor_name *name, const struct doctor_interfaces *all, struct doctor_told *out) {
    struct net_addresses addresses;
    struct net_address own;
    (void)str_copy(out->host, sizeof out->host, name->host);
    out->is_known = name->forward == DOCTOR_ANSWERED && name->address_count > 0 &&
                    net_resolve_numeric(name->addresses[0], 0, &addresses) == 0;
    if (!out->is_known) {
        return;
    }
    out->has_route = interface_route(address_at(&addresses, 0), &own) == 0;
    if (!out->has_route) {
        return;
    }
    bool tells = !net_address_is_loopback((const struct sockaddr *)&own.sockaddr) || name->loopback_count > 0;
    if (tells) {
        (void)net_address_host((const struct sockaddr *)&own.sockaddr, out->address);
    } else {
        (void)str_copy(out->address, sizeof out->address, all->own_address);
    }
}

void doctor_read_interfaces(const struct doctor_name *names, uint32_t count, struct doctor_interfaces *out) {
    struct interface_address list[INTERFACES_MAX];
    size_t list_count = 0;
    *out = (struct doctor_interfaces){.count = 0};
    if (interface_list(list, &list_count) != 0) {
        list_count = 0;
    }
    for (size_t i = 0; i < list_count; i++) {
        struct doctor_interface *interface = &out->list[out->count++];
        (void)str_copy(interface->name, sizeof interface->name, list[i].name);
        (void)net_address_host((const struct sockaddr *)&list[i].address.sockaddr, interface->address);
        interface->is_loopback = net_address_is_loopback((const struct sockaddr *)&list[i].address.sockaddr);
        interface->is_bridge = !interface->is_loopback && interface_is_bridge(interface->name);
        read_link(interface);
    }
    read_default_v4(out->default_v4);
    read_default_v6(out->default_v6);
    worker_store_own_address(out->own_address);
    for (uint32_t i = 0; i < count && out->told_count < DOCTOR_HOSTS_MAX; i++) {
        read_told(&names[i], out, &out->told[out->told_count++]);
    }
}

void doctor_read_port_range(struct doctor_ports *out) {
    char text[64];
    unsigned first = 0, last = 0;
    if (doctor_read_line(text, sizeof text, "/proc/sys/net/ipv4/ip_local_port_range") &&
        sscanf(text, "%u %u", &first, &last) == 2) {
        out->ephemeral_first = first;
        out->ephemeral_last = last;
    }
}
