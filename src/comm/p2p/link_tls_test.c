/* Streams in TLS over a pair of sockets: bytes arrive whole and in order whatever the sizes, nothing readable crosses
 * the wire, and who has no certificate of the job's authority gets nowhere. */
#include "comm/p2p/tls.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "net/tls_test_support.h"

/* A caller and who is called, in one thread. */
struct pair {
    struct tls *tls[2];
    struct link *ends[2];
};

static void pair_make(struct pair *pair, const struct tls_files *caller, const struct tls_files *called) {
    int fds[2];
    assert_int_equal(tls_create(caller, &pair->tls[0]), 0);
    assert_int_equal(tls_create(called, &pair->tls[1]), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    for (int i = 0; i < 2; i++) {
        pair->ends[i] = link_tls_create(pair->tls[i], fds[i], i == 0);
        assert_non_null(pair->ends[i]);
    }
}

static void pair_free(struct pair *pair) {
    for (int i = 0; i < 2; i++) {
        if (pair->ends[i]) {
            pair->ends[i]->kind->close(pair->ends[i]);
        }
        tls_free(pair->tls[i]);
    }
}

static ssize_t put(struct link *link, const void *bytes, size_t n) {
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    return link->kind->write(link, &part, 1);
}

static ssize_t take(struct link *link, void *bytes, size_t n) {
    struct iovec part = {.iov_base = bytes, .iov_len = n};
    return link->kind->read(link, &part, 1);
}

/* Both ends go on until one of them fails or the byte has come. Returns the code of whoever failed, 0 if none. */
static ssize_t greet(struct pair *pair, struct link **out_failed) {
    uint8_t byte = 7;
    ssize_t sent = 0, got = 0;
    while (got == 0) {
        if (sent == 0 && (sent = put(pair->ends[0], &byte, 1)) < 0) {
            *out_failed = pair->ends[0];
            return sent;
        }
        if ((got = take(pair->ends[1], &byte, 1)) < 0) {
            *out_failed = pair->ends[1];
            return got;
        }
    }
    assert_int_equal(byte, 7);
    return 0;
}

static void greet_well(struct pair *pair) {
    struct link *failed = NULL;
    assert_int_equal(greet(pair, &failed), 0);
}

/* Sends `bytes` from one end to the other in pieces of random sizes, reads in others, and compares. */
static void carry(struct pair *pair, int from, size_t bytes, unsigned seed) {
    uint8_t *source = malloc(bytes), *target = calloc(1, bytes);
    assert_non_null(source);
    assert_non_null(target);
    uint32_t state = seed;
    for (size_t i = 0; i < bytes; i++) {
        source[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
    }
    struct link *out = pair->ends[from], *in = pair->ends[1 - from];
    for (size_t written = 0, read = 0; read < bytes;) {
        if (written < bytes) {
            size_t left = bytes - written, n = (state = state * 1664525 + 1013904223) % 70000;
            n = n < left ? n : left;
            struct iovec parts[3] = {{source + written, n / 7}, {source + written + n / 7, n - n / 7}, {NULL, 0}};
            ssize_t put_bytes = out->kind->write(out, parts, 3);
            assert_true(put_bytes >= 0 && (size_t)put_bytes <= n);
            written += (size_t)put_bytes;
        } else {
            assert_true(out->kind->flush(out) >= 0);
        }
        size_t room = bytes - read, n = 1 + (state = state * 1664525 + 1013904223) % 100000;
        ssize_t got = take(in, target + read, n < room ? n : room);
        assert_true(got >= 0);
        read += (size_t)got;
    }
    assert_int_equal(out->kind->flush(out), 1);
    assert_memory_equal(source, target, bytes);
    free(source);
    free(target);
}

static void bytes_arrive_whole_in_both_directions(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 48, 16384, 16385, 1000000, 5000000};
    struct tls_files files = tls_test_member(&tls_test_files);
    struct pair pair;
    pair_make(&pair, &files, &files);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        carry(&pair, 0, sizes[i], (unsigned)i);
        carry(&pair, 1, sizes[i], (unsigned)i + 100);
    }
    pair_free(&pair);
}

/* What the socket does not tell of any more is still told of. */
static void the_rest_of_a_record_is_pending(void **state) {
    (void)state;
    uint8_t bytes[100] = {0};
    struct tls_files files = tls_test_member(&tls_test_files);
    struct pair pair;
    pair_make(&pair, &files, &files);
    greet_well(&pair);
    assert_int_equal(put(pair.ends[0], bytes, 100), 100);
    assert_int_equal(take(pair.ends[1], bytes, 60), 60);
    assert_true(pair.ends[1]->kind->pending(pair.ends[1]));
    assert_int_equal(take(pair.ends[1], bytes, 60), 40);
    assert_false(pair.ends[1]->kind->pending(pair.ends[1]));
    assert_int_equal(take(pair.ends[1], bytes, 60), LINK_AGAIN);
    pair_free(&pair);
}

static void a_full_socket_takes_the_rest_later(void **state) {
    (void)state;
    static uint8_t bytes[65536], back[65536];
    struct tls_files files = tls_test_member(&tls_test_files);
    struct pair pair;
    pair_make(&pair, &files, &files);
    greet_well(&pair);
    size_t written = 0, read = 0;
    for (ssize_t n; (n = put(pair.ends[0], bytes, sizeof bytes)) != LINK_AGAIN; written += (size_t)n) {
        assert_true(n > 0);
    }
    assert_int_equal(pair.ends[0]->kind->flush(pair.ends[0]), LINK_AGAIN);
    while (read < written) {
        ssize_t n = take(pair.ends[1], back, sizeof back);
        assert_true(n >= 0);
        read += (size_t)n;
        assert_true(pair.ends[0]->kind->flush(pair.ends[0]) >= 0);
    }
    assert_int_equal(pair.ends[0]->kind->flush(pair.ends[0]), 1);
    pair_free(&pair);
}

