/* Whose certificates, and what links are made from; see tls.h. */
#include "comm/p2p/tls.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/p2p/tls_impl.h"

/* ---- whose files ---- */

static const char *value_of(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int read_names(const char *const names[3], const char *wanted_by, struct tls_files *out) {
    const char **places[] = {&out->certificate, &out->key, &out->authority};
    bool any = wanted_by != NULL;
    for (size_t i = 0; i < 3; i++) {
        *places[i] = value_of(names[i]);
        any = any || *places[i];
    }
    for (size_t i = 0; any && i < 3; i++) {
        if (!*places[i]) {
            out->certificate = NULL;
            return status_fail(MUSTER_EINVAL, "TLS between ranks needs %s, %s and %s; %s is not set%s%s", names[0],
                               names[1], names[2], names[i], wanted_by ? ", and TLS was asked for by " : "",
                               wanted_by ? wanted_by : "");
        }
    }
    return 0;
}

int tls_files_from_env(struct tls_files *out) {
    static const char *const own[] = {"MUSTER_TLS_CERT", "MUSTER_TLS_KEY", "MUSTER_TLS_CA"};
    static const char *const gloo[] = {"GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT", "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY",
                                       "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE"};
    memset(out, 0, sizeof *out);
    int code = read_names(own, NULL, out);
    const char *transport = value_of("GLOO_DEVICE_TRANSPORT");
    if (code == 0 && !out->certificate && transport && strcmp(transport, "TCP_TLS") == 0) {
        code = read_names(gloo, "GLOO_DEVICE_TRANSPORT=TCP_TLS", out);
    }
    return code;
}

/* ---- the context ---- */

int tls_create(const struct tls_files *files, struct tls **out) {
    const struct tls_library *library = tls_library();
    if (!library) {
        return MUSTER_EUNSUPPORTED;
    }
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls) {
        return status_fail(MUSTER_ENOMEM, "no memory for TLS");
    }
    tls->library = library;
    tls->method = link_tls_method(library);
    int code = tls->method ? 0 : status_fail(MUSTER_ENOMEM, "no memory for TLS");
    code = code ? code : tls_context_create(files, &tls->context);
    if (code) {
        tls_free(tls);
        return code;
    }
    *out = tls;
    return 0;
}

void tls_free(struct tls *tls) {
    if (!tls) {
        return;
    }
    tls_context_free(tls->context);
    if (tls->method) {
        tls->library->BIO_meth_free(tls->method);
    }
    free(tls);
}
