/* Shell completions, written from the option table so that they cannot go stale. */
#ifndef CLI_COMPLETION_H
#define CLI_COMPLETION_H

#include <stdbool.h>

#include "base/buf.h"

#define COMPLETION_BYTES_MAX 65536

int completion_bash(struct buf *out);
int completion_zsh(struct buf *out);
int completion_tcsh(struct buf *out);

/* Prints that of a shell, which is known, to stdout; the program's exit code. program: whom errors name. */
int completion_print(const char *shell, const char *program);
bool completion_knows(const char *shell);

#endif
