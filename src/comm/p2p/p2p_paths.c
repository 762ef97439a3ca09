/* Several interfaces between two hosts: which pairs of them a link uses, and which connection takes the next piece of a
 * long message; see p2p_impl.h.
 *
 * A path is one of our interfaces and one of the peer's, no interface being in two. The kernel's routes say which of
 * ours leads to an address of the peer's, so each pair of interfaces needs a network of its own. Connections are spread
 * over the paths. Each takes pieces as it has room for them, so a faster path takes more. Near the end of what is to be
 * sent, one whose queue would be empty later than all others together could be done leaves the rest to them. */
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/p2p/p2p_impl.h"

#define MEASURE_S 0.05 /* a rate is averaged over so long at least */
/* What is given to the kernel cannot be taken back. So a connection has no more to send than it sends in so long,
 * beside what is on its way, and gets it in pieces of that size. */
#define UNSENT_S 0.01
enum { PIECE_BYTES_MIN = 16 << 10, PIECE_BYTES_UNKNOWN = 64 << 10, UNSENT_BYTES_MAX = 16 << 20 };
enum { STREAMS_NEAR = 1, STREAMS_FAR = 4 }; /* one process feeds loopback's whole bandwidth with one connection */

/* ---- which there are ---- */

static struct interface_addresses addresses_of(const struct wire_contact *contact) {
    return (struct interface_addresses){contact->addresses, contact->interfaces, contact->address_count};
}

static void find_paths(const struct p2p *p2p, struct p2p_link *link) {
    const struct interface_addresses own = addresses_of(&p2p->contact), peer = addresses_of(&link->contact);
    struct interface_pair pairs[INTERFACE_CHOSEN_MAX];
    link->path_count = (uint8_t)interface_pairs(&own, &peer, pairs);
    for (size_t i = 0; i < link->path_count; i++) {
        link->paths[i] = pairs[i].peer;
    }
}

/* ---- as somebody has measured it ---- */

static size_t keys_of(const struct wire_contact *contact, struct net_address_key out[WIRE_ADDRESSES_MAX]) {
    for (size_t i = 0; i < contact->address_count; i++) {
        net_address_key((const struct sockaddr *)&contact->addresses[i].sockaddr, &out[i]);
    }
    return contact->address_count;
}

static uint8_t place_of(const struct net_address_key *keys, const struct net_address_key *key) {
    uint8_t at = 0;
    while (memcmp(&keys[at], key, sizeof *key) != 0) {
        at++;
    }
    return at;
}

static void pass_over(const struct p2p_link *link, const struct net_address_key *key, const char *what) {
    char text[LINK_PLAN_ADDRESS_MAX];
    log_info("a line of MUSTER_CHOICE_FILE for the link to rank %u is passed over: %s %s", (unsigned)link->peer,
             link_plan_address(key, text), what);
}

/* Does the kernel send from the path's own end? */
static bool leads_there(const struct p2p_link *link, const struct link_plan_path *path, uint32_t own, uint8_t peer) {
    struct net_address local;
    struct net_address_key key = {{0}};
    const struct net_address *address = &link->contact.addresses[peer];
    if (interface_route((const struct sockaddr *)&address->sockaddr, &local) == 0) {
        net_address_key((const struct sockaddr *)&local.sockaddr, &key);
    }
    return memcmp(&key, &path->ends[own], sizeof key) == 0;
}

/* Puts the address at which the first connection is to be made before all others: they follow only if it fails. */
static void put_first(struct p2p_link *link, uint8_t at) {
    struct wire_contact *contact = &link->contact;
    struct net_address address = contact->addresses[at];
    uint8_t interface = contact->interfaces[at];
    for (uint8_t i = at; i > 0; i--) {
        contact->addresses[i] = contact->addresses[i - 1];
        contact->interfaces[i] = contact->interfaces[i - 1];
    }
    contact->addresses[0] = address;
    contact->interfaces[0] = interface;
    for (uint8_t i = 0; i < link->path_count; i++) {
        link->paths[i] = link->paths[i] == at ? 0 : link->paths[i] < at ? link->paths[i] + 1 : link->paths[i];
    }
}

