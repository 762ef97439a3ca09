/* Slurm's host lists: every form that scontrol prints, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/hostlist.h"
#include "base/status.h"

/* `hosts`: separated by blanks. */
static void assert_hosts(const char *text, const char *hosts) {
    char all[1024] = "", host[HOSTLIST_HOST_MAX];
    size_t count = 0, used = 0;
    if (hostlist_count(text, &count) != MUSTER_OK) {
        fail_msg("%s: %s", text, muster_detail());
    }
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(hostlist_get(text, i, host), MUSTER_OK);
        assert_true(used + strlen(host) + 2 < sizeof all);
        memcpy(all + used, host, strlen(host));
        used += strlen(host);
        all[used++] = ' ';
    }
    all[used - 1] = '\0';
    assert_string_equal(all, hosts);
    assert_int_equal(hostlist_get(text, count, host), MUSTER_EINVAL);
}

static void lists(void **state) {
    (void)state;
    assert_hosts("login", "login");
    assert_hosts("a,b-1.cluster,c", "a b-1.cluster c");
    assert_hosts("n[1-3]", "n1 n2 n3");
    assert_hosts("gpu[001-003,7],login,x[9-11]", "gpu001 gpu002 gpu003 gpu7 login x9 x10 x11");
    assert_hosts("n[008-011]", "n008 n009 n010 n011");
    assert_hosts("rack[1-2]n[01-03]", "rack1n01 rack1n02 rack1n03 rack2n01 rack2n02 rack2n03");
    assert_hosts("r[1,3]c[0-1]n[5]-ib", "r1c0n5-ib r1c1n5-ib r3c0n5-ib r3c1n5-ib");
    assert_hosts("[1-2]", "1 2");
}

static void what_is_no_list(void **state) {
    (void)state;
    static const char *const texts[] = {"",        ",",        "a,",       ",a",           "a,,b",   "n[",
                                        "n[]",     "n[1",      "n[1-]",    "n[-1]",        "n[2-1]", "n[1,]",
                                        "n[1]]",   "n]1",      "n[a]",     "n 1",          "n[1 2]", "n[1-2-3]",
                                        "n[[1]2]", "(null) x", "n[1-2],[", "n[0000000001]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t count = 77;
        if (hostlist_count(texts[i], &count) != MUSTER_EINVAL) {
            fail_msg("'%s' is taken for a list", texts[i]);
        }
        assert_int_equal(count, 77);
    }
}

static void limits(void **state) {
    (void)state;
    static char text[HOSTLIST_BYTES_MAX + 1];
    char host[HOSTLIST_HOST_MAX];
    size_t count = 0;
    assert_int_equal(hostlist_count("n[1-1048576]", &count), MUSTER_OK);
    assert_int_equal(count, HOSTLIST_HOSTS_MAX);
    assert_int_equal(hostlist_get("n[1-1048576]", count - 1, host), MUSTER_OK);
    assert_string_equal(host, "n1048576");
    assert_int_equal(hostlist_count("n[1-1048577]", &count), MUSTER_ELIMIT);
    assert_int_equal(hostlist_count("a,n[1-1048576]", &count), MUSTER_ELIMIT);
    assert_int_equal(hostlist_count("a[1-1025]b[1-1024]", &count), MUSTER_ELIMIT);
    assert_int_equal(hostlist_count("[1][1][1][1][1][1][1][1]", &count), MUSTER_OK);
    assert_int_equal(hostlist_count("[1][1][1][1][1][1][1][1][1]", &count), MUSTER_ELIMIT);
    memset(text, 'a', sizeof text - 1);
    assert_int_equal(hostlist_count(text, &count), MUSTER_ELIMIT);
    text[HOSTLIST_HOST_MAX - 1] = '\0';
    assert_int_equal(hostlist_get(text, 0, host), MUSTER_OK);
    assert_string_equal(host, text);
    memcpy(text + HOSTLIST_HOST_MAX - 1, "[1]", 4);
    assert_int_equal(hostlist_get(text, 0, host), MUSTER_ELIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(what_is_no_list),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
