/* Peers that answer nothing any more; see p2p_impl.h.
 *
 * Who does not read is alive: a rank that computes, saves or is stopped closes its window, and its kernel answers each
 * probe for as long as that takes. TCP_USER_TIMEOUT counts a closed window as silence. So the kernel keeps trying, and
 * this file asks it (TCP_INFO) whether anything it has sent is unanswered, and since when. It asks while something that
 * was written is not acknowledged. Of an idle connection the kernel's keep-alive finds the end.
 *
 * Linux answers probes at most twice a second (tcp_invalid_ratelimit): the first few of a closed window may stay
 * unanswered for a second and a half. Shorter silences mean nothing. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "comm/p2p/p2p_impl.h"

enum { LOOKS = 16 /* at a connection, until it is given up */ };

static int64_t lost_after_ns(const struct p2p *p2p) {
    return (p2p->config.lost_after_ms ? p2p->config.lost_after_ms : P2P_LOST_AFTER_MS) * CLOCK_NS_PER_MS;
}

bool silence_is_unanswered(const struct tcp_info *info) {
    /* A retransmission counts as data that was sent: in a window that has shrunk it is answered, not taken. */
    return info->tcpi_probes > 0 || (info->tcpi_unacked > 0 && info->tcpi_last_ack_recv > info->tcpi_last_data_sent);
}

int64_t silence_since_ns(const struct tcp_info *info, int64_t since_ns, int64_t now_ns) {
    int64_t answer_ns = now_ns - info->tcpi_last_ack_recv * CLOCK_NS_PER_MS;
    if (!silence_is_unanswered(info)) {
        return 0;
    }
    /* Not since the last answer alone: between two probes two minutes may pass. Not since the first look alone: of a
     * busy connection something is on its way at each look. */
    return since_ns == 0 ? now_ns : since_ns > answer_ns ? since_ns : answer_ns;
}

bool silence_lasts(struct p2p_stream *stream, int64_t now_ns, int64_t for_ns) {
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    bool is_known = getsockopt(stream->io->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0;
    stream->silent_ns = is_known ? silence_since_ns(&info, stream->silent_ns, now_ns) : 0;
    return stream->silent_ns != 0 && now_ns - stream->silent_ns >= for_ns;
}

/* true: something is not acknowledged, so it is to be looked at again. */
static bool look_at(struct p2p *p2p, struct p2p_stream *stream, int64_t now_ns) {
    if (stream->is_broken || stream_queued(stream) == 0) {
        stream->silent_ns = 0;
        return false;
    }
    if (!silence_lasts(stream, now_ns, lost_after_ns(p2p))) {
        return true;
    }
    stream_break(p2p, stream, ETIMEDOUT); /* the monitor reads what there is, and buries the link */
    return false;
}

void silence_look(struct p2p *p2p, int64_t now_ns) {
    bool again = false;
    for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
        const struct p2p_link *link = p2p->links[peer];
        for (size_t i = 0; link && i < P2P_CONNECTIONS_MAX; i++) {
            struct p2p_stream *stream = link_connection(link, i);
            if (stream && stream->io && stream->io->fd >= 0) {
                again = look_at(p2p, stream, now_ns) || again;
            }
        }
    }
    p2p->silence_ns = again ? now_ns + lost_after_ns(p2p) / LOOKS : 0;
}

void silence_begin(struct p2p *p2p) {
    p2p->silence_ns = clock_monotonic_ns() + lost_after_ns(p2p) / LOOKS;
    attend_set_timer(p2p);
}
