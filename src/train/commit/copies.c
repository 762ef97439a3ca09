/* See copies.h. */
#include "train/commit/copies.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <muster/collective.h>

#include "base/fnv.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "train/memory/state_region.h"
#include "train/reduction/step_failure.h"
#include "train/state/snapshot_parts.h"

enum { LINE_BYTES = 64, HELD_NAME_BYTES = 128, NOTE_BYTES = 160 };

struct copies {
    struct state_region region;
    struct commit_table *table;
    char *bases[COMMIT_COPIES]; /* where they are written */
    char *views[COMMIT_COPIES]; /* and where they are read: the same memory, mapped read-only; NULL: not yet */
    size_t stride;              /* bytes of a copy with its extra room, whole pages */
    size_t extra_offset;        /* in it */
    uint32_t writer, writer_count;
    uint32_t current;
    bool is_begun;
    int64_t step;
    struct commit_life life;
    char note[NOTE_BYTES];
};

/* ---- the memory ---- */

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t stride_of(const struct commit_kind *kind) {
    return round_up(round_up(kind->copy_bytes, LINE_BYTES) + kind->extra_bytes, page_bytes());
}

/* With a page more: copies begin on one. */
static size_t region_bytes(const struct commit_kind *kind, uint32_t writer_count) {
    return commit_table_bytes(writer_count) + page_bytes() + COMMIT_COPIES * stride_of(kind);
}

static void lay_out(struct copies *copies, const struct commit_kind *kind) {
    copies->table = copies->region.memory;
    copies->stride = stride_of(kind);
    copies->extra_offset = round_up(kind->copy_bytes, LINE_BYTES);
    uintptr_t behind = (uintptr_t)copies->region.memory + commit_table_bytes(commit_table_room(copies->table));
    char *first = (char *)copies->region.memory + (round_up(behind, page_bytes()) - (uintptr_t)copies->region.memory);
    for (uint32_t i = 0; i < COMMIT_COPIES; i++) {
        copies->bases[i] = first + i * copies->stride;
    }
}

/* mremap() of 0 bytes of a shared mapping gives another mapping of the same memory. */
static int map_views(struct copies *copies) {
    size_t bytes = COMMIT_COPIES * copies->stride;
    char *view = mremap(copies->bases[0], 0, bytes, MREMAP_MAYMOVE);
    if (view == MAP_FAILED) {
        return status_fail_errno(errno, "map the committed state again");
    }
    for (uint32_t i = 0; i < COMMIT_COPIES; i++) {
        copies->views[i] = view + i * copies->stride;
    }
    return mprotect(view, bytes, PROT_READ) == 0 ? MUSTER_OK : status_fail_errno(errno, "protect the committed state");
}

/* ---- finding and making it ---- */

static bool is_first(const struct copies_options *o) {
    return !o->row || muster_group_rank(o->row) == 0;
}

/* Does the held memory have room and a table for this state? A state of another shape is no failure: it is made anew.
 */
static bool fits(int fd, const struct copies_options *o, uint32_t writer_count, struct commit_offer *offer) {
    struct state_region region;
    if (state_region_adopt(fd, 0, &region) != MUSTER_OK) {
        return false;
    }
    size_t bytes = region.segment.bytes - SEGMENT_HEADER_BYTES;
    const struct commit_table *table = region.memory;
    bool is = commit_table_fits(table, bytes, &o->kind, writer_count) &&
              region_bytes(&o->kind, commit_table_room(table)) <= bytes;
    if (is) {
        commit_table_steps(table, offer->steps);
        offer->life = commit_table_life(table);
    }
    state_region_free(&region);
    return is;
}

/* *out_fd: of held memory that fits, or -1. */
static int look(struct holder *holder, const struct copies_options *o, const char *name, uint32_t writer_count,
                struct commit_offer *offer, int *out_fd) {
    int fd = -1, status = holder_get(holder, name, &fd);
    if (status == MUSTER_ENOENT) {
        return MUSTER_OK;
    }
    if (status == MUSTER_OK && !fits(fd, o, writer_count, offer)) {
        (void)close(fd);
        fd = -1;
    }
    *out_fd = fd;
    return status;
}

struct found {
    struct commit_offer offer;
    uint32_t is_first, attempts;
    uint32_t has_failed; /* the program, on this rank's node, in the life that has left this */
};

/* What the ranks have found, and what comes of it. */
struct choice {
    int64_t step;
    uint32_t makers; /* ranks of this host that are to make memory */
    uint32_t failures;
    int64_t given_up; /* the step that is not used again; COMMIT_NOTHING: there is none */
};

