/* Which interfaces TCP may use: the wish's syntax, the choice, the environment's precedence, the machine's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/host/interface.h"

static struct interface_wish wish_of(const char *names, const char *family) {
    struct interface_wish wish;
    assert_int_equal(interface_wish_parse(names, family, &wish), 0);
    return wish;
}

static bool allows(const char *names, const char *name) {
    struct interface_wish wish = wish_of(names, NULL);
    return interface_wish_allows(&wish, name, AF_INET);
}

static void the_syntax_is_nccls(void **state) {
    (void)state;
    assert_true(allows(NULL, "eth0") && allows("", "lo"));
    assert_true(allows("eth", "eth0") && allows("eth", "eth1") && !allows("eth", "ib0"));
    assert_true(allows("eth,ib", "ib0") && !allows("eth,ib", "lo"));
    assert_true(allows("=eth0", "eth0") && !allows("=eth0", "eth01") && allows("=eth0,ib1", "ib1"));
    assert_true(!allows("^docker,lo", "docker0") && !allows("^docker,lo", "lo") && allows("^docker,lo", "eth0"));
    assert_true(!allows("^=eth0", "eth0") && allows("^=eth0", "eth01"));
    assert_true(allows(",,eth,", "eth0") && !allows(",,eth,", "lo")); /* empty names are nothing */
}

static void the_family_counts(void **state) {
    (void)state;
    struct interface_wish wish = wish_of("eth", "AF_INET6");
    assert_true(interface_wish_allows(&wish, "eth0", AF_INET6));
    assert_false(interface_wish_allows(&wish, "eth0", AF_INET));
    assert_int_equal(interface_wish_parse(NULL, "INET", &wish), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "'INET'"));
}

static void too_much_is_refused(void **state) {
    (void)state;
    struct interface_wish wish;
    char many[INTERFACE_PATTERNS_MAX * 2 + 3];
    for (size_t i = 0; i + 1 < sizeof many; i++) {
        many[i] = i % 2 ? ',' : 'e';
    }
    many[sizeof many - 1] = '\0';
    assert_int_equal(interface_wish_parse(many, NULL, &wish), MUSTER_EINVAL);
    many[INTERFACE_PATTERNS_MAX * 2 - 1] = '\0';
    assert_int_equal(interface_wish_parse(many, NULL, &wish), 0);
    assert_int_equal(interface_wish_parse("a-name-of-16-chr", NULL, &wish), MUSTER_EINVAL);
    assert_int_equal(interface_wish_parse("a-name-of-15-ch", NULL, &wish), 0);
}

static struct interface_address address_of(const char *name, const char *text) {
    struct interface_address out;
    struct net_addresses list;
    memset(&out, 0, sizeof out);
    assert_int_equal(net_resolve_numeric(text, 0, &list), 0);
    memcpy(out.name, name, strlen(name));
    out.address = list.list[0];
    return out;
}

static size_t choose(const char *names, const char *family, char *out_names) {
    const struct interface_address all[] = {
        address_of("lo", "127.0.0.1"), address_of("docker0", "172.17.0.1"), address_of("eth0", "10.0.0.5"),
        address_of("lo", "::1"),       address_of("eth0", "2001:db8::5"),   address_of("ib0", "192.168.5.5"),
    };
    struct interface_address chosen[INTERFACE_CHOSEN_MAX];
    struct interface_wish wish = wish_of(names, family);
    size_t count = interface_choose(&wish, all, sizeof all / sizeof *all, chosen);
    out_names[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        size_t at = strlen(out_names);
        memcpy(out_names + at, chosen[i].name, strlen(chosen[i].name));
        memcpy(out_names + at + strlen(chosen[i].name), " ", 2);
    }
    return count;
}

static void the_best_come_first(void **state) {
    (void)state;
    char names[256];
    assert_int_equal(choose(NULL, NULL, names), 4);
    assert_string_equal(names, "eth0 eth0 ib0 docker0 "); /* no loopback where there is anything else */
    assert_int_equal(choose("lo,ib", NULL, names), 3);
    assert_string_equal(names, "ib0 lo lo "); /* but when it is asked for */
    assert_int_equal(choose("^eth,docker,ib", NULL, names), 2);
    assert_string_equal(names, "lo lo ");
    assert_int_equal(choose(NULL, "AF_INET6", names), 1);
    assert_string_equal(names, "eth0 ");
    assert_int_equal(choose("wlan", NULL, names), 0);
}

static void the_environment_has_an_order(void **state) {
    (void)state;
    struct interface_wish wish;
    assert_int_equal(setenv("GLOO_SOCKET_IFNAME", "gloo0", 1), 0);
    assert_int_equal(interface_wish_from_env(&wish), 0);
    assert_string_equal(wish.names[0], "gloo0");
    assert_int_equal(setenv("NCCL_SOCKET_IFNAME", "^nccl0", 1), 0);
    assert_int_equal(interface_wish_from_env(&wish), 0);
    assert_true(wish.excluded && strcmp(wish.names[0], "nccl0") == 0);
    assert_int_equal(setenv("MUSTER_SOCKET_IFNAME", "=muster0", 1), 0);
    assert_int_equal(setenv("NCCL_SOCKET_FAMILY", "AF_INET6", 1), 0);
    assert_int_equal(interface_wish_from_env(&wish), 0);
    assert_true(wish.exact && strcmp(wish.names[0], "muster0") == 0 && wish.family == AF_INET6);
    assert_int_equal(setenv("MUSTER_SOCKET_FAMILY", "AF_INET", 1), 0);
    assert_int_equal(interface_wish_from_env(&wish), 0);
    assert_int_equal(wish.family, AF_INET);
    assert_int_equal(setenv("MUSTER_SOCKET_FAMILY", "both", 1), 0);
    assert_int_equal(interface_wish_from_env(&wish), MUSTER_EINVAL);
}

static void this_machine_has_loopback(void **state) {
    (void)state;
    struct interface_address all[INTERFACES_MAX];
    size_t count = 0;
    bool found = false;
    assert_int_equal(interface_list(all, &count), 0);
    for (size_t i = 0; i < count; i++) {
        found = found || net_address_is_loopback((const struct sockaddr *)&all[i].address.sockaddr);
    }
    assert_true(found);
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct net_address from;
    assert_int_equal(interface_route((const struct sockaddr *)&peer, &from), 0);
    assert_true(net_address_is_loopback((const struct sockaddr *)&from.sockaddr));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_syntax_is_nccls),          cmocka_unit_test(the_family_counts),
        cmocka_unit_test(too_much_is_refused),          cmocka_unit_test(the_best_come_first),
        cmocka_unit_test(the_environment_has_an_order), cmocka_unit_test(this_machine_has_loopback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
