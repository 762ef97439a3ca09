/* Endpoint parsing (torchrun's verdicts), numeric resolution, address texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "net/endpoint.h"

#include <muster/status.h>

struct parse_case {
    const char *text;
    const char *host; /* NULL: refused */
    int32_t port;
};

static void endpoint_texts(void **state) {
    (void)state;
    static const struct parse_case cases[] = {
        {"", "localhost", -1},
        {"  \t", "localhost", -1},
        {"node7", "node7", -1},
        {" node7:29400\n", "node7", 29400},
        {"10.0.0.1:0", "10.0.0.1", 0},
        {"10.0.0.1:65535", "10.0.0.1", 65535},
        {"[::1]:29400", "::1", 29400},
        {"[fe80::1]", "fe80::1", -1},
        {"[fe80::1%eth0]:7", "fe80::1%eth0", 7},
        {"a_b-c.example:00080", "a_b-c.example", 80},
        {"fe80::1:29400", "fe80::1", 29400}, /* the last colon splits, as in torchrun */
        {"::1:29400", "::1", 29400},
        {"fe80::1%eth0:7", "fe80::1%eth0", 7},
        {"::1", NULL, 0}, /* no address would be left */
        {"fe80::1%eth0", NULL, 0},
        {"2001:db8:0:0:0:0:0:1", NULL, 0},
        {"host:65536", NULL, 0},
        {"host:99999", NULL, 0},
        {"host:", NULL, 0},
        {"host:x", NULL, 0},
        {"host:-1", NULL, 0},
        {"host:000080", NULL, 0},
        {":29400", NULL, 0},
        {"[::1", NULL, 0},
        {"[::1]x", NULL, 0},
        {"ho st:1", NULL, 0},
        {"http://h:1", NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct net_endpoint endpoint;
        int rc = net_endpoint_parse(cases[i].text, &endpoint);
        if (!cases[i].host) {
            assert_int_equal(rc, MUSTER_EINVAL);
            assert_non_null(strstr(muster_detail(), cases[i].text));
            continue;
        }
        assert_int_equal(rc, 0);
        assert_string_equal(endpoint.host, cases[i].host);
        assert_int_equal(endpoint.port, cases[i].port);
    }
}

static void ipv6_without_brackets_is_told(void **state) {
    (void)state;
    struct net_endpoint endpoint;
    assert_int_equal(net_endpoint_parse(" ::1 ", &endpoint), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "write [::1], or [::1]:PORT"));
}

static void endpoint_too_long(void **state) {
    (void)state;
    char text[NET_HOST_MAX + 40];
    struct net_endpoint endpoint;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_int_equal(net_endpoint_parse(text, &endpoint), MUSTER_EINVAL);
    text[NET_HOST_MAX] = '\0'; /* one byte more than a host may have */
    assert_int_equal(net_endpoint_parse(text, &endpoint), MUSTER_EINVAL);
    text[NET_HOST_MAX - 1] = '\0';
    assert_int_equal(net_endpoint_parse(text, &endpoint), 0);
}

static void numeric_resolution(void **state) {
    (void)state;
    struct net_addresses found;
    char text[NET_ADDRESS_TEXT_MAX];
    assert_int_equal(net_resolve_numeric("localhost", 29400, &found), 0);
    assert_int_equal(found.count, 2);
    assert_string_equal(net_address_format((struct sockaddr *)&found.list[0].sockaddr, text), "127.0.0.1:29400");
    assert_string_equal(net_address_format((struct sockaddr *)&found.list[1].sockaddr, text), "[::1]:29400");
    for (size_t i = 0; i < 2; i++) {
        assert_true(net_address_is_loopback((struct sockaddr *)&found.list[i].sockaddr));
    }
    assert_true(net_address_is_local((struct sockaddr *)&found.list[0].sockaddr));

    assert_int_equal(net_resolve_numeric("192.0.2.1", 1, &found), 0); /* TEST-NET: nobody's address */
    assert_false(net_address_is_local((struct sockaddr *)&found.list[0].sockaddr));
    assert_false(net_address_is_loopback((struct sockaddr *)&found.list[0].sockaddr));
    assert_int_equal(net_resolve_numeric("no-address.example", 1, &found), MUSTER_ERESOLVE);
    assert_int_equal(net_resolve("127.1.2.3", 7, &found), 0);
    assert_true(net_address_is_loopback((struct sockaddr *)&found.list[0].sockaddr));
}

static void mapped_addresses_print_as_ipv4(void **state) {
    (void)state;
    struct net_addresses found;
    char text[NET_ADDRESS_TEXT_MAX];
    assert_int_equal(net_resolve_numeric("::ffff:127.0.0.9", 5, &found), 0);
    struct sockaddr *address = (struct sockaddr *)&found.list[0].sockaddr;
    assert_string_equal(net_address_format(address, text), "127.0.0.9:5");
    assert_string_equal(net_address_host(address, text), "127.0.0.9");
    assert_true(net_address_is_loopback(address));
    net_address_set_port(address, 65535);
    assert_int_equal(net_address_port(address), 65535);
}

static void addresses_are_equal_with_their_ports(void **state) {
    (void)state;
    static const struct {
        const char *host;
        uint16_t port;
        bool is_equal;
    } cases[] = {{"10.0.0.1", 5, true},
                 {"10.0.0.1", 6, false},
                 {"10.0.0.2", 5, false},
                 {"::ffff:10.0.0.1", 5, true},
                 {"::1", 5, false}};
    struct net_addresses one, other;
    assert_int_equal(net_resolve_numeric("10.0.0.1", 5, &one), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(net_resolve_numeric(cases[i].host, cases[i].port, &other), 0);
        assert_int_equal(
            net_address_equal((struct sockaddr *)&one.list[0].sockaddr, (struct sockaddr *)&other.list[0].sockaddr),
            cases[i].is_equal);
    }
}

static void endpoint_lists(void **state) {
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"a:1,", "is empty"},
        {"a:1,,b:1", "is empty"},
        {",", "is empty"},
        {"a:1,b,A:1", "twice"},
        {"a,a:29400", "twice"},
        {"a:1,b:0", "needs a port"},
        {"a:1,b:x", "port number"},
        {"a:1,b c", "hostname"},
        {"a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,j:1", "more than 9"},
    };
    (void)state;
    struct net_endpoint_list list;
    assert_int_equal(net_endpoint_list_parse(" a:1 , [::1]:2,c", 29400, &list), MUSTER_OK);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.list[0].host, "a");
    assert_string_equal(list.list[1].host, "::1");
    assert_int_equal(list.list[1].port, 2);
    assert_int_equal(list.list[2].port, 29400);
    assert_int_equal(net_endpoint_list_parse("", 29400, &list), MUSTER_OK);
    assert_int_equal(list.count, 1);
    assert_string_equal(list.list[0].host, "localhost");
    assert_int_equal(net_endpoint_list_parse("a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1", 1, &list), MUSTER_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(net_endpoint_list_parse(wrong[i].text, 29400, &list), MUSTER_EINVAL);
        if (!strstr(muster_detail(), wrong[i].words)) {
            fail_msg("%s: %s", wrong[i].text, muster_detail());
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endpoint_texts),
        cmocka_unit_test(ipv6_without_brackets_is_told),
        cmocka_unit_test(endpoint_too_long),
        cmocka_unit_test(endpoint_lists),
        cmocka_unit_test(numeric_resolution),
        cmocka_unit_test(mapped_addresses_print_as_ipv4),
        cmocka_unit_test(addresses_are_equal_with_their_ports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
