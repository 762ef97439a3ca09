/* A stream in TLS over a TCP socket; see link.h and tls.h.
 *
 * OpenSSL reads straight from the socket, a record at a time, and writes into a buffer of the link, from which the
 * socket takes what it can: so a record is never left half accepted, and the bytes offered next need not be the same
 * again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/str.h"
#include "comm/p2p/tls_impl.h"

enum {
    RECORD_BYTES = 16 << 10,  /* of plain text: TLS's largest */
    UNSENT_BYTES = 128 << 10, /* from here on write() takes no more */
    UNSENT_BYTES_MAX = 1 << 20,
    REASON_MAX = 128
};

struct link_tls {
    struct link link; /* first: the two are cast into each other */
    const struct tls_library *library;
    SSL *ssl;
    struct buf unsent;
    int error_number; /* of the socket */
    bool has_ended;   /* the peer has closed */
    char reason[REASON_MAX];
    uint8_t record[RECORD_BYTES];
};

static struct link_tls *tls_of(struct link *link) {
    return (struct link_tls *)link;
}

/* ---- OpenSSL's input and output ---- */

static int bio_read(BIO *bio, char *to, int bytes) {
    const struct tls_library *library = tls_library();
    struct link_tls *tls = library->BIO_get_data(bio);
    library->BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    ssize_t n = recv(tls->link.fd, to, (size_t)bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        library->BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
    } else if (n < 0) {
        tls->error_number = errno;
    } else if (n == 0) {
        tls->has_ended = true;
    }
    return (int)n;
}

