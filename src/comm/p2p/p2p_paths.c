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
#include "comm/p2p/p2p_impl.h"

#define MEASURE_S 0.05 /* a rate is averaged over so long at least */
/* What is given to the kernel cannot be taken back. So a connection has no more to send than it sends in so long,
 * beside what is on its way, and gets it in pieces of that size. */
#define UNSENT_S 0.01
enum { PIECE_BYTES_MIN = 16 << 10, PIECE_BYTES_UNKNOWN = 64 << 10, UNSENT_BYTES_MAX = 16 << 20 };
enum { STREAMS_NEAR = 1, STREAMS_FAR = 4 }; /* one process feeds loopback's whole bandwidth with one connection */

/* ---- which there are ---- */

static bool same_host(const struct net_address *a, const struct net_address *b) {
    struct net_address_key keys[2];
    net_address_key((const struct sockaddr *)&a->sockaddr, &keys[0]);
    net_address_key((const struct sockaddr *)&b->sockaddr, &keys[1]);
    return memcmp(&keys[0], &keys[1], sizeof keys[0]) == 0;
}

/* Which of our interfaces leads to the address; UINT8_MAX: none of those that may be used. */
static uint8_t own_interface(const struct p2p *p2p, const struct net_address *peer) {
    struct net_address local;
    if (interface_route((const struct sockaddr *)&peer->sockaddr, &local) != 0 || same_host(&local, peer)) {
        return UINT8_MAX; /* there is no route, or it is an address of our own: bridges have the same on many hosts */
    }
    for (uint32_t i = 0; i < p2p->contact.address_count; i++) {
        if (same_host(&local, &p2p->contact.addresses[i])) {
            return p2p->contact.interfaces[i];
        }
    }
    return UINT8_MAX;
}

static void find_paths(const struct p2p *p2p, struct p2p_link *link) {
    const struct wire_contact *contact = &link->contact;
    uint32_t ours = 0, theirs = 0; /* interfaces that are in a path, as bits */
    link->path_count = 0;
    for (uint32_t i = 0; i < contact->address_count; i++) {
        uint32_t their = 1u << contact->interfaces[i];
        uint8_t own = theirs & their ? UINT8_MAX : own_interface(p2p, &contact->addresses[i]);
        if (own != UINT8_MAX && !(ours >> own & 1)) {
            ours |= 1u << own;
            theirs |= their;
            link->paths[link->path_count++] = (uint8_t)i;
        }
    }
}

void paths_choose(const struct p2p *p2p, struct p2p_link *link) {
    uint32_t count = p2p->config.stream_count;
    bool is_near = link->contact.host == p2p->contact.host;
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

/* Bytes that have been written and the peer's kernel has not acknowledged. */
static uint64_t queue_of(const struct p2p_stream *stream) {
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
        uint64_t queued = queue_of(other);
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
