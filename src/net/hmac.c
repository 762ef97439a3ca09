/* HMAC-SHA256 by OpenSSL; see hmac.h. */
#include "net/hmac.h"

#include <assert.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"
#include "net/tls_library.h"

struct hmac {
    const struct tls_library *library;
    HMAC_CTX *context;
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
    hmac->context = library->HMAC_CTX_new();
    if (!hmac->context) {
        free(hmac);
        return status_fail(MUSTER_ENOMEM, "no memory for HMAC");
    }
    *out = hmac;
    return MUSTER_OK;
}

void hmac_free(struct hmac *hmac) {
    if (hmac) {
        hmac->library->HMAC_CTX_free(hmac->context); /* wipes the key */
        free(hmac);
    }
}

int hmac_sign(struct hmac *hmac, const void *key, size_t key_len, const struct hmac_part *parts, size_t part_count,
              uint8_t out[HMAC_BYTES]) {
    const struct tls_library *library = hmac->library;
    assert(key_len <= INT_MAX);
    bool fine = library->HMAC_Init_ex(hmac->context, key, (int)key_len, library->EVP_sha256(), NULL) == 1;
    for (size_t i = 0; fine && i < part_count; i++) {
        fine = parts[i].len == 0 || library->HMAC_Update(hmac->context, parts[i].bytes, parts[i].len) == 1;
    }
    unsigned len = 0;
    fine = fine && library->HMAC_Final(hmac->context, out, &len) == 1 && len == HMAC_BYTES;
    return fine ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "HMAC-SHA256: OpenSSL fails");
}
