/* The per-thread detail: recorded once, prefixed on the way up, cut rather than overrun, errno untouched. */
#include "base/status.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void every_code_has_its_own_text(void **state) {
    (void)state;
    static const int codes[] = {
#define CODE(name, value, text) name,
        MUSTER_STATUS_TABLE(CODE)
#undef CODE
    };
    size_t count = sizeof codes / sizeof codes[0];
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(codes[i], -(int)i);
        assert_string_not_equal(muster_strerror(codes[i]), "unknown status");
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(muster_strerror(codes[i]), muster_strerror(codes[j]));
        }
    }
    assert_string_equal(muster_strerror(-(int)count), "unknown status");
    assert_string_equal(muster_strerror(1), "unknown status");
}

static void fail_records_and_returns_the_code(void **state) {
    (void)state;
    errno = EINTR;
    assert_int_equal(status_fail(MUSTER_EINVAL, "port %d is too large", 99999), MUSTER_EINVAL);
    assert_int_equal(errno, EINTR);
    assert_string_equal(muster_detail(), "port 99999 is too large");
    status_clear();
    assert_string_equal(muster_detail(), "");
}

static void system_error_names_its_reason(void **state) {
    (void)state;
    errno = EAGAIN;
    assert_int_equal(status_fail_errno(EADDRINUSE, "bind %s", "[::1]:29400"), MUSTER_ESYSTEM);
    assert_int_equal(errno, EAGAIN);
    assert_string_equal(muster_detail(), "bind [::1]:29400: Address already in use");
}

static void prefixes_read_from_the_outside_in(void **state) {
    (void)state;
    int code = status_fail(MUSTER_ECONNECT, "connect 10.0.0.2:29400: refused");
    code = status_prefix(code, "join round %d", 3);
    assert_int_equal(status_prefix(code, "node %s", "b"), MUSTER_ECONNECT);
    assert_string_equal(muster_detail(), "node b: join round 3: connect 10.0.0.2:29400: refused");
}

static void too_long_a_detail_is_cut(void **state) {
    (void)state;
    char filler[2 * MUSTER_DETAIL_MAX];
    memset(filler, 'x', sizeof filler);
    filler[sizeof filler - 1] = '\0';
    (void)status_fail(MUSTER_EINVAL, "%s", filler);
    assert_int_equal(strlen(muster_detail()), MUSTER_DETAIL_MAX - 1);
    (void)status_prefix(MUSTER_EINVAL, "front");
    assert_int_equal(strlen(muster_detail()), MUSTER_DETAIL_MAX - 1);
    assert_memory_equal(muster_detail(), "front: xxx", 10);
    (void)status_prefix(MUSTER_EINVAL, "%s", filler);
    assert_int_equal(strlen(muster_detail()), MUSTER_DETAIL_MAX - 1);
    (void)status_fail_errno(EPERM, "%s", filler);
    assert_int_equal(strlen(muster_detail()), MUSTER_DETAIL_MAX - 1);
}

static void *fail_on_another_thread(void *arg) {
    (void)arg;
    if (muster_detail()[0] != '\0') {
        return "the other thread's detail is visible";
    }
    (void)status_fail(MUSTER_ETIMEOUT, "another thread's trouble");
    return NULL;
}

static void each_thread_has_its_own(void **state) {
    (void)state;
    (void)status_fail(MUSTER_EINVAL, "mine");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_on_another_thread, NULL), 0);
    void *complaint = NULL;
    assert_int_equal(pthread_join(thread, &complaint), 0);
    assert_null(complaint);
    assert_string_equal(muster_detail(), "mine");
}

/* A record belongs to one failure: prefixes keep it, the next failure does not. */
static void records_go_with_their_failure(void **state) {
    (void)state;
    struct muster_failure record = status_no_failure();
    record.rank = 3;
    (void)status_fail(MUSTER_EPEER, "gone");
    assert_int_equal(status_failure().rank, MUSTER_NO_RANK);
    assert_int_equal(status_failure().cause, MUSTER_EPEER);
    status_note(&record);
    (void)status_prefix(MUSTER_EPEER, "barrier");
    assert_int_equal(status_failure().rank, 3);
    record = status_failure();
    (void)status_fail_errno(2, "open");
    assert_int_equal(status_failure().rank, MUSTER_NO_RANK);
    assert_int_equal(status_failure().cause, MUSTER_ESYSTEM);
    assert_int_equal(status_restore(MUSTER_EGROUP, "before", &record), MUSTER_EGROUP);
    assert_string_equal(muster_detail(), "before");
    assert_int_equal(status_failure().cause, MUSTER_EPEER);
    assert_int_equal(status_failure().rank, 3);
    status_clear();
    assert_int_equal(status_failure().cause, 0);
}

static void what_is_kept_comes_back(void **state) {
    (void)state;
    struct muster_failure failure = status_no_failure();
    struct status_kept kept;
    failure.rank = 3;
    (void)status_fail(MUSTER_EPEER, "rank 3 has died");
    status_note(&failure);
    status_keep(&kept);
    (void)status_fail(MUSTER_ESYSTEM, "a question has met a longer sentence than that");
    status_put_back(&kept);
    assert_string_equal(muster_detail(), "rank 3 has died");
    assert_int_equal(status_failure().cause, MUSTER_EPEER);
    assert_int_equal(status_failure().rank, 3);
    status_clear();
    status_keep(&kept);
    (void)status_fail(MUSTER_ESYSTEM, "another");
    status_put_back(&kept);
    assert_string_equal(muster_detail(), "");
    assert_int_equal(status_failure().cause, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_own_text),   cmocka_unit_test(fail_records_and_returns_the_code),
        cmocka_unit_test(system_error_names_its_reason), cmocka_unit_test(prefixes_read_from_the_outside_in),
        cmocka_unit_test(too_long_a_detail_is_cut),      cmocka_unit_test(each_thread_has_its_own),
        cmocka_unit_test(records_go_with_their_failure), cmocka_unit_test(what_is_kept_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
