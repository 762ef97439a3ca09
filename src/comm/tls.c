/* Certificates and the context that connections are made from; see tls.h. */
#include "comm/tls.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/tls_impl.h"

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

static int fail(const struct tls *tls, const char *what, const char *file) {
    const char *reason = tls->library->ERR_reason_error_string(tls->library->ERR_peek_last_error());
    return status_fail(MUSTER_EINVAL, "TLS: %s %s: %s", what, file, reason ? reason : "of no use");
}

static int read_files(const struct tls *tls, const struct tls_files *files) {
    const struct tls_library *library = tls->library;
    library->ERR_clear_error();
    if (library->SSL_CTX_use_certificate_chain_file(tls->context, files->certificate) != 1) {
        return fail(tls, "the certificate in", files->certificate);
    }
    if (library->SSL_CTX_use_PrivateKey_file(tls->context, files->key, SSL_FILETYPE_PEM) != 1 ||
        library->SSL_CTX_check_private_key(tls->context) != 1) {
        return fail(tls, "the key in", files->key);
    }
    if (library->SSL_CTX_load_verify_locations(tls->context, files->authority, NULL) != 1) {
        return fail(tls, "the authority's certificates in", files->authority);
    }
    return 0;
}

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
    tls->context = library->SSL_CTX_new(library->TLS_method());
    tls->method = link_tls_method(library);
    int code = tls->context && tls->method ? 0 : status_fail(MUSTER_ENOMEM, "no memory for TLS");
    if (code == 0 && (library->SSL_CTX_ctrl(tls->context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) != 1 ||
                      library->SSL_CTX_set_num_tickets(tls->context, 0) != 1)) {
        code = status_fail(MUSTER_EUNSUPPORTED, "this machine's OpenSSL does not speak TLS 1.3");
    }
    code = code ? code : read_files(tls, files);
    if (code) {
        tls_free(tls);
        return code;
    }
    library->SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    *out = tls;
    return 0;
}

void tls_free(struct tls *tls) {
    if (!tls) {
        return;
    }
    if (tls->context) {
        tls->library->SSL_CTX_free(tls->context);
    }
    if (tls->method) {
        tls->library->BIO_meth_free(tls->method);
    }
    free(tls);
}
