/* The option parser, rule by rule. tests/peer/test_options.py compares it with the real torchrun. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/command/options.h"
#include "cli/command/suggest.h"
#include "cli/command/variables_test_support.h"

#define WORDS_MAX 32

/* A command line as one string, "|" between words, and variables as "NAME=value" until NULL. */
struct line {
    char text[512];
    char *argv[WORDS_MAX];
    int argc;
};

static enum options_verdict parse_with(struct line *line, const char *text, const char *const *variables,
                                       struct options *out) {
    assert_true(str_copy(line->text, sizeof line->text, text));
    char *rest = line->text;
    line->argc = 0;
    for (char *word; text[0] != '\0' && (word = strsep(&rest, "|")) != NULL;) {
        assert_true(line->argc < WORDS_MAX);
        line->argv[line->argc++] = word;
    }
    status_clear();
    return options_parse(line->argc, line->argv, variables_lookup, (void *)(uintptr_t)variables, out);
}

static struct line last_line;

static enum options_verdict parse(const char *text, struct options *out) {
    return parse_with(&last_line, text, NULL, out);
}

static void assert_text(const char *text, enum option_id id, const char *expected) {
    struct options options;
    if (parse(text, &options) != OPTIONS_OK) {
        fail_msg("%s: %s", text, muster_detail());
    }
    assert_string_equal(options.values[id].text, expected);
    assert_int_equal(options.values[id].source, OPTION_FROM_COMMAND_LINE);
}

static void assert_usage(const char *text, const char *in_message) {
    struct options options;
    assert_int_equal(parse(text, &options), OPTIONS_USAGE);
    if (strstr(muster_detail(), in_message) == NULL) {
        fail_msg("'%s' is not in '%s'", in_message, muster_detail());
    }
}

static void defaults_are_torchruns(void **state) {
    (void)state;
    struct options options;
    assert_int_equal(parse("script.py", &options), OPTIONS_OK);
    assert_string_equal(options.values[OPTION_NNODES].text, "1:1");
    assert_string_equal(options.values[OPTION_RDZV_BACKEND].text, "static");
    assert_int_equal(options.values[OPTION_MAX_RESTARTS].integer, 0);
    assert_true(fabs(options.values[OPTION_MONITOR_INTERVAL].real - 0.1) < 1e-12);
    assert_null(options.values[OPTION_MASTER_PORT].text);
    assert_null(options.values[OPTION_LOG_DIR].text);
    assert_false(options.values[OPTION_STANDALONE].on);
    assert_string_equal(options.script, "script.py");
    assert_int_equal(options.script_arg_count, 0);
}

static void values_in_every_form(void **state) {
    (void)state;
    assert_text("--nproc-per-node|4|s", OPTION_NPROC_PER_NODE, "4");
    assert_text("--nproc_per_node|4|s", OPTION_NPROC_PER_NODE, "4");
    assert_text("--nproc-per-node=4|s", OPTION_NPROC_PER_NODE, "4");
    assert_text("--nproc_per_node=|s", OPTION_NPROC_PER_NODE, "");
    assert_text("--nproc-per|4|s", OPTION_NPROC_PER_NODE, "4");
    assert_text("--nn=2|s", OPTION_NNODES, "2");
    assert_text("--rdzv_b|c10d|s", OPTION_RDZV_BACKEND, "c10d");
    assert_text("--role|a|--role|b|s", OPTION_ROLE, "b");
    assert_text("--role=a=b|s", OPTION_ROLE, "a=b");
    assert_text("--role||s", OPTION_ROLE, "");
    assert_text("--role|-|s", OPTION_ROLE, "-");
    assert_text("--role|--a b|s", OPTION_ROLE, "--a b");
}

static void a_value_that_may_be_left_out(void **state) {
    (void)state;
    struct options options;
    assert_int_equal(parse("s", &options), OPTIONS_OK);
    assert_string_equal(options.values[OPTION_MPI].text, "none");
    assert_text("--mpi|s", OPTION_MPI, "");
    assert_text("--mpi=pmi1|s", OPTION_MPI, "pmi1");
    assert_text("--mpi=pmi1|--mpi|s", OPTION_MPI, "");
    assert_int_equal(parse("--mpi|pmi1|s", &options), OPTIONS_OK); /* the script */
    assert_string_equal(options.script, "pmi1");
    assert_int_equal(options.script_arg_count, 1);
    assert_usage("--mpi=|s", "invalid choice: ''");
    assert_usage("--mpi=pmi|s", "did you mean pmi");
    assert_usage("--mp|s", "unrecognized arguments: --mp");
}

