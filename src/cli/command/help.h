/* The texts of --help. Written into a buffer, so that tests read them as users do. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include "base/buf.h"

#define HELP_WIDTH_MIN 60
#define HELP_WIDTH_MAX 100
#define HELP_WIDTH_DEFAULT 80
#define HELP_BYTES_MAX 65536

/* `muster run --help`; `program` is "muster run" or "torchrun". */
int help_run(struct buf *out, const char *program, unsigned width);

/* `muster --help`; the last two are not used. */
int help_muster(struct buf *out, const char *program, unsigned width);

/* Appends words of `text`, breaking lines before `width`, which begin with `indent` blanks; `column` is where the
 * cursor stands. Ends the line. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int help_append_wrapped(struct buf *out, const char *text, unsigned indent, unsigned column, unsigned width);

/* Width for text on stdout: the terminal's, within the limits above. */
unsigned help_width(void);

/* Prints a help text on stdout; the exit code. */
int help_print(int (*write)(struct buf *out, const char *program, unsigned width), const char *program);

#endif
