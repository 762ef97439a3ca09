/* `muster trace merge` and `muster trace report`: what MUSTER_TRACE made the ranks of a job write, joined or as a
 * table. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/trace/trace_merge.h"

static const char program[] = "muster trace";

static const char help_text[] =
    "usage: muster trace merge FOLDER [-o FILE]\n"
    "       muster trace report FOLDER\n"
    "\n"
    "merge joins the traces that the ranks of a job wrote into FOLDER (MUSTER_TRACE=FOLDER in\n"
    "their environment) into one, on one clock, for https://ui.perfetto.dev or\n"
    "chrome://tracing: a process per rank, in it a lane per thread (the marks of the\n"
    "program) and one per process group (its collectives). Clocks of several hosts are\n"
    "compared by the calls that their ranks made together. Traces that a crash cut short\n"
    "are read as far as they go.\n"
    "\n"
    "report prints where the ranks' time went: of each rank the share of its time in\n"
    "collectives and waiting in them, how often it was the last to come to a call, and how\n"
    "long the others waited for it; and the slowest rank, if one stands out.\n"
    "\n"
    "  -o, --output FILE  what to write; - for stdout (default: trace.json)\n"
    "  -h, --help         show this text\n";

struct trace_options {
    const char *folder, *output;
    bool wants_report, wants_help;
};

static int parse_options(int argc, char **argv, struct trace_options *out) {
    bool has_command = false, missing = false;
    *out = (struct trace_options){.output = "trace.json"};
    for (int i = 1; i < argc && !missing; i++) {
        const char *word = argv[i], *value;
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            out->wants_help = true;
            return 0;
        }
        if ((value = cli_option_value(argc, argv, &i, "--output", &missing)) != NULL ||
            (value = cli_option_value(argc, argv, &i, "-o", &missing)) != NULL) {
            out->output = value;
        } else if (word[0] == '-') {
            return status_fail(MUSTER_EINVAL, "'%.100s' is not understood; --output and --help are known", word);
        } else if (!has_command) {
            has_command = true;
            out->wants_report = strcmp(word, "report") == 0;
            if (!out->wants_report && strcmp(word, "merge") != 0) {
                return status_fail(MUSTER_EINVAL,
                                   "'%.100s' is not known; write: muster trace merge FOLDER, or muster trace report "
                                   "FOLDER",
                                   word);
            }
        } else if (out->folder == NULL) {
            out->folder = word;
        } else {
            return status_fail(MUSTER_EINVAL, "one folder is expected, '%.100s' is one too many", word);
        }
    }
    if (missing) {
        return status_fail(MUSTER_EINVAL, "--output needs a value");
    }
    if (out->output[0] == '\0') {
        return status_fail(MUSTER_EINVAL, "--output needs the name of a file, or - for stdout");
    }
    return out->folder != NULL && out->folder[0] != '\0'
               ? 0
               : status_fail(MUSTER_EINVAL, "a folder is needed: muster trace %s FOLDER",
                             out->wants_report ? "report" : "merge");
}

static int report(const char *folder) {
    struct buf notes, table;
    buf_init(&notes, TRACE_NOTES_BYTES_MAX);
    buf_init(&table, TRACE_REPORT_BYTES_MAX);
    int code = trace_report(folder, &table, &notes);
    bool written = cli_write(STDERR_FILENO, &notes);
    written = (code != 0 || cli_write(STDOUT_FILENO, &table)) && written;
    buf_done(&notes);
    buf_done(&table);
    if (code) {
        cli_error(program, false, muster_detail());
    }
    return code || !written ? CLI_EXIT_FAILURE : CLI_EXIT_OK;
}

int cmd_trace(int argc, char **argv) {
    struct trace_options options;
    if (parse_options(argc, argv, &options)) {
        cli_error(program, true, muster_detail());
        return CLI_EXIT_USAGE;
    }
    if (options.wants_help) {
        return cli_print(help_text);
    }
    if (options.wants_report) {
        return report(options.folder);
    }
    struct buf notes;
    buf_init(&notes, TRACE_NOTES_BYTES_MAX);
    int code = trace_merge(options.folder, options.output, &notes);
    bool written = cli_write(STDERR_FILENO, &notes);
    buf_done(&notes);
    if (code) {
        cli_error(program, false, muster_detail());
        return CLI_EXIT_FAILURE;
    }
    if (strcmp(options.output, "-") != 0) {
        written = fprintf(stderr, "written to %s; open it at https://ui.perfetto.dev\n", options.output) > 0 && written;
    }
    return written ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
