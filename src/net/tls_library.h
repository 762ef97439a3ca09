/* OpenSSL, opened at run time: a table of its functions under their own names, with the types that its headers give
 * them. Nothing of it is linked. OpenSSL 3 is taken where it is, else 1.1.1, which older systems have. So the table has
 * only what is the same in both, as functions and not as macros. */
#ifndef NET_TLS_LIBRARY_H
#define NET_TLS_LIBRARY_H

#ifndef OPENSSL_API_COMPAT
#define OPENSSL_API_COMPAT 0x10101000L /* no warning of what 1.1.1 knew and 3 advises against */
#endif

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#define TLS_LIBRARY_TABLE(X)                                                                                           \
    X(BIO_clear_flags)                                                                                                 \
    X(BIO_free)                                                                                                        \
    X(BIO_get_data)                                                                                                    \
    X(BIO_meth_free)                                                                                                   \
    X(BIO_meth_new)                                                                                                    \
    X(BIO_meth_set_ctrl)                                                                                               \
    X(BIO_meth_set_read)                                                                                               \
    X(BIO_meth_set_write)                                                                                              \
    X(BIO_new)                                                                                                         \
    X(BIO_read)                                                                                                        \
    X(BIO_s_mem)                                                                                                       \
    X(BIO_set_data)                                                                                                    \
    X(BIO_set_flags)                                                                                                   \
    X(BIO_set_init)                                                                                                    \
    X(BIO_write)                                                                                                       \
    X(ERR_clear_error)                                                                                                 \
    X(ERR_peek_last_error)                                                                                             \
    X(ERR_reason_error_string)                                                                                         \
    X(EVP_sha256)                                                                                                      \
    X(HMAC_CTX_free)                                                                                                   \
    X(HMAC_CTX_new)                                                                                                    \
    X(HMAC_Final)                                                                                                      \
    X(HMAC_Init_ex)                                                                                                    \
    X(HMAC_Update)                                                                                                     \
    X(SSL_CTX_check_private_key)                                                                                       \
    X(SSL_CTX_ctrl)                                                                                                    \
    X(SSL_CTX_free)                                                                                                    \
    X(SSL_CTX_load_verify_locations)                                                                                   \
    X(SSL_CTX_new)                                                                                                     \
    X(SSL_CTX_set_default_passwd_cb)                                                                                   \
    X(SSL_CTX_set_num_tickets)                                                                                         \
    X(SSL_CTX_set_verify)                                                                                              \
    X(SSL_CTX_use_PrivateKey_file)                                                                                     \
    X(SSL_CTX_use_certificate_chain_file)                                                                              \
    X(SSL_ctrl)                                                                                                        \
    X(SSL_do_handshake)                                                                                                \
    X(SSL_free)                                                                                                        \
    X(SSL_get_error)                                                                                                   \
    X(SSL_get_verify_result)                                                                                           \
    X(SSL_is_init_finished)                                                                                            \
    X(SSL_new)                                                                                                         \
    X(SSL_pending)                                                                                                     \
    X(SSL_read)                                                                                                        \
    X(SSL_set_accept_state)                                                                                            \
    X(SSL_set_bio)                                                                                                     \
    X(SSL_set_connect_state)                                                                                           \
    X(SSL_write)                                                                                                       \
    X(TLS_method)                                                                                                      \
    X(X509_verify_cert_error_string)

struct tls_library {
#define TLS_LIBRARY_MEMBER(name) __typeof__(&(name)) name; /* NOLINT(bugprone-macro-parentheses) */
    TLS_LIBRARY_TABLE(TLS_LIBRARY_MEMBER)
#undef TLS_LIBRARY_MEMBER
    const char *name;          /* of its file */
    unsigned long reason_mask; /* in place of ERR_GET_REASON(), which is for the version whose headers it is from */
};

/* Opened by the first call and kept: its threads' data outlive what is made of it. NULL with MUSTER_EUNSUPPORTED and a
 * sentence. Any thread. */
const struct tls_library *tls_library(void);

/* What that call does, without keeping it: the newest version that has all functions. MUSTER_EUNSUPPORTED; the sentence
 * says what is wrong with each. */
int tls_library_open(struct tls_library *out);

#endif
