/* Names, interfaces and ports; see judge.h. */
#include "doctor/judge.h"

#include <string.h>

#include "base/str.h"

enum { SLOW_LOOKUP_MS = 1000, SMALLEST_MTU = 1280, SLOW_INTERFACE_MBPS = 1000, FEW_PORTS = 4096 };

/* ---- names ---- */

static const char *list_addresses(const struct doctor_name *name, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < name->address_count && used < size; i++) {
        (void)str_format(out + used, size - used, "%s%s", i > 0 ? ", " : "", name->addresses[i]);
        used += strlen(out + used);
    }
    return out;
}

static void judge_failed_name(const struct doctor_name *name, struct doctor_findings *out) {
    /* A node does not need its own name to take part; programs that gloo or MPI are part of look it up. */
    enum doctor_level level = name->is_own ? DOCTOR_WARNING : DOCTOR_ERROR;
    const char *whose = name->is_own ? "this node's own name" : "a host of the endpoint";
    struct doctor_finding *finding =
        name->forward == DOCTOR_FAILED
            ? doctor_find(out, DOCTOR_NAMES, level, "%.100s, %s: %s", name->host, whose, name->reason)
            : doctor_find(out, DOCTOR_NAMES, level, "the look-up of %.100s, %s, has not ended within %d s", name->host,
                          whose, (int)(DOCTOR_TIMEOUT_MS / 1000));
    if (name->is_own) {
        doctor_advise(finding,
                      "gloo and MPI look this name up and fail, or hang. Add a line `ADDRESS %.100s` to /etc/hosts, or "
                      "set GLOO_SOCKET_IFNAME to the interface to use",
                      name->host);
    } else {
        doctor_advise(finding,
                      "Check the spelling and the name servers in /etc/resolv.conf; or give the address instead of the "
                      "name; or add it to /etc/hosts");
    }
}

/* Returns whether something was found. */
static bool judge_answered_name(const struct doctor_facts *facts, const struct doctor_name *name,
                                struct doctor_findings *out) {
    char addresses[200];
    if (name->loopback_count > 0 && name->is_own) {
        struct doctor_finding *finding =
            doctor_find(out, DOCTOR_NAMES, DOCTOR_WARNING, "this node's name, %.100s, leads to %s, which is loopback",
                        name->host, list_addresses(name, addresses, sizeof addresses));
        doctor_advise(finding,
                      "Other nodes that are told so would meet themselves, and gloo listens there. Put the node's real "
                      "address into /etc/hosts, or set GLOO_SOCKET_IFNAME to the interface to use");
        return true;
    }
    if (name->loopback_count > 0 && facts->node_count > 1) {
        struct doctor_finding *finding =
            doctor_find(out, DOCTOR_NAMES, DOCTOR_WARNING,
                        "%.100s of --rdzv-endpoint is loopback, which leads each host to itself", name->host);
        doctor_advise(finding, "Only the node that serves may call itself so. Give the others its name, or an address "
                               "that all of them reach");
        return true;
    }
    if (name->is_own && name->local_count == 0) {
        struct doctor_finding *finding =
            doctor_find(out, DOCTOR_NAMES, DOCTOR_WARNING,
                        "this node's name, %.100s, leads to %s, which is not an address of this machine", name->host,
                        list_addresses(name, addresses, sizeof addresses));
        doctor_advise(finding, "Correct the record or /etc/hosts; programs that meet by name will miss this node");
        return true;
    }
    return false;
}

static void judge_lookup_time(const struct doctor_name *name, struct doctor_findings *out) {
    if (!name->is_numeric && name->forward_ms >= SLOW_LOOKUP_MS) {
        doctor_advise(doctor_find(out, DOCTOR_NAMES, DOCTOR_NOTE, "the look-up of %.100s took %.1f s", name->host,
                                  name->forward_ms / 1000.0),
                      "A name server in /etc/resolv.conf does not answer; take it out, or use /etc/hosts");
    }
}

static bool is_same_host(const char *a, const char *b) {
    size_t n = strcspn(a, ".");
    return n == strcspn(b, ".") && memcmp(a, b, n) == 0;
}

