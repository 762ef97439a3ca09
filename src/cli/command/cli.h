/* The subcommands of the program, and the few things they share. Only this layer prints and exits. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>

#include "base/buf.h"

struct json_t;

/* Exit codes (torchrun's). */
enum cli_exit { CLI_EXIT_OK = 0, CLI_EXIT_FAILURE = 1, CLI_EXIT_USAGE = 2 };

/* `muster run`, and the whole program when it is called torchrun. argv[0] is the subcommand or the program; `program`
 * is how the user called it ("muster run", "torchrun"). Returns the exit code. */
int cmd_run_as(int argc, char **argv, const char *program);

/* `muster store`; argv[0] is "store". */
int cmd_store(int argc, char **argv);

/* `muster completion bash|zsh`. */
int cmd_completion(int argc, char **argv);

/* `muster bench`. */
int cmd_bench(int argc, char **argv);

/* `muster trace merge`. */
int cmd_trace(int argc, char **argv);

/* `muster doctor`. */
int cmd_doctor(int argc, char **argv);

/* `muster status`. */
int cmd_status(int argc, char **argv);

/* `muster fsdp plan`. */
int cmd_fsdp(int argc, char **argv);

/* `muster ckpt` and its verbs. */
int cmd_ckpt(int argc, char **argv);

/* The value of option `name` if argv[*at] is that option ("--name value" or "--name=value"), else NULL. *missing is
 * set when the value does not follow. */
const char *cli_option_value(int argc, char **argv, int *at, const char *name, bool *missing);

/* Writes all of it to `fd`, waiting where the stream is slow; false when that fails. */
bool cli_write_all(int fd, const void *bytes, size_t count);

/* The same with all bytes of `b`. */
bool cli_write(int fd, const struct buf *b);

/* Appends the tree, by jansson's flags, and the end of a line. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int cli_append_json(struct buf *out, const struct json_t *tree, size_t flags);

/* Writes `text` to stdout; the exit code. */
int cli_print(const char *text);

/* "program: error: <text>", with the usage line first when called as torchrun; or "program: <text>" and where to find
 * help. `usage`: the line was not understood. To stderr. */
void cli_error(const char *program, bool usage, const char *message);

#endif
