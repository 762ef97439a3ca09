/* Which addresses a range has, and what is no range. */
#include "net/range.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "net/endpoint.h"

static struct net_address_key key_of(const char *text) {
    struct net_addresses at;
    struct net_address_key key;
    assert_int_equal(net_resolve_numeric(text, 80, &at), 0);
    net_address_key((const struct sockaddr *)&at.list[0].sockaddr, &key);
    return key;
}

static void expect(const char *ranges, const char *address, bool expected) {
    struct net_ranges parsed;
    const struct net_address_key key = key_of(address);
    assert_int_equal(net_ranges_parse(ranges, &parsed), 0);
    if (net_ranges_contain(&parsed, &key) != expected) {
        fail_msg("%s in %s", address, ranges);
    }
}

static void what_a_range_has(void **state) {
    (void)state;
    expect("", "10.0.0.1", false);
    expect("10.0.0.1", "10.0.0.1", true);
    expect("10.0.0.1", "10.0.0.2", false);
    expect("10.0.0.1", "::ffff:10.0.0.1", true); /* as a socket for both families has it */
    expect("10.1.0.0/16", "10.1.255.255", true);
    expect("10.1.0.0/16", "10.2.0.0", false);
    expect("10.1.2.128/25", "10.1.2.128", true);
    expect("10.1.2.128/25", "10.1.2.127", false);
    expect("0.0.0.0/0", "192.0.2.1", true);
    expect("0.0.0.0/0", "fd00::1", false);
    expect("fd00::/8", "fdff::1", true);
    expect("fd00::/8", "fe00::1", false);
    expect("::/0", "192.0.2.1", true);
    expect("fd00::/8+10.1.0.0/16+192.0.2.7", "192.0.2.7", true);
    expect("fd00::/8+10.1.0.0/16+192.0.2.7", "192.0.2.6", false);
}

static void what_is_none(void **state) {
    static const char *const wrong[] = {"host",       "10.0.0",      "10.0.0.0/33", "10.0.0.0/-1",
                                        "10.0.0.0/",  "10.0.0.1/24", "fd00::/129",  "fd00::1/8",
                                        "10.0.0.0/x", "10.0.0.1:80", "+10.0.0.1",   "10.0.0.1,10.2"};
    struct net_ranges out;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (net_ranges_parse(wrong[i], &out) != MUSTER_EINVAL) {
            fail_msg("%s is taken", wrong[i]);
        }
    }
    char text[NET_RANGES_MAX * 3 + 8];
    size_t used = 0;
    for (int i = 0; i <= NET_RANGES_MAX; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s::", i > 0 ? "+" : "");
    }
    assert_int_equal(net_ranges_parse(text, &out), MUSTER_ELIMIT);
    text[used - 3] = '\0';
    assert_int_equal(net_ranges_parse(text, &out), 0);
    assert_int_equal(out.count, NET_RANGES_MAX);
}

static void other_sockets_have_no_address(void **state) {
    static const struct sockaddr local = {.sa_family = AF_UNIX};
    static const struct net_address_key none;
    struct net_address_key key;
    (void)state;
    net_address_key(&local, &key);
    assert_memory_equal(&key, &none, sizeof key);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_a_range_has), cmocka_unit_test(what_is_none),
                                       cmocka_unit_test(other_sockets_have_no_address)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
