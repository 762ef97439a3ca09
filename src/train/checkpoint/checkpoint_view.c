/* See checkpoint_view.h. */
#include "train/checkpoint/checkpoint_view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_impl.h"

enum { OPEN_MAX_FILES = 64 };
/* Ranges of parts that are remembered, of 48 bytes each; beyond that only those of the parts used last. */
#define RANGES_KEPT_MAX ((uint64_t)4 << 20)

struct checkpoint_view {
    char *path;
    struct snapshot_folder folder;
    struct checkpoint_record record;
    struct checkpoint_map map;
    struct checkpoint_owned *owned; /* all ranges that are listed, by tensor and first element */
    struct checkpoint_part_reader **parts;
    uint32_t open[OPEN_MAX_FILES], opened; /* the last parts that were used; how many so far */
    uint64_t ranges_kept;
};

/* ---- what there is ---- */

int checkpoint_view_each(const char *path, checkpoint_listed_fn *each, void *ctx) {
    struct snapshot_folder folder;
    struct checkpoint_listing listing = {.files = NULL};
    int code = snapshot_folder_open(&folder, &snapshot_io_system, path, false);
    code = code ? code : checkpoint_list(&folder, &listing);
    for (size_t i = 0; i < listing.count && code == 0; i++) {
        struct checkpoint_listed listed = {.step = listing.files[i].step};
        if (i > 0 && listing.files[i - 1].step == listed.step) {
            continue;
        }
        listed.code = checkpoint_read_record(&folder, listed.step, &listed.record);
        code = each(ctx, &listed);
    }
    checkpoint_listing_done(&listing);
    snapshot_folder_close(&folder);
    return code;
}

/* ---- one checkpoint ---- */

static int read_newest(struct checkpoint_view *view) {
    struct checkpoint_search search;
    int code = checkpoint_search_begin(&search, &view->folder);
    code = code ? code : checkpoint_search_next(&search, &view->folder, INT64_MAX, &view->record);
    checkpoint_search_done(&search);
    return code;
}

static int read_map(struct checkpoint_view *view) {
    const struct snapshot_io *io = view->folder.io;
    uint8_t *text = NULL;
    int code = checkpoint_read_map(&view->folder, &view->record, io->now_ms(io->ctx), &text);
    code = code ? code : checkpoint_map_decode(text, (size_t)view->record.map_bytes, &view->map);
    free(text);
    return code;
}

/* Who has which of the ranges that no rule tells. */
static int list_owners(struct checkpoint_view *view) {
    const struct checkpoint_map *map = &view->map;
    size_t count = 0;
    view->parts = calloc((size_t)map->part_count + 1, sizeof(struct checkpoint_part_reader *));
    view->owned = calloc(map->range_count + 1, sizeof *view->owned);
    if (!view->parts || !view->owned) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu ranges", map->range_count);
    }
    for (uint32_t part = 0; part < map->part_count; part++) {
        const struct checkpoint_ranges *listed = &map->parts[part].listed;
        for (size_t i = 0; i < listed->count; i++) {
            view->owned[count++] = (struct checkpoint_owned){listed->items[i], part};
        }
    }
    checkpoint_sort_owned(view->owned, count);
    return 0;
}

static int open_view(struct checkpoint_view *view, const char *path, int64_t step) {
    view->path = strdup(path);
    if (!view->path) {
        return status_fail(MUSTER_ENOMEM, "no memory to read %s", path);
    }
    int code = snapshot_folder_open(&view->folder, &snapshot_io_system, view->path, false);
    if (code) {
        return code;
    }
    code = step < 0 ? read_newest(view) : checkpoint_read_record(&view->folder, step, &view->record);
    code = code ? code : read_map(view);
    return code ? code : list_owners(view);
}

int checkpoint_view_open(const char *path, int64_t step, struct checkpoint_view **out) {
    struct checkpoint_view *view = calloc(1, sizeof *view);
    if (!view) {
        return status_fail(MUSTER_ENOMEM, "no memory to read %s", path);
    }
    view->folder.handle = -1;
    int code = open_view(view, path, step);
    if (code) {
        checkpoint_view_close(view);
        return code;
    }
    *out = view;
    return 0;
}

void checkpoint_view_close(struct checkpoint_view *view) {
    if (!view) {
        return;
    }
    for (uint32_t part = 0; view->parts && part < view->map.part_count; part++) {
        checkpoint_part_reader_free(view->parts[part]);
    }
    free(view->parts);
    free(view->owned);
    checkpoint_map_done(&view->map);
    snapshot_folder_close(&view->folder);
    free(view->path);
    free(view);
}

const struct checkpoint_record *checkpoint_view_record(const struct checkpoint_view *view) {
    return &view->record;
}

const struct checkpoint_map *checkpoint_view_map(const struct checkpoint_view *view) {
    return &view->map;
}

/* ---- reading ---- */

static uint64_t ranges_of(const struct checkpoint_view *view, uint32_t part) {
    return view->map.tensor_count + view->map.parts[part].listed.count;
}

