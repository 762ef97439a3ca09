/* PMI-1 against a process manager that is a thread: one that answers well, and ones that do not. */
#include "comm/launch/pmi1.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"

/* Commands in the order in which they must come, each with what is answered; NULL ends it. */
struct script {
    const char *const (*lines)[2];
    int fd;
    bool is_followed;
};

static void *answer(void *argument) {
    struct script *script = argument;
    bool is_followed = true;
    for (size_t i = 0; script->lines[i][0]; i++) {
        char line[512];
        size_t used = 0;
        while (used < sizeof line - 1 && read(script->fd, line + used, 1) == 1 && line[used] != '\n') {
            used++;
        }
        line[used] = '\0';
        is_followed = is_followed && strcmp(line, script->lines[i][0]) == 0;
        is_followed = is_followed && write(script->fd, script->lines[i][1], strlen(script->lines[i][1])) > 0;
    }
    script->is_followed = is_followed;
    (void)shutdown(script->fd, SHUT_WR);
    return NULL;
}

static int64_t deadline_ns(void) {
    return clock_monotonic_ns() + 60 * CLOCK_NS_PER_S;
}

/* What rank `rank` makes of the script. */
static int share(const char *const (*lines)[2], uint32_t rank, char *out) {
    int fds[2];
    pthread_t thread;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct script script = {lines, fds[1], false};
    assert_int_equal(pthread_create(&thread, NULL, answer, &script), 0);
    int code = pmi1_share(fds[0], rank, "10.0.0.1:4000", deadline_ns(), out);
    (void)close(fds[0]);
    (void)pthread_join(thread, NULL);
    (void)close(fds[1]);
    assert_true(code != 0 || script.is_followed);
    return code;
}

#define INIT                                                                                                           \
    { "cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n" }
#define NAME                                                                                                           \
    { "cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_7_0\n" }
#define BARRIER                                                                                                        \
    { "cmd=barrier_in", "cmd=barrier_out\n" }
#define GET(answer)                                                                                                    \
    { "cmd=get kvsname=kvs_7_0 key=muster-world", answer }
#define END                                                                                                            \
    {"cmd=finalize", "cmd=finalize_ack\n"}, {                                                                          \
        NULL, NULL                                                                                                     \
    }

static void rank_0_puts_and_all_get(void **state) {
    (void)state;
    char out[PMI1_VALUE_MAX];
    const char *const first[][2] = {
        INIT,
        NAME,
        {"cmd=put kvsname=kvs_7_0 key=muster-world value=10.0.0.1:4000", "cmd=put_result rc=0 msg=success\n"},
        BARRIER,
        GET("cmd=get_result rc=0 msg=success value=10.0.0.1:4000\n"),
        END};
    assert_int_equal(share(first, 0, out), 0);
    assert_string_equal(out, "10.0.0.1:4000");
    const char *const other[][2] = {INIT, NAME, BARRIER, GET("cmd=get_result rc=0 value=[fd00::1]:1 msg=success\n"),
                                    END};
    assert_int_equal(share(other, 1, out), 0);
    assert_string_equal(out, "[fd00::1]:1");
}

static void what_a_manager_refuses_is_told(void **state) {
    (void)state;
    char out[PMI1_VALUE_MAX];
    const char *const missing[][2] = {
        INIT, NAME, BARRIER, GET("cmd=get_result rc=-1 msg=key_not_found value=unknown\n"), {NULL, NULL}};
    assert_int_equal(share(missing, 1, out), MUSTER_EPROTOCOL);
    assert_non_null(strstr(muster_detail(), "key_not_found"));
    const char *const version[][2] = {
        {"cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=2 rc=-1\n"}, {NULL, NULL}};
    assert_int_equal(share(version, 1, out), MUSTER_EPROTOCOL);
    const char *const ended[][2] = {INIT, {NULL, NULL}};
    assert_int_equal(share(ended, 1, out), MUSTER_ECLOSED);
    assert_non_null(strstr(muster_detail(), "MASTER_ADDR"));
    char flood[4096];
    memset(flood, 'x', sizeof flood - 1);
    flood[sizeof flood - 1] = '\0';
    const char *const endless[][2] = {{"cmd=init pmi_version=1 pmi_subversion=1", flood}, {NULL, NULL}};
    assert_int_equal(share(endless, 1, out), MUSTER_EPROTOCOL);
}

static void a_manager_that_is_silent_or_gone_is_told(void **state) {
    (void)state;
    char out[PMI1_VALUE_MAX];
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(pmi1_share(fds[0], 1, "", clock_monotonic_ns() + 1000000, out), MUSTER_ETIMEOUT);
    (void)close(fds[1]);
    assert_int_equal(pmi1_share(fds[0], 1, "", deadline_ns(), out), MUSTER_ECLOSED);
    assert_non_null(strstr(muster_detail(), "MASTER_ADDR"));
    (void)close(fds[0]);
    assert_int_equal(pmi1_share(fds[0], 1, "", deadline_ns(), out), MUSTER_ECLOSED);
    assert_non_null(strstr(muster_detail(), "no open socket"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_0_puts_and_all_get),
        cmocka_unit_test(what_a_manager_refuses_is_told),
        cmocka_unit_test(a_manager_that_is_silent_or_gone_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