static void letters(void **state) {
    (void)state;
    struct options options;
    assert_text("-r3|s", OPTION_REDIRECTS, "3");
    assert_text("-r|3|s", OPTION_REDIRECTS, "3");
    assert_text("-r=3|s", OPTION_REDIRECTS, "3");
    assert_text("-r=|s", OPTION_REDIRECTS, "");
    assert_text("-rm|s", OPTION_REDIRECTS, "m");
    assert_text("-mr|3|s", OPTION_REDIRECTS, "3");
    assert_text("-mr=3|s", OPTION_REDIRECTS, "=3");
    assert_text("-m=t3|s", OPTION_TEE, "3");
    assert_int_equal(parse("-mmr3|s", &options), OPTIONS_OK);
    assert_true(options.values[OPTION_MODULE].on);
    assert_usage("-mx|s", "ignored explicit argument 'x'");
    assert_usage("-m=|s", "ignored explicit argument");
    assert_usage("-m-|s", "ignored explicit argument '-'");
    assert_usage("-h3|s", "ignored explicit argument '3'");
    assert_usage("-x|s", "unrecognized arguments: -x");
    assert_usage("-hr", "expected one argument");
}

static void negative_numbers_are_values(void **state) {
    (void)state;
    struct options options;
    assert_int_equal(parse("--max-restarts|-1|s", &options), OPTIONS_OK);
    assert_int_equal(options.values[OPTION_MAX_RESTARTS].integer, -1);
    assert_int_equal(parse("--monitor-interval|-.5|s", &options), OPTIONS_OK);
    assert_int_equal(parse("-5|-x", &options), OPTIONS_OK);
    assert_string_equal(options.script, "-5");
    assert_usage("--monitor-interval|-1e5|s", "expected one argument");
    assert_usage("-5.|s", "unrecognized");
}

static void option_words_are_no_values(void **state) {
    (void)state;
    assert_usage("--role|--standalone|s", "the option '--standalone'");
    assert_usage("--role|-x|s", "expected one argument");
    assert_usage("--role|--|s", "expected one argument");
    assert_usage("--role", "the command line ends here");
}

static void everything_behind_the_script_is_its_own(void **state) {
    (void)state;
    struct options options;
    assert_int_equal(parse("s.py|-h|--nnodes|--n|--max-restarts=x|--", &options), OPTIONS_OK);
    assert_string_equal(options.script, "s.py");
    assert_int_equal(options.script_arg_count, 5);
    assert_string_equal(options.script_args[2], "--n");
    assert_string_equal(options.values[OPTION_NNODES].text, "1:1");
}

static void first_double_dash_is_dropped(void **state) {
    (void)state;
    struct options options;
    assert_int_equal(parse("--|--standalone|--|a", &options), OPTIONS_OK);
    assert_string_equal(options.script, "--standalone");
    assert_int_equal(options.script_arg_count, 2);
    assert_string_equal(options.script_args[0], "--");
    assert_int_equal(parse("s|--|--|a", &options), OPTIONS_OK);
    assert_int_equal(options.script_arg_count, 2);
    assert_int_equal(parse("s|a|--", &options), OPTIONS_OK);
    assert_int_equal(options.script_arg_count, 2);
    assert_int_equal(parse("--|--", &options), OPTIONS_OK);
    assert_string_equal(options.script, "--");
    assert_usage("--", "required: training_script");
}

static void ambiguous_prefixes(void **state) {
    (void)state;
    assert_usage("--nproc|2|s", "ambiguous option: --nproc could match --nproc-per-node, --nproc_per_node");
    assert_usage("--n=2|s", "ambiguous option: --n could match --nnodes");
    assert_usage("--rdzv-|s", "ambiguous");
    assert_usage("--=|s", "ambiguous option: -- ");
}

static void own_options_only_in_full(void **state) {
    (void)state;
    struct options options;
    assert_int_equal(parse("--merge-logs|--stderr_tail=5|s", &options), OPTIONS_OK);
    assert_true(options.values[OPTION_MERGE_LOGS].on);
    assert_int_equal(options.values[OPTION_STDERR_TAIL].integer, 5);
    assert_int_equal(parse("--merge_logs|s", &options), OPTIONS_OK);
    assert_int_equal(parse("--version", &options), OPTIONS_VERSION);
    assert_usage("--merge|s", "did you mean --merge-logs?");
    assert_usage("--stderr|s", "unrecognized");
    assert_usage("--versio|s", "unrecognized");
}

