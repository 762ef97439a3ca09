/* Which URLs a list of endpoints stands for, and which lists are none. */
#include "net/url_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/str.h"

enum { PORT = 2379 };

static void expect_urls(const char *text, const char *scheme, size_t count, const char *const *urls) {
    struct net_url_list list;
    assert_int_equal(net_url_list_read(&list, text, scheme, PORT), 0);
    assert_int_equal(list.turn.count, count);
    assert_int_equal(list.turn.current, 0);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(list.urls[i], urls[i]);
    }
}

static void schemes_and_ports_are_filled_in(void **state) {
    static const char *const plain[] = {"http://a:2379", "http://b:7"};
    static const char *const mixed[] = {"http://a:2379", "https://b:2379", "https://[::1]:2379", "http://c:9"};
    static const char *const given[] = {"https://a:2379", "https://[::1]:77", "https://b:5"};
    static const char *const none[] = {"http://localhost:2379"};
    (void)state;
    expect_urls("a,b:7", "http", 2, plain);
    expect_urls("a, HTTPS://b/,[::1],http://c:9/v3", "http", 4, mixed);
    expect_urls("a, [::1]:77 ,b:5", "https", 3, given);
    expect_urls("", "http", 1, none);
}

static void expect_refused(const char *text, const char *words) {
    struct net_url_list list;
    assert_int_equal(net_url_list_read(&list, text, "http", PORT), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), words));
}

static void lists_that_are_none_are_refused(void **state) {
    char many[128] = "";
    (void)state;
    for (size_t i = 0; i <= NET_URLS_MAX; i++) {
        (void)str_format(many + strlen(many), sizeof many - strlen(many), "%sh%zu", i > 0 ? "," : "", i);
    }
    expect_refused("ftp://a", "not by ftp://");
    expect_refused("a,,b", "an endpoint is empty");
    expect_refused(",a", "an endpoint is empty");
    expect_refused("a, ", "an endpoint is empty");
    expect_refused("https://", "there is no host");
    expect_refused("a:0", "port 0");
    expect_refused("a:x", "a:x");
    expect_refused(many, "more than 16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemes_and_ports_are_filled_in),
        cmocka_unit_test(lists_that_are_none_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
