/* What the program prints: help, completions, manual page and log lines name every option and keep their form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/str.h"
#include "cli/command/command_table.h"
#include "cli/command/completion.h"
#include "cli/command/help.h"
#include "cli/command/log_stderr.h"
#include "cli/command/options.h"

#define COMMAND_NAME(name, help) #name,
#define COMMAND_PLACE(name, help) OWN_##name,
enum { COMMAND_TABLE_OWN(COMMAND_PLACE) COUNT_OWN }; /* they come first */
#define FILE_BYTES_MAX 65536

static char *text_of(struct buf *b) {
    assert_int_equal(buf_append(b, "", 1), 0);
    return (char *)buf_bytes(b);
}

/* A file of the source tree; caller frees. */
static char *read_source(const char *path) {
    char full[512];
    assert_true(str_format(full, sizeof full, "%s/%s", MUSTER_SOURCE_DIR, path));
    FILE *file = fopen(full, "re");
    if (file == NULL) {
        fail_msg("%s cannot be opened", full);
    }
    char *text = calloc(1, FILE_BYTES_MAX);
    assert_non_null(text);
    size_t n = fread(text, 1, FILE_BYTES_MAX - 1, file);
    assert_true(n > 0 && n < FILE_BYTES_MAX - 1);
    (void)fclose(file);
    return text;
}

/* `name` as a word: not the beginning of a longer name. */
static bool has_word(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *p = text; (p = strstr(p, name)) != NULL; p += n) {
        if (strchr("abcdefghijklmnopqrstuvwxyz-_\\", p[n]) == NULL || p[n] == '\0') {
            return true;
        }
    }
    return false;
}

static void help_names_every_option(void **state) {
    (void)state;
    struct buf out;
    buf_init(&out, HELP_BYTES_MAX);
    assert_int_equal(help_run(&out, "torchrun", 80), 0);
    const char *text = text_of(&out);
    assert_true(str_has_prefix(text, "usage: torchrun "));
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (!has_word(text, option_specs[i].name)) {
            fail_msg("%s is not in the help", option_specs[i].name);
        }
    }
    buf_done(&out);
}

static void help_wraps(void **state) {
    (void)state;
    static const unsigned widths[] = {80, 100};
    for (size_t i = 0; i < 2; i++) {
        struct buf out;
        buf_init(&out, HELP_BYTES_MAX);
        assert_int_equal(help_run(&out, "muster run", widths[i]), 0);
        for (char *p = text_of(&out), *line; (line = strsep(&p, "\n")) != NULL;) {
            /* Examples are for copying and stay in one piece. */
            if (strlen(line) > widths[i] && strstr(line, "--nproc-per-node=") == NULL) {
                fail_msg("longer than %u: %s", widths[i], line);
            }
            assert_true(line[0] == '\0' || line[strlen(line) - 1] != ' ');
        }
        buf_done(&out);
    }
}

/* Each option has an entry: ".It Fl -tee" or ".It Fl t , -tee". */
static void manual_names_every_option(void **state) {
    (void)state;
    char *text = read_source("docs/man/muster-run.1");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option_spec *spec = &option_specs[i];
        char letter[8] = "", entry[OPTION_SPELLING_MAX + 16];
        if (spec->letter != 0) {
            (void)str_format(letter, sizeof letter, "%c , ", spec->letter);
        }
        (void)str_format(entry, sizeof entry, ".It Fl %s%s", letter, spec->name + 1);
        if (!has_word(text, entry)) {
            fail_msg("%s has no entry in docs/man/muster-run.1", spec->name);
        }
        if (spec->fallback != NULL && spec->fallback[0] != '\0' && strstr(text, spec->fallback) == NULL) {
            fail_msg("%s: its default %s is not in docs/man/muster-run.1", spec->name, spec->fallback);
        }
    }
    free(text);
}

/* In the help; with an entry and, if it has a page, a reference in the manual; and in the completions of both shells.
 */
static void every_command_is_named_everywhere(void **state) {
    (void)state;
    static const char *const names[] = {COMMAND_TABLE(COMMAND_NAME)};
    struct buf out;
    buf_init(&out, HELP_BYTES_MAX);
    assert_int_equal(help_muster(&out, "muster", 80), 0);
    const char *help = text_of(&out);
    char *manual = read_source("docs/man/muster.1"), *zsh = read_source("completion/_muster");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char entry[64], page[64];
        (void)str_format(entry, sizeof entry, "\n  %s ", names[i]);
        assert_non_null(strstr(help, entry));
        (void)str_format(entry, sizeof entry, "\n.It Cm %s\n", names[i]);
        (void)str_format(page, sizeof page, "muster-%s 1", names[i]);
        assert_non_null(strstr(manual, entry));
        bool has_page = strcmp(names[i], "completion") != 0 && i < COUNT_OWN;
        assert_int_equal(has_page, strstr(manual, page) != NULL);
        (void)str_format(entry, sizeof entry, "\n        %s) ", names[i]);
        assert_int_equal(i < COUNT_OWN || strcmp(names[i], "help") == 0, strstr(zsh, entry) != NULL);
    }
    free(manual);
    free(zsh);
    buf_done(&out);
}

static void assert_completion(int (*write)(struct buf *out), const char *path) {
    struct buf out;
    buf_init(&out, COMPLETION_BYTES_MAX);
    assert_int_equal(write(&out), 0);
    char *stored = read_source(path);
    if (strcmp(text_of(&out), stored) != 0) {
        fail_msg("%s is not what `muster completion` prints; write it anew", path);
    }
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        assert_true(has_word(stored, option_specs[i].name));
    }
    free(stored);
    buf_done(&out);
}

static void completions_are_current(void **state) {
    (void)state;
    assert_completion(completion_bash, "completion/muster.bash");
    assert_completion(completion_zsh, "completion/_muster");
}

static void log_lines_have_torchruns_form(void **state) {
    (void)state;
    char out[512];
    assert_int_equal(setenv("TZ", "UTC", 1), 0);
    size_t n = log_stderr_format(out, sizeof out, LOG_LEVEL_WARNING, "src/a.c", 7, "one\ntwo", 1795254431473999, 42);
    assert_string_equal(out, "W1121 09:47:11.473000 42 src/a.c:7] one\nW1121 09:47:11.473000 42 src/a.c:7] two\n");
    assert_int_equal(n, strlen(out));
    n = log_stderr_format(out, 60, LOG_LEVEL_INFO, "src/a.c", 7, "one\ntwo", 0, 42);
    assert_int_equal(n, strlen("I0101 00:00:00.000000 42 src/a.c:7] one\n"));
    assert_memory_equal(out, "I0101 00:00:00.000000 42 src/a.c:7] one\n", n);
}

static void log_levels_are_pythons(void **state) {
    (void)state;
    enum log_level level = LOG_LEVEL_ERROR;
    assert_true(log_stderr_level("info", &level));
    assert_int_equal(level, LOG_LEVEL_INFO);
    assert_true(log_stderr_level("CRITICAL", &level));
    assert_int_equal(level, LOG_LEVEL_OFF);
    assert_false(log_stderr_level("loud", &level));
    assert_false(log_stderr_level("20", &level));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_names_every_option),
        cmocka_unit_test(help_wraps),
        cmocka_unit_test(manual_names_every_option),
        cmocka_unit_test(completions_are_current),
        cmocka_unit_test(every_command_is_named_everywhere),
        cmocka_unit_test(log_lines_have_torchruns_form),
        cmocka_unit_test(log_levels_are_pythons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