static void judge(const struct copies_options *o, const struct found *all, struct commit_offer *offers,
                  struct choice *out) {
    uint32_t size = muster_group_size(o->group), count = 0;
    uint32_t host = muster_group_host_of(o->group, muster_group_rank(o->group));
    for (uint32_t i = 0; i < size; i++) {
        if (all[i].is_first) {
            offers[count++] = all[i].offer;
        }
    }
    bool has_failed = false;
    for (uint32_t i = 0; i < size; i++) {
        has_failed = has_failed || all[i].has_failed;
    }
    out->step = o->replicas ? commit_choose_replica(offers, count) : commit_choose_common(offers, count);
    out->failures = commit_count_failures(offers, count, out->step, has_failed);
    out->given_up = COMMIT_NOTHING;
    if (has_failed && all[0].attempts > 0 && out->failures >= all[0].attempts) {
        out->given_up = out->step;
        out->step = COMMIT_NOTHING;
    }
    for (uint32_t i = 0; i < size; i++) {
        out->makers +=
            all[i].is_first && muster_group_host_of(o->group, i) == host && !commit_offer_has(&all[i].offer, out->step);
    }
}

/* What the agent says of the workers before these; 0: nothing. */
static uint64_t hear(void) {
    const char *text = getenv("MUSTER_FAILED_BY");
    return text && text[0] != '\0' ? fnv_bytes(FNV_BEGIN, text, strlen(text)) : 0;
}

/* Processes that outlive others, and come here again, have heard it. */
static bool has_failed(const struct commit_offer *own) {
    uint64_t heard = hear();
    return heard != 0 && heard != own->life.heard;
}

/* All learn what each row has, and choose. */
static int choose(const struct copies_options *o, const struct commit_offer *own, struct choice *out) {
    uint32_t size = muster_group_size(o->group), rank = muster_group_rank(o->group);
    struct found *all = calloc(size, sizeof *all);
    struct commit_offer *offers = calloc(size, sizeof *offers);
    int status = all && offers ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for what %u ranks have found", size);
    if (status != MUSTER_OK) {
        step_failure_tell(o->group, status);
    } else {
        all[rank] = (struct found){.offer = *own,
                                   .is_first = is_first(o),
                                   .attempts = o->attempts,
                                   .has_failed = is_first(o) && has_failed(own)};
        status = muster_all_gather(o->group, &all[rank], all, sizeof *all, MUSTER_UINT8, NULL);
    }
    if (status == MUSTER_OK) {
        judge(o, all, offers, out);
    }
    free(all);
    free(offers);
    return status;
}

/* makers: so many ranks of this host do so at once. If the kernel found out that there is no room for all of them, it
 * might kill one. */
static int make(struct copies *copies, const struct copies_options *o, uint32_t makers, int *out_fd) {
    struct state_region region;
    size_t bytes = region_bytes(&o->kind, copies->writer_count);
    int status = segment_check_room(makers * bytes, "the committed state");
    status = status ? status : state_region_create(NULL, "the committed state", bytes, &region);
    if (status != MUSTER_OK) {
        return status;
    }
    commit_table_init(region.memory, &o->kind, copies->writer_count);
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
        status =
            muster_broadcast(o->replicas, copies->bases[copies->current], copies->stride, MUSTER_UINT8, owner, NULL);
    }
    free(all);
    return status;
}

/* The first rank opens the new life of the table; the others go on when it has. */
static int renew(struct copies *copies, const struct copies_options *o) {
    if (is_first(o)) {
        commit_table_renew(copies->table, copies->writer_count, copies->current, &copies->life);
    }
    int status = muster_barrier(o->group, NULL);
    if (status == MUSTER_OK && copies->step >= 0) {
        copies->current = copy_of(copies, copies->step);
    }
    return status;
}

/* Each agent of a host holds the memory, and without an agent each rank: it lasts while one of them lives. */
static int hold(struct copies *copies, const struct copies_options *o, struct holder *holder, const char *name) {
    const char *local = getenv("LOCAL_RANK");
    bool holds = is_first(o) || !holder_is_agent(holder) || (local && strcmp(local, "0") == 0);
    int status = holds ? holder_put(holder, name, copies->region.segment.fd) : MUSTER_OK;
    (void)close(copies->region.segment.fd);
    copies->region.segment.fd = -1;
    return status;
}

