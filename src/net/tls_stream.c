/* OpenSSL between two pieces of memory; see tls_stream.h. */
#include "net/tls_stream.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#include "base/status.h"
#include "net/tls_library.h"

enum {
    PIECE_BYTES = 4096, /* moved at once: OpenSSL's memory for bytes on their way never shrinks */
    RECORD_FIRST = 20,  /* types of TLS's records */
    RECORD_LAST = 23,
    REASON_MAX = 160,
};

struct tls_stream {
    const struct tls_library *library;
    SSL *ssl;
    BIO *in, *out; /* owned by ssl */
    size_t handshake_bytes;
};

/* ---- its life ---- */

int tls_stream_create(const struct tls_context *context, bool is_caller, struct tls_stream **out) {
    struct tls_stream *s = calloc(1, sizeof *s);
    if (!s) {
        return status_fail(MUSTER_ENOMEM, "no memory for TLS");
    }
    s->library = tls_library();
    s->ssl = tls_context_connection(context, is_caller);
    s->in = s->ssl ? s->library->BIO_new(s->library->BIO_s_mem()) : NULL;
    s->out = s->in ? s->library->BIO_new(s->library->BIO_s_mem()) : NULL;
    if (!s->out) {
        if (s->in) {
            (void)s->library->BIO_free(s->in);
        }
        if (s->ssl) {
            s->library->SSL_free(s->ssl);
        }
        free(s);
        return status_fail(MUSTER_ENOMEM, "no memory for TLS");
    }
    s->library->SSL_set_bio(s->ssl, s->in, s->out);
    (void)s->library->SSL_ctrl(s->ssl, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS, NULL); /* most are silent most times */
    *out = s;
    return MUSTER_OK;
}

void tls_stream_free(struct tls_stream *s) {
    if (s) {
        s->library->SSL_free(s->ssl);
        free(s);
    }
}

bool tls_stream_is_open(const struct tls_stream *s) {
    return s->library->SSL_is_init_finished(s->ssl) == 1;
}

bool tls_stream_is_answer(const uint8_t *bytes, size_t len) {
    return len == 0 || (bytes[0] >= RECORD_FIRST && bytes[0] <= RECORD_LAST);
}

/* ---- to the other side ---- */

static int drain(struct tls_stream *s, struct buf *wire) {
    uint8_t piece[PIECE_BYTES];
    for (;;) {
        int n = s->library->BIO_read(s->out, piece, sizeof piece);
        if (n <= 0) {
            return MUSTER_OK;
        }
        int rc = buf_append(wire, piece, (size_t)n);
        if (rc) {
            return rc;
        }
    }
}

/* What a call of OpenSSL that gave `result` means; 0: more bytes are wanted. */
static int outcome(struct tls_stream *s, int result) {
    char reason[REASON_MAX];
    int error = s->library->SSL_get_error(s->ssl, result);
    if (error == SSL_ERROR_WANT_READ) {
        return MUSTER_OK;
    }
    if (error == SSL_ERROR_ZERO_RETURN) {
        return status_fail(MUSTER_ECLOSED, "it has ended the connection");
    }
    tls_context_reason(s->ssl, reason, sizeof reason);
    return status_fail(MUSTER_EPROTOCOL, "%s", reason);
}

int tls_stream_begin(struct tls_stream *s, struct buf *wire) {
    s->library->ERR_clear_error();
    int rc = outcome(s, s->library->SSL_do_handshake(s->ssl));
    return rc ? rc : drain(s, wire);
}

int tls_stream_put(struct tls_stream *s, const void *bytes, size_t len, struct buf *wire) {
    assert(tls_stream_is_open(s) && len > 0 && len <= INT_MAX);
    s->library->ERR_clear_error();
    int n = s->library->SSL_write(s->ssl, bytes, (int)len);
    int rc = n > 0 ? MUSTER_OK : outcome(s, n);
    return rc ? rc : drain(s, wire);
}

/* ---- from the other side ---- */

static int count_handshake(struct tls_stream *s, size_t len) {
    if (tls_stream_is_open(s)) {
        return MUSTER_OK;
    }
    s->handshake_bytes += len;
    return s->handshake_bytes <= TLS_STREAM_HANDSHAKE_BYTES_MAX
               ? MUSTER_OK
               : status_fail(MUSTER_ELIMIT, "TLS: more than %zu bytes of handshake", TLS_STREAM_HANDSHAKE_BYTES_MAX);
}

static int read_plain(struct tls_stream *s, struct buf *plain) {
    uint8_t room[PIECE_BYTES];
    for (;;) {
        s->library->ERR_clear_error();
        int n = s->library->SSL_read(s->ssl, room, sizeof room);
        if (n <= 0) {
            return outcome(s, n);
        }
        int rc = buf_append(plain, room, (size_t)n);
        if (rc) {
            return rc;
        }
    }
}

int tls_stream_take(struct tls_stream *s, const uint8_t *bytes, size_t len, struct buf *plain, struct buf *wire) {
    int rc = MUSTER_OK;
    for (size_t at = 0; at < len && rc == MUSTER_OK;) {
        size_t piece = len - at < PIECE_BYTES ? len - at : PIECE_BYTES;
        rc = count_handshake(s, piece);
        if (rc == MUSTER_OK && s->library->BIO_write(s->in, bytes + at, (int)piece) != (int)piece) {
            rc = status_fail(MUSTER_ENOMEM, "no memory for TLS");
        }
        rc = rc ? rc : read_plain(s, plain);
        at += piece;
    }
    if (rc != MUSTER_OK) {
        (void)drain(s, wire); /* the reason stays */
        return rc;
    }
    return drain(s, wire);
}
