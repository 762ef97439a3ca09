/* A folder of checkpoints: listing it, reading records, and removing what is no longer wanted; see checkpoint_impl.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_impl.h"

/* Files of ours in one folder: of 65,536 ranks a few checkpoints. */
#define FILES_MAX ((size_t)1 << 20)

/* ---- listing ---- */

struct collection {
    struct checkpoint_listing listing;
    size_t capacity;
};

static int note_file(void *each_ctx, const char *name) {
    struct collection *all = each_ctx;
    struct checkpoint_name parsed = checkpoint_name_parse(name);
    if (parsed.kind == CHECKPOINT_OTHER) {
        return 0;
    }
    if (all->listing.count == FILES_MAX) {
        return -EFBIG;
    }
    if (all->listing.count == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 64;
        struct checkpoint_name *files = realloc(all->listing.files, capacity * sizeof *files);
        if (!files) {
            return -ENOMEM;
        }
        all->listing.files = files;
        all->capacity = capacity;
    }
    all->listing.files[all->listing.count++] = parsed;
    return 0;
}

static int newest_first(const void *left, const void *right) {
    const struct checkpoint_name *a = left, *b = right;
    if (a->step != b->step) {
        return a->step > b->step ? -1 : 1;
    }
    if (a->kind != b->kind) {
        return a->kind < b->kind ? -1 : 1;
    }
    if (a->token != b->token) {
        return a->token < b->token ? -1 : 1;
    }
    return a->part < b->part ? -1 : a->part > b->part;
}

int checkpoint_list(const struct snapshot_folder *folder, struct checkpoint_listing *out) {
    struct collection all = {.capacity = 0};
    int result = folder->io->list(folder->io->ctx, folder->handle, note_file, &all);
    if (result) {
        free(all.listing.files);
        return result == -ENOMEM ? status_fail(MUSTER_ENOMEM, "no memory to list %s", folder->path)
                                 : snapshot_io_fail(folder, "list", "", result);
    }
    if (all.listing.count > 1) {
        qsort(all.listing.files, all.listing.count, sizeof *all.listing.files, newest_first);
    }
    *out = all.listing;
    return 0;
}

void checkpoint_listing_done(struct checkpoint_listing *listing) {
    free(listing->files);
    *listing = (struct checkpoint_listing){.files = NULL};
}

/* ---- records ---- */

static int decode_record(const struct snapshot_folder *folder, const char *name, int file, uint64_t count,
                         struct checkpoint_record *out) {
    if (count > CHECKPOINT_RECORD_BYTES_MAX) {
        return status_fail(MUSTER_ECORRUPT, "%s/%s has %" PRIu64 " bytes: no record", folder->path, name, count);
    }
    uint8_t *bytes = malloc(count > 0 ? (size_t)count : 1);
    if (!bytes) {
        return status_fail(MUSTER_ENOMEM, "no memory to read %s/%s", folder->path, name);
    }
    int code = snapshot_read(folder, name, file, bytes, (size_t)count, 0);
    if (code == 0) {
        code = checkpoint_record_decode(bytes, (size_t)count, out);
        code = code ? status_prefix(code, "%s/%s", folder->path, name) : 0;
    }
    free(bytes);
    return code;
}

int checkpoint_read_record(const struct snapshot_folder *folder, int64_t step, struct checkpoint_record *out) {
    const struct checkpoint_name record = {.kind = CHECKPOINT_RECORD, .step = step};
    char name[CHECKPOINT_NAME_MAX];
    int file = -1;
    uint64_t count = 0;
    checkpoint_name_write(name, &record);
    int code = snapshot_open_file(folder, name, MUSTER_ENOENT, &file, &count);
    if (code) {
        return code;
    }
    code = decode_record(folder, name, file, count, out);
    folder->io->close(folder->io->ctx, file);
    if (code == 0 && out->step != step) {
        code = status_fail(MUSTER_ECORRUPT, "%s/%s is the record of step %" PRId64, folder->path, name, out->step);
    }
    return code;
}

/* ---- removing ---- */

