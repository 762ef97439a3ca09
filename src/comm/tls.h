/* TLS for the connections between hosts: whose certificates, and OpenSSL, which is opened at run time and only when it
 * is wanted, so that a worker without TLS links libc alone.
 *
 * Both sides show a certificate, and each wants that of the other to be signed by the job's authority: who has none is
 * no member of the job. Names in certificates are not looked at: addresses come from the job's store, and any member
 * may be anywhere. TLS 1.3 alone; no tickets, no resumption, no early data. */
#ifndef COMM_TLS_H
#define COMM_TLS_H

#include "comm/link.h"

struct tls;

/* Names of files in PEM form; strings of the environment, borrowed. */
struct tls_files {
    const char *certificate; /* of this process, and those between it and the authority; NULL: no TLS is wanted */
    const char *key;         /* of that certificate */
    const char *authority;   /* certificates of whom all members' are signed by */
};

/* MUSTER_TLS_CERT, MUSTER_TLS_KEY and MUSTER_TLS_CA; without them, if GLOO_DEVICE_TRANSPORT is TCP_TLS, Gloo's names of
 * the same. MUSTER_EINVAL: some are missing. */
int tls_files_from_env(struct tls_files *out);

/* Reads the files. MUSTER_EINVAL with OpenSSL's reason: a file is not there, or of no use, or the key is not that of
 * the certificate. MUSTER_EUNSUPPORTED: no OpenSSL 3 on this machine, or built without its headers. MUSTER_ENOMEM. */
int tls_create(const struct tls_files *files, struct tls **out);
/* After all its links. NULL is accepted. */
void tls_free(struct tls *tls);

/* Takes the connected socket (also on failure: closed). The handshake goes along with the first reads and writes: until
 * it is over both may give LINK_AGAIN for want of the peer's bytes. NULL when out of memory. */
struct link *link_tls_create(struct tls *tls, int fd, bool is_caller);

#endif
