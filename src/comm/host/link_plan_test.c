/* Lines about links between hosts: what is one, what it says, and which two hosts it is about. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include <muster/status.h>

#include "comm/host/link_plan.h"

static int parse(const char *line, struct link_plan *out) {
    return link_plan_parse(line, strlen(line), out);
}

static void a_line_is_read_and_written(void **state) {
    (void)state;
    static const char *const lines[] = {"link 1 10.0.0.1=10.0.0.2\n", "link 4 10.0.0.1=10.0.0.2 10.1.0.1=10.1.0.2\n",
                                        "link 8 fd00::1=fd00::2 192.0.2.1=fd00:1::2\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct link_plan plan;
        char text[LINK_PLAN_TEXT_MAX];
        assert_true(link_plan_is_line(lines[i], strlen(lines[i]) - 1));
        assert_int_equal(link_plan_parse(lines[i], strlen(lines[i]) - 1, &plan), 0);
        assert_true(link_plan_format(&plan, text, sizeof text));
        assert_string_equal(text, lines[i]);
        assert_false(link_plan_format(&plan, text, strlen(lines[i]))); /* no room for the terminator */
    }
    struct link_plan plan;
    assert_int_equal(parse("\tlink  2 10.0.0.1=10.0.0.2 # 940 Mbit/s, 10.1.0.1=10.1.0.2 is slower\r", &plan), 0);
    assert_true(plan.stream_count == 2 && plan.path_count == 1);
}

static void other_lines_are_told_apart_or_refused(void **state) {
    (void)state;
    static const char *const others[] = {"", "links 1", "all_reduce link", "# link 1", "lin"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_false(link_plan_is_line(others[i], strlen(others[i])));
    }
    static const char nine_paths[] = "link 8 1::1=1::2 2::1=2::2 3::1=3::2 4::1=4::2 5::1=5::2 6::1=6::2 7::1=7::2 "
                                     "8::1=8::2 9::1=9::2";
    static const char *const wrong[] = {"link",
                                        "link 4",
                                        "link 0 10.0.0.1=10.0.0.2",
                                        "link 9 10.0.0.1=10.0.0.2",
                                        "link 44 10.0.0.1=10.0.0.2",
                                        "link 10.0.0.1=10.0.0.2",
                                        "link 4 10.0.0.1",
                                        "link 4 10.0.0.1=",
                                        "link 4 10.0.0.1=host",
                                        "link 4 10.0.0.1=10.0.0.1",
                                        "link 4 10.0.0.1=10.0.0.2=10.0.0.3",
                                        "link 4 10.0.0.1=10.0.0.2 10.0.0.1=10.0.0.3",
                                        "link 4 10.0.0.1=10.0.0.2 10.0.0.2=10.0.0.3",
                                        "link 1 10.0.0.1=10.0.0.2 10.1.0.1=10.1.0.2", /* a path without a connection */
                                        nine_paths};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct link_plan plan;
        assert_true(link_plan_is_line(wrong[i], strlen(wrong[i])));
        assert_int_equal(parse(wrong[i], &plan), MUSTER_EINVAL);
        assert_non_null(strstr(muster_detail(), "expected"));
    }
}

/* The addresses of a line, as those of two hosts: own ones from `first` paths on, the end `own`. */
static enum link_plan_fit compare(const struct link_plan *plan, const struct link_plan *hosts, uint32_t own,
                                  uint32_t *out_own, struct net_address_key *out_missing) {
    struct net_address_key here[LINK_PLAN_PATHS_MAX], there[LINK_PLAN_PATHS_MAX];
    for (uint32_t i = 0; i < hosts->path_count; i++) {
        here[i] = hosts->paths[i].ends[own];
        there[i] = hosts->paths[i].ends[1 - own];
    }
    const struct link_plan_hosts both = {here, there, hosts->path_count, hosts->path_count};
    return link_plan_compare(plan, &both, out_own, out_missing);
}

static void a_line_is_about_two_hosts(void **state) {
    (void)state;
    struct link_plan plan, hosts;
    struct net_address_key missing;
    uint32_t own = 9;
    char text[LINK_PLAN_ADDRESS_MAX];
    assert_int_equal(parse("link 4 10.0.0.1=10.0.0.2 10.1.0.1=10.1.0.2", &plan), 0);
    for (uint32_t end = 0; end < 2; end++) {
        assert_int_equal(parse("link 4 10.2.0.1=10.2.0.2 10.1.0.1=10.1.0.2 10.0.0.1=10.0.0.2", &hosts), 0);
        assert_int_equal(compare(&plan, &hosts, end, &own, &missing), LINK_PLAN_FITS);
        assert_int_equal(own, end);
        assert_int_equal(parse("link 4 10.1.0.1=10.1.0.2 10.0.0.1=10.0.0.7", &hosts), 0);
        assert_int_equal(compare(&plan, &hosts, end, &own, &missing), LINK_PLAN_STALE);
        assert_string_equal(link_plan_address(&missing, text), "10.0.0.2");
        /* One host is the same, the other is not: another pair. */
        assert_int_equal(parse("link 4 10.1.0.1=10.1.0.3 10.0.0.1=10.0.0.3", &hosts), 0);
        assert_int_equal(compare(&plan, &hosts, end, &own, &missing), LINK_PLAN_OTHERS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_read_and_written),
        cmocka_unit_test(other_lines_are_told_apart_or_refused),
        cmocka_unit_test(a_line_is_about_two_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