static void remove_file(const struct snapshot_folder *folder, const struct checkpoint_name *file) {
    char name[CHECKPOINT_NAME_MAX];
    checkpoint_name_write(name, file);
    (void)folder->io->remove(folder->io->ctx, folder->handle, name);
}

/* Is it sure that no record needs these files of a step? A record that cannot be read needs them as far as we know. */
struct need {
    int code; /* of reading the record */
    struct checkpoint_record record;
};

static bool is_leftover(const struct need *need, const struct checkpoint_name *file) {
    switch (file->kind) {
    case CHECKPOINT_TEMPORARY:
        return true;
    case CHECKPOINT_MAP:
    case CHECKPOINT_PART:
        return need->code == MUSTER_ENOENT || (need->code == 0 && need->record.token != file->token);
    default:
        return false;
    }
}

int checkpoint_sweep(const struct snapshot_folder *folder, const uint64_t *spared) {
    struct checkpoint_listing listing = {.files = NULL};
    struct need need = {.code = 0};
    bool synced = false;
    int code = checkpoint_list(folder, &listing);
    if (code) {
        return code;
    }
    for (size_t i = 0; i < listing.count && code == 0; i++) {
        const struct checkpoint_name *file = &listing.files[i];
        if (i == 0 || listing.files[i - 1].step != file->step) {
            need.code = checkpoint_read_record(folder, file->step, &need.record);
        }
        bool is_spared = spared && file->token == *spared && file->kind != CHECKPOINT_TEMPORARY;
        if (is_spared || !is_leftover(&need, file)) {
            continue;
        }
        /* What is seen here may not be on the disk yet: a record that took another's place just before its writer was
         * killed. On the disk the old record may still be, and need the files that look like leftovers. */
        int result = synced ? 0 : folder->io->sync(folder->io->ctx, folder->handle);
        if (result) {
            code = snapshot_io_fail(folder, "sync", "", result);
            break;
        }
        synced = true;
        remove_file(folder, file);
    }
    checkpoint_listing_done(&listing);
    return code;
}

/* Has the checkpoint, whose record is file `at` of the listing, all its files? Contents are not read again. */
static bool seems_whole(const struct snapshot_folder *folder, const struct checkpoint_listing *listing, size_t at) {
    struct checkpoint_record record;
    uint64_t seen = 0;
    int64_t step = listing->files[at].step;
    if (checkpoint_read_record(folder, step, &record)) {
        return false;
    }
    for (size_t i = at; i < listing->count && listing->files[i].step == step; i++) {
        const struct checkpoint_name *file = &listing->files[i];
        seen += file->kind != CHECKPOINT_RECORD && file->kind != CHECKPOINT_TEMPORARY && file->token == record.token &&
                (file->kind == CHECKPOINT_MAP || file->part < record.part_count);
    }
    return seen == (uint64_t)record.part_count + 1;
}

/* The smallest step that is to stay, or -1 when there are too few checkpoints to remove any. */
static int64_t last_kept(const struct snapshot_folder *folder, const struct checkpoint_listing *listing, int64_t step,
                         uint32_t keep) {
    uint32_t kept = 1;
    if (keep <= kept) {
        return step;
    }
    for (size_t i = 0; i < listing->count; i++) {
        const struct checkpoint_name *file = &listing->files[i];
        if (file->kind == CHECKPOINT_RECORD && file->step < step && seems_whole(folder, listing, i) && ++kept == keep) {
            return file->step;
        }
    }
    return -1;
}

void checkpoint_prune(const struct snapshot_folder *folder, int64_t step, uint32_t keep) {
    struct checkpoint_listing listing = {.files = NULL};
    if (checkpoint_list(folder, &listing)) {
        return;
    }
    int64_t last = last_kept(folder, &listing, step, keep);
    /* Records first: files without one are leftovers, a record without files would look like damage. */
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < listing.count; i++) {
            const struct checkpoint_name *file = &listing.files[i];
            if ((file->kind == CHECKPOINT_RECORD) == (pass == 0) && file->step < last) {
                remove_file(folder, file);
            }
        }
    }
    checkpoint_listing_done(&listing);
}
