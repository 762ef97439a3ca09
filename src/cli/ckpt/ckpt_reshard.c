/* `muster ckpt reshard`: a checkpoint of another number of parts. */
#include "base/status.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

enum { TO, RANKS, STEP, KEEP };

static const struct ckpt_grammar grammar = {
    .program = "muster ckpt reshard",
    .help = "usage: muster ckpt reshard SOURCE --to FOLDER --ranks N [options]\n"
            "\n"
            "Writes SOURCE as a checkpoint (muster/checkpoint.h) of N parts in FOLDER, as N ranks\n"
            "would have saved it who all have the whole state. Any number of ranks loads it.\n"
            "Numbers and texts become values; other objects are left out.\n"
            "\n" CKPT_SOURCE_HELP "\n"
            "  --to FOLDER     where the checkpoint goes; it is made if it is missing, and may be\n"
            "                  that of SOURCE. A checkpoint of the same step is replaced\n"
            "  --ranks N       how many parts it has\n"
            "  --step N        the step that the checkpoint is of (default: that of SOURCE, or 0)\n"
            "  --keep N        how many checkpoints stay in FOLDER, this one among them; those of\n"
            "                  greater steps stay in any case (default: all)\n"
            "  --only NAME     only what is called so, and what is below it: model takes\n"
            "                  model.0.weight; can be given several times\n"
            "  --skip NAME     nothing that is called so or is below it; can be given several times\n"
            "  -h, --help      show this text\n",
    .usage = "a source, a folder and a number of ranks are needed: muster ckpt reshard model.pt --to checkpoints "
             "--ranks 8",
    .path_count = 1,
    .values = {"--to", "--ranks", "--step", "--keep"},
    .has_choice = true,
};

/* MUSTER_EINVAL, with a sentence. */
static int read_options(const struct ckpt_words *words, struct ckpt_copy *out) {
    int64_t ranks = 0, keep = UINT32_MAX;
    int code = ckpt_words_number(&grammar, words, RANKS, 1, &ranks);
    code = code ? code : ckpt_words_number(&grammar, words, STEP, 0, &out->step);
    code = code ? code : ckpt_words_number(&grammar, words, KEEP, 1, &keep);
    out->folder = words->values[TO];
    if (code == 0 && (!out->folder || ranks == 0)) {
        return status_fail(MUSTER_EINVAL, "%s", grammar.usage);
    }
    if (code == 0 && ranks > MUSTER_GROUP_SIZE_MAX) {
        return status_fail(MUSTER_EINVAL, "--ranks %s: at most %u are possible", words->values[RANKS],
                           MUSTER_GROUP_SIZE_MAX);
    }
    out->parts = (uint32_t)ranks;
    out->keep = keep < UINT32_MAX ? (uint32_t)keep : UINT32_MAX;
    return code;
}

int ckpt_reshard(int argc, char **argv) {
    struct ckpt_words words;
    struct ckpt_copy to = {.step = -1};
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    if (read_options(&words, &to) != 0) {
        cli_error(grammar.program, true, muster_detail());
        return CLI_EXIT_USAGE;
    }
    return ckpt_copy(&grammar, &words, &to);
}
