/* See copies.h. */
#include "train/commit/copies_impl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <muster/collective.h>

#include "base/held/read_only.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "train/memory/state_region.h"
#include "train/reduction/step_failure.h"
#include "train/state/snapshot_parts.h"

enum { NOTE_BYTES = 160 };

struct copies {
    struct state_region region;
    struct commit_table *table;
    struct copies_layout layout;
    char *views[COMMIT_COPIES]; /* where copies are read: the same memory, mapped read-only; NULL: not yet */
    uint32_t writer, writer_count;
    uint32_t current;
    bool is_begun, is_given_up;
    int64_t step;
    struct commit_life life;
    struct copies_search search;     /* until what it has found has moved */
    char name[HELD_FIND_NAME_BYTES]; /* under which this rank holds the memory, if it does */
    struct copies_source *sources;
    size_t source_count;
    char note[NOTE_BYTES];
};

/* ---- the memory ---- */

/* mremap() of 0 bytes of a shared mapping gives another mapping of the same memory. */
static int map_views(struct copies *copies) {
    size_t bytes = COMMIT_COPIES * copies->layout.stride;
    char *view = mremap(copies->layout.bases[0], 0, bytes, MREMAP_MAYMOVE);
    if (view == MAP_FAILED) {
        return status_fail_errno(errno, "map the committed state again");
    }
    for (uint32_t i = 0; i < COMMIT_COPIES; i++) {
        copies->views[i] = view + i * copies->layout.stride;
    }
    if (mprotect(view, bytes, PROT_READ) != 0) {
        return status_fail_errno(errno, "protect the committed state");
    }
    read_only_note(view, bytes, "in the committed state, which is read-only: only a step of the optimizer changes it");
    return MUSTER_OK;
}

/* ---- making it ---- */

/* All makers of this host do so at once. If the kernel found out that there is no room for all of them, it might kill
 * one. */
static int make(struct copies *copies, const struct copies_options *o, int *out_fd) {
    struct state_region region;
    size_t bytes = copies_region_bytes(&o->kind, copies->writer_count);
    int status = segment_check_room(copies->search.choice.makers * bytes, "the committed state");
    status = status ? status : state_region_create(NULL, "the committed state", bytes, &region);
    if (status != MUSTER_OK) {
        return status;
    }
    commit_table_init(region.memory, &o->kind, &o->place, copies->writer_count);
    int fd = fcntl(region.segment.fd, F_DUPFD_CLOEXEC, 0);
    status = fd >= 0 ? MUSTER_OK : status_fail_errno(errno, "a descriptor for the committed state");
    state_region_free(&region);
    *out_fd = fd;
    return status;
}

/* Which copy has the step; it is there. */
static uint32_t copy_of(const struct copies *copies, int64_t step) {
    int64_t steps[COMMIT_COPIES];
    commit_table_steps(copies->table, steps);
    return steps[0] == step ? 0 : 1;
}

/* Rows that lack the step get it from the first one that has it. By the first ranks of the rows. */
static int replicate(struct copies *copies, const struct copies_options *o, bool has) {
    uint32_t size = muster_group_size(o->replicas), rank = muster_group_rank(o->replicas), owner = 0;
    uint8_t *all = calloc(size, sizeof *all);
    int status = all ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for what %u ranks have", size);
    if (status == MUSTER_OK) {
        all[rank] = has;
        status = muster_all_gather(o->replicas, &all[rank], all, 1, MUSTER_UINT8, NULL);
    }
    bool lacks = status == MUSTER_OK && memchr(all, 0, size) != NULL;
    while (lacks && owner < size && !all[owner]) {
        owner++;
    }
    if (lacks && owner < size) {
        status = muster_broadcast(o->replicas, copies->layout.bases[copies->current], copies->layout.stride,
                                  MUSTER_UINT8, owner, NULL);
    }
    free(all);
    return status;
}

