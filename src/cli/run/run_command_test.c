/* The workers' command: which interpreter, which words, and what is said when the script is not there. Runs in a folder
 * of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/command/variables_test_support.h"
#include "cli/run/run_command.h"

static char folder[] = "/tmp/muster_command_XXXXXX";
static const char *const files[] = {"train.py",        "tool",           "data.txt",
                                    "pkg/__main__.py", "pkg/mod.py",     "bin/python3",
                                    "venv/bin/python", "own/bin/python", "own/pyvenv.cfg"};
static const char *const folders[] = {"pkg", "bin", "empty", "venv", "venv/bin", "own", "own/bin"};

static int make_files(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        assert_int_equal(mkdir(folders[i], 0700), 0);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_CREAT | O_WRONLY | O_CLOEXEC, i == 1 || i >= 5 ? 0700 : 0600);
        assert_true(fd >= 0);
        assert_int_equal(close(fd), 0);
    }
    return 0;
}

static int remove_files(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)unlink(files[i]);
    }
    for (size_t i = sizeof folders / sizeof *folders; i-- > 0;) {
        (void)rmdir(folders[i]);
    }
    return chdir("/") + rmdir(folder);
}

static int build(const char *flag, const char *script, const char *const *variables, struct launch_config *out) {
    char flag_copy[32], script_copy[64], argument[] = "--lr", value[] = "${local_rank}";
    assert_true(str_copy(flag_copy, sizeof flag_copy, flag) && str_copy(script_copy, sizeof script_copy, script));
    char *argv[] = {flag_copy, script_copy, argument, value};
    int skip = flag[0] == '\0';
    struct options options;
    struct run_machine machine = {.lookup = variables_lookup, .ctx = (void *)(uintptr_t)variables, .root = ""};
    assert_int_equal(options_parse(4 - skip, argv + skip, variables_lookup, machine.ctx, &options), OPTIONS_OK);
    launch_config_init(out);
    status_clear();
    return run_command_build(&options, &machine, out);
}

static const char *const path_only[] = {"PATH=bin", NULL};

static void assert_command(const char *flag, const char *script, size_t count, const char *const *expected) {
    struct launch_config config;
    if (build(flag, script, path_only, &config) != 0) {
        fail_msg("%s %s: %s", flag, script, muster_detail());
    }
    assert_int_equal(config.command.count, count + 2);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(config.command.items[i], expected[i]);
    }
    assert_string_equal(config.command.items[count], "--lr");
    assert_string_equal(config.command.items[count + 1], "${local_rank}");
    assert_string_equal(config.title, script);
    assert_int_equal(config.program_path != NULL, strcmp(flag, "--no-python") == 0);
    assert_int_equal(config.is_python, config.program_path == NULL && strcmp(script, "-") != 0);
    launch_config_done(&config);
}

static void assert_rejected(const char *flag, const char *script, const char *in_message) {
    struct launch_config config;
    assert_true(build(flag, script, path_only, &config) < 0);
    if (strstr(muster_detail(), in_message) == NULL) {
        fail_msg("'%s' is not in '%s'", in_message, muster_detail());
    }
    launch_config_done(&config);
}

static void commands(void **state) {
    (void)state;
    assert_command("", "train.py", 3, (const char *const[]){"bin/python3", "-u", "train.py"});
    assert_command("-m", "pkg.mod", 4, (const char *const[]){"bin/python3", "-u", "-m", "pkg.mod"});
    assert_command("--no-python", "./tool", 1, (const char *const[]){"./tool"});
    assert_command("--no-python", "python3", 1, (const char *const[]){"python3"});
    assert_command("", "pkg", 3, (const char *const[]){"bin/python3", "-u", "pkg"});
    assert_command("", "run_${local_rank}.py", 3, (const char *const[]){"bin/python3", "-u", "run_${local_rank}.py"});
    assert_command("", "-", 3, (const char *const[]){"bin/python3", "-u", "-"});
}

static void run_path_goes_through_runpy(void **state) {
    (void)state;
    struct launch_config config;
    assert_int_equal(build("--run-path", "train.py", path_only, &config), 0);
    assert_int_equal(config.command.count, 7);
    assert_string_equal(config.command.items[2], "-c");
    assert_false(config.is_python);
    assert_non_null(strstr(config.command.items[3], "runpy.run_path"));
    assert_null(strchr(config.command.items[3], '$')); /* macros are substituted in arguments */
    assert_string_equal(config.command.items[4], "train.py");
    assert_string_equal(config.title, "train.py");
    assert_string_equal(config.entry_point, "python3");
    launch_config_done(&config);
}

