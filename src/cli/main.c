/* The program: picks the subcommand. Called as torchrun it is `muster run`. */
#include <fcntl.h>
#include <muster/version.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/help.h"
#include "cli/command/suggest.h"

static const char *const commands[] = {"run",    "store",      "bench", "trace",  "doctor",
                                       "status", "completion", "help",  "version"};

static int fail_command(const char *word);

static bool is_command(const char *word) {
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(word, commands[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* `muster help [COMMAND]`. */
static int cmd_help(int argc, char **argv) {
    char option[] = "--help";
    char *words[] = {argc > 1 ? argv[1] : argv[0], option, NULL};
    if (argc > 1 && strcmp(argv[1], "run") == 0) {
        return help_print(help_run, "muster run");
    }
    if (argc > 1 && strcmp(argv[1], "store") == 0) {
        return cmd_store(2, words);
    }
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        return cmd_bench(2, words);
    }
    if (argc > 1 && strcmp(argv[1], "trace") == 0) {
        return cmd_trace(2, words);
    }
    if (argc > 1 && strcmp(argv[1], "doctor") == 0) {
        return cmd_doctor(2, words);
    }
    if (argc > 1 && strcmp(argv[1], "status") == 0) {
        return cmd_status(2, words);
    }
    if (argc > 1 && strcmp(argv[1], "completion") == 0) {
        return cmd_completion(2, words);
    }
    if (argc > 1 && argv[1][0] != '-' && !is_command(argv[1])) {
        return fail_command(argv[1]);
    }
    return help_print(help_muster, "muster");
}

/* `muster train.py`, `muster --standalone train.py`: the subcommand was forgotten. */
static bool looks_like_run(const char *word) {
    size_t n = strlen(word);
    return word[0] == '-' || strchr(word, '/') != NULL || (n > 3 && strcmp(word + n - 3, ".py") == 0) ||
           access(word, F_OK) == 0;
}

static int fail_command(const char *word) {
    char text[512];
    const char *nearest = suggest_nearest(word, commands, sizeof commands / sizeof *commands);
    if (looks_like_run(word)) {
        (void)str_format(text, sizeof text, "'%.100s' is not a command; to start a job, write: muster run %.100s ...",
                         word, word);
    } else if (nearest != NULL) {
        (void)str_format(text, sizeof text, "'%.100s' is not a command; did you mean muster %s?", word, nearest);
    } else {
        (void)str_format(text, sizeof text,
                         "'%.100s' is not a command; run, store, bench, trace, doctor, status, completion, help and "
                         "version are known",
                         word);
    }
    cli_error("muster", true, text);
    return CLI_EXIT_USAGE;
}

static int dispatch(int argc, char **argv) {
    const char *word = argv[0];
    if (strcmp(word, "run") == 0) {
        return cmd_run(argc, argv, "muster run");
    }
    if (strcmp(word, "store") == 0) {
        return cmd_store(argc, argv);
    }
    if (strcmp(word, "bench") == 0) {
        return cmd_bench(argc, argv);
    }
    if (strcmp(word, "trace") == 0) {
        return cmd_trace(argc, argv);
    }
    if (strcmp(word, "doctor") == 0) {
        return cmd_doctor(argc, argv);
    }
    if (strcmp(word, "status") == 0) {
        return cmd_status(argc, argv);
    }
    if (strcmp(word, "completion") == 0) {
        return cmd_completion(argc, argv);
    }
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        return cmd_help(argc, argv);
    }
    if (strcmp(word, "version") == 0 || strcmp(word, "--version") == 0) {
        return cli_print("muster " MUSTER_VERSION_TEXT "\n");
    }
    return fail_command(word);
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
    if (open_missing_streams() != 0) {
        return CLI_EXIT_FAILURE;
    }
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    const char *name = slash ? slash + 1 : argc > 0 ? argv[0] : "muster";
    if (strcmp(name, "torchrun") == 0) {
        return cmd_run(argc, argv, "torchrun");
    }
    if (argc < 2) {
        cli_error("muster", true, "a command is needed, such as: muster run --standalone train.py");
        return CLI_EXIT_USAGE;
    }
    return dispatch(argc - 1, argv + 1);
}
