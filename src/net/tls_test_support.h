/* Authorities and certificates for tests, made anew: nothing secret lies in the repository. */
#ifndef NET_TLS_TEST_SUPPORT_H
#define NET_TLS_TEST_SUPPORT_H

#include "net/tls_context.h"

enum { TLS_TEST_PATH_MAX = 128 };

/* A folder below the temporary one. */
struct tls_test_folder {
    char path[TLS_TEST_PATH_MAX];
    char authority[TLS_TEST_PATH_MAX], other_authority[TLS_TEST_PATH_MAX];
    char member[TLS_TEST_PATH_MAX], member_key[TLS_TEST_PATH_MAX];     /* signed by the authority */
    char stranger[TLS_TEST_PATH_MAX], stranger_key[TLS_TEST_PATH_MAX]; /* signed by the other one */
    char expired[TLS_TEST_PATH_MAX], expired_key[TLS_TEST_PATH_MAX];   /* by the authority, until yesterday */
};

void tls_test_folder_make(struct tls_test_folder *folder);
void tls_test_folder_remove(struct tls_test_folder *folder);

struct tls_files tls_test_member(const struct tls_test_folder *folder);
struct tls_files tls_test_stranger(const struct tls_test_folder *folder); /* who trusts the right authority */
struct tls_files tls_test_expired(const struct tls_test_folder *folder);

/* Set-up and end of a cmocka group whose tests share one folder. */
extern struct tls_test_folder tls_test_files;
int tls_test_begin(void **state);
int tls_test_end(void **state);

#endif