/* The first rank opens the new life of the table; the others go on when it has. */
static int renew(struct copies *copies, const struct copies_options *o) {
    bool moves = copies->search.choice.way.moves;
    if (copies_is_first(o)) {
        commit_table_renew(copies->table, copies->writer_count, moves ? COMMIT_COPIES : copies->current, &copies->life);
    }
    int status = muster_barrier(o->group, NULL);
    if (status == MUSTER_OK && copies->step >= 0) {
        copies->current = copy_of(copies, copies->step);
    }
    return status;
}

/* Each agent of a host holds the memory, and without an agent each rank: it lasts while one of them lives. */
static int hold(struct copies *copies, const struct copies_options *o) {
    struct copies_search *search = &copies->search;
    bool holds = copies_holds(o, search->holder);
    held_finds_free_name(&search->finds, search->role, copies->name);
    int status = holds ? holder_put(search->holder, copies->name, copies->region.segment.fd) : MUSTER_OK;
    (void)close(copies->region.segment.fd);
    copies->region.segment.fd = -1;
    return status;
}

/* Memory is there on all hosts. */
static int open_found(struct copies *copies, const struct copies_options *o, int fd, bool has) {
    int status = state_region_find(o->row, "the committed state", fd, &copies->region);
    status = status ? status : hold(copies, o);
    if (status != MUSTER_OK) {
        return status;
    }
    copies->table = copies->region.memory;
    copies_lay_out(copies->table, &o->kind, commit_table_room(copies->table), &copies->layout);
    status = map_views(copies);
    if (status != MUSTER_OK) {
        return status;
    }
    copies->current = has ? copy_of(copies, copies->step) : 0; /* of the first rank; the others see it in the table */
    if (copies->step >= 0 && o->replicas && copies_is_first(o)) {
        status = replicate(copies, o, has);
    }
    return status ? status : renew(copies, o);
}

static void take_choice(struct copies *copies, const struct copies_options *o) {
    const struct copies_choice *choice = &copies->search.choice;
    copies->step = choice->way.moves ? COMMIT_NOTHING : choice->way.label.step;
    copies->life = (struct commit_life){.from = choice->way.label.step,
                                        .from_life = choice->way.label.life,
                                        .number = choice->number,
                                        .given_up = choice->given_up,
                                        .heard = copies_hear()};
    if (choice->given_up_step < 0) {
        copies->life.failures = choice->failures;
        return;
    }
    copies->is_given_up = true;
    (void)str_format(copies->note, sizeof copies->note,
                     "the program has failed %" PRIu32 " time%s in a row after step %" PRId64
                     ": the state of that step in memory is given up",
                     choice->failures, choice->failures == 1 ? "" : "s", choice->given_up_step);
    if (muster_group_rank(o->group) == 0) {
        log_warning("%s", copies->note);
    }
}

/* ---- what has to move ---- */

static bool is_source(const struct copies_search *search, const struct copies_found *found) {
    return found->offer.place.part_count == search->choice.way.part_count &&
           commit_offer_copy(&found->offer, &search->choice.way.label) < COMMIT_COPIES;
}

static void point_to(struct copies_search *search, const struct copies_found *found, struct copies_source *source) {
    struct held_find *find = &search->finds.items[found->find];
    const struct commit_kind kind = commit_table_kind(find->region.memory);
    struct copies_layout layout;
    copies_lay_out(find->region.memory, &kind, commit_table_room(find->region.memory), &layout);
    source->copy = layout.bases[commit_offer_copy(&found->offer, &search->choice.way.label)];
    source->extra = source->copy + layout.extra_offset;
    find->is_needed = true;
}

