/* Shell completions, written from the option table so that they cannot go stale. */
#ifndef CLI_COMPLETION_H
#define CLI_COMPLETION_H

#include "base/buf.h"

#define COMPLETION_BYTES_MAX 65536

int completion_bash(struct buf *out);
int completion_zsh(struct buf *out);

#endif