/* Its file is closed; what is known of it stays where there is room. */
static void leave_part(struct checkpoint_view *view, uint32_t part) {
    if (view->ranges_kept <= RANGES_KEPT_MAX) {
        checkpoint_part_reader_rest(view->parts[part]);
        return;
    }
    checkpoint_part_reader_free(view->parts[part]);
    view->parts[part] = NULL;
    view->ranges_kept -= ranges_of(view, part);
}

/* The part's reader. Of many parts the files of the last ones stay open. */
static int use_part(struct checkpoint_view *view, uint32_t part, struct checkpoint_part_reader **out) {
    uint32_t slot = view->opened % OPEN_MAX_FILES;
    bool is_in_use = false;
    for (uint32_t i = 0; i < OPEN_MAX_FILES && i < view->opened; i++) {
        is_in_use = is_in_use || view->open[i] == part;
    }
    if (!view->parts[part]) {
        int code = checkpoint_part_reader_create(&view->folder, &view->map, part, &view->parts[part]);
        if (code) {
            return code;
        }
        view->ranges_kept += ranges_of(view, part);
    }
    if (!is_in_use) {
        if (view->opened >= OPEN_MAX_FILES) {
            leave_part(view, view->open[slot]);
        }
        view->open[slot] = part;
        view->opened++;
    }
    *out = view->parts[part];
    return 0;
}

static int read_from(struct checkpoint_view *view, uint32_t part, const struct checkpoint_range *wanted) {
    struct checkpoint_part_reader *reader = NULL;
    int code = use_part(view, part, &reader);
    return code ? code : checkpoint_part_reader_read(reader, wanted);
}

/* The part that has an element of a tensor that is split by the rule. */
static uint32_t part_of(uint64_t count, uint64_t element, uint32_t parts) {
    uint32_t low = 0, high = parts - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        bool is_behind = state_even_first(count, middle + 1, parts) <= element;
        low = is_behind ? middle + 1 : low;
        high = is_behind ? high : middle;
    }
    return low;
}

static int read_even(struct checkpoint_view *view, const struct checkpoint_range *wanted) {
    uint64_t count = view->map.tensors[wanted->tensor].count;
    int code = 0;
    for (uint32_t part = part_of(count, wanted->first, view->map.part_count);
         code == 0 && part < view->map.part_count &&
         state_even_first(count, part, view->map.part_count) < wanted->first + wanted->count;
         part++) {
        code = read_from(view, part, wanted);
    }
    return code;
}

static int read_listed(struct checkpoint_view *view, const struct checkpoint_range *wanted) {
    size_t low = 0, high = view->map.range_count;
    int code = 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct checkpoint_range *range = &view->owned[middle].range;
        bool is_before = range->tensor < wanted->tensor ||
                         (range->tensor == wanted->tensor && range->first + range->count <= wanted->first);
        low = is_before ? middle + 1 : low;
        high = is_before ? high : middle;
    }
    for (; low < view->map.range_count && code == 0; low++) {
        const struct checkpoint_owned *owned = &view->owned[low];
        if (owned->range.tensor != wanted->tensor || owned->range.first >= wanted->first + wanted->count) {
            break;
        }
        code = read_from(view, owned->part, wanted);
    }
    return code;
}

int checkpoint_view_read(struct checkpoint_view *view, uint32_t tensor, uint64_t first, uint64_t count, void *out) {
    const struct checkpoint_range wanted = {.tensor = tensor, .first = first, .count = count, .data = out};
    return view->map.tensors[tensor].is_even ? read_even(view, &wanted) : read_listed(view, &wanted);
}

int checkpoint_view_verify(struct checkpoint_view *view, uint32_t part) {
    struct checkpoint_part_reader *reader = NULL;
    int code = use_part(view, part, &reader);
    return code ? code : checkpoint_part_reader_verify(reader);
}

/* ---- removing ---- */

static int prune(const struct snapshot_folder *folder, uint32_t keep) {
    struct checkpoint_listing listing = {.files = NULL};
    int code = checkpoint_list(folder, &listing);
    /* As if a save beyond the newest step, which is not there, had to stay, too. */
    if (code == 0 && listing.count > 0 && keep < UINT32_MAX) {
        checkpoint_prune(folder, INT64_MAX, keep + 1);
    }
    checkpoint_listing_done(&listing);
    return code ? code : checkpoint_sweep(folder, NULL);
}

int checkpoint_view_prune(const char *path, uint32_t keep) {
    struct snapshot_folder folder;
    int code = snapshot_folder_open(&folder, &snapshot_io_system, path, false);
    if (code) {
        return code;
    }
    int result = folder.io->lock_folder(folder.io->ctx, folder.handle);
    if (result) {
        code = result == -EWOULDBLOCK ? status_fail(MUSTER_ESYSTEM, "a job is saving in %s", path)
                                      : snapshot_io_fail(&folder, "lock", "", result);
    } else {
        code = prune(&folder, keep);
        folder.io->unlock_folder(folder.io->ctx, folder.handle);
    }
    snapshot_folder_close(&folder);
    return code;
}
