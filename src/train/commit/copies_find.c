/* Memory of earlier lives: who looks for it and where, what all ranks have, and which step to go on from. See
 * copies_impl.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <muster/collective.h>

#include "base/fnv.h"
#include "base/status.h"
#include "base/str.h"
#include "train/commit/copies_impl.h"
#include "train/reduction/step_failure.h"

/* ---- looking ---- */

bool copies_holds(const struct copies_options *o, const struct holder *holder) {
    return copies_is_first(o) || holder_looks_after_others(holder);
}

/* One agent may have several rows: of hosts that are simulated, or of ranks that share with nobody. What is cut in
 * parts belongs to the host where it has one row. */
static bool is_of_host(const struct copies_options *o) {
    return o->row || (o->copy_bytes && muster_group_local_size(o->group) == 1);
}

static int look(struct copies_search *search, const struct copies_options *o) {
    const char *host = getenv("MUSTER_HOST_ID");
    char hosts[HELD_FIND_NAME_BYTES], ranks[HELD_FIND_NAME_BYTES];
    (void)str_format(hosts, sizeof hosts, "%.64s/host %.55s", o->name, host ? host : "");
    (void)str_format(ranks, sizeof ranks, "%.64s/rank ", o->name);
    if (is_of_host(o)) {
        (void)str_copy(search->role, sizeof search->role, hosts);
    } else {
        (void)str_format(search->role, sizeof search->role, "%s%.55s", ranks, holder_local_rank());
        search->counted = holder_local_size();
    }
    if (!copies_holds(o, search->holder)) {
        return MUSTER_OK;
    }
    int status = held_finds_look(&search->finds, search->holder, search->role);
    if (status == MUSTER_OK && o->copy_bytes && holder_looks_after_others(search->holder)) { /* of other worlds, too */
        status = held_finds_look(&search->finds, search->holder, hosts);
        status = status ? status : held_finds_look_on(&search->finds, search->holder, ranks);
    }
    return status;
}

/* Nothing in it is trusted. */
static bool is_of_state(const struct held_find *find, const struct copies_options *o) {
    const struct commit_table *table = find->region.memory;
    size_t bytes = held_find_bytes(find);
    if (!table || !commit_table_is_of(table, bytes, o->kind.fingerprint)) {
        return false;
    }
    struct commit_kind kind = commit_table_kind(table);
    struct commit_offer offer = commit_table_offer(table);
    size_t wanted = commit_place_equals(&offer.place, &o->place) ? o->kind.copy_bytes
                    : o->copy_bytes                              ? o->copy_bytes(o->context, &offer.place)
                                                                 : 0;
    return wanted > 0 && kind.copy_bytes == wanted && kind.extra_bytes == o->kind.extra_bytes &&
           copies_region_bytes(&kind, commit_table_room(table)) <= bytes;
}

static bool may_be_own(const struct copies_search *search, const struct copies_options *o, const struct held_find *find,
                       uint32_t writer_count) {
    return copies_is_first(o) && held_find_is_of(find, search->role) &&
           commit_table_fits(find->region.memory, held_find_bytes(find), &o->kind, &o->place, writer_count);
}

/* A state of another shape is no failure: it is not offered, and is dropped. Of two that are the row's own the newer
 * one is. */
static void offer_finds(struct copies_search *search, const struct copies_options *o, uint32_t writer_count) {
    struct copies_found *own = NULL;
    for (size_t i = 0; i < search->finds.count; i++) {
        const struct held_find *find = &search->finds.items[i];
        if (!is_of_state(find, o)) {
            continue;
        }
        struct copies_found *found = &search->own[search->own_count++];
        *found = (struct copies_found){.offer = commit_table_offer(find->region.memory), .find = i};
        if (!may_be_own(search, o, find, writer_count)) {
            continue;
        }
        struct commit_label label = commit_newest(&found->offer, 1), before = {.step = COMMIT_NOTHING};
        if (own) {
            before = commit_newest(&own->offer, 1);
            own->is_own = !commit_label_is_newer(&label, &before);
        }
        found->is_own = !own || !own->is_own;
        own = found->is_own ? found : own;
    }
}

