/* The program: picks the subcommand. Called as torchrun it is `muster run`. */
#include <fcntl.h>
#include <muster/version.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "agent/guardian/guardian.h"
#include "agent/mpi/mpi_server.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/command_table.h"
#include "cli/command/help.h"
#include "cli/command/suggest.h"

static int fail_command(const char *word);
static int cmd_help(int argc, char **argv);

static int cmd_run(int argc, char **argv) {
    return cmd_run_as(argc, argv, "muster run");
}

static int cmd_version(int argc, char **argv) {
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        return help_print(help_muster, "muster");
    }
    if (argc > 1) {
        cli_error("muster version", true, "it takes no arguments");
        return CLI_EXIT_USAGE;
    }
    return cli_print("muster " MUSTER_VERSION_TEXT "\n");
}

#define COMMAND_NAME(name, help) #name,
static const char *const names[] = {COMMAND_TABLE(COMMAND_NAME)};
#define COMMAND_CALL(name, help) cmd_##name,
static int (*const calls[])(int argc, char **argv) = {COMMAND_TABLE(COMMAND_CALL)};
enum { COMMAND_COUNT = sizeof names / sizeof *names };

/* Its place in the table; COMMAND_COUNT: there is none. */
static size_t find_command(const char *word) {
    size_t at = 0;
    while (at < COMMAND_COUNT && strcmp(word, names[at]) != 0) {
        at++;
    }
    return at;
}

/* `muster help [COMMAND]`. */
static int cmd_help(int argc, char **argv) {
    char option[] = "--help";
    char *words[] = {argc > 1 ? argv[1] : argv[0], option, NULL};
    size_t at = argc > 1 ? find_command(argv[1]) : COMMAND_COUNT;
    if (at == COMMAND_COUNT && argc > 1 && argv[1][0] != '-') {
        return fail_command(argv[1]);
    }
    if (at == COMMAND_COUNT || calls[at] == cmd_help || calls[at] == cmd_version) {
        return help_print(help_muster, "muster");
    }
    /* Variables that are no good for a run must not hide its help. */
    return calls[at] == cmd_run ? help_print(help_run, "muster run") : calls[at](2, words);
}

/* `muster train.py`, `muster --standalone train.py`: the subcommand was forgotten. */
static bool looks_like_run(const char *word) {
    size_t n = strlen(word);
    return word[0] == '-' || strchr(word, '/') != NULL || (n > 3 && strcmp(word + n - 3, ".py") == 0) ||
           access(word, F_OK) == 0;
}

static int fail_command(const char *word) {
    char text[512];
    const char *nearest = suggest_nearest(word, names, COMMAND_COUNT);
    if (looks_like_run(word)) {
        (void)str_format(text, sizeof text, "'%.100s' is not a command; to start a job, write: muster run %.100s ...",
                         word, word);
    } else if (nearest != NULL) {
        (void)str_format(text, sizeof text, "'%.100s' is not a command; did you mean muster %s?", word, nearest);
    } else {
        (void)str_format(text, sizeof text, "'%.100s' is not a command; the commands are" COMMAND_WORDS, word);
    }
    cli_error("muster", true, text);
    return CLI_EXIT_USAGE;
}

static int dispatch(int argc, char **argv) {
    const char *word = argv[0];
    size_t at = find_command(word);
    if (at < COMMAND_COUNT) {
        return calls[at](argc, argv);
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        return cmd_help(argc, argv);
    }
    return strcmp(word, "--version") == 0 ? cmd_version(argc, argv) : fail_command(word);
}

/* Somebody may start us with standard streams closed. Whatever we open first would take their numbers, be written to by
 * whoever prints, and libuv aborts on closing it: /dev/null takes the empty places. */
static int open_missing_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) {
            return -1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    guardian_main(argc, argv);
    mpi_server_main(argc, argv);
    if (open_missing_streams() != 0) {
        return CLI_EXIT_FAILURE;
    }
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    const char *name = slash ? slash + 1 : argc > 0 ? argv[0] : "muster";
    if (strcmp(name, "torchrun") == 0) {
        return cmd_run_as(argc, argv, "torchrun");
    }
    if (argc < 2) {
        cli_error("muster", true, "a command is needed, such as: muster run --standalone train.py");
        return CLI_EXIT_USAGE;
    }
    return dispatch(argc - 1, argv + 1);
}