static void nothing_readable_crosses_the_wire(void **state) {
    (void)state;
    static const char secret[] = "the weights of the model";
    char wire[1024];
    struct tls_files files = tls_test_member(&tls_test_files);
    struct pair pair;
    pair_make(&pair, &files, &files);
    greet_well(&pair);
    assert_int_equal(put(pair.ends[0], secret, sizeof secret), sizeof secret);
    ssize_t n = recv(pair.ends[1]->fd, wire, sizeof wire, MSG_PEEK);
    assert_true(n > (ssize_t)sizeof secret);
    assert_null(memmem(wire, (size_t)n, "weights", 7));
    pair_free(&pair);
}

static void an_end_is_an_end(void **state) {
    (void)state;
    uint8_t byte;
    struct tls_files files = tls_test_member(&tls_test_files);
    struct pair pair;
    pair_make(&pair, &files, &files);
    greet_well(&pair);
    pair.ends[0]->kind->close(pair.ends[0]);
    pair.ends[0] = NULL;
    assert_int_equal(take(pair.ends[1], &byte, 1), LINK_END);
    assert_int_equal(take(pair.ends[1], &byte, 1), LINK_END);
    pair_free(&pair);
}

static void check_refused(const struct tls_files *caller, const struct tls_files *called, const char *reason) {
    struct pair pair;
    uint8_t byte;
    pair_make(&pair, caller, called);
    struct link *failed = pair.ends[0];
    assert_int_equal(greet(&pair, &failed), LINK_BROKEN);
    assert_int_equal(errno, EPROTO);
    assert_non_null(strstr(failed->kind->reason(failed), reason));
    /* The other side is told. */
    struct link *other = failed == pair.ends[0] ? pair.ends[1] : pair.ends[0];
    ssize_t code = take(other, &byte, 1);
    assert_int_equal(code, LINK_BROKEN);
    assert_non_null(strstr(other->kind->reason(other), "alert"));
    pair_free(&pair);
}

static void strangers_get_nowhere(void **state) {
    (void)state;
    struct tls_files member = tls_test_member(&tls_test_files), stranger = tls_test_stranger(&tls_test_files);
    struct tls_files expired = tls_test_expired(&tls_test_files);
    check_refused(&stranger, &member, "unable to get local issuer certificate");
    check_refused(&member, &stranger, "unable to get local issuer certificate");
    check_refused(&expired, &member, "certificate has expired");
    check_refused(&member, &expired, "certificate has expired");
}

static void garbage_is_refused(void **state) {
    (void)state;
    static const char greeting[] = "GET / HTTP/1.1\r\nHost: nobody\r\n\r\n";
    struct tls_files files = tls_test_member(&tls_test_files);
    struct pair pair;
    uint8_t byte;
    pair_make(&pair, &files, &files);
    assert_true(send(pair.ends[0]->fd, greeting, sizeof greeting, 0) > 0);
    assert_int_equal(take(pair.ends[1], &byte, 1), LINK_BROKEN);
    assert_int_equal(errno, EPROTO);
    pair_free(&pair);
}

static void files_of_no_use_are_named(void **state) {
    (void)state;
    struct tls_files good = tls_test_member(&tls_test_files), files = good;
    struct tls *tls;
    files.certificate = "/nowhere/at/all.pem";
    assert_int_equal(tls_create(&files, &tls), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "/nowhere/at/all.pem"));
    files = good;
    files.key = tls_test_files.stranger_key;
    assert_int_equal(tls_create(&files, &tls), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "key values mismatch"));
    files = good;
    files.authority = tls_test_files.member_key;
    assert_int_equal(tls_create(&files, &tls), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), tls_test_files.member_key));
}

static void the_environment_says_whether(void **state) {
    (void)state;
    struct tls_files files;
    assert_int_equal(tls_files_from_env(&files), 0);
    assert_null(files.certificate);
    assert_int_equal(setenv("GLOO_DEVICE_TRANSPORT", "TCP_TLS", 1), 0);
    assert_int_equal(tls_files_from_env(&files), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "GLOO_DEVICE_TRANSPORT=TCP_TLS"));
    assert_int_equal(setenv("GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT", "a", 1), 0);
    assert_int_equal(setenv("GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY", "b", 1), 0);
    assert_int_equal(setenv("GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE", "c", 1), 0);
    assert_int_equal(tls_files_from_env(&files), 0);
    assert_string_equal(files.key, "b");
    assert_int_equal(setenv("MUSTER_TLS_CERT", "d", 1), 0);
    assert_int_equal(tls_files_from_env(&files), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "MUSTER_TLS_KEY is not set"));
    assert_int_equal(setenv("MUSTER_TLS_KEY", "e", 1), 0);
    assert_int_equal(setenv("MUSTER_TLS_CA", "f", 1), 0);
    assert_int_equal(tls_files_from_env(&files), 0);
    assert_string_equal(files.authority, "f");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive_whole_in_both_directions),
        cmocka_unit_test(the_rest_of_a_record_is_pending),
        cmocka_unit_test(a_full_socket_takes_the_rest_later),
        cmocka_unit_test(nothing_readable_crosses_the_wire),
        cmocka_unit_test(an_end_is_an_end),
        cmocka_unit_test(strangers_get_nowhere),
        cmocka_unit_test(garbage_is_refused),
        cmocka_unit_test(files_of_no_use_are_named),
        cmocka_unit_test(the_environment_says_whether),
    };
    return cmocka_run_group_tests(tests, tls_test_begin, tls_test_end);
}