int copies_search_drop(const struct copies_search *search, const char *name) {
    const struct held_use use = {.role = search->role, .name = name, .counted = search->counted};
    return held_finds_drop(&search->finds, search->holder, &use);
}

int copies_search_begin(struct copies_search *search, const struct copies_options *o, uint32_t writer_count) {
    int status = holder_open(&search->holder);
    status = status ? status : look(search, o);
    if (status != MUSTER_OK) {
        return status;
    }
    search->own = calloc(search->finds.count + 1, sizeof *search->own);
    if (!search->own) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu finds", search->finds.count);
    }
    offer_finds(search, o, writer_count);
    for (size_t i = 0; i < search->own_count; i++) {
        search->own[i].rank = muster_group_rank(o->group);
    }
    return MUSTER_OK;
}

/* ---- telling ---- */

struct told {
    uint64_t found_bytes;
    uint32_t is_first, attempts;
    uint32_t has_failed; /* the program, on this rank's node, in the life that has left this */
    uint32_t chance;
};

uint64_t copies_hear(void) {
    const char *text = getenv("MUSTER_FAILED_BY");
    return text && text[0] != '\0' ? fnv_bytes(FNV_BEGIN, text, strlen(text)) : 0;
}

static const struct copies_found *own_of(const struct copies_found *found, size_t count, uint32_t rank) {
    for (size_t i = 0; i < count; i++) {
        if (found[i].is_own && found[i].rank == rank) {
            return &found[i];
        }
    }
    return NULL;
}

/* Processes that outlive others, and come here again, have heard it. */
static bool has_failed(const struct copies_search *search, const struct copies_options *o) {
    uint64_t heard = copies_hear();
    bool is_new = heard != 0 && copies_is_first(o);
    for (size_t i = 0; i < search->own_count; i++) {
        is_new = is_new && heard != search->own[i].offer.life.heard;
    }
    return is_new;
}

static struct told tell_own(const struct copies_search *search, const struct copies_options *o) {
    struct told told = {.found_bytes = search->own_count * sizeof *search->own,
                        .is_first = copies_is_first(o),
                        .attempts = o->attempts,
                        .has_failed = has_failed(search, o)};
    if (getrandom(&told.chance, sizeof told.chance, GRND_NONBLOCK) != (ssize_t)sizeof told.chance) {
        told.chance = (uint32_t)(uintptr_t)search; /* lives are counted besides */
    }
    return told;
}

static int gather_finds(struct copies_search *search, const struct copies_options *o, const struct told *told) {
    uint32_t size = muster_group_size(o->group);
    size_t *counts = calloc(size, sizeof *counts), bytes = 0;
    for (uint32_t i = 0; counts && i < size; i++) {
        counts[i] = (size_t)told[i].found_bytes;
        bytes += counts[i];
    }
    search->all = malloc(bytes + 1);
    search->all_count = bytes / sizeof *search->all;
    int status = counts && search->all ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for what is found");
    if (status != MUSTER_OK) {
        step_failure_tell(o->group, status);
    } else if (bytes > 0) {
        status = muster_all_gather_v(o->group, search->own, search->all, counts, MUSTER_UINT8, NULL);
    }
    free(counts);
    return status;
}

/* ---- choosing ---- */

/* Who is to make memory on this host? */
static void count_makers(struct copies_search *search, const struct copies_options *o, const struct told *told) {
    uint32_t host = muster_group_host_of(o->group, muster_group_rank(o->group));
    struct copies_choice *choice = &search->choice;
    for (uint32_t rank = 0; rank < muster_group_size(o->group); rank++) {
        const struct copies_found *own = choice->way.moves ? NULL : own_of(search->all, search->all_count, rank);
        bool has = own && commit_offer_copy(&own->offer, &choice->way.label) < COMMIT_COPIES;
        choice->makers += told[rank].is_first && !has && muster_group_host_of(o->group, rank) == host;
    }
}

