/* When does a peer answer nothing any more? See p2p_impl.h. The monitor looks now and then, while something that was
 * written is not acknowledged.
 *
 * Who does not read is alive: a rank that computes, saves or is stopped closes its window, and its kernel answers each
 * probe for as long as that takes. TCP_USER_TIMEOUT counts a closed window as silence. So the kernel keeps trying, and
 * this file asks it (TCP_INFO) whether anything it has sent is unanswered, and since when. Of an idle connection the
 * kernel's keep-alive finds the end.
 *
 * Who is silent may come back: a switch restarts, a virtual machine is moved. Nobody can tell that from a machine that
 * is gone, so everybody waits for config.lost_after_ms. One of several paths is given up earlier, if another one works.
 *
 * The kernel doubles the pause before it sends again, up to two minutes: after a minute's cut nothing would flow for
 * most of another. Where it can (Linux 6.15) it is told to try each second. It would then give up by itself after 15
 * tries, whatever time that is, but for a TCP_USER_TIMEOUT, which lasts only as long as that. Of a closed window the
 * pauses have grown before any cut, and the news that it has opened may be lost in one. There, too, 15 tries without an
 * answer are the end, and no time-out changes that: the pause is at most as long as the silence. A window that has
 * shrunk below what is on its way is left alone: the kernel gives up after twice the longest pause.
 *
 * Linux answers probes at most twice a second (tcp_invalid_ratelimit): the first few of a closed window may stay
 * unanswered for a second and a half. Shorter silences mean nothing. */
#include <errno.h>
#include <linux/tcp.h> /* TCP_INFO with the window; not beside netinet/tcp.h */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/absence.h"
#include "base/clock.h"
#include "base/hold.h"
#include "base/log.h"
#include "base/str.h"
#include "comm/p2p/p2p_impl.h"

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

enum {
    SURVIVORS_HOLD_MS = 30000,
    LOOKS = 16,                   /* at a connection, until one of several paths is given up */
    HURRY_RETRANSMISSIONS = 3,    /* of the same bytes: after a second and a half */
    HURRIED_PAUSE_MS = 1000,      /* the kernel takes no less */
    HURRIED_TIMEOUT_MS = 2000000, /* in microseconds, as some kernels count, no more fits */
    PROBE_PAUSE_MS = 5000,
    PROBE_PAUSE_MAX_MS = 120000 /* the kernel takes no more */
};

/* ---- of a connection ---- */

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

uint32_t silence_pause_ms(const struct tcp_info *info, int64_t silent_for_ns) {
    if (info->tcpi_unacked == 0) { /* a closed window */
        int64_t ms = silent_for_ns / CLOCK_NS_PER_MS;
        return ms > PROBE_PAUSE_MAX_MS ? PROBE_PAUSE_MAX_MS : ms > PROBE_PAUSE_MS ? (uint32_t)ms : PROBE_PAUSE_MS;
    }
    return info->tcpi_snd_wnd > 0 && info->tcpi_retransmits >= HURRY_RETRANSMISSIONS ? HURRIED_PAUSE_MS : 0;
}

/* false: it is no socket, or its kernel tells nothing. */
static bool read_info(const struct p2p_stream *stream, struct tcp_info *out) {
    socklen_t len = sizeof *out;
    memset(out, 0, sizeof *out);
    return stream && stream->io && stream->io->fd >= 0 &&
           getsockopt(stream->io->fd, IPPROTO_TCP, TCP_INFO, out, &len) == 0;
}

static bool set(const struct p2p_stream *stream, int name, int value) {
    return setsockopt(stream->io->fd, IPPROTO_TCP, name, &value, sizeof value) == 0;
}

/* The longest pause before the kernel sends again; 0: its usual one. */
static void set_pause(struct p2p_stream *stream, uint32_t wanted_ms) {
    int usual_ms = (int)stream->usual_pause_ms;
    socklen_t len = sizeof usual_ms;
    if (wanted_ms == stream->pause_ms ||
        (usual_ms == 0 && getsockopt(stream->io->fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &usual_ms, &len) != 0)) {
        return;
    }
    stream->usual_pause_ms = (uint32_t)usual_ms;
    stream->pause_ms = wanted_ms;
    int pause_ms = wanted_ms > 0 && (int)wanted_ms < usual_ms ? (int)wanted_ms : usual_ms;
    int timeout_ms = wanted_ms == HURRIED_PAUSE_MS ? HURRIED_TIMEOUT_MS : 0;
    if (timeout_ms == 0 || set(stream, TCP_USER_TIMEOUT, timeout_ms)) {
        (void)set(stream, TCP_RTO_MAX_MS, pause_ms);
    }
    if (timeout_ms == 0) {
        (void)set(stream, TCP_USER_TIMEOUT, 0);
    }
}