static bool follow(struct p2p_link *link, const struct link_plan *plan, uint32_t own,
                   const struct net_address_key *peers) {
    for (uint8_t i = 0; i < plan->path_count; i++) {
        link->paths[i] = place_of(peers, &plan->paths[i].ends[1 - own]);
        if (!leads_there(link, &plan->paths[i], own, link->paths[i])) {
            pass_over(link, &plan->paths[i].ends[1 - own], "is not reached by that way");
            return false;
        }
    }
    link->path_count = (uint8_t)plan->path_count;
    link->stream_count = (uint8_t)plan->stream_count;
    put_first(link, link->paths[0]);
    return true;
}

/* Who makes the connection decides; the peer takes the number of connections from the greeting. */
static bool follow_plan(const struct p2p *p2p, struct p2p_link *link) {
    struct net_address_key own_keys[WIRE_ADDRESSES_MAX], peer_keys[WIRE_ADDRESSES_MAX], missing;
    const struct link_plan_hosts hosts = {own_keys, peer_keys, keys_of(&p2p->contact, own_keys),
                                          keys_of(&link->contact, peer_keys)};
    for (size_t i = 0; i < p2p->config.plan_count; i++) {
        const struct link_plan *plan = &p2p->config.plans[i];
        uint32_t own = 0;
        enum link_plan_fit fit = link_plan_compare(plan, &hosts, &own, &missing);
        if (fit == LINK_PLAN_FITS && follow(link, plan, own, peer_keys)) {
            return true;
        }
        if (fit == LINK_PLAN_STALE) {
            pass_over(link, &missing, "is not among the addresses of its host that may be used");
        }
    }
    return false;
}

void paths_choose(const struct p2p *p2p, struct p2p_link *link) {
    uint32_t count = p2p->config.stream_count;
    bool is_near = link->contact.host == p2p->contact.host;
    if (!is_near && follow_plan(p2p, link)) {
        return;
    }
    link->path_count = 0;
    if (!is_near && link->contact.address_count > 1) {
        find_paths(p2p, link);
    }
    if (count == 0 && is_near) {
        count = STREAMS_NEAR;
    } else if (count == 0) { /* as many on each path */
        uint32_t paths = link->path_count > 1 ? link->path_count : 1;
        count = (STREAMS_FAR + paths - 1) / paths * paths;
    }
    link->stream_count = (uint8_t)(count < P2P_STREAMS_MAX ? count : P2P_STREAMS_MAX);
}

uint32_t path_address(const struct p2p_link *link, uint8_t stream) {
    uint32_t first = 0;
    while (first < link->path_count && link->paths[first] != link->first_address) {
        first++;
    }
    bool is_known = link->path_count > 1 && first < link->path_count;
    return is_known ? link->paths[(first + stream) % link->path_count] : link->first_address;
}

/* ---- how fast they are ---- */

/* As much as goes out in UNSENT_S. */
size_t path_piece(const struct p2p_stream *stream) {
    double bytes = stream->bytes_per_s * UNSENT_S;
    return stream->bytes_per_s <= 0   ? PIECE_BYTES_UNKNOWN
           : bytes >= P2P_PIECE_BYTES ? P2P_PIECE_BYTES
           : bytes <= PIECE_BYTES_MIN ? PIECE_BYTES_MIN
                                      : (size_t)bytes / WIRE_ALIGNMENT * WIRE_ALIGNMENT;
}

/* The socket takes no more before less than that is left to send. */
static void limit_unsent(const struct p2p_stream *stream) {
    double bytes = stream->bytes_per_s * UNSENT_S;
    unsigned most = bytes > UNSENT_BYTES_MAX ? UNSENT_BYTES_MAX : (unsigned)bytes;
    most = most > path_piece(stream) ? most : (unsigned)path_piece(stream);
    (void)setsockopt(stream->io->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most, sizeof most); /* else the tail is longer */
}

