/* When does a peer answer nothing any more? See p2p_impl.h; p2p_attend.c asks.
 *
 * Who does not read is alive: a rank that computes, saves or is stopped closes its window, and its kernel answers each
 * probe for as long as that takes. TCP_USER_TIMEOUT counts a closed window as silence. So the kernel keeps trying, and
 * this file asks it (TCP_INFO) whether anything it has sent is unanswered, and since when. It asks while something that
 * was written is not acknowledged. Of an idle connection the kernel's keep-alive finds the end.
 *
 * Linux answers probes at most twice a second (tcp_invalid_ratelimit): the first few of a closed window may stay
 * unanswered for a second and a half. Shorter silences mean nothing. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "comm/p2p/p2p_impl.h"

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
