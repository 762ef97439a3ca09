/* What tls.c and link_tls.c share. */
#ifndef COMM_TLS_IMPL_H
#define COMM_TLS_IMPL_H

#include "comm/p2p/tls.h"
#include "net/tls_library.h"

struct tls {
    const struct tls_library *library;
    struct tls_context *context;
    BIO_METHOD *method; /* of streams: link_tls.c */
};

/* What OpenSSL does with its input and output. NULL: out of memory. */
BIO_METHOD *link_tls_method(const struct tls_library *library);

#endif
