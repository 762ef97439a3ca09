/* HMAC-SHA256 by OpenSSL; see hmac.h. */
#include "net/hmac.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"
#include "net/tls_library.h"

struct hmac {
    const struct tls_library *library;
    EVP_MAC *method;
    EVP_MAC_CTX *context;
};

int hmac_create(struct hmac **out) {
    const struct tls_library *library = tls_library();
    if (!library) {
        return MUSTER_EUNSUPPORTED;
    }
    struct hmac *hmac = calloc(1, sizeof *hmac);
    if (!hmac) {
        return status_fail(MUSTER_ENOMEM, "no memory for HMAC");
    }
    hmac->library = library;
    hmac->method = library->EVP_MAC_fetch(NULL, "HMAC", NULL);
    hmac->context = hmac->method ? library->EVP_MAC_CTX_new(hmac->method) : NULL;
    if (!hmac->context) {
        hmac_free(hmac);
        return status_fail(MUSTER_EUNSUPPORTED, "this machine's OpenSSL has no HMAC");
    }
    *out = hmac;
    return MUSTER_OK;
}

void hmac_free(struct hmac *hmac) {
    if (hmac) {
        hmac->library->EVP_MAC_CTX_free(hmac->context); /* wipes the key */
        hmac->library->EVP_MAC_free(hmac->method);
        free(hmac);
    }
}

int hmac_sign(struct hmac *hmac, const void *key, size_t key_len, const struct hmac_part *parts, size_t part_count,
              uint8_t out[HMAC_BYTES]) {
    const struct tls_library *library = hmac->library;
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {library->OSSL_PARAM_construct_utf8_string("digest", digest, 0),
                                     library->OSSL_PARAM_construct_end()};
    bool fine = library->EVP_MAC_init(hmac->context, key, key_len, parameters) == 1;
    for (size_t i = 0; fine && i < part_count; i++) {
        fine = parts[i].len == 0 || library->EVP_MAC_update(hmac->context, parts[i].bytes, parts[i].len) == 1;
    }
    size_t len = 0;
    fine = fine && library->EVP_MAC_final(hmac->context, out, &len, HMAC_BYTES) == 1 && len == HMAC_BYTES;
    return fine ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "HMAC-SHA256: OpenSSL fails");
}
