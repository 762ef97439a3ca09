/* Certificates for TLS, and what its connections are made from. OpenSSL is opened at run time, and only when TLS is
 * wanted.
 *
 * Both sides show a certificate, and each wants that of the other to be signed by the job's authority: who has none is
 * no member of the job. Names in certificates are not looked at: any member may be anywhere. TLS 1.3 alone; no tickets,
 * no resumption, no early data. */
#ifndef NET_TLS_CONTEXT_H
#define NET_TLS_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>

struct ssl_st; /* OpenSSL's SSL */
struct tls_context;

/* Names of files in PEM form, borrowed. */
struct tls_files {
    const char *certificate; /* of this process, and those between it and the authority; NULL: no TLS is wanted */
    const char *key;         /* of that certificate */
    const char *authority;   /* certificates of whom all members' are signed by */
};

/* Reads the files. MUSTER_EINVAL with the reason: a file is not there, or of no use, or the key is not that of the
 * certificate. MUSTER_EUNSUPPORTED: no OpenSSL on this machine. MUSTER_ENOMEM. */
int tls_context_create(const struct tls_files *files, struct tls_context **out);
/* Connections made from it live on. NULL is accepted. */
void tls_context_free(struct tls_context *context);

/* A connection that has neither input nor output yet; the caller's to SSL_free(). NULL: out of memory. */
struct ssl_st *tls_context_connection(const struct tls_context *context, bool is_caller);

/* Why a connection has failed, from what OpenSSL has noted in this thread, which is forgotten then: "TLS: ...". */
void tls_context_reason(const struct ssl_st *connection, char *out, size_t size);

#endif
