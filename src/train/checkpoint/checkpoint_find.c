/* Finding the newest checkpoint by its records alone; see muster/checkpoint.h. */
#include <inttypes.h>
#include <string.h>

#include "base/sized.h"
#include "base/status.h"
#include "base/str.h"
#include "train/checkpoint/checkpoint_impl.h"

void checkpoint_pass_over(struct muster_checkpoint_found *found, int64_t step, const char *why) {
    size_t used = strlen(found->note);
    found->passed_over++;
    (void)str_format(found->note + used, sizeof found->note - used, "%sstep %" PRId64 ": %s", used ? "\n" : "", step,
                     why);
}

int checkpoint_search_begin(struct checkpoint_search *search, const struct snapshot_folder *folder) {
    *search = (struct checkpoint_search){.found = {.step = -1}};
    return checkpoint_list(folder, &search->listing);
}

void checkpoint_search_done(struct checkpoint_search *search) {
    checkpoint_listing_done(&search->listing);
}

static int none_left(const struct checkpoint_search *search, const struct snapshot_folder *folder) {
    return search->any_complete
               ? status_fail(MUSTER_ECORRUPT, "no checkpoint in %s is whole:\n%s", folder->path, search->found.note)
               : status_fail(MUSTER_ENOENT, "no checkpoint in %s", folder->path);
}

/* Files of a step stand together, newest step first, its record in front. */
int checkpoint_search_next(struct checkpoint_search *search, const struct snapshot_folder *folder, int64_t step_max,
                           struct checkpoint_record *out) {
    const struct checkpoint_listing *listing = &search->listing;
    for (; search->next < listing->count; search->next++) {
        const struct checkpoint_name *file = &listing->files[search->next];
        if (file->step > step_max || (search->next > 0 && file[-1].step == file->step)) {
            continue;
        }
        if (file->kind != CHECKPOINT_RECORD) {
            checkpoint_pass_over(&search->found, file->step, "its save was cut off");
            continue;
        }
        search->any_complete = true;
        int code = checkpoint_read_record(folder, file->step, out);
        if (code == 0) {
            search->next++;
            return 0;
        }
        if (code != MUSTER_ECORRUPT && code != MUSTER_ENOENT) {
            return status_prefix(code, "step %" PRId64, file->step);
        }
        checkpoint_pass_over(&search->found, file->step, muster_detail());
    }
    return none_left(search, folder);
}

int checkpoint_find(const struct snapshot_io *io, const char *path, int64_t step_max,
                    struct muster_checkpoint_found *out) {
    struct snapshot_folder folder;
    struct checkpoint_search search;
    struct checkpoint_record record;
    int code = snapshot_folder_open(&folder, io, path, false);
    if (code) {
        return code;
    }
    code = checkpoint_search_begin(&search, &folder);
    code = code ? code : checkpoint_search_next(&search, &folder, step_max, &record);
    if (code == 0) {
        *out = search.found;
        out->step = record.step;
        out->id = record.id;
        out->part_count = record.part_count;
    }
    checkpoint_search_done(&search);
    snapshot_folder_close(&folder);
    return code;
}

int muster_checkpoint_find_sized(const char *folder, int64_t step_max, struct muster_checkpoint_found *out,
                                 size_t out_bytes) {
    struct muster_checkpoint_found found;
    if (!folder || !out) {
        return status_fail_null("muster_checkpoint_find", folder ? "out" : "folder");
    }
    int code = checkpoint_find(&snapshot_io_system, folder, step_max, &found);
    if (code == 0) {
        sized_write(out, out_bytes, &found, sizeof found);
    }
    return code;
}