static void help_wins_unless_an_error_came_first(void **state) {
    (void)state;
    struct options options;
    assert_int_equal(parse("-h", &options), OPTIONS_HELP);
    assert_int_equal(parse("--he", &options), OPTIONS_HELP);
    assert_int_equal(parse("--bogus|-mh|--max-restarts=x", &options), OPTIONS_HELP);
    assert_int_equal(parse("-hr3|s", &options), OPTIONS_HELP);
    assert_int_equal(parse("--max-restarts=x|-h", &options), OPTIONS_USAGE);
    assert_int_equal(parse("s|-h", &options), OPTIONS_OK);
}

static void unknown_options_name_the_nearest(void **state) {
    (void)state;
    assert_usage("--nproc_per-node|2|s", "did you mean --nproc-per-node?");
    assert_usage("--nprocs=2|s", "did you mean --nproc-per-node?");
    assert_usage("--max-restart_s=2|s", "did you mean --max-restarts?");
    assert_usage("-standalone|s", "did you mean --standalone?");
    assert_usage("--learning-rate=1|s", "options of the script go after its name");
    assert_usage("", "the following arguments are required: training_script");
}

static void numbers_as_python_reads_them(void **state) {
    (void)state;
    int64_t value = 0;
    assert_true(options_parse_integer(" 1_000\n", &value) && value == 1000);
    assert_true(options_parse_integer("+3", &value) && value == 3);
    assert_true(options_parse_integer("-0", &value) && value == 0);
    assert_true(options_parse_integer("99999999999999999999999", &value) && value == INT64_MAX);
    assert_true(options_parse_integer("-99999999999999999999999", &value) && value == INT64_MIN);
    static const char *const wrong[] = {"", " ", "x", "1_", "_1", "1__0", "0x10", "1.0", "- 1", "1 2", "+-1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(options_parse_integer(wrong[i], &value));
    }
    char digits[OPTIONS_DIGITS_MAX + 2];
    memset(digits, '7', sizeof digits);
    digits[OPTIONS_DIGITS_MAX] = '\0';
    assert_true(options_parse_integer(digits, &value));
    digits[OPTIONS_DIGITS_MAX] = '7';
    digits[OPTIONS_DIGITS_MAX + 1] = '\0';
    assert_false(options_parse_integer(digits, &value));
}

static void floats_as_python_reads_them(void **state) {
    (void)state;
    static const char *const right[] = {"5", ".5", "5.", "1e3", "1_0.5_5e1_0", " -inf ", "NaN", "Infinity", "+.5E-3"};
    static const char *const wrong[] = {"0x1p3", "1e", ".", "e5", "1_.5", "1._5", "infx", "", "1 2", "--5"};
    struct options options;
    char text[64];
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        (void)str_format(text, sizeof text, "--monitor-interval=%s|s", right[i]);
        assert_int_equal(parse(text, &options), OPTIONS_OK);
    }
    assert_true(parse("--monitor-interval=1_0.5|s", &options) == OPTIONS_OK);
    assert_true(fabs(options.values[OPTION_MONITOR_INTERVAL].real - 10.5) < 1e-12);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        (void)str_format(text, sizeof text, "--monitor-interval=%s|s", wrong[i]);
        assert_usage(text, "invalid float value");
    }
}

static void bad_values(void **state) {
    (void)state;
    assert_usage("--max-restarts=x|s", "argument --max-restarts: invalid int value: 'x'");
    assert_usage("--start-method=spwan|s", "invalid choice: 'spwan' (choose from spawn, fork, forkserver)");
    assert_usage("--start-method=spwan|s", "did you mean spawn?");
    assert_usage("--numa-binding|bad|s", "node, socket, exclusive, core-complex");
    assert_usage("--standalone=1|s", "takes no value");
}

static void variables_replace_defaults(void **state) {
    (void)state;
    struct options options;
    static const char *const variables[] = {"PET_ROLE=",
                                            "PET_MAX_RESTARTS= 4",
                                            "PET_STANDALONE=-2",
                                            "PET_MODULE=0",
                                            "PET_START_METHOD=bad",
                                            "MUSTER_STDERR_TAIL=7",
                                            NULL};
    assert_int_equal(parse_with(&last_line, "s", variables, &options), OPTIONS_OK);
    assert_string_equal(options.values[OPTION_ROLE].text, "");
    assert_int_equal(options.values[OPTION_ROLE].source, OPTION_FROM_ENVIRONMENT);
    assert_int_equal(options.values[OPTION_MAX_RESTARTS].integer, 4);
    assert_true(options.values[OPTION_STANDALONE].on);
    assert_false(options.values[OPTION_MODULE].on);
    assert_string_equal(options.values[OPTION_START_METHOD].text, "bad"); /* choices: on the line only */
    assert_int_equal(options.values[OPTION_STDERR_TAIL].integer, 7);
    assert_int_equal(parse_with(&last_line, "--role=x|s", variables, &options), OPTIONS_OK);
    assert_string_equal(options.values[OPTION_ROLE].text, "x");
}

