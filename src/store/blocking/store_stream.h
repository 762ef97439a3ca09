/* One connection of the blocking TCPStore client: a request out, its reply in, a deadline for each (on
 * clock_monotonic_ns()). What the requests are is store_tcp.c's part.
 *
 * Whatever goes wrong on a stream loses it: it cannot be known any more which bytes belong to which reply. Only a wait
 * that ran out of time, and was taken back, leaves it usable. */
#ifndef STORE_STORE_STREAM_H
#define STORE_STORE_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "net/endpoint.h"
#include "store/wire/codec.h"

struct store_stream {
    int fd;                         /* -1: the connection is lost */
    char server[NET_HOST_MAX + 16]; /* for messages; set by the owner */
    struct buf in, out;
    struct codec_scan scan;
    bool owes_answer; /* to a wait that was taken back: it comes before that of the next request */
    bool is_silent;   /* a look went unanswered, and nothing has come since: further looks do not wait for it */
};

void store_stream_init(struct store_stream *stream);
void store_stream_done(struct store_stream *stream);

/* Connects to the first of the addresses that answers as a TCPStore does, trying all again while nobody listens.
 * MUSTER_ETIMEOUT, MUSTER_ECONNECT, MUSTER_EPROTOCOL; may be called again. */
int store_stream_connect(struct store_stream *stream, const struct net_addresses *addresses, int64_t timeout_ms);

/* Starts a request in `out`, for the caller to append to. MUSTER_ECLOSED when the connection was lost earlier. */
int store_stream_begin(struct store_stream *stream, enum codec_command command);

/* Sends the request if building it went well (`code`, which is passed on otherwise) and reads its reply, which must
 * come in time. `out` NULL: the command has none; else its slices are valid until store_stream_finish(), which must
 * follow a success. value_count as for codec_scan_reply(). */
int store_stream_exchange(struct store_stream *stream, int code, enum codec_command command, size_t value_count,
                          int64_t deadline_ns, struct codec_reply *out);
void store_stream_finish(struct store_stream *stream);

/* The same for WAIT and BARRIER, whose reply may take as long as the caller allows: when the time is up the wait is
 * taken back (MUSTER_ETIMEOUT, the stream goes on), and the server's word on that is read by the next request, within
 * that one's time. Where no time was given ("only look") it is read here: the server may have answered the wait. If
 * nothing comes for a while, since the network is silent, that is as if there were nothing, and the stream goes on. */
int store_stream_wait(struct store_stream *stream, int code, int64_t send_deadline_ns, int64_t deadline_ns);

/* Gives the connection up; returns `code`. */
int store_stream_lose(struct store_stream *stream, int code);

#endif
