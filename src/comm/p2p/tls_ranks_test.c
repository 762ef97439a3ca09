/* Ranks of which some may not speak to the others: with TLS and without, or with somebody else's certificate. Both
 * sides learn it in words, soon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include <muster/status.h>

#include "comm/p2p/p2p_impl.h"
#include "comm/p2p/p2p_test_support.h"
#include "net/tls_test_support.h"

static void use(const struct tls_files *files) {
    job_check(setenv("MUSTER_TLS_CERT", files->certificate, 1) == 0 && setenv("MUSTER_TLS_KEY", files->key, 1) == 0 &&
              setenv("MUSTER_TLS_CA", files->authority, 1) == 0);
}

/* Sends to the other rank and receives from it. Returns the first code; */
static int exchange(struct job_rank *rank) {
    struct p2p_request send, receive;
    struct p2p_request *requests[] = {&send, &receive};
    const struct p2p_envelope there = job_envelope(1 - rank->rank, 0);
    uint32_t mine = rank->rank, theirs = UINT32_MAX;
    int code = p2p_send(rank->p2p, &send, &there, &mine, sizeof mine, job_deadline());
    if (code) {
        return code;
    }
    code = p2p_receive(rank->p2p, &receive, &there, &theirs, sizeof theirs, job_deadline());
    code = p2p_wait(rank->p2p, &rank->waiter, requests, code == 0 ? 2 : 1, job_deadline());
    job_check(code != 0 || theirs == 1 - mine);
    return code;
}

static int all_is_well(struct job_rank *rank, void *argument) {
    (void)argument;
    job_check(exchange(rank) == 0);
    return 0;
}

static void member_and_member(struct job_rank *rank) {
    (void)rank;
    struct tls_files files = tls_test_member(&tls_test_files);
    use(&files);
}

static void members_meet(void **state) {
    (void)state;
    job_run(2, all_is_well, NULL, &(struct job_options){.prepare = member_and_member});
}

/* TLS encrypts into memory of its own: nothing of a message is the kernel's to hold. */
static int copies(struct job_rank *rank, void *argument) {
    (void)argument;
    job_check(exchange(rank) == 0);
    p2p_lock(rank->p2p);
    job_check(!rank->p2p->links[1 - rank->rank]->streams[0]->may_hold);
    p2p_unlock(rank->p2p);
    job_mark(rank->job, 0);
    job_await(rank->job, 0, 2);
    return 0;
}

static void zero_copy_is_not_for_tls(void **state) {
    (void)state;
    job_run(2, copies, NULL,
            &(struct job_options){.prepare = member_and_member, .zero_copy = {.bytes_min = 64 << 10, .always = true}});
}

static void member_and_open(struct job_rank *rank) {
    if (rank->rank == 0) {
        member_and_member(rank);
    }
}

static int is_told_to_agree(struct job_rank *rank, void *argument) {
    (void)argument;
    job_check(exchange(rank) == MUSTER_EINVAL);
    job_check(strstr(muster_detail(), rank->rank == 0 ? "this rank speaks TLS, and it does not"
                                                      : "it speaks TLS, and this rank does not"));
    job_check(strstr(muster_detail(), "MUSTER_TLS_CERT"));
    return 0;
}

static void with_and_without_is_an_error(void **state) {
    (void)state;
    job_run(2, is_told_to_agree, NULL, &(struct job_options){.prepare = member_and_open});
}

static void member_and_stranger(struct job_rank *rank) {
    struct tls_files files = rank->rank == 0 ? tls_test_member(&tls_test_files) : tls_test_stranger(&tls_test_files);
    use(&files);
}

static void member_and_expired(struct job_rank *rank) {
    struct tls_files files = rank->rank == 0 ? tls_test_member(&tls_test_files) : tls_test_expired(&tls_test_files);
    use(&files);
}

/* Whoever looks at the certificate says what is wrong with it; the other is told that it was refused. */
static int is_refused(struct job_rank *rank, void *argument) {
    const char *reason = argument;
    job_check(exchange(rank) != 0);
    char detail[MUSTER_DETAIL_MAX];
    (void)snprintf(detail, sizeof detail, "%s", muster_detail());
    job_mark(rank->job, 0);
    job_await(rank->job, 0, 2); /* or the other finds nobody there */
    job_check(strstr(detail, "TLS: ") && strstr(detail, rank->rank == 0 ? reason : "alert"));
    return 0;
}

static void a_stranger_is_refused_in_words(void **state) {
    (void)state;
    static char reason[] = "unable to get local issuer certificate";
    job_run(2, is_refused, reason, &(struct job_options){.prepare = member_and_stranger});
}

static void an_expired_certificate_is_refused_in_words(void **state) {
    (void)state;
    static char reason[] = "certificate has expired";
    job_run(2, is_refused, reason, &(struct job_options){.prepare = member_and_expired});
}

/* Rank 1 sends what is no record of TLS, in the middle of it all. */
static int talks_nonsense(struct job_rank *rank, void *argument) {
    static const uint8_t nonsense[64] = {'n', 'o', 'n', 's', 'e', 'n', 's', 'e'};
    (void)argument;
    job_check(exchange(rank) == 0);
    if (rank->rank == 1) {
        p2p_lock(rank->p2p);
        int fd = rank->p2p->links[0]->streams[0]->io->fd;
        job_check(send(fd, nonsense, sizeof nonsense, MSG_NOSIGNAL) == (ssize_t)sizeof nonsense);
        p2p_unlock(rank->p2p);
    } else {
        job_check(exchange(rank) == MUSTER_EPEER);
        job_check(strstr(muster_detail(), "rank 1 cannot be reached any more from rank 0: TLS: "));
    }
    job_mark(rank->job, 0);
    job_await(rank->job, 0, 2);
    return 0;
}

static void what_breaks_a_connection_is_told(void **state) {
    (void)state;
    job_run(2, talks_nonsense, NULL, &(struct job_options){.prepare = member_and_member});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_meet),
        cmocka_unit_test(zero_copy_is_not_for_tls),
        cmocka_unit_test(with_and_without_is_an_error),
        cmocka_unit_test(a_stranger_is_refused_in_words),
        cmocka_unit_test(an_expired_certificate_is_refused_in_words),
        cmocka_unit_test(what_breaks_a_connection_is_told),
    };
    return cmocka_run_group_tests(tests, tls_test_begin, tls_test_end);
}
