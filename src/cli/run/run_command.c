/* Building and checking the workers' command; see run_command.h. */
#include "cli/run/run_command.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/report/circumstances.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/suggest.h"

/* Where programs are looked for without PATH. */
#define SEARCH_PATH_DEFAULT "/bin:/usr/bin"
/* Names of a folder that are compared with a missing script's. */
#define NEIGHBOURS_MAX 2000

/* --run-path: the file runs as __main__ with its own argv, under PyTorch's @record where PyTorch is installed, so
 * that an exception reaches the error file. No dollar sign may stand here: the agent substitutes ${local_rank}. */
static const char run_path_program[] = "import importlib.util, runpy, sys\n"
                                       "sys.argv = sys.argv[1:]\n"
                                       "def run_script_path():\n"
                                       "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
                                       "if importlib.util.find_spec('torch'):\n"
                                       "    from torch.distributed.elastic.multiprocessing.errors import record\n"
                                       "    run_script_path = record(run_script_path)\n"
                                       "run_script_path()\n";

/* Programs. */

static bool is_program(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

char *run_command_search(const struct run_machine *machine, const char *name) {
    char full[PATH_MAX];
    if (name[0] == '\0') {
        return NULL;
    }
    if (strchr(name, '/') != NULL) {
        return is_program(name) ? strdup(name) : NULL;
    }
    const char *path = run_machine_variable(machine, "PATH");
    for (const char *p = path ? path : SEARCH_PATH_DEFAULT;; p++) {
        size_t n = strcspn(p, ":");
        bool fits = n == 0 ? str_format(full, sizeof full, "./%s", name)
                           : str_format(full, sizeof full, "%.*s/%s", (int)n, p, name);
        if (fits && is_program(full)) {
            return strdup(full);
        }
        p += n;
        if (*p == '\0') {
            return NULL;
        }
    }
}

/* bin/python beside a program, when that folder belongs to a virtual environment. */
static char *environment_of(const char *program) {
    char path[PATH_MAX];
    const char *slash = program ? strrchr(program, '/') : NULL;
    if (slash == NULL) {
        return NULL;
    }
    int n = (int)(slash - program);
    if (!str_format(path, sizeof path, "%.*s/../pyvenv.cfg", n, program) || access(path, F_OK) != 0) {
        return NULL;
    }
    bool fits = str_format(path, sizeof path, "%.*s/python", n, program);
    return fits && is_program(path) ? strdup(path) : NULL;
}

/* A link in an environment, venv/bin/torchrun, stands for that environment, as the script that it replaces did. */
static char *own_environment(const struct run_machine *machine) {
    char *link = machine->called_as ? run_command_search(machine, machine->called_as) : NULL;
    char *found = environment_of(link);
    free(link);
    return found ? found : environment_of(machine->executable);
}

static char *active_environment(const struct run_machine *machine) {
    char path[PATH_MAX];
    const char *folder = run_machine_variable(machine, "VIRTUAL_ENV");
    if (folder == NULL || folder[0] == '\0' || !str_format(path, sizeof path, "%s/bin/python", folder)) {
        return NULL;
    }
    return is_program(path) ? strdup(path) : NULL;
}

static char *chosen_interpreter(const struct run_machine *machine, const char *name) {
    char *path = run_command_search(machine, name);
    if (path != NULL) {
        free(path);
        return strdup(name);
    }
    status_fail(MUSTER_ENOENT,
                "PYTHON_EXEC is '%.200s', which is not a program that can be run; set it to a Python interpreter or "
                "unset it",
                name);
    return NULL;
}

char *run_command_interpreter(const struct run_machine *machine) {
    const char *chosen = run_machine_variable(machine, "PYTHON_EXEC");
    if (chosen != NULL) {
        return chosen_interpreter(machine, chosen);
    }
    char *found = own_environment(machine);
    found = found ? found : active_environment(machine);
    found = found ? found : run_command_search(machine, "python3");
    found = found ? found : run_command_search(machine, "python");
    if (found == NULL) {
        status_fail(MUSTER_ENOENT, "no python3 or python in PATH to run the script with; set PYTHON_EXEC to an "
                                   "interpreter, or use --no-python for a program that is not Python");
    }
    return found;
}

/* Scripts. */

/* The nearest name beside a missing file, in `out`. */
static bool nearest_neighbour(const char *script, char out[NAME_MAX + 1]) {
    char folder[PATH_MAX] = ".";
    const char *slash = strrchr(script, '/');
    const char *name = slash ? slash + 1 : script;
    if (slash != NULL && !str_format(folder, sizeof folder, "%.*s/", (int)(slash - script), script)) {
        return false;
    }
    DIR *entries = opendir(folder);
    if (entries == NULL) {
        return false;
    }
    bool found = false;
    unsigned distance = suggest_limit(name) + 1;
    const struct dirent *entry;
    for (int i = 0; i < NEIGHBOURS_MAX && (entry = readdir(entries)) != NULL; i++) {
        if (entry->d_name[0] != '.' && suggest_better(name, entry->d_name, &distance)) {
            found = str_copy(out, NAME_MAX + 1, entry->d_name);
        }
    }
    (void)closedir(entries);
    return found;
}

/* pkg.train for which pkg/train.py exists. */
static bool is_module_name(const char *script) {
    char path[PATH_MAX];
    if (strchr(script, '/') != NULL || !str_format(path, sizeof path - 4, "%s", script)) {
        return false;
    }
    for (char *p = path; *p != '\0'; p++) {
        *p = *p == '.' ? '/' : *p;
    }
    size_t n = strlen(path);
    if (access(path, F_OK) == 0) {
        return true;
    }
    memcpy(path + n, ".py", 4);
    return access(path, F_OK) == 0;
}

static int fail_folder(const char *kind, const char *name) {
    return status_fail(
        MUSTER_ENOENT,
        "the %s '%.300s' cannot be found: the working folder has been deleted; change to one that exists "
        "(cd), or give the whole path",
        kind, name);
}

static int fail_script(const struct run_machine *machine, const char *script, int error_number) {
    char nearest[NAME_MAX + 1];
    if (error_number == EACCES) {
        return status_fail(MUSTER_ESYSTEM,
                           "the script '%.300s' cannot be read: %s; make it and its folders readable for this user "
                           "(chmod a+rX), or run as its owner",
                           script, strerror(error_number));
    }
    if (script[0] != '/' && circumstances_folder_is_gone()) {
        return fail_folder("script", script);
    }
    if (error_number != ENOENT) {
        return status_fail_errno(error_number, "the script '%.300s' cannot be read", script);
    }
    if (is_module_name(script)) {
        return status_fail(MUSTER_ENOENT,
                           "the script '%.200s' does not exist; to run the Python module of that name, use "
                           "-m %.200s",
                           script, script);
    }
    char *program = run_command_search(machine, script);
    if (program != NULL) {
        status_fail(MUSTER_ENOENT, "the script '%.200s' does not exist; to run the program %.300s, use --no-python",
                    script, program);
        free(program);
        return MUSTER_ENOENT;
    }
    if (nearest_neighbour(script, nearest)) {
        return status_fail(MUSTER_ENOENT, "the script '%.300s' does not exist; did you mean %.255s?", script, nearest);
    }
    char folder[PATH_MAX];
    bool known = getcwd(folder, sizeof folder) != NULL;
    return status_fail(MUSTER_ENOENT, "the script '%.300s' does not exist%s%.400s", script,
                       known && script[0] != '/' ? " in " : "", known && script[0] != '/' ? folder : "");
}

/* Python takes a file, a folder or archive with __main__.py, "-" (stdin), or options of its own behind "--". Names
 * with a macro are only known per worker. */
static int check_script(const struct run_machine *machine, const char *script) {
    struct stat info;
    char entry[PATH_MAX];
    if (script[0] == '-' || strchr(script, '$') != NULL) {
        return 0;
    }
    if (stat(script, &info) != 0) {
        return fail_script(machine, script, errno);
    }
    if (S_ISDIR(info.st_mode)) {
        if (str_format(entry, sizeof entry, "%s/__main__.py", script) && access(entry, R_OK) == 0) {
            return 0;
        }
        return status_fail(MUSTER_EINVAL, "'%.300s' is a folder without a __main__.py; name the script to run", script);
    }
    return access(script, R_OK) == 0 ? 0 : fail_script(machine, script, errno);
}

/* Where it is, malloc'd, in `*out`. */
static int find_program(const struct run_machine *machine, const char *name, char **out) {
    struct stat info;
    *out = run_command_search(machine, name);
    if (*out != NULL) {
        return 0;
    }
    if (strchr(name, '/') == NULL) {
        bool here = stat(name, &info) == 0 && S_ISREG(info.st_mode);
        return status_fail(MUSTER_ENOENT, "--no-python: there is no program '%.200s' in PATH%s%.200s", name,
                           here ? "; to run the file in this folder, write ./" : "", here ? name : "");
    }
    if (stat(name, &info) != 0) {
        int error_number = errno;
        if (name[0] != '/' && circumstances_folder_is_gone()) {
            return fail_folder("program", name);
        }
        errno = error_number;
        return status_fail_errno(errno, "--no-python: the program '%.300s' cannot be run", name);
    }
    if (S_ISDIR(info.st_mode)) {
        return status_fail(MUSTER_EINVAL, "--no-python: '%.300s' is a folder, not a program", name);
    }
    return status_fail(MUSTER_EINVAL,
                       "--no-python: '%.300s' is not executable (Permission denied); chmod +x it, or leave out "
                       "--no-python when it is a "
                       "Python script",
                       name);
}

/* The command. */

static int append_all(struct launch_strings *command, const char *const *words, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int rc = launch_strings_append(command, words[i]);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static int build_python(const struct options *options, const struct run_machine *machine, bool run_path,
                        struct launch_strings *command) {
    bool module = !run_path && options->values[OPTION_MODULE].on;
    int rc = module ? 0 : check_script(machine, options->script);
    if (rc != 0) {
        return rc;
    }
    char *interpreter = run_command_interpreter(machine);
    if (interpreter == NULL) {
        return MUSTER_ENOENT;
    }
    const char *head[5];
    size_t n = 0;
    head[n++] = interpreter;
    head[n++] = "-u";
    if (run_path) {
        head[n++] = "-c";
        head[n++] = run_path_program;
    } else if (module) {
        head[n++] = "-m";
    }
    head[n++] = options->script;
    rc = append_all(command, head, n);
    free(interpreter);
    return rc;
}

/* Python itself, and what may start it, is known by its name. */
static bool is_native_program(const char *path) {
    static const char *const others[] = {"bash",   "dash",    "sh",      "zsh",    "ksh",    "env",
                                         "nice",   "taskset", "numactl", "nsys",   "ncu",    "timeout",
                                         "strace", "gdb",     "setsid",  "stdbuf", "busybox"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char magic[4] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool is_elf = fd >= 0 && read(fd, magic, sizeof magic) == sizeof magic &&
                  memcmp(magic,
                         "\x7f"
                         "ELF",
                         4) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        is_elf = is_elf && strcmp(name, others[i]) != 0;
    }
    return is_elf && !str_has_prefix(name, "python") && !str_has_prefix(name, "pypy");
}

static int build_program(const struct options *options, const struct run_machine *machine,
                         struct launch_config *config) {
    if (options->values[OPTION_MODULE].on) {
        return status_fail(MUSTER_EINVAL, "Don't use both the '--no-python' flag and the '--module' flag at the same "
                                          "time: -m needs Python to find the module");
    }
    int rc = find_program(machine, options->script, &config->program_path);
    config->is_native = rc == 0 && is_native_program(config->program_path);
    return rc ? rc : launch_strings_append(&config->command, options->script);
}

static int set_names(const char *script, struct launch_config *config) {
    const char *program = config->command.items[0];
    const char *slash = strrchr(program, '/');
    config->title = strdup(script);
    config->entry_point = strdup(slash ? slash + 1 : program);
    return config->title && config->entry_point ? 0 : status_fail(MUSTER_ENOMEM, "no memory for the command");
}

/* PYTHON -u [-m] NAME, as PyTorch's launcher and Accelerate give it with --no-python. */
static bool is_python_command(const struct launch_strings *command) {
    char *const *items = command->items;
    const char *slash = strrchr(items[0], '/');
    const char *name = slash ? slash + 1 : items[0];
    size_t at = command->count > 3 && strcmp(items[2], "-m") == 0 ? 3 : 2;
    return (str_has_prefix(name, "python") || str_has_prefix(name, "pypy")) && command->count > at &&
           strcmp(items[1], "-u") == 0 && items[at][0] != '-';
}

int run_command_build(const struct options *options, const struct run_machine *machine, struct launch_config *config) {
    bool run_path = options->values[OPTION_RUN_PATH].on;
    bool plain = !run_path && options->values[OPTION_NO_PYTHON].on;
    config->is_python = !plain && !run_path && options->script[0] != '-';
    int rc =
        plain ? build_program(options, machine, config) : build_python(options, machine, run_path, &config->command);
    rc = rc ? rc : append_all(&config->command, (const char *const *)options->script_args, options->script_arg_count);
    config->is_python = config->is_python || (plain && rc == 0 && is_python_command(&config->command));
    return rc ? rc : set_names(options->script, config);
}