static int bio_write(BIO *bio, const char *from, int bytes) {
    struct link_tls *tls = tls_library()->BIO_get_data(bio);
    if (buf_append(&tls->unsent, from, (size_t)bytes) != 0) {
        tls->error_number = ENOMEM;
        return -1;
    }
    return bytes;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD *link_tls_method(const struct tls_library *library) {
    BIO_METHOD *method = library->BIO_meth_new(BIO_TYPE_SOURCE_SINK, "muster");
    if (method &&
        (library->BIO_meth_set_read(method, bio_read) != 1 || library->BIO_meth_set_write(method, bio_write) != 1 ||
         library->BIO_meth_set_ctrl(method, bio_control) != 1)) {
        library->BIO_meth_free(method);
        method = NULL;
    }
    return method;
}

/* ---- the socket's side ---- */

/* 1: all is sent; LINK_AGAIN; LINK_BROKEN. */
static int tls_flush(struct link *link) {
    struct link_tls *tls = tls_of(link);
    while (tls->unsent.len > 0) {
        ssize_t n = send(link->fd, buf_bytes(&tls->unsent), tls->unsent.len, MSG_NOSIGNAL);
        if (n < 0) {
            return errno == EAGAIN || errno == EINTR ? LINK_AGAIN : LINK_BROKEN;
        }
        buf_consume(&tls->unsent, (size_t)n);
    }
    return 1;
}

/* What a call of OpenSSL that gave `result` means. */
static ssize_t outcome(struct link_tls *tls, int result) {
    const struct tls_library *library = tls->library;
    int error = library->SSL_get_error(tls->ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        return LINK_AGAIN;
    }
    char reason[REASON_MAX];
    tls_context_reason(tls->ssl, reason, sizeof reason);
    (void)tls_flush(&tls->link); /* the peer should hear why */
    if (tls->error_number != 0) {
        errno = tls->error_number;
        return LINK_BROKEN;
    }
    if (error == SSL_ERROR_ZERO_RETURN || tls->has_ended) {
        return LINK_END;
    }
    (void)str_copy(tls->reason, sizeof tls->reason, reason);
    errno = EPROTO;
    return LINK_BROKEN;
}

/* ---- the stream ---- */

static ssize_t tls_read(struct link *link, const struct iovec *parts, int part_count) {
    struct link_tls *tls = tls_of(link);
    size_t total = 0;
    ssize_t code = 1;
    tls->library->ERR_clear_error();
    for (int i = 0; i < part_count && code > 0; i++) {
        for (size_t done = 0; done < parts[i].iov_len && code > 0;) {
            size_t wanted = parts[i].iov_len - done;
            int n = tls->library->SSL_read(tls->ssl, (uint8_t *)parts[i].iov_base + done,
                                           wanted < RECORD_BYTES ? (int)wanted : RECORD_BYTES);
            if (n > 0) {
                done += (size_t)n;
                total += (size_t)n;
            } else {
                code = outcome(tls, n);
            }
        }
    }
    int flushed = tls->unsent.len > 0 ? tls_flush(link) : 1; /* its part of the handshake */
    if (total > 0) {
        return (ssize_t)total; /* what went wrong behind it comes again */
    }
    return flushed == LINK_BROKEN ? LINK_BROKEN : code;
}

/* Makes a record of what is offered from `*part` and `*at` on. Returns the plain bytes that it took, or as outcome().
 */
static ssize_t seal(struct link_tls *tls, const struct iovec *parts, int part_count, int *part, size_t *at) {
    size_t gathered = 0;
    const uint8_t *from = tls->record;
    if (parts[*part].iov_len - *at >= RECORD_BYTES) {
        from = (const uint8_t *)parts[*part].iov_base + *at;
        gathered = RECORD_BYTES;
        *at += gathered;
    } else {
        while (*part < part_count && gathered < RECORD_BYTES) {
            size_t n = parts[*part].iov_len - *at;
            n = n < RECORD_BYTES - gathered ? n : RECORD_BYTES - gathered;
            if (n > 0) { /* an empty part may be nowhere */
                memcpy(tls->record + gathered, (const uint8_t *)parts[*part].iov_base + *at, n);
            }
            gathered += n;
            *at += n;
            if (*at == parts[*part].iov_len) {
                ++*part;
                *at = 0;
            }
        }
    }
    if (gathered == 0) {
        return 0;
    }
    int n = tls->library->SSL_write(tls->ssl, from, (int)gathered);
    return n > 0 ? n : outcome(tls, n);
}

static ssize_t tls_write(struct link *link, const struct iovec *parts, int part_count) {
    struct link_tls *tls = tls_of(link);
    int part = 0;
    size_t at = 0, total = 0;
    ssize_t code = tls_flush(link);
    tls->library->ERR_clear_error();
    while (code > 0 && part < part_count && tls->unsent.len < UNSENT_BYTES) {
        if (at == parts[part].iov_len) {
            part++;
            at = 0;
            continue;
        }
        code = seal(tls, parts, part_count, &part, &at);
        total += code > 0 ? (size_t)code : 0;
    }
    if (tls_flush(link) == LINK_BROKEN) {
        return LINK_BROKEN;
    }
    return total > 0 ? (ssize_t)total : code > 0 ? LINK_AGAIN : code;
}

static bool tls_pending(const struct link *link) {
    const struct link_tls *tls = (const struct link_tls *)link;
    return tls->library->SSL_pending(tls->ssl) > 0;
}

static const char *tls_reason(const struct link *link) {
    const struct link_tls *tls = (const struct link_tls *)link;
    return tls->reason[0] ? tls->reason : NULL;
}

static void tls_close(struct link *link) {
    struct link_tls *tls = tls_of(link);
    if (tls->ssl) {
        tls->library->SSL_free(tls->ssl);
    }
    buf_done(&tls->unsent);
    (void)close(link->fd);
    free(tls);
}

static const struct link_kind tls_kind = {.name = "tls",
                                          .read = tls_read,
                                          .write = tls_write,
                                          .flush = tls_flush,
                                          .pending = tls_pending,
                                          .reason = tls_reason,
                                          .close = tls_close};

struct link *link_tls_create(struct tls *tls, int fd, bool is_caller) {
    const struct tls_library *library = tls->library;
    struct link_tls *link = calloc(1, sizeof *link);
    if (!link) {
        (void)close(fd);
        return NULL;
    }
    link->link.kind = &tls_kind;
    link->link.fd = fd;
    link->library = library;
    buf_init(&link->unsent, UNSENT_BYTES_MAX);
    link->ssl = tls_context_connection(tls->context, is_caller);
    BIO *bio = link->ssl ? library->BIO_new(tls->method) : NULL;
    if (!bio) {
        tls_close(&link->link);
        return NULL;
    }
    library->BIO_set_data(bio, link);
    library->BIO_set_init(bio, 1);
    library->SSL_set_bio(link->ssl, bio, bio); /* owns it */
    return &link->link;
}
