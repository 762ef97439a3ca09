/* TLS without a socket: bytes of the wire in, plain bytes out, and the other way round. Whoever has the connection
 * moves them; nothing here blocks or waits. Who is accepted: tls_context.h. */
#ifndef NET_TLS_STREAM_H
#define NET_TLS_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "net/tls_context.h"

#define TLS_STREAM_FIRST_BYTE 0x16 /* of whoever begins */
/* The other side's part of a handshake, its certificates included. */
#define TLS_STREAM_HANDSHAKE_BYTES_MAX ((size_t)16 * 1024)

struct tls_stream;

/* MUSTER_ENOMEM. */
int tls_stream_create(const struct tls_context *context, bool is_caller, struct tls_stream **out);
/* NULL is accepted. */
void tls_stream_free(struct tls_stream *stream);

/* The caller's first bytes, appended to `wire`. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int tls_stream_begin(struct tls_stream *stream, struct buf *wire);

/* The other side has shown its certificate, and there is no more to the handshake. */
bool tls_stream_is_open(const struct tls_stream *stream);

/* Could these bytes, the first from the other side, be TLS? */
bool tls_stream_is_answer(const uint8_t *bytes, size_t len);

/* What has come from the other side, all of it: `plain` is what it has said, `wire` what is to be sent to it (also on
 * failure: it should hear why); both are appended to. After a failure the stream is of no use. MUSTER_EPROTOCOL with
 * the reason (MUSTER_ECLOSED: it has said that it ends), MUSTER_ELIMIT, MUSTER_ENOMEM. */
int tls_stream_take(struct tls_stream *stream, const uint8_t *bytes, size_t len, struct buf *plain, struct buf *wire);

/* Appends to `wire` what says `bytes`, once it is open. MUSTER_ELIMIT, MUSTER_ENOMEM: the stream is of no use then. */
int tls_stream_put(struct tls_stream *stream, const void *bytes, size_t len, struct buf *wire);

#endif