/* Few things need the way back: sshd, mpirun and Kerberos do, and wait for it. */
static void judge_reverse(const struct doctor_name *name, struct doctor_findings *out) {
    if (name->reverse == DOCTOR_SILENT) {
        doctor_advise(doctor_find(out, DOCTOR_NAMES, DOCTOR_WARNING, "the name of %s has not been found within %d s",
                                  name->reverse_of, (int)(DOCTOR_TIMEOUT_MS / 1000)),
                      "ssh, mpirun and other programs wait for it at each connection. Add the address to /etc/hosts, "
                      "or correct the name servers");
    } else if (name->reverse == DOCTOR_ANSWERED && !name->is_numeric && !is_same_host(name->host, name->reverse_name)) {
        doctor_advise(doctor_find(out, DOCTOR_NAMES, DOCTOR_NOTE, "%.100s is %s, but %s is %.100s", name->host,
                                  name->reverse_of, name->reverse_of, name->reverse_name),
                      "Correct whichever is wrong, or logs and host lists will disagree");
    } else if (name->reverse == DOCTOR_FAILED && !name->is_numeric) {
        (void)doctor_find(out, DOCTOR_NAMES, DOCTOR_NOTE, "%.100s is %s, but that address has no name", name->host,
                          name->reverse_of);
    }
}

void doctor_judge_names(const struct doctor_facts *facts, struct doctor_findings *out) {
    for (uint32_t i = 0; i < facts->name_count; i++) {
        const struct doctor_name *name = &facts->names[i];
        size_t before = out->count;
        if (name->forward != DOCTOR_ANSWERED) {
            judge_failed_name(name, out);
            continue;
        }
        if (judge_answered_name(facts, name, out)) {
            continue;
        }
        judge_lookup_time(name, out);
        judge_reverse(name, out);
        bool is_said = i > 0 && strcmp(name->host, facts->names[0].host) == 0; /* the endpoint is this node */
        if (out->count > before || is_said) {
            continue;
        }
        if (name->is_numeric) {
            (void)doctor_find(out, DOCTOR_NAMES, DOCTOR_OK, "%.100s is an address, of %s", name->host,
                              name->local_count > 0 ? "this machine" : "another machine");
        } else {
            char addresses[200];
            (void)doctor_find(out, DOCTOR_NAMES, DOCTOR_OK, "%.100s is %s", name->host,
                              list_addresses(name, addresses, sizeof addresses));
        }
    }
}

/* ---- interfaces ---- */

static const struct doctor_interface *interface_named(const struct doctor_interfaces *all, const char *name) {
    for (uint32_t i = 0; i < all->count; i++) {
        if (strcmp(all->list[i].name, name) == 0) {
            return &all->list[i];
        }
    }
    return NULL;
}

static const struct doctor_interface *interface_of(const struct doctor_interfaces *all, const char *address) {
    for (uint32_t i = 0; i < all->count; i++) {
        if (strcmp(all->list[i].address, address) == 0) {
            return &all->list[i];
        }
    }
    return NULL;
}

/* Names of the real interfaces, each once; how many there are. */
static unsigned list_real(const struct doctor_interfaces *all, char *out, size_t size) {
    unsigned count = 0;
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < all->count; i++) {
        const struct doctor_interface *at = &all->list[i];
        if (!at->is_loopback && !at->is_bridge && interface_named(all, at->name) == at && used < size) {
            (void)str_format(out + used, size - used, "%s%s", count > 0 ? ", " : "", at->name);
            used += strlen(out + used);
            count++;
        }
    }
    return count;
}

/* NCCL's syntax, and ours: prefixes, ^ and =. Of what the wish lets through: is there anything, and beyond loopback? */
static void judge_wish(const struct doctor_facts *facts, const char *variable, struct doctor_findings *out) {
    const char *value = doctor_variable(&facts->environment, variable);
    struct interface_wish wish;
    if (!value || !*value) {
        return;
    }
    if (interface_wish_parse(value, NULL, &wish) != 0) {
        doctor_advise(
            doctor_find(out, DOCTOR_INTERFACES, DOCTOR_ERROR, "%s=%s is no list of interfaces", variable, value),
            "Write names or beginnings of names with commas between them, such as eth,ib; ^docker leaves out");
        return;
    }
    bool any = false, any_real = false;
    for (uint32_t i = 0; i < facts->interfaces.count; i++) {
        const struct doctor_interface *at = &facts->interfaces.list[i];
        bool allowed = interface_wish_allows(&wish, at->name, 0);
        any |= allowed;
        any_real |= allowed && !at->is_loopback;
    }
    char real[160];
    (void)list_real(&facts->interfaces, real, sizeof real);
    if (!any) {
        doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_ERROR, "%s=%s: no interface here is meant by it",
                                  variable, value),
                      "This node has %s. Correct the variable, or leave it away", real[0] ? real : "loopback alone");
    } else if (!any_real && facts->node_count > 1) {
        doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_ERROR, "%s=%s leaves loopback alone", variable, value),
                      "With several nodes it must name an interface that the others reach: %s", real);
    }
}