/* ---- which takes the next piece ---- */

void path_note(struct p2p_link *link, struct p2p_stream *stream) {
    struct sockaddr_storage local = {0}, peer = {0};
    socklen_t local_len = sizeof local, peer_len = sizeof peer;
    if (stream->io->fd < 0 || getsockname(stream->io->fd, (struct sockaddr *)&local, &local_len) != 0 ||
        getpeername(stream->io->fd, (struct sockaddr *)&peer, &peer_len) != 0) {
        return;
    }
    net_address_key((struct sockaddr *)&local, &stream->local);
    (void)net_address_host((struct sockaddr *)&peer, stream->peer_address);
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        const struct p2p_stream *other = link->streams[i];
        link->has_paths = link->has_paths || (other && memcmp(&other->local, &stream->local, sizeof other->local) != 0);
    }
    for (size_t i = 0; i < P2P_STREAMS_MAX && link->has_paths; i++) {
        if (link->streams[i]) {
            limit_unsent(link->streams[i]);
        }
    }
}

uint64_t stream_queued(const struct p2p_stream *stream) {
    int queued = 0;
    return ioctl(stream->io->fd, SIOCOUTQ, &queued) == 0 && queued > 0 ? (uint64_t)queued : 0;
}

/* How fast a connection's bytes are acknowledged, averaged over times in which it always had some to send. The kernel's
 * own figure is that of its last few packets: behind a bucket that lets bursts pass, several times too high. */
static void measure(struct p2p_stream *stream, uint64_t queued, int64_t now_ns) {
    uint64_t acknowledged = stream->sent > queued ? stream->sent - queued : 0; /* greetings are not counted */
    double seconds = (double)(now_ns - stream->measured_ns) / 1e9;
    if (!stream->was_busy || queued == 0) {
        stream->measured_ns = now_ns;
        stream->acknowledged = acknowledged;
        stream->was_busy = queued > 0;
    } else if (seconds >= MEASURE_S) {
        uint64_t bytes = acknowledged > stream->acknowledged ? acknowledged - stream->acknowledged : 0;
        double bytes_per_s = (double)bytes / seconds;
        stream->bytes_per_s = stream->bytes_per_s > 0 ? (stream->bytes_per_s + bytes_per_s) / 2 : bytes_per_s;
        stream->measured_ns = now_ns;
        stream->acknowledged = acknowledged;
        limit_unsent(stream);
    }
}

void paths_begin(struct p2p_link *link) {
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        if (link->streams[i]) {
            link->streams[i]->was_busy = false;
        }
    }
}

/* Of all messages of the link whose receivers are ready. */
static double bytes_left(const struct p2p_link *link) {
    double left = 0;
    for (const struct p2p_request *request = link->cleared.first; request; request = request->next) {
        left += (double)(request->bytes - request->allotted);
    }
    return left;
}

struct p2p_stream *path_for_piece(const struct p2p_link *link, struct p2p_stream *stream) {
    struct p2p_stream *best = stream;
    double own_s = 0, least_s = -1, all_queued = 0, bytes_per_s = 0;
    int64_t now_ns = clock_monotonic_ns();
    bool all_known = true;
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        struct p2p_stream *other = link->streams[i];
        if (!other) {
            continue;
        }
        uint64_t queued = stream_queued(other);
        measure(other, queued, now_ns);
        all_known = all_known && other->bytes_per_s > 0;
        double done_s = (double)(queued + path_piece(other)) / (all_known ? other->bytes_per_s : 1);
        own_s = other == stream ? done_s : own_s;
        best = least_s < 0 || done_s < least_s ? other : best;
        least_s = least_s < 0 || done_s < least_s ? done_s : least_s;
        all_queued += (double)queued;
        bytes_per_s += other->bytes_per_s;
    }
    return !all_known || own_s * bytes_per_s <= bytes_left(link) + all_queued ? stream : best;
}