/* ---- who is given up ---- */

void p2p_hold_from_env(struct p2p_config *config) {
    const char *lost_key = getenv("MUSTER_LOST_KEY");
    int64_t hold_ms = hold_from_env_ms();
    bool is_survivor = lost_key && *lost_key && hold_ms > SURVIVORS_HOLD_MS;
    config->lost_after_ms = (uint32_t)(is_survivor ? SURVIVORS_HOLD_MS : hold_ms);
    config->lost_after_name = is_survivor ? "--survivors=continue" : "MUSTER_HOLD_TIMEOUT";
}

int64_t silence_lost_after_ns(const struct p2p *p2p) {
    return (p2p->config.lost_after_ms ? p2p->config.lost_after_ms : HOLD_DEFAULT_MS) * CLOCK_NS_PER_MS;
}

static int64_t path_lost_after_ns(const struct p2p *p2p) {
    uint32_t own_ms = p2p->config.path_lost_after_ms;
    int64_t ns = (own_ms ? own_ms : P2P_PATH_LOST_AFTER_MS) * CLOCK_NS_PER_MS;
    return ns < silence_lost_after_ns(p2p) ? ns : silence_lost_after_ns(p2p);
}

/* Has another path of the link answered lately? An idle one is asked each few seconds. */
static bool other_path_answers(const struct p2p_stream *stream, int64_t within_ns) {
    const struct p2p_link *link = stream->link;
    bool answers = false;
    for (size_t i = 0; link->has_paths && !stream->is_watch && i < P2P_STREAMS_MAX; i++) {
        const struct p2p_stream *other = link->streams[i];
        struct tcp_info info;
        answers =
            answers || (other && memcmp(&other->local, &stream->local, sizeof other->local) != 0 && !other->is_broken &&
                        read_info(other, &info) && info.tcpi_last_ack_recv * CLOCK_NS_PER_MS <= within_ns);
    }
    return answers;
}

bool silence_is_lost(const struct p2p *p2p, struct p2p_stream *stream, int64_t now_ns) {
    struct tcp_info info;
    bool is_known = read_info(stream, &info);
    stream->silent_ns = is_known ? silence_since_ns(&info, stream->silent_ns, now_ns) : 0;
    if (is_known) {
        set_pause(stream, silence_pause_ms(&info, stream->silent_ns != 0 ? now_ns - stream->silent_ns : 0));
    }
    if (stream->silent_ns == 0 || !other_path_answers(stream, path_lost_after_ns(p2p) / 2)) {
        stream->alone_ns = 0;
    } else if (stream->alone_ns == 0) {
        stream->alone_ns = now_ns;
    }
    return stream->silent_ns != 0 && (now_ns - stream->silent_ns >= silence_lost_after_ns(p2p) ||
                                      (stream->alone_ns != 0 && now_ns - stream->alone_ns >= path_lost_after_ns(p2p)));
}

/* ---- what is said of it ---- */

void silence_describe(const struct p2p *p2p, const struct p2p_stream *stream, int error_number,
                      char out[P2P_REASON_MAX]) {
    struct tcp_info info;
    bool is_of_hold = stream->alone_ns == 0 && p2p->config.lost_after_name;
    double seconds = stream->silent_ns != 0     ? (double)(clock_monotonic_ns() - stream->silent_ns) / 1e9
                     : read_info(stream, &info) ? info.tcpi_last_ack_recv / 1e3
                                                : 0;
    (void)str_format(out, P2P_REASON_MAX, "nothing was acknowledged for %.3g s%s%s%s%s%s", seconds,
                     is_of_hold ? " (" : "", is_of_hold ? p2p->config.lost_after_name : "", is_of_hold ? ")" : "",
                     error_number != ETIMEDOUT ? "; " : "", error_number != ETIMEDOUT ? strerror(error_number) : "");
}

void silence_tell_wait(const struct p2p *p2p, const struct p2p_link *link, const char *what, int64_t since_ns,
                       int64_t now_ns, uint32_t *told) {
    char peer[P2P_PEER_NAME_MAX];
    const char *name = p2p->config.lost_after_name;
    int64_t first_ns = P2P_TELL_SILENCE_MS * CLOCK_NS_PER_MS, silence_ns = now_ns - since_ns;
    first_ns = first_ns < silence_lost_after_ns(p2p) / 2 ? first_ns : silence_lost_after_ns(p2p) / 2;
    if (silence_ns < first_ns + *told * P2P_TELL_AGAIN_MS * CLOCK_NS_PER_MS) {
        return;
    }
    log_warning("%s %s for %.3g s; waiting for it for up to %.6g s%s%s%s", link_peer_name(p2p, link, peer), what,
                (double)silence_ns / 1e9, (double)silence_lost_after_ns(p2p) / 1e9, name ? " (" : "", name ? name : "",
                name ? ")" : "");
    ++*told;
}