/* gloo's names are whole and separated by commas. */
static void judge_gloo(const struct doctor_facts *facts, struct doctor_findings *out) {
    const char *value = doctor_variable(&facts->environment, "GLOO_SOCKET_IFNAME");
    for (const char *at = value; at && *at;) {
        size_t n = strcspn(at, ",");
        char name[INTERFACE_NAME_MAX];
        bool fits = n < sizeof name;
        if (fits) {
            memcpy(name, at, n);
            name[n] = '\0';
        }
        const struct doctor_interface *named = fits ? interface_named(&facts->interfaces, name) : NULL;
        char real[160];
        (void)list_real(&facts->interfaces, real, sizeof real);
        if (!named) {
            doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_ERROR,
                                      "GLOO_SOCKET_IFNAME=%s: there is no interface %.*s with an address", value,
                                      (int)(n % 64), at),
                          "gloo needs whole names; this node has %s", real[0] ? real : "loopback alone");
        } else if (named->is_loopback && facts->node_count > 1) {
            doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_ERROR,
                                      "GLOO_SOCKET_IFNAME=%s is loopback, where no other node comes", value),
                          "With several nodes it must name one of: %s", real);
        }
        at += n + (at[n] == ',');
    }
}

static void judge_loopback(const struct doctor_interfaces *all, struct doctor_findings *out) {
    for (uint32_t i = 0; i < all->count; i++) {
        if (all->list[i].is_loopback) {
            return;
        }
    }
    if (all->count < INTERFACES_MAX) {
        doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_ERROR,
                                  "loopback is down: nothing on this machine (or in this network namespace) reaches "
                                  "127.0.0.1, where jobs on one node meet"),
                      "ip link set lo up");
    }
}

/* An address that would be told to the other nodes. */
static void judge_told(const struct doctor_facts *facts, const char *address, const char *why,
                       struct doctor_findings *out) {
    const struct doctor_interfaces *all = &facts->interfaces;
    const struct doctor_interface *at = interface_of(all, address);
    char real[160];
    unsigned real_count = list_real(all, real, sizeof real);
    if (!at || at->is_loopback) {
        if (facts->node_count > 1) {
            doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_ERROR,
                                      "other nodes would be told %s, where they do not reach this one", address),
                          "Bring up an interface, or give this node's address with --local-addr");
        } else {
            (void)doctor_find(out, DOCTOR_INTERFACES, DOCTOR_OK, "%s; fine for a job on this node alone",
                              real_count > 0 ? real : "loopback only");
        }
    } else if (at->is_bridge) {
        doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_WARNING,
                                  "other nodes would be told %s, of %s, which belongs to containers here", address,
                                  at->name),
                      "Give an address that they reach with --local-addr; this node has %s", real);
    } else if (!at->has_carrier) {
        doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_WARNING,
                                  "other nodes would be told %s, of %s, which has no link", address, at->name),
                      "Plug it in, or give another address with --local-addr; this node has %s", real);
    } else {
        char speed[32] = "";
        if (at->speed_mbps > 0) {
            (void)str_format(speed, sizeof speed, ", %g Gbit/s", at->speed_mbps / 1000.0);
        }
        bool is_slow = at->speed_mbps > 0 && at->speed_mbps < SLOW_INTERFACE_MBPS;
        struct doctor_finding *finding =
            doctor_find(out, DOCTOR_INTERFACES, is_slow ? DOCTOR_WARNING : DOCTOR_OK,
                        "others are told %s (%s, MTU %u%s)%s", address, at->name, at->mtu, speed, why);
        if (is_slow) {
            doctor_advise(finding,
                          "That is slow for training; choose another with --local-addr and *_SOCKET_IFNAME "
                          "(this node has %s), or look at the cable and the switch port",
                          real);
        }
    }
}

