/* TLS for the connections between hosts: whose certificates, and OpenSSL, which is opened at run time and only when it
 * is wanted, so that a worker without TLS links libc alone.
 *
 * Who is accepted: net/tls_context.h. Addresses come from the job's store. */
#ifndef COMM_TLS_H
#define COMM_TLS_H

#include "comm/p2p/link.h"
#include "net/tls_context.h"

struct tls;

/* MUSTER_TLS_CERT, MUSTER_TLS_KEY and MUSTER_TLS_CA; without them, if GLOO_DEVICE_TRANSPORT is TCP_TLS, Gloo's names of
 * the same. MUSTER_EINVAL: some are missing. */
int tls_files_from_env(struct tls_files *out);

/* Reads the files. As tls_context_create(). */
int tls_create(const struct tls_files *files, struct tls **out);
/* After all its links. NULL is accepted. */
void tls_free(struct tls *tls);

/* Takes the connected socket (also on failure: closed). The handshake goes along with the first reads and writes: until
 * it is over both may give LINK_AGAIN for want of the peer's bytes. NULL when out of memory. */
struct link *link_tls_create(struct tls *tls, int fd, bool is_caller);

#endif
