/* `muster ckpt`: a verb each has a file of its own. */
#ifndef CLI_CKPT_H
#define CLI_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "train/archive/archive.h"

/* X(verb, help): ckpt_verb() runs it; argv[0] is the verb. Returns the exit code. */
#define CKPT_VERB_TABLE(X)                                                                                             \
    X(import, "make a snapshot of what PyTorch or another program has saved")                                          \
    X(show, "list the tensors and values of what can be imported")

#define CKPT_VERB_DECLARE(verb, help) int ckpt_##verb(int argc, char **argv);
CKPT_VERB_TABLE(CKPT_VERB_DECLARE)
#undef CKPT_VERB_DECLARE

/* ---- which tensors and values: ckpt_choice.c ---- */

enum { CKPT_NAMES_MAX = 16 };

struct ckpt_choice {
    const char *only[CKPT_NAMES_MAX], *skip[CKPT_NAMES_MAX];
    size_t only_count, skip_count;
};

/* Takes argv[*at] if it is --only or --skip with a name, like cli_option_value(). False: it is another word. */
bool ckpt_choice_option(struct ckpt_choice *choice, int argc, char **argv, int *at, int *code);

/* Is a name wanted? Those of --only and what is below them ("model" takes "model.0.weight"), or all; without those of
 * --skip and what is below them. */
bool ckpt_choice_takes(const struct ckpt_choice *choice, const char *name);

/* ---- words: ckpt_text.c ---- */

enum { CKPT_SIZE_MAX = 32, CKPT_SHAPE_MAX = 192, CKPT_OUTPUT_BYTES_MAX = 256 << 20 };

/* "512 bytes", "1.5 GiB". */
void ckpt_size_text(uint64_t bytes, char out[CKPT_SIZE_MAX]);

/* "[3, 4]" */
void ckpt_shape_text(const struct archive_tensor *tensor, char out[CKPT_SHAPE_MAX]);

/* ---- what takes long: ckpt_progress.c ---- */

/* A line on a terminal that is written again as work goes on, and the end of it by Ctrl-C. */
struct ckpt_progress {
    uint64_t total, done;
    int64_t started_ns, shown_ns;
    bool is_shown; /* stderr is a terminal */
};

/* From now on SIGINT and SIGTERM only take note. One at a time in a program. */
void ckpt_progress_begin(struct ckpt_progress *progress, uint64_t total);
/* More bytes are done. MUSTER_ECANCELED after a signal. */
int ckpt_progress_add(struct ckpt_progress *progress, uint64_t bytes);
/* Removes the line. If there was a signal, the program ends by it, so that its caller sees that. */
void ckpt_progress_end(struct ckpt_progress *progress);

#endif
