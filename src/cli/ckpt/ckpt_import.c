/* `muster ckpt import`: a snapshot of what another program has saved. */
#include "base/status.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

enum { TO, STEP };

static const struct ckpt_grammar grammar = {
    .program = "muster ckpt import",
    .help = "usage: muster ckpt import SOURCE --to FOLDER [options]\n"
            "\n"
            "Makes a snapshot (muster/snapshot.h) in FOLDER of what another program has saved.\n"
            "Numbers and texts become values; other objects are left out.\n"
            "\n" CKPT_SOURCE_HELP "\n"
            "  --to FOLDER     where the snapshot goes; it is made if it is missing\n"
            "  --step N        the step that the snapshot is of (default: that of SOURCE, or 0)\n"
            "  --only NAME     only what is called so, and what is below it: model takes\n"
            "                  model.0.weight; can be given several times\n"
            "  --skip NAME     nothing that is called so or is below it; can be given several times\n"
            "  -h, --help      show this text\n",
    .usage = "a source and a folder are needed: muster ckpt import model.pt --to snapshots",
    .path_count = 1,
    .values = {"--to", "--step"},
    .has_choice = true,
};

int ckpt_import(int argc, char **argv) {
    struct ckpt_words words;
    struct ckpt_copy to = {.step = -1, .keep = UINT32_MAX}; /* an import is no reason to remove anything */
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    to.folder = words.values[TO];
    if (ckpt_words_number(&grammar, &words, STEP, 0, &to.step) != 0 || !to.folder) {
        cli_error(grammar.program, true, to.folder ? muster_detail() : grammar.usage);
        return CLI_EXIT_USAGE;
    }
    return ckpt_copy(&grammar, &words, &to);
}
