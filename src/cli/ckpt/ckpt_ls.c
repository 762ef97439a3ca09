/* `muster ckpt ls`: the checkpoints and snapshots of a folder. */
#include <inttypes.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

static const struct ckpt_grammar grammar = {
    .program = "muster ckpt ls",
    .help = "usage: muster ckpt ls FOLDER\n"
            "\n"
            "Lists the checkpoints and snapshots in FOLDER, the newest first, with their sizes; and\n"
            "what is wrong with those that cannot be loaded. Reads records and manifests alone:\n"
            "damage to tensors is found by muster ckpt verify.\n"
            "\n"
            "  -h, --help      show this text\n",
    .usage = "a folder is needed: muster ckpt ls checkpoints",
    .path_count = 1,
};

static int list(void *context, const struct archive_saved *saved) {
    const char *kind = saved->is_snapshot ? "snapshot" : "checkpoint";
    struct buf *out = context;
    size_t begin = out->len;
    char size[CKPT_SIZE_MAX];
    if (saved->code) {
        const char *why = saved->code == MUSTER_ENOENT ? "its save was cut off" : muster_detail();
        return ckpt_end_line(out, begin, buf_printf(out, "step %" PRId64 ": %s, %s", saved->step, kind, why));
    }
    int code = buf_printf(out, "step %" PRId64 ": %s, ", saved->step, kind);
    if (code == 0 && !saved->is_snapshot) {
        code = buf_printf(out, "%" PRIu32 " part%s, ", saved->part_count, str_plural(saved->part_count));
    }
    ckpt_size_text(saved->bytes, size);
    return ckpt_end_line(out, begin, code ? code : buf_printf(out, "%s", size));
}

int ckpt_ls(int argc, char **argv) {
    struct ckpt_words words;
    struct buf out;
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    buf_init(&out, CKPT_OUTPUT_BYTES_MAX);
    int code = archive_each_saved(words.paths[0], list, &out);
    if (code == 0 && out.len == 0) {
        code = status_fail(MUSTER_ENOENT, "no checkpoint and no snapshot in %s", words.paths[0]);
    }
    return ckpt_finish(&grammar, code, &out);
}
