/* The secret of a job, which its agents know and nobody else: where it comes from, and signing with it. */
#ifndef RENDEZVOUS_SECRET_H
#define RENDEZVOUS_SECRET_H

#include <stddef.h>
#include <stdint.h>

#include "net/hmac.h"

#define SECRET_BYTES_MIN ((size_t)16)
#define SECRET_BYTES_MAX ((size_t)4096)

/* The bytes alone, for those who hand them on. Wipe it with secret_text_wipe(). */
struct secret_text {
    size_t len; /* 0: none */
    uint8_t bytes[SECRET_BYTES_MAX];
};

/* Of the file at `path`, or of `value` (MUSTER_SECRET); a newline at the end does not count. NULL or empty: not given;
 * without both, out->len is 0. MUSTER_EINVAL with a sentence: both are given; the file is no file, or can be read by
 * others than its owner (chmod 600), or it is too short or too long. MUSTER_ESYSTEM: it cannot be read. */
int secret_text_load(const char *path, const char *value, struct secret_text *out);
void secret_text_wipe(struct secret_text *text);

struct secret; /* for one thread at a time */

/* Copies `text`. MUSTER_EUNSUPPORTED (no OpenSSL on this machine), MUSTER_ENOMEM. */
int secret_create(const struct secret_text *text, struct secret **out);
void secret_free(struct secret *secret); /* wipes it; NULL accepted */

/* HMAC-SHA256 of the parts under the secret; or under `key`, which was derived from it. MUSTER_ENOMEM. */
int secret_sign(const struct secret *secret, const struct hmac_part *parts, size_t part_count, uint8_t out[HMAC_BYTES]);
int secret_sign_with(const struct secret *secret, const uint8_t key[HMAC_BYTES], const struct hmac_part *parts,
                     size_t part_count, uint8_t out[HMAC_BYTES]);

#endif
