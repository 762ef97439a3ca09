/* HMAC-SHA256 (RFC 2104), by OpenSSL, which is opened when it is first asked for and never otherwise. */
#ifndef NET_HMAC_H
#define NET_HMAC_H

#include <stddef.h>
#include <stdint.h>

#define HMAC_BYTES ((size_t)32)

struct hmac; /* scratch for one thread at a time; holds the last key until the next call or hmac_free() */

struct hmac_part {
    const void *bytes; /* borrowed until return; may be NULL when `len` is 0 */
    size_t len;
};

/* MUSTER_EUNSUPPORTED (no OpenSSL on this machine), MUSTER_ENOMEM. */
int hmac_create(struct hmac **out);
void hmac_free(struct hmac *hmac); /* NULL accepted */

/* Of the parts, one behind the other. MUSTER_ENOMEM. */
int hmac_sign(struct hmac *hmac, const void *key, size_t key_len, const struct hmac_part *parts, size_t part_count,
              uint8_t out[HMAC_BYTES]);

#endif
