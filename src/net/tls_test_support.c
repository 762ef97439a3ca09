/* See tls_test_support.h. */
#include "net/tls_test_support.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DAY_S = 24 * 60 * 60, X509_VERSION = 2 /* which is called 3 */ };

/* An authority, or a certificate signed by one. */
struct issued {
    X509 *certificate;
    EVP_PKEY *key;
};

static void must(int condition, const char *what) {
    if (!condition) {
        (void)fprintf(stderr, "certificates for the test: %s failed\n", what);
        abort();
    }
}

static void add_basic_constraints(X509 *certificate) {
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints, "critical,CA:TRUE");
    must(extension && X509_add_ext(certificate, extension, -1), "the extension");
    X509_EXTENSION_free(extension);
}

/* issuer NULL: an authority, which signs itself. */
static struct issued issue(long number, const char *name, const struct issued *issuer, long from_s, long until_s) {
    struct issued out = {.certificate = X509_new(), .key = EVP_EC_gen("P-256")};
    must(out.certificate && out.key, "a key");
    must(X509_set_version(out.certificate, X509_VERSION), "the version");
    must(ASN1_INTEGER_set(X509_get_serialNumber(out.certificate), number), "the number");
    must(X509_gmtime_adj(X509_getm_notBefore(out.certificate), from_s) != NULL, "the beginning");
    must(X509_gmtime_adj(X509_getm_notAfter(out.certificate), until_s) != NULL, "the end");
    X509_NAME *subject = X509_get_subject_name(out.certificate);
    must(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0), "the name");
    must(X509_set_issuer_name(out.certificate, issuer ? X509_get_subject_name(issuer->certificate) : subject),
         "the issuer's name");
    must(X509_set_pubkey(out.certificate, out.key), "the public key");
    if (!issuer) {
        add_basic_constraints(out.certificate);
    }
    must(X509_sign(out.certificate, issuer ? issuer->key : out.key, EVP_sha256()) > 0, "the signature");
    return out;
}

static void forget(struct issued *issued) {
    X509_free(issued->certificate);
    EVP_PKEY_free(issued->key);
}

static void place(const struct tls_test_folder *folder, const char *name, char out[TLS_TEST_PATH_MAX]) {
    int n = snprintf(out, TLS_TEST_PATH_MAX, "%s/%s", folder->path, name);
    must(n > 0 && n < TLS_TEST_PATH_MAX, "the path");
}

static void write_certificate(const struct issued *issued, const char *path) {
    FILE *file = fopen(path, "we");
    must(file && PEM_write_X509(file, issued->certificate) && fclose(file) == 0, path);
}

static void write_key(const struct issued *issued, const char *path) {
    FILE *file = fopen(path, "we");
    must(file && PEM_write_PrivateKey(file, issued->key, NULL, NULL, 0, NULL, NULL) && fclose(file) == 0, path);
}

void tls_test_folder_make(struct tls_test_folder *f) {
    const char *temporary = getenv("TMPDIR");
    (void)snprintf(f->path, sizeof f->path, "%s/muster-tls-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    must(mkdtemp(f->path) != NULL, "mkdtemp()");
    place(f, "authority.pem", f->authority);
    place(f, "other-authority.pem", f->other_authority);
    place(f, "member.pem", f->member);
    place(f, "member.key", f->member_key);
    place(f, "stranger.pem", f->stranger);
    place(f, "stranger.key", f->stranger_key);
    place(f, "expired.pem", f->expired);
    place(f, "expired.key", f->expired_key);
    struct issued authority = issue(1, "the job's authority", NULL, -DAY_S, DAY_S);
    struct issued other = issue(2, "another authority", NULL, -DAY_S, DAY_S);
    struct issued member = issue(3, "member", &authority, -DAY_S, DAY_S);
    struct issued stranger = issue(4, "stranger", &other, -DAY_S, DAY_S);
    struct issued expired = issue(5, "expired", &authority, -2L * DAY_S, -DAY_S);
    write_certificate(&authority, f->authority);
    write_certificate(&other, f->other_authority);
    write_certificate(&member, f->member);
    write_key(&member, f->member_key);
    write_certificate(&stranger, f->stranger);
    write_key(&stranger, f->stranger_key);
    write_certificate(&expired, f->expired);
    write_key(&expired, f->expired_key);
    struct issued *all[] = {&authority, &other, &member, &stranger, &expired};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        forget(all[i]);
    }
}

void tls_test_folder_remove(struct tls_test_folder *f) {
    const char *const files[] = {f->authority, f->other_authority, f->member,  f->member_key,
                                 f->stranger,  f->stranger_key,    f->expired, f->expired_key};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)unlink(files[i]);
    }
    (void)rmdir(f->path);
}

struct tls_files tls_test_member(const struct tls_test_folder *f) {
    return (struct tls_files){.certificate = f->member, .key = f->member_key, .authority = f->authority};
}

struct tls_files tls_test_stranger(const struct tls_test_folder *f) {
    return (struct tls_files){.certificate = f->stranger, .key = f->stranger_key, .authority = f->authority};
}

struct tls_files tls_test_expired(const struct tls_test_folder *f) {
    return (struct tls_files){.certificate = f->expired, .key = f->expired_key, .authority = f->authority};
}

/* ---- for cmocka ---- */

struct tls_test_folder tls_test_files;

int tls_test_begin(void **state) {
    (void)state;
    tls_test_folder_make(&tls_test_files);
    return 0;
}

int tls_test_end(void **state) {
    (void)state;
    tls_test_folder_remove(&tls_test_files);
    return 0;
}
