/* `muster ckpt prune`: fewer checkpoints in a folder. */
#include <inttypes.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"
#include "train/checkpoint/checkpoint_view.h"

static const struct ckpt_grammar grammar = {
    .program = "muster ckpt prune",
    .help = "usage: muster ckpt prune FOLDER [--keep N]\n"
            "\n"
            "Removes all checkpoints of FOLDER but the newest N whose files are all there, and\n"
            "what saves that were cut off have left. Snapshots stay. Not while a job saves there.\n"
            "\n"
            "  --keep N        how many stay (default: 2)\n"
            "  -h, --help      show this text\n",
    .usage = "a folder is needed: muster ckpt prune checkpoints --keep 2",
    .path_count = 1,
    .values = {"--keep"},
};

static int count_whole(void *context, const struct checkpoint_listed *listed) {
    *(uint64_t *)context += listed->code == 0;
    return 0;
}

int ckpt_prune(int argc, char **argv) {
    struct ckpt_words words;
    struct buf out;
    int64_t keep = 2;
    uint64_t before = 0, after = 0;
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    if (ckpt_words_number(&grammar, &words, 0, 1, &keep) != 0) {
        cli_error(grammar.program, true, muster_detail());
        return CLI_EXIT_USAGE;
    }
    buf_init(&out, CKPT_OUTPUT_BYTES_MAX);
    int code = checkpoint_view_each(words.paths[0], count_whole, &before);
    code = code ? code : checkpoint_view_prune(words.paths[0], keep < UINT32_MAX ? (uint32_t)keep : UINT32_MAX);
    code = code ? code : checkpoint_view_each(words.paths[0], count_whole, &after);
    code = code ? code
                : buf_printf(&out, "%" PRIu64 " checkpoint%s removed, %" PRIu64 " left\n", before - after,
                             str_plural(before - after), after);
    return ckpt_finish(&grammar, code, &out);
}