static void scripts_that_are_not_there(void **state) {
    (void)state;
    assert_rejected("", "trian.py", "did you mean train.py?");
    assert_rejected("", "pkg.mod", "use -m pkg.mod");
    assert_rejected("", "python3", "use --no-python");
    assert_rejected("", "nothing_like_it.py", "'nothing_like_it.py' does not exist in /tmp/muster_command_");
    assert_rejected("", "empty", "without a __main__.py");
    assert_rejected("", "train.py/x", "cannot be read");
    assert_rejected("--run-path", "trian.py", "did you mean train.py?");
    assert_rejected("--no-python", "nosuch", "no program 'nosuch' in PATH");
    assert_rejected("--no-python", "tool", "write ./tool");
    assert_rejected("--no-python", "./nosuch", "cannot be run");
    assert_rejected("--no-python", "./data.txt", "chmod +x");
    assert_rejected("--no-python", "./pkg", "is a folder");
}

static void module_and_no_python(void **state) {
    (void)state;
    struct launch_config config;
    static const char *const module[] = {"PATH=bin", "PET_MODULE=1", NULL};
    assert_int_equal(build("--no-python", "./tool", module, &config), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "Don't use both"));
    launch_config_done(&config);
    assert_int_equal(build("--run-path", "train.py", module, &config), 0);
    launch_config_done(&config);
}

static void assert_interpreter_as(const char *called_as, const char *const *variables, const char *executable,
                                  const char *expected) {
    struct run_machine machine = {.lookup = variables_lookup,
                                  .ctx = (void *)(uintptr_t)variables,
                                  .root = "",
                                  .executable = executable,
                                  .called_as = called_as};
    char *found = run_command_interpreter(&machine);
    if (expected == NULL) {
        assert_null(found);
    } else {
        assert_non_null(found);
        assert_string_equal(found, expected);
    }
    free(found);
}

static void assert_interpreter(const char *const *variables, const char *executable, const char *expected) {
    assert_interpreter_as(NULL, variables, executable, expected);
}

/* cron, systemd and entry points call it by its path and activate nothing. */
static void link_in_an_environment(void **state) {
    (void)state;
    static const char *const active[] = {"PATH=bin", "VIRTUAL_ENV=venv", NULL};
    static const char *const searched[] = {"PATH=bin:own/bin", NULL};
    static const char *const chosen[] = {"PATH=bin", "PYTHON_EXEC=./tool", NULL};
    assert_interpreter_as("own/bin/python", active, "bin/muster", "own/bin/python");
    assert_interpreter_as("python", searched, "bin/muster", "own/bin/python");
    assert_interpreter_as("own/bin/python", chosen, "bin/muster", "./tool");
    assert_interpreter_as("own/bin/gone", active, "bin/muster", "venv/bin/python");
    assert_interpreter_as("muster", active, "own/bin/muster", "own/bin/python");
}

static void interpreters(void **state) {
    (void)state;
    static const char *const all[] = {"PATH=bin", "VIRTUAL_ENV=venv", "PYTHON_EXEC=./tool", NULL};
    static const char *const active[] = {"PATH=bin", "VIRTUAL_ENV=venv", NULL};
    static const char *const stale[] = {"PATH=empty::bin", "VIRTUAL_ENV=gone", NULL};
    static const char *const wrong[] = {"PATH=bin", "PYTHON_EXEC=gone", NULL};
    static const char *const blank[] = {"PATH=bin", "PYTHON_EXEC=", NULL};
    static const char *const nothing[] = {"PATH=empty", NULL};
    assert_interpreter(all, "own/bin/muster", "./tool");
    assert_interpreter(active, "own/bin/muster", "own/bin/python");
    assert_interpreter(active, "bin/muster", "venv/bin/python");
    assert_interpreter(stale, NULL, "bin/python3");
    assert_interpreter(wrong, NULL, NULL);
    assert_non_null(strstr(muster_detail(), "PYTHON_EXEC is 'gone'"));
    assert_interpreter(blank, NULL, NULL);
    assert_interpreter(nothing, NULL, NULL);
    assert_non_null(strstr(muster_detail(), "set PYTHON_EXEC"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands),
        cmocka_unit_test(run_path_goes_through_runpy),
        cmocka_unit_test(scripts_that_are_not_there),
        cmocka_unit_test(module_and_no_python),
        cmocka_unit_test(link_in_an_environment),
        cmocka_unit_test(interpreters),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