/* Memory is there on all hosts. */
static int open_found(struct copies *copies, const struct copies_options *o, struct holder *holder, const char *name,
                      int fd, bool has) {
    int status = state_region_find(o->row, "the committed state", fd, &copies->region);
    status = status ? status : hold(copies, o, holder, name);
    if (status != MUSTER_OK) {
        return status;
    }
    lay_out(copies, &o->kind);
    status = map_views(copies);
    if (status != MUSTER_OK) {
        return status;
    }
    copies->current = has ? copy_of(copies, copies->step) : 0; /* of the first rank; the others see it in the table */
    if (copies->step >= 0 && o->replicas && is_first(o)) {
        status = replicate(copies, o, has);
    }
    return status ? status : renew(copies, o);
}

static void take_choice(struct copies *copies, const struct copies_options *o, const struct choice *choice) {
    copies->step = choice->step;
    copies->life = (struct commit_life){.from = choice->step, .heard = hear()};
    if (choice->given_up < 0) {
        copies->life.failures = choice->failures;
        return;
    }
    (void)str_format(copies->note, sizeof copies->note,
                     "the program has failed %" PRIu32 " time%s in a row after step %" PRId64
                     ": the state of that step in memory is given up",
                     choice->failures, choice->failures == 1 ? "" : "s", choice->given_up);
    if (muster_group_rank(o->group) == 0) {
        log_warning("%s", copies->note);
    }
}

/* What is for the first rank of a row to do with the holder, is agreed on: the group goes on without it. */
static int open_held(struct copies *copies, const struct copies_options *o, struct holder *holder, const char *name,
                     int *fd) {
    struct commit_offer offer = {{COMMIT_NOTHING, COMMIT_NOTHING}, {.from = COMMIT_NOTHING}};
    int status = is_first(o) ? look(holder, o, name, copies->writer_count, &offer, fd) : MUSTER_OK;
    status = snapshot_agree(o->group, status);
    struct choice choice = {.makers = 0};
    status = status ? status : choose(o, &offer, &choice);
    if (status != MUSTER_OK) {
        return status;
    }
    take_choice(copies, o, &choice);
    bool has = *fd >= 0 && commit_offer_has(&offer, copies->step);
    if (!has && *fd >= 0) {
        (void)close(*fd);
        *fd = -1;
    }
    bool makes = !has && is_first(o);
    /* What is of no use goes first, on all ranks: there may be no room for both. */
    status = snapshot_agree(o->group, makes ? holder_drop(holder, name) : MUSTER_OK);
    status = status ? status : snapshot_agree(o->group, makes ? make(copies, o, choice.makers, fd) : MUSTER_OK);
    if (status != MUSTER_OK) {
        return status; /* nothing is held yet */
    }
    status = open_found(copies, o, holder, name, *fd, has);
    if (status != MUSTER_OK) {
        step_failure_tell(o->group, status);
    }
    return status;
}

/* One agent may have several rows: of hosts that are simulated, or of ranks that share with nobody. */
static void name_memory(const struct copies_options *o, char out[HELD_NAME_BYTES]) {
    const char *local = getenv("LOCAL_RANK"), *host = getenv("MUSTER_HOST_ID");
    if (o->row) {
        (void)str_format(out, HELD_NAME_BYTES, "%.64s/host %.56s", o->name, host ? host : "");
    } else {
        (void)str_format(out, HELD_NAME_BYTES, "%.64s/rank %.56s", o->name, local ? local : "0");
    }
}

static int open_named(struct copies *copies, const struct copies_options *o) {
    struct holder *holder = NULL;
    char name[HELD_NAME_BYTES];
    int fd = -1;
    name_memory(o, name);
    int status = snapshot_agree(o->group, holder_open(&holder));
    status = status ? status : open_held(copies, o, holder, name, &fd);
    if (fd >= 0) {
        (void)close(fd);
    }
    holder_close(holder);
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
            (void)munmap(copies->views[0], COMMIT_COPIES * copies->stride);
        }
        state_region_free(&copies->region);
        free(copies);
    }
}

/* ---- steps ---- */

int64_t copies_step(const struct copies *copies) {
    return copies->step;
}

const char *copies_note(const struct copies *copies) {
    return copies->note;
}

void *copies_current(const struct copies *copies) {
    return (copies->step >= 0 ? copies->views : copies->bases)[copies->current];
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
    bool is_stale = false;
    for (size_t i = 0; i < COMMIT_COPIES; i++) {
        is_stale = is_stale || (copies->bases[i] != current && is_within(copies->bases[i], copies->stride, address)) ||
                   (copies->views[i] != current && is_within(copies->views[i], copies->stride, address));
    }
    return is_stale;
}

ptrdiff_t copies_delta(const struct copies *copies) {
    return copies->bases[other_of(copies)] - (char *)copies_current(copies);
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
    char *copy = copies->is_begun ? copies->bases[other_of(copies)] : copies_current(copies);
    return copy + copies->extra_offset;
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