static void tell(const struct p2p *p2p, struct p2p_link *link, const struct p2p_stream *silent, int64_t now_ns) {
    char peer[P2P_PEER_NAME_MAX], what[NET_ADDRESS_TEXT_MAX + 32];
    if (silent && now_ns - silent->silent_ns >= P2P_SILENT_MS * CLOCK_NS_PER_MS) { /* else it is only busy */
        (void)str_format(what, sizeof what, "has acknowledged nothing%s%s", link->has_paths ? " at " : "",
                         link->has_paths ? silent->peer_address : "");
        silence_tell_wait(p2p, link, what, silent->silent_ns, now_ns, &link->silence_told);
        return;
    }
    if (link->silence_told > 0 && link->state == LINK_OPEN && !link->is_dying) {
        log_warning("%s answers again", link_peer_name(p2p, link, peer));
    }
    link->silence_told = 0;
}

int64_t p2p_silence_ms(struct p2p *p2p, uint32_t peer) {
    bool is_silent = false;
    int64_t least_ms = INT64_MAX;
    p2p_lock(p2p);
    const struct p2p_link *link = p2p->links[peer];
    for (size_t i = 0; link && i < P2P_CONNECTIONS_MAX; i++) {
        struct tcp_info info;
        if (read_info(link_connection(link, i), &info)) { /* of an idle one, the first probe is no silence yet */
            is_silent = is_silent || (info.tcpi_unacked > 0 ? silence_is_unanswered(&info) : info.tcpi_probes > 1);
            least_ms = info.tcpi_last_ack_recv < least_ms ? info.tcpi_last_ack_recv : least_ms;
        }
    }
    p2p_unlock(p2p);
    return is_silent && least_ms >= P2P_SILENT_MS ? least_ms : 0;
}

/* ---- looking ---- */

/* true: something is not acknowledged, so it is to be looked at again. away_ns: this process has just been away so long
 * (stopped, or its machine moved): that is not the peer's silence, and nobody is judged before the next look. */
static bool look_at(struct p2p *p2p, struct p2p_stream *stream, int64_t now_ns, int64_t away_ns) {
    if (stream->is_broken || stream_queued(stream) == 0) {
        stream->silent_ns = stream->alone_ns = 0;
        if (!stream->is_broken) {
            set_pause(stream, 0);
        }
        return false;
    }
    stream->silent_ns += stream->silent_ns != 0 ? away_ns : 0;
    stream->alone_ns += stream->alone_ns != 0 ? away_ns : 0;
    if (!silence_is_lost(p2p, stream, now_ns) || away_ns > 0) {
        return true;
    }
    stream_break(p2p, stream, ETIMEDOUT); /* the monitor reads what there is, and buries the link */
    return false;
}

static bool look_at_link(struct p2p *p2p, struct p2p_link *link, int64_t now_ns, int64_t away_ns) {
    const struct p2p_stream *silent = NULL;
    bool again = false;
    for (size_t i = 0; i < P2P_CONNECTIONS_MAX; i++) {
        struct p2p_stream *stream = link_connection(link, i);
        if (stream && stream->io && stream->io->fd >= 0) {
            again = look_at(p2p, stream, now_ns, away_ns) || again;
            silent = stream->silent_ns != 0 && (!silent || stream->silent_ns < silent->silent_ns) ? stream : silent;
        }
    }
    tell(p2p, link, silent, now_ns);
    return again;
}

static int64_t next_look_ns(const struct p2p *p2p, int64_t now_ns) {
    return now_ns + path_lost_after_ns(p2p) / LOOKS;
}

void silence_look(struct p2p *p2p, int64_t now_ns) {
    int64_t late_ns = now_ns - p2p->silence_ns;
    int64_t away_ns = late_ns >= ABSENCE_LONG_MS * CLOCK_NS_PER_MS ? late_ns : 0;
    bool again = false;
    for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
        again = (p2p->links[peer] && look_at_link(p2p, p2p->links[peer], now_ns, away_ns)) || again;
    }
    p2p->silence_ns = again ? next_look_ns(p2p, now_ns) : 0;
}

void silence_watch(struct p2p *p2p) {
    p2p->silence_ns = next_look_ns(p2p, clock_monotonic_ns());
    attend_set_timer(p2p);
}