static void judge_choice(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_interfaces *all = &facts->interfaces;
    char real[160];
    unsigned count = list_real(all, real, sizeof real);
    bool is_chosen = doctor_variable(&facts->environment, "NCCL_SOCKET_IFNAME") ||
                     doctor_variable(&facts->environment, "GLOO_SOCKET_IFNAME") ||
                     doctor_variable(&facts->environment, "MUSTER_SOCKET_IFNAME");
    if (count > 1 && !is_chosen && facts->node_count > 1) {
        doctor_advise(
            doctor_find(out, DOCTOR_INTERFACES, DOCTOR_NOTE, "%u interfaces (%s), and none is chosen", count, real),
            "Say which one training uses: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, MUSTER_SOCKET_IFNAME; "
            "--local-addr for the launcher");
    }
}

static void judge_mtus(const struct doctor_interfaces *all, struct doctor_findings *out) {
    char text[200] = "";
    size_t used = 0;
    uint32_t smallest = UINT32_MAX, largest = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        const struct doctor_interface *at = &all->list[i];
        if (at->is_loopback || at->is_bridge || at->mtu == 0 || interface_named(all, at->name) != at) {
            continue;
        }
        smallest = at->mtu < smallest ? at->mtu : smallest;
        largest = at->mtu > largest ? at->mtu : largest;
        if (used < sizeof text) {
            (void)str_format(text + used, sizeof text - used, "%s%s %u", used > 0 ? ", " : "", at->name, at->mtu);
            used += strlen(text + used);
        }
    }
    if (largest > 0 && smallest < SMALLEST_MTU) {
        doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_WARNING, "an MTU below %d: %s", SMALLEST_MTU, text),
                      "IPv6 does not work on it, and large messages are slow; set it with `ip link set NAME mtu 1500`");
    } else if (largest > 0 && smallest != largest) {
        doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_NOTE, "the interfaces have different MTUs: %s", text),
                      "Each network needs one MTU on all nodes and switches; --nnodes compares them");
    }
}

void doctor_judge_interfaces(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_interfaces *all = &facts->interfaces;
    judge_wish(facts, "NCCL_SOCKET_IFNAME", out);
    judge_wish(facts, "MUSTER_SOCKET_IFNAME", out);
    judge_gloo(facts, out);
    uint32_t known_count = 0;
    for (uint32_t i = 0; i < all->told_count; i++) {
        const struct doctor_told *told = &all->told[i];
        char why[NET_HOST_MAX + 32];
        known_count += told->is_known;
        if (told->is_known && !told->has_route) {
            doctor_advise(doctor_find(out, DOCTOR_INTERFACES, DOCTOR_ERROR, "there is no route to %.100s", told->host),
                          "Look at `ip route get ADDRESS`; the network is down, or its route is missing");
        } else if (told->is_known) {
            (void)str_format(why, sizeof why, " on the way to %.100s", told->host);
            judge_told(facts, told->address, why, out);
        }
    }
    if (known_count == 0) {
        judge_told(facts, all->own_address, "", out);
    }
    judge_choice(facts, out);
    judge_loopback(&facts->interfaces, out);
    judge_mtus(all, out);
    if (!all->default_v4[0] && !all->default_v6[0] && facts->node_count > 1) {
        (void)doctor_find(out, DOCTOR_INTERFACES, DOCTOR_NOTE,
                          "there is no default route: only networks that this node is part of are reached");
    }
}

/* ---- ports ---- */

static void judge_served_port(const struct doctor_port *port, struct doctor_findings *out) {
    switch (port->peer) {
    case DOCTOR_PEER_COORDINATOR:
        doctor_advise(doctor_find(out, DOCTOR_PORTS, DOCTOR_WARNING,
                                  "%s: a job of --rdzv-backend=muster is being served there", port->address),
                      "It takes nodes of its own --rdzv-id alone: give another job another port. `muster status %s` "
                      "tells about it",
                      port->address);
        break;
    case DOCTOR_PEER_MUSTER_STORE:
    case DOCTOR_PEER_STORE:
        doctor_advise(doctor_find(out, DOCTOR_PORTS, DOCTOR_NOTE, "%s: %s TCPStore is being served there",
                                  port->address, port->peer == DOCTOR_PEER_STORE ? "PyTorch's" : "Muster's"),
                      "Jobs of --rdzv-backend=c10d can share it under different --rdzv-id; a job that should host its "
                      "own store needs another port");
        break;
    case DOCTOR_PEER_OTHER:
    default:
        doctor_advise(
            doctor_find(out, DOCTOR_PORTS, DOCTOR_ERROR, "%s: a program listens there that is no store", port->address),
            "Choose another port in --rdzv-endpoint; `ss -ltnp 'sport = :%u'` on that host shows the program",
            port->port);
        break;
    }
}