/* Memory with the chosen label, of all ranks; this rank's own is to stay until all has moved. */
static int list_sources(struct copies *copies, const struct copies_options *o) {
    struct copies_search *search = &copies->search;
    uint32_t rank = muster_group_rank(o->group);
    copies->sources = calloc(search->all_count + 1, sizeof *copies->sources);
    if (!copies->sources) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu finds", search->all_count);
    }
    for (size_t i = 0; i < search->all_count; i++) {
        const struct copies_found *found = &search->all[i];
        if (is_source(search, found)) {
            struct copies_source *source = &copies->sources[copies->source_count++];
            *source = (struct copies_source){.place = found->offer.place, .rank = found->rank};
            if (found->rank == rank) {
                point_to(search, found, source);
            }
        }
    }
    return MUSTER_OK;
}

static void forget_sources(struct copies *copies) {
    free(copies->sources);
    copies->sources = NULL;
    copies->source_count = 0;
    copies_search_done(&copies->search);
}

size_t copies_sources(const struct copies *copies, const struct copies_source **out, int64_t *out_step) {
    *out = copies->sources;
    *out_step = copies->source_count > 0 ? copies->life.from : COMMIT_NOTHING;
    return copies->source_count;
}

/* What is left of other worlds goes. */
static int drop_others(struct copies *copies) {
    int status = copies_search_drop(&copies->search, copies->name);
    forget_sources(copies);
    return status;
}

int copies_settle(struct copies *copies, struct muster_group *group) {
    if (copies->source_count == 0) {
        return MUSTER_OK;
    }
    int status = muster_barrier(group, NULL);
    return status ? status : drop_others(copies);
}

/* ---- opening ---- */

static void close_if_open(int *fd) {
    if (*fd >= 0) {
        (void)close(*fd);
    }
    *fd = -1;
}

/* What is for the first rank of a row to do with the holder, is agreed on: the group goes on without it. fd: of what
 * the row goes on with, found or made. What is of no use goes first, on all ranks: there may be no room for both. */
static int find_or_make(struct copies *copies, const struct copies_options *o, int *fd, bool *has) {
    struct copies_search *search = &copies->search;
    *fd = copies_search_take_own(search);
    *has = *fd >= 0;
    bool makes = !*has && copies_is_first(o), drops = makes && !search->choice.way.moves;
    int status = snapshot_agree(o->group, drops ? copies_search_drop(search, NULL) : MUSTER_OK);
    if (drops) {
        held_finds_done(&search->finds);
    }
    return status ? status : snapshot_agree(o->group, makes ? make(copies, o, fd) : MUSTER_OK);
}

static void forgo_move(struct copies *copies, const struct copies_options *o) {
    (void)str_format(copies->note, sizeof copies->note,
                     "there is no room to move the state of step %" PRId64 " in memory to where it belongs now",
                     copies->search.choice.way.label.step);
    if (muster_group_rank(o->group) == 0) {
        log_warning("%s: %s", copies->note, muster_detail());
    }
    free(copies->sources);
    copies->sources = NULL;
    copies->source_count = 0;
    copies_search_forgo(&copies->search);
}

/* Memory of another world stays if there is room for the new one beside it. */
static int find_room(struct copies *copies, const struct copies_options *o, int *fd, bool *has) {
    bool moves = copies->search.choice.way.moves;
    int status = snapshot_agree(o->group, moves ? list_sources(copies, o) : MUSTER_OK);
    status = status ? status : find_or_make(copies, o, fd, has);
    if (status == MUSTER_ENOMEM && moves && muster_group_status(o->group) == MUSTER_OK) {
        forgo_move(copies, o);
        close_if_open(fd);
        status = find_or_make(copies, o, fd, has);
    }
    return status;
}

static int open_searched(struct copies *copies, const struct copies_options *o, int *fd) {
    bool has = false;
    int status = snapshot_agree(o->group, copies_search_begin(&copies->search, o, copies->writer_count));
    status = status ? status : copies_search_choose(&copies->search, o);
    status = status ? status : find_room(copies, o, fd, &has);
    if (status != MUSTER_OK) {
        return status; /* nothing is held yet */
    }
    take_choice(copies, o);
    status = open_found(copies, o, *fd, has);
    if (status == MUSTER_OK && !copies->search.choice.way.moves) {
        status = drop_others(copies);
    }
    if (status != MUSTER_OK) {
        step_failure_tell(o->group, status);
    }
    return status;
}