static void judge(const struct copies_options *o, const struct told *told, const struct commit_offer *offers,
                  size_t count, const struct commit_offer *rows, size_t row_count, struct copies_choice *out) {
    bool has_failed_anywhere = false;
    for (uint32_t i = 0; i < muster_group_size(o->group); i++) {
        has_failed_anywhere = has_failed_anywhere || told[i].has_failed;
    }
    /* Where all have everything, memory of another place cannot be. */
    out->way = commit_choose(offers, o->copy_bytes ? count : 0, rows, row_count, o->replicas != NULL);
    out->number = commit_next_life(offers, count, told[0].chance);
    out->given_up = count > 0 ? offers[0].life.given_up : 0;
    out->failures = commit_count_failures(offers, count, out->way.label.step, has_failed_anywhere);
    out->given_up_step = COMMIT_NOTHING;
    if (has_failed_anywhere && told[0].attempts > 0 && out->failures >= told[0].attempts) {
        out->given_up_step = out->way.label.step;
        out->given_up = out->number - 1;
        out->way.label.step = COMMIT_NOTHING;
        out->way.moves = false;
    }
}

static int choose(struct copies_search *search, const struct copies_options *o, const struct told *told) {
    uint32_t size = muster_group_size(o->group);
    size_t row_count = 0;
    struct commit_offer *offers = calloc(search->all_count + 1, sizeof *offers), *rows = calloc(size, sizeof *rows);
    if (!offers || !rows) {
        free(offers);
        free(rows);
        int status = status_fail(MUSTER_ENOMEM, "no memory for what %u ranks have found", size);
        step_failure_tell(o->group, status);
        return status;
    }
    for (size_t i = 0; i < search->all_count; i++) {
        offers[i] = search->all[i].offer;
    }
    commit_offers_forget(offers, search->all_count);
    for (size_t i = 0; i < search->all_count; i++) {
        search->all[i].offer = offers[i];
    }
    for (uint32_t rank = 0; rank < size; rank++) {
        const struct copies_found *own = own_of(search->all, search->all_count, rank);
        if (told[rank].is_first) {
            rows[row_count++] =
                own ? own->offer : (struct commit_offer){.steps = {COMMIT_NOTHING, COMMIT_NOTHING}, .place = o->place};
        }
    }
    judge(o, told, offers, search->all_count, rows, row_count, &search->choice);
    count_makers(search, o, told);
    free(offers);
    free(rows);
    return MUSTER_OK;
}

int copies_search_choose(struct copies_search *search, const struct copies_options *o) {
    uint32_t size = muster_group_size(o->group), rank = muster_group_rank(o->group);
    struct told *told = calloc(size, sizeof *told);
    if (!told) {
        int status = status_fail(MUSTER_ENOMEM, "no memory for what %u ranks have found", size);
        step_failure_tell(o->group, status);
        return status;
    }
    told[rank] = tell_own(search, o);
    int status = muster_all_gather(o->group, &told[rank], told, sizeof *told, MUSTER_UINT8, NULL);
    status = status ? status : gather_finds(search, o, told);
    status = status ? status : choose(search, o, told);
    free(told);
    return status;
}

int copies_search_take_own(struct copies_search *search) {
    for (size_t i = 0; !search->choice.way.moves && i < search->own_count; i++) {
        const struct copies_found *found = &search->own[i];
        struct held_find *find = &search->finds.items[found->find];
        if (found->is_own && commit_offer_copy(&found->offer, &search->choice.way.label) < COMMIT_COPIES) {
            int fd = find->fd;
            find->fd = -1;
            return fd;
        }
    }
    return -1;
}

void copies_search_forgo(struct copies_search *search) {
    search->choice.way.label.step = COMMIT_NOTHING;
    search->choice.way.moves = false;
    for (size_t i = 0; i < search->finds.count; i++) {
        search->finds.items[i].is_needed = false;
    }
}

void copies_search_done(struct copies_search *search) {
    held_finds_done(&search->finds);
    holder_close(search->holder);
    free(search->own);
    free(search->all);
    *search = (struct copies_search){.holder = NULL};
}
