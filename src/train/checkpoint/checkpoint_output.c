/* See checkpoint_output.h. */
#include "train/checkpoint/checkpoint_output.h"

int checkpoint_output_create(struct checkpoint_output *out, const struct checkpoint_save *save,
                             enum checkpoint_kind kind) {
    const struct checkpoint_name name = {.kind = kind, .part = save->rank, .step = save->step, .token = save->token};
    const struct snapshot_io *io = save->folder.io;
    *out = (struct checkpoint_output){.folder = &save->folder};
    checkpoint_name_write(out->name, &name);
    out->file = io->create(io->ctx, save->folder.handle, out->name);
    return out->file < 0 ? snapshot_io_fail(&save->folder, "create", out->name, out->file) : 0;
}

int checkpoint_output_add(struct checkpoint_output *out, const void *bytes, size_t count) {
    return snapshot_write(out->folder, out->name, out->file, bytes, count, &out->bytes);
}

int checkpoint_output_finish(struct checkpoint_output *out, int code) {
    const struct snapshot_io *io = out->folder->io;
    int result = code ? 0 : io->sync(io->ctx, out->file);
    io->close(io->ctx, out->file);
    return code ? code : result ? snapshot_io_fail(out->folder, "sync", out->name, result) : 0;
}

int checkpoint_sync_folder(const struct snapshot_folder *folder) {
    int result = folder->io->sync(folder->io->ctx, folder->handle);
    return result ? snapshot_io_fail(folder, "sync", "", result) : 0;
}
