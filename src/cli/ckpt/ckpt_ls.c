/* `muster ckpt ls`: the checkpoints and snapshots of a folder. */
#include <inttypes.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"
#include "train/checkpoint/checkpoint_view.h"
#include "train/state/snapshot_folder.h"

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

static int list_checkpoint(void *context, const struct checkpoint_listed *listed) {
    struct buf *out = context;
    char size[CKPT_SIZE_MAX];
    if (listed->code == MUSTER_ENOENT) {
        return buf_printf(out, "step %" PRId64 ": checkpoint, its save was cut off\n", listed->step);
    }
    if (listed->code) {
        return buf_printf(out, "step %" PRId64 ": checkpoint, %s\n", listed->step, muster_detail());
    }
    ckpt_size_text(listed->record.bytes, size);
    return buf_printf(out, "step %" PRId64 ": checkpoint, %" PRIu32 " part%s, %s\n", listed->step,
                      listed->record.part_count, str_plural(listed->record.part_count), size);
}

static int list_snapshot(struct buf *out, const struct snapshot_folder *folder, int64_t step) {
    struct snapshot_manifest manifest = {.step = step};
    char size[CKPT_SIZE_MAX];
    int code = snapshot_read_manifest(folder, step, &manifest);
    if (code) {
        return code == MUSTER_ENOMEM ? code
                                     : buf_printf(out, "step %" PRId64 ": snapshot, %s\n", step, muster_detail());
    }
    ckpt_size_text(manifest.bytes, size);
    snapshot_manifest_done(&manifest);
    return buf_printf(out, "step %" PRId64 ": snapshot, %s\n", step, size);
}

static int list_snapshots(const char *path, struct buf *out) {
    struct snapshot_folder folder;
    int code = snapshot_folder_open(&folder, &snapshot_io_system, path, false);
    code = code ? code : snapshot_folder_list(&folder);
    for (size_t i = 0; i < folder.file_count && code == 0; i++) {
        if (folder.files[i].kind == SNAPSHOT_MANIFEST) {
            code = list_snapshot(out, &folder, folder.files[i].step);
        }
    }
    snapshot_folder_close(&folder);
    return code;
}

int ckpt_ls(int argc, char **argv) {
    struct ckpt_words words;
    struct buf out;
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    buf_init(&out, CKPT_OUTPUT_BYTES_MAX);
    int code = checkpoint_view_each(words.paths[0], list_checkpoint, &out);
    code = code ? code : list_snapshots(words.paths[0], &out);
    if (code == 0 && out.len == 0) {
        code = status_fail(MUSTER_ENOENT, "no checkpoint and no snapshot in %s", words.paths[0]);
    }
    return ckpt_finish(&grammar, code, &out);
}