static int open_named(struct copies *copies, const struct copies_options *o) {
    int fd = -1, status = open_searched(copies, o, &fd);
    close_if_open(&fd);
    return status;
}

int copies_open(const struct copies_options *options, struct copies **out) {
    struct copies *copies = calloc(1, sizeof *copies);
    int status = copies ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a committed state");
    status = snapshot_agree(options->group, status);
    if (status == MUSTER_OK && copies) {
        copies->writer = options->row ? muster_group_rank(options->row) : 0;
        copies->writer_count = options->row ? muster_group_size(options->row) : 1;
        status = open_named(copies, options);
    }
    if (status != MUSTER_OK) {
        copies_close(copies);
        return status;
    }
    *out = copies;
    return MUSTER_OK;
}

void copies_close(struct copies *copies) {
    if (copies) {
        if (copies->views[0]) {
            read_only_forget(copies->views[0]);
            (void)munmap(copies->views[0], COMMIT_COPIES * copies->layout.stride);
        }
        state_region_free(&copies->region);
        forget_sources(copies);
        free(copies);
    }
}

/* ---- steps ---- */

int64_t copies_step(const struct copies *copies) {
    return copies->step;
}

bool copies_is_given_up(const struct copies *copies) {
    return copies->is_given_up;
}

const char *copies_note(const struct copies *copies) {
    return copies->note;
}

void *copies_current(const struct copies *copies) {
    return (copies->step >= 0 ? copies->views : copies->layout.bases)[copies->current];
}

static uint32_t other_of(const struct copies *copies) {
    return COMMIT_COPIES - 1 - copies->current;
}

static bool is_within(const char *memory, size_t bytes, const void *address) {
    uintptr_t at = (uintptr_t)address, begin = (uintptr_t)memory;
    return memory && at >= begin && at - begin < bytes;
}

/* Programs get the addresses of the one that is written before the first commit. */
bool copies_is_stale(const struct copies *copies, const void *address) {
    const char *current = copies_current(copies);
    const struct copies_layout *layout = &copies->layout;
    bool is_stale = false;
    for (size_t i = 0; i < COMMIT_COPIES; i++) {
        is_stale = is_stale || (layout->bases[i] != current && is_within(layout->bases[i], layout->stride, address)) ||
                   (copies->views[i] != current && is_within(copies->views[i], layout->stride, address));
    }
    return is_stale;
}

ptrdiff_t copies_delta(const struct copies *copies) {
    return copies->layout.bases[other_of(copies)] - (char *)copies_current(copies);
}

void copies_begin(struct copies *copies) {
    assert(copies->step >= 0);
    commit_table_label(copies->table, copies->writer, other_of(copies), COMMIT_NOTHING);
    copies->is_begun = true;
}

bool copies_is_begun(const struct copies *copies) {
    return copies->is_begun;
}

void *copies_extra(const struct copies *copies) {
    char *copy = copies->is_begun ? copies->layout.bases[other_of(copies)] : copies_current(copies);
    return copy + copies->layout.extra_offset;
}

ptrdiff_t copies_commit(struct copies *copies, int64_t step) {
    assert(step > copies->step && (copies->is_begun || copies->step < 0));
    char *before = copies_current(copies);
    uint32_t copy = copies->is_begun ? other_of(copies) : copies->current;
    commit_table_label(copies->table, copies->writer, copy, step);
    copies->current = copy;
    copies->is_begun = false;
    copies->step = step;
    return (char *)copies_current(copies) - before;
}

size_t copies_bytes(const struct copies *copies) {
    return copies->region.segment.bytes;
}