static void bad_variables(void **state) {
    (void)state;
    struct options options;
    static const char *const number[] = {"PET_MAX_RESTARTS=x", NULL};
    static const char *const flag[] = {"PET_STANDALONE=true", NULL};
    assert_int_equal(parse_with(&last_line, "s", number, &options), OPTIONS_USAGE);
    assert_non_null(strstr(muster_detail(), "PET_MAX_RESTARTS"));
    assert_int_equal(parse_with(&last_line, "--max-restarts=1|s", number, &options), OPTIONS_OK);
    assert_int_equal(parse_with(&last_line, "s", flag, &options), OPTIONS_INVALID);
    assert_non_null(strstr(muster_detail(), "PET_STANDALONE is 'true'"));
    assert_int_equal(parse_with(&last_line, "--help", flag, &options), OPTIONS_INVALID);
}

/* Kubernetes sets it for a service called "pet-master". */
static void a_service_link_is_no_port(void **state) {
    (void)state;
    struct options options;
    static const char *const link[] = {"PET_MASTER_PORT=tcp://10.96.5.5:29500", NULL};
    assert_int_equal(parse_with(&last_line, "s", link, &options), OPTIONS_OK);
    assert_int_equal(options.values[OPTION_MASTER_PORT].source, OPTION_FROM_DEFAULT);
}

static void suggestions(void **state) {
    (void)state;
    static const char *const names[] = {"run", "store", "completion"};
    assert_string_equal(suggest_nearest("rnu", names, 3), "run");
    assert_string_equal(suggest_nearest("stroe", names, 3), "store");
    assert_null(suggest_nearest("xyzzy", names, 3));
    assert_null(suggest_nearest("", names, 3));
}

/* Of newer torchruns: as --help they end the line where they stand, and they are not abbreviated. */
static void what_newer_versions_added(void **state) {
    (void)state;
    struct options options;
    assert_text("--log-line-prefix-template|${rank}: |s", OPTION_LOG_LINE_PREFIX_TEMPLATE, "${rank}: ");
    assert_text("--log_line_prefix_template=x|s", OPTION_LOG_LINE_PREFIX_TEMPLATE, "x");
    assert_int_equal(parse("--print-completion|zsh|--nonsense", &options), OPTIONS_COMPLETION);
    assert_string_equal(options.values[OPTION_PRINT_COMPLETION].text, "zsh");
    assert_int_equal(parse("--print_completion=tcsh", &options), OPTIONS_COMPLETION);
    assert_usage("--print-completion|ksh", "invalid choice: 'ksh' (choose from bash, zsh, tcsh)");
    assert_usage("--print-completion", "expected one argument");
    assert_usage("--print|bash", "unrecognized arguments: --print");
    assert_usage("--log-line|x|s", "unrecognized arguments: --log-line");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_torchruns),
        cmocka_unit_test(values_in_every_form),
        cmocka_unit_test(a_value_that_may_be_left_out),
        cmocka_unit_test(letters),
        cmocka_unit_test(negative_numbers_are_values),
        cmocka_unit_test(option_words_are_no_values),
        cmocka_unit_test(everything_behind_the_script_is_its_own),
        cmocka_unit_test(first_double_dash_is_dropped),
        cmocka_unit_test(ambiguous_prefixes),
        cmocka_unit_test(own_options_only_in_full),
        cmocka_unit_test(help_wins_unless_an_error_came_first),
        cmocka_unit_test(unknown_options_name_the_nearest),
        cmocka_unit_test(numbers_as_python_reads_them),
        cmocka_unit_test(floats_as_python_reads_them),
        cmocka_unit_test(bad_values),
        cmocka_unit_test(variables_replace_defaults),
        cmocka_unit_test(bad_variables),
        cmocka_unit_test(a_service_link_is_no_port),
        cmocka_unit_test(suggestions),
        cmocka_unit_test(what_newer_versions_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
