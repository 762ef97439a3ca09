/* All of the bytes come, in one piece or in several, signals or not; a failure is told. */
#include "base/system/random.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

/* What the kernel answers, call after call: a number of bytes, or an error below 0. */
static struct {
    const int *answers;
    size_t count, calls;
    uint8_t next; /* of the bytes it gives: 1, 2, 3... */
} kernel;

ssize_t __wrap_getrandom(void *out, size_t len, unsigned flags);

ssize_t __wrap_getrandom(void *out, size_t len, unsigned flags) {
    uint8_t *at = out;
    assert_int_equal(flags, 0);
    assert_true(kernel.calls < kernel.count);
    int answer = kernel.answers[kernel.calls++];
    if (answer < 0) {
        errno = -answer;
        return -1;
    }
    assert_true((size_t)answer <= len);
    for (int i = 0; i < answer; i++) {
        at[i] = ++kernel.next;
    }
    return answer;
}

/* The bytes are `wanted`, and the one behind them stays as it is. */
static int fill(const int *answers, size_t count, size_t bytes) {
    uint8_t out[16];
    memset(out, 0, sizeof out);
    kernel.answers = answers;
    kernel.count = count;
    kernel.calls = 0;
    kernel.next = 0;
    int code = random_fill(out, bytes);
    int error_number = errno;
    assert_int_equal(kernel.calls, count);
    for (size_t i = 0; i < sizeof out; i++) {
        assert_int_equal(out[i], i < kernel.next ? i + 1 : 0);
    }
    assert_true(code != 0 || kernel.next == bytes);
    errno = error_number;
    return code;
}

#define FILL(bytes, ...) fill((const int[]){__VA_ARGS__}, sizeof(int[]){__VA_ARGS__} / sizeof(int), bytes)

static void gives_all_of_them(void **state) {
    (void)state;
    assert_int_equal(FILL(8, 8), 0);
    assert_int_equal(FILL(15, 4, 1, 10), 0);
    assert_int_equal(fill(NULL, 0, 0), 0);
}

static void goes_on_after_a_signal(void **state) {
    (void)state;
    assert_int_equal(FILL(8, -EINTR, 8), 0);
    assert_int_equal(FILL(8, -EINTR, -EINTR, 3, -EINTR, 5), 0);
}

static void tells_a_failure(void **state) {
    (void)state;
    assert_int_equal(FILL(8, -EAGAIN), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(FILL(8, -EINTR, 3, -ENOSYS), -1);
    assert_int_equal(errno, ENOSYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_all_of_them),
        cmocka_unit_test(goes_on_after_a_signal),
        cmocka_unit_test(tells_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
