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
    X(ls, "list the checkpoints and snapshots of a folder")                                                            \
    X(show, "list the tensors and values of a checkpoint, or of what another program has saved")                       \
    X(verify, "read all of it, and compare all checksums")                                                             \
    X(diff, "tell what differs between two of them")                                                                   \
    X(import, "make a snapshot of what PyTorch or another program has saved")                                          \
    X(reshard, "make a checkpoint of any number of parts of it")                                                       \
    X(export, "write safetensors files, which PyTorch and others read")                                                \
    X(prune, "remove all checkpoints of a folder but the newest")

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

/* ---- the command line: ckpt_words.c ---- */

enum { CKPT_PATHS_MAX = 2, CKPT_VALUES_MAX = 4 };

/* What a source is; in the help of every verb that reads one. */
#define CKPT_SOURCE_HELP                                                                                               \
    "SOURCE is one of\n"                                                                                               \
    "\n"                                                                                                               \
    "  a folder of checkpoints or snapshots, of which it is the newest that can be read\n"                             \
    "  a record or manifest in it, such as checkpoint-10.json or step-10.json\n"                                       \
    "  a file of torch.save(), with tensors in dicts and lists\n"                                                      \
    "  a folder of torch.distributed.checkpoint, from any number of ranks\n"                                           \
    "  a safetensors file, or an index of some or of .bin files\n"                                                     \
    "  (model.safetensors.index.json), or a folder with one of these\n"                                                \
    "\n"                                                                                                               \
    "It is read as data: nothing in it is executed. Names are keys joined by dots, such as\n"                          \
    "model.0.weight.\n"

/* What a verb takes. */
struct ckpt_grammar {
    const char *program; /* "muster ckpt ls" */
    const char *help;
    const char *usage; /* told where paths are missing: "a folder is needed: muster ckpt ls checkpoints" */
    size_t path_count; /* so many paths are needed, and no more taken */
    const char *values[CKPT_VALUES_MAX];   /* names of options that have a value, or NULL */
    bool has_choice, has_json, has_rename; /* --only and --skip; --json; --rename, several times */
};

/* What was given. */
struct ckpt_words {
    const char *paths[CKPT_PATHS_MAX];
    size_t path_count;
    const char *values[CKPT_VALUES_MAX]; /* as in the grammar; NULL: not given */
    struct ckpt_choice choice;
    const char *renames[CKPT_NAMES_MAX];
    size_t rename_count;
    bool wants_json;
};
/* Reads the words behind the verb. True: go on. False: *out_exit is the program's end, after help or a sentence. */
bool ckpt_words_read(const struct ckpt_grammar *grammar, int argc, char **argv, struct ckpt_words *out, int *out_exit);
/* A number of an option, at least `least`. MUSTER_EINVAL; *out stays where the option was not given. */
int ckpt_words_number(const struct ckpt_grammar *grammar, const struct ckpt_words *words, size_t value, int64_t least,
                      int64_t *out);

/* Opens a source (archive_open()). What is newer than it in its folder and cannot be read is told on stderr. */
int ckpt_open(const struct ckpt_grammar *grammar, const char *path, struct archive **out);

/* ---- words: ckpt_text.c ---- */

/* Ends a line of `out` that begins at byte `begin`: what has come from outside in it breaks into no further ones. code:
 * of what was appended, and then that. */
int ckpt_end_line(struct buf *out, size_t begin, int code);

/* Writes what `out` has to stdout, without control characters, if code is 0; else tells the failure. Frees it. Gives
 * the program's exit code. */
int ckpt_finish(const struct ckpt_grammar *grammar, int code, struct buf *out);

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
/* Removes the line. If there was a signal that has ended the work, so that it is not done, the program ends by it and
 * its caller sees that. */
void ckpt_progress_end(struct ckpt_progress *progress, bool is_done);

/* ---- a copy of a source: ckpt_copy.c ---- */

/* Where it goes. */
struct ckpt_copy {
    const char *folder;
    int64_t step;   /* -1: that of the source, or 0 */
    uint32_t parts; /* of a checkpoint; 0: a snapshot */
    uint32_t keep;  /* how many stay, of snapshots or of checkpoints */
};

/* Copies what was chosen of words->paths[0], and says so. Gives the program's exit code; a failure or an interrupt
 * leaves the folder as it was. */
int ckpt_copy(const struct ckpt_grammar *grammar, const struct ckpt_words *words, const struct ckpt_copy *to);

#endif