static void judge_port(const struct doctor_port *port, struct doctor_findings *out) {
    switch (port->state) {
    case DOCTOR_PORT_FREE:
        (void)doctor_find(out, DOCTOR_PORTS, DOCTOR_OK, "%s is free here", port->address);
        break;
    case DOCTOR_PORT_FORBIDDEN:
        doctor_advise(
            doctor_find(out, DOCTOR_PORTS, DOCTOR_ERROR, "%s cannot be served here: %s", port->address, port->reason),
            port->port < 1024 ? "Ports below 1024 need privileges; choose another one in --rdzv-endpoint"
                              : "Choose another port in --rdzv-endpoint");
        break;
    case DOCTOR_PORT_SERVED:
        judge_served_port(port, out);
        break;
    case DOCTOR_PORT_REFUSED:
        (void)doctor_find(out, DOCTOR_PORTS, DOCTOR_OK, "%s is reachable; nobody serves it yet", port->address);
        break;
    case DOCTOR_PORT_SILENT:
        doctor_advise(doctor_find(out, DOCTOR_PORTS, DOCTOR_ERROR, "%s does not answer", port->address),
                      "The host is down, or a firewall drops what is sent there: open the port on it, and the ports "
                      "that the kernel chooses from, which workers use");
        break;
    case DOCTOR_PORT_UNREACHABLE:
        doctor_advise(
            doctor_find(out, DOCTOR_PORTS, DOCTOR_ERROR, "%s cannot be reached: %s", port->address, port->reason),
            "Look at `ip route get ADDRESS`, the cable and the firewall of that host");
        break;
    case DOCTOR_PORT_UNKNOWN:
    default:
        (void)doctor_find(out, DOCTOR_PORTS, DOCTOR_NOTE, "port %u of %.100s was not tried: its address is not known",
                          port->port, port->host);
        break;
    }
}

void doctor_judge_ports(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_ports *ports = &facts->ports;
    for (uint32_t i = 0; i < ports->count; i++) {
        const struct doctor_port *port = &ports->list[i];
        if (facts->is_meeting && port->state == DOCTOR_PORT_SERVED && port->peer == DOCTOR_PEER_MUSTER_STORE) {
            (void)doctor_find(out, DOCTOR_PORTS, DOCTOR_OK, "%s: Muster's store answers; the nodes meet there",
                              port->address);
        } else {
            judge_port(port, out);
        }
        if (port->is_here && ports->ephemeral_first <= port->port && port->port <= ports->ephemeral_last) {
            doctor_advise(doctor_find(out, DOCTOR_PORTS, DOCTOR_NOTE,
                                      "port %u is one of those that the kernel gives to connections (%u to %u)",
                                      port->port, ports->ephemeral_first, ports->ephemeral_last),
                          "Now and then it will be taken: choose a lower one, such as 29400");
        }
    }
    if (ports->ephemeral_last > 0 && ports->ephemeral_last - ports->ephemeral_first + 1 < FEW_PORTS) {
        doctor_advise(doctor_find(out, DOCTOR_PORTS, DOCTOR_WARNING, "the kernel has only %u ports for connections",
                                  ports->ephemeral_last - ports->ephemeral_first + 1),
                      "Every link between workers takes one: sysctl net.ipv4.ip_local_port_range='32768 60999'");
    }
    if (ports->count == 0 && ports->ephemeral_last > 0) {
        (void)doctor_find(out, DOCTOR_PORTS, DOCTOR_OK,
                          "the kernel gives %u to %u to connections; none was tried (--rdzv-endpoint names one)",
                          ports->ephemeral_first, ports->ephemeral_last);
    } else if (ports->count == 0) {
        (void)doctor_find(out, DOCTOR_PORTS, DOCTOR_OK, "none was tried (--rdzv-endpoint names one)");
    }
}
