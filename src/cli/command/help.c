/* Help, wrapped to the width of the terminal; options come from option_table.h. */
#include "cli/command/help.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/command_table.h"
#include "cli/command/options.h"

#define OPTION_INDENT 2
#define TEXT_INDENT 26

int help_append_wrapped(struct buf *out, const char *text, unsigned indent, unsigned column, unsigned width) {
    int rc = 0;
    while (rc == 0 && *text != '\0') {
        unsigned n = (unsigned)strcspn(text, " ");
        if (column > indent && column + 1 + n > width) {
            rc = buf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            rc = buf_append(out, " ", 1);
            column++;
        } else if (column < indent) {
            rc = buf_printf(out, "%*s", (int)(indent - column), "");
            column = indent;
        }
        rc = rc ? rc : buf_append(out, text, n);
        column += n;
        text += n + strspn(text + n, " ");
    }
    return rc ? rc : buf_append(out, "\n", 1);
}

/* "-r, --redirects WHAT" */
static void format_option(const struct option_spec *spec, char *out, size_t size) {
    char letter[8] = "";
    if (spec->letter != 0) {
        (void)str_format(letter, sizeof letter, "-%c, ", spec->letter);
    }
    bool may_be_bare = option_may_be_bare(spec);
    (void)str_format(out, size, "%s%s%s%s%s", letter, spec->name,
                     may_be_bare        ? "[="
                     : spec->value_name ? " "
                                        : "",
                     spec->value_name ? spec->value_name : "", may_be_bare ? "]" : "");
}

static int append_option(struct buf *out, const struct option_spec *spec, unsigned width) {
    char head[128], text[512];
    format_option(spec, head, sizeof head);
    bool has_default = spec->fallback != NULL && spec->fallback[0] != '\0';
    (void)str_format(text, sizeof text, "%s%s%s%s", spec->help, has_default ? " [default: " : "",
                     has_default ? spec->fallback : "", has_default ? "]" : "");
    int rc = buf_printf(out, "%*s%s", OPTION_INDENT, "", head);
    unsigned column = OPTION_INDENT + (unsigned)strlen(head);
    if (column + 2 > TEXT_INDENT) {
        rc = rc ? rc : buf_append(out, "\n", 1);
        column = 0;
    }
    return rc ? rc : help_append_wrapped(out, text, TEXT_INDENT, column, width);
}

static int append_groups(struct buf *out, unsigned width) {
    int rc = 0;
    for (unsigned group = 0; group < OPTION_GROUP_COUNT && rc == 0; group++) {
        rc = buf_printf(out, "\n%s:\n", option_group_titles[group]);
        for (unsigned i = 0; i < OPTION_COUNT && rc == 0; i++) {
            if (option_specs[i].group == group) {
                rc = append_option(out, &option_specs[i], width);
            }
        }
    }
    return rc;
}

static int append_example(struct buf *out, const char *what, const char *program, const char *rest) {
    return buf_printf(out, "  # %s\n  %s %s\n", what, program, rest);
}

static int append_run_examples(struct buf *out, const char *program) {
    int rc = buf_printf(out, "\nExamples:\n");
    rc = rc ? rc
            : append_example(out, "four workers on this machine, started again up to three times", program,
                             "--standalone --nproc-per-node=4 --max-restarts=3 train.py --lr 0.1");
    rc = rc ? rc
            : append_example(out, "two to four nodes with eight workers each; the same line on every node", program,
                             "--nnodes=2:4 --nproc-per-node=8 --rdzv-backend=c10d \\\n"
                             "      --rdzv-endpoint=node0:29400 --rdzv-id=job7 train.py");
    rc = rc ? rc
            : append_example(out, "any program; ${local_rank} is replaced in its arguments", program,
                             "--standalone --nproc-per-node=2 --no-python ./solver --gpu '${local_rank}'");
    return rc;
}

int help_run(struct buf *out, const char *program, unsigned width) {
    char usage[128];
    (void)str_format(usage, sizeof usage, "usage: %s [options] SCRIPT [ARGUMENT ...]", program);
    int rc = help_append_wrapped(out, usage, 0, 0, width);
    rc = rc ? rc : buf_append(out, "\n", 1);
    rc = rc ? rc
            : help_append_wrapped(
                  out,
                  "Starts the workers of a training job on this node, joins them with those of the other nodes, "
                  "watches them, and starts them again when one fails. Takes torchrun's command line; workers "
                  "find torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR and the others).",
                  0, 0, width);
    rc = rc ? rc : append_run_examples(out, program);
    rc = rc ? rc : append_groups(out, width);
    rc = rc ? rc : buf_append(out, "\n", 1);
    rc = rc ? rc
            : help_append_wrapped(
                  out,
                  "Options stand before SCRIPT; everything behind it is the script's own. Dashes in a name may "
                  "be underscores, unique beginnings of a name are enough, and a variable PET_NAME (for "
                  "--max-restarts: PET_MAX_RESTARTS) stands in for an option that is not given.",
                  0, 0, width);
    rc = rc ? rc
            : help_append_wrapped(
                  out,
                  "The exit code is 0 when all workers succeeded, 1 when the job failed, 2 when the command "
                  "line was not understood.",
                  0, 0, width);
    return rc ? rc : help_append_wrapped(out, "More: man muster-run.", 0, 0, width);
}

#define COMMAND_ROW(name, help) {#name, help},

int help_muster(struct buf *out, const char *program, unsigned width) {
    static const struct { const char *name, *help; } commands[] = {COMMAND_TABLE(COMMAND_ROW)};
    (void)program;
    (void)width;
    int rc = buf_printf(out, "usage: muster COMMAND [ARGUMENT ...]\n"
                             "\n"
                             "Starts, watches and heals distributed training jobs.\n"
                             "\n"
                             "Commands:\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands && rc == 0; i++) {
        rc = buf_printf(out, "  %-12s%s\n", commands[i].name, commands[i].help);
    }
    return rc ? rc
              : buf_printf(
                    out,
                    "\n"
                    "Example:\n"
                    "  muster run --standalone --nproc-per-node=4 train.py --lr 0.1\n"
                    "\n"
                    "Called under the name torchrun, the program is `muster run` without options from a scheduler.\n");
}

unsigned help_width(void) {
    struct winsize size = {0};
    int64_t columns = 0;
    const char *text = getenv("COLUMNS");
    if (text == NULL || !str_parse_i64(text, &columns) || columns <= 0) {
        columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : HELP_WIDTH_DEFAULT;
    }
    return columns < HELP_WIDTH_MIN ? HELP_WIDTH_MIN : columns > HELP_WIDTH_MAX ? HELP_WIDTH_MAX : (unsigned)columns;
}

int help_print(int (*write)(struct buf *out, const char *program, unsigned width), const char *program) {
    struct buf out;
    buf_init(&out, HELP_BYTES_MAX);
    bool fine = write(&out, program, help_width()) == 0 && cli_write(STDOUT_FILENO, &out);
    buf_done(&out);
    if (!fine) {
        cli_error(program, false, "the help could not be written to stdout");
    }
    return fine ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
