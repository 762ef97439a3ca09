/* Reads certificates into an OpenSSL context; see tls_context.h. */
#include "net/tls_context.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "net/tls_library.h"

enum { ALERT_REASON_FIRST = 1000 }; /* OpenSSL's reasons from here on are alerts of the other side */

struct tls_context {
    const struct tls_library *library;
    SSL_CTX *ssl;
};

/* ---- the files ---- */

static int fail(const struct tls_library *library, const char *what, const char *file) {
    const char *reason = library->ERR_reason_error_string(library->ERR_peek_last_error());
    bool is_none = reason && (strcmp(reason, "PEM lib") == 0 || strcmp(reason, "no start line") == 0);
    return status_fail(MUSTER_EINVAL, "TLS: %s %s: %s", what, file,
                       is_none  ? "there is none in PEM form, or it needs a passphrase"
                       : reason ? reason
                                : "of no use");
}

/* Reading a FIFO would wait for a writer. */
static int expect_file(const char *what, const char *file) {
    struct stat info;
    if (access(file, R_OK) != 0 || stat(file, &info) != 0) {
        return status_fail(MUSTER_EINVAL, "TLS: %s %s: %s", what, file, strerror(errno));
    }
    return S_ISREG(info.st_mode) ? 0 : status_fail(MUSTER_EINVAL, "TLS: %s %s: it is not a file", what, file);
}

/* A key with a passphrase is of no use here: nobody is asked for one. */
static int no_passphrase(char *out, int size, int is_writing, void *ctx) {
    (void)out;
    (void)size;
    (void)is_writing;
    (void)ctx;
    return -1;
}

static int read_files(const struct tls_context *context, const struct tls_files *files) {
    static const char certificate[] = "the certificate in", key[] = "the key in",
                      authority[] = "the authority's certificates in";
    const struct tls_library *library = context->library;
    int code = expect_file(certificate, files->certificate);
    code = code ? code : expect_file(key, files->key);
    code = code ? code : expect_file(authority, files->authority);
    if (code) {
        return code;
    }
    library->ERR_clear_error();
    library->SSL_CTX_set_default_passwd_cb(context->ssl, no_passphrase);
    if (library->SSL_CTX_use_certificate_chain_file(context->ssl, files->certificate) != 1) {
        code = fail(library, certificate, files->certificate);
    } else if (library->SSL_CTX_use_PrivateKey_file(context->ssl, files->key, SSL_FILETYPE_PEM) != 1 ||
               library->SSL_CTX_check_private_key(context->ssl) != 1) {
        code = fail(library, key, files->key);
    } else if (library->SSL_CTX_load_verify_locations(context->ssl, files->authority, NULL) != 1) {
        code = fail(library, authority, files->authority);
    }
    library->ERR_clear_error();
    return code;
}

/* ---- the context ---- */

int tls_context_create(const struct tls_files *files, struct tls_context **out) {
    const struct tls_library *library = tls_library();
    if (!library) {
        return MUSTER_EUNSUPPORTED;
    }
    struct tls_context *context = calloc(1, sizeof *context);
    if (!context) {
        return status_fail(MUSTER_ENOMEM, "no memory for TLS");
    }
    context->library = library;
    context->ssl = library->SSL_CTX_new(library->TLS_method());
    int code = context->ssl ? 0 : status_fail(MUSTER_ENOMEM, "no memory for TLS");
    if (code == 0 && (library->SSL_CTX_ctrl(context->ssl, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) != 1 ||
                      library->SSL_CTX_set_num_tickets(context->ssl, 0) != 1)) {
        code = status_fail(MUSTER_EUNSUPPORTED, "this machine's OpenSSL does not speak TLS 1.3");
    }
    code = code ? code : read_files(context, files);
    if (code) {
        tls_context_free(context);
        return code;
    }
    library->SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    *out = context;
    return 0;
}

void tls_context_free(struct tls_context *context) {
    if (context) {
        if (context->ssl) {
            context->library->SSL_CTX_free(context->ssl);
        }
        free(context);
    }
}

/* ---- connections ---- */

SSL *tls_context_connection(const struct tls_context *context, bool is_caller) {
    SSL *connection = context->library->SSL_new(context->ssl);
    if (connection && is_caller) {
        context->library->SSL_set_connect_state(connection);
    } else if (connection) {
        context->library->SSL_set_accept_state(connection);
    }
    return connection;
}

void tls_context_reason(const SSL *connection, char *out, size_t size) {
    const struct tls_library *library = tls_library();
    unsigned long error = library->ERR_peek_last_error();
    const char *reason = library->ERR_reason_error_string(error);
    long verdict = library->SSL_get_verify_result(connection);
    library->ERR_clear_error();
    if (verdict != X509_V_OK) {
        (void)str_format(out, size, "TLS: its certificate: %s", library->X509_verify_cert_error_string(verdict));
    } else if (reason && (error & library->reason_mask) >= ALERT_REASON_FIRST) {
        (void)str_format(out, size, "TLS: it does not accept this side (%s)", reason);
    } else {
        (void)str_format(out, size, "TLS: %s", reason ? reason : "the peer does not speak it");
    }
}
