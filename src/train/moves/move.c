/* See move.h. */
#include "train/moves/move.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/status.h"
#include "train/layout/reshard.h"
#include "train/state/snapshot_parts.h"

/* What a rank sends in one round, and the least that it sends to one rank. */
enum { ROUND_BYTES = 4 << 20, WINDOW_BYTES_MIN = 64 << 10 };

/* What comes next for a rank. */
struct cursor {
    size_t tensor, walked;
};

struct move {
    const struct move_options *o;
    uint32_t *source_of;      /* of each part of the old layout */
    uint32_t *part_of;        /* of each rank, in this world */
    struct cursor *cursors;   /* of each rank */
    size_t *sends, *receives; /* bytes of a round */
    size_t *places;           /* of each rank in what is received */
    size_t window;            /* elements that a rank gets in a round */
    char *out, *in;
    uint32_t size, rank;
};

static int find_parts(struct move *move) {
    const struct move_source *sources = move->o->sources;
    size_t count = move->o->source_count;
    for (uint32_t part = 0; part < move->o->old->part_count; part++) {
        uint32_t i = 0;
        while (i < count && part % sources[i].place.stride != sources[i].place.first) {
            i++;
        }
        if (i == count) {
            return status_fail(MUSTER_EINVAL, "part %u of a state in memory is missing", part);
        }
        move->source_of[part] = i;
    }
    return MUSTER_OK;
}

/* ---- a round ---- */

/* The next run of part `to`, at most `most` elements; moves the cursor behind it. */
static bool next_run(const struct move *move, struct cursor *cursor, uint32_t to, size_t most, struct reshard_run *run,
                     struct move_range *range) {
    const struct move_options *o = move->o;
    while (cursor->tensor < o->tensor_count) {
        uint32_t item = o->item(o->context, cursor->tensor);
        if (reshard_next(o->old, o->now, item, to, cursor->walked, most, run)) {
            *range = (struct move_range){cursor->tensor, run->offset, run->count};
            cursor->walked += run->count;
            return true;
        }
        if (most == 0) {
            return false;
        }
        *cursor = (struct cursor){.tensor = cursor->tensor + 1};
    }
    return false;
}

/* Counts what this rank sends and gets for the window of one rank, and collects what it sends. */
static void collect(struct move *move, uint32_t to_rank, size_t *sent) {
    struct reshard_run run;
    struct move_range range;
    for (size_t left = move->window;
         next_run(move, &move->cursors[to_rank], move->part_of[to_rank], left, &run, &range); left -= run.count) {
        const struct move_source *source = &move->o->sources[move->source_of[run.from]];
        size_t bytes = run.count * sizeof(float);
        if (source->rank == move->rank) {
            memcpy(move->out + *sent, move->o->from(move->o->context, source, &range, run.from), bytes);
            *sent += bytes;
            move->sends[to_rank] += bytes;
        }
        if (to_rank == move->rank) {
            move->receives[source->rank] += bytes;
        }
    }
}

/* What has come lies in the order of the ranks that sent it. */
static void spread(struct move *move, struct cursor *cursor) {
    struct reshard_run run;
    struct move_range range;
    size_t at = 0;
    for (uint32_t rank = 0; rank < move->size; rank++) {
        move->places[rank] = at;
        at += move->receives[rank];
    }
    for (size_t left = move->window; next_run(move, cursor, move->part_of[move->rank], left, &run, &range);
         left -= run.count) {
        size_t *place = &move->places[move->o->sources[move->source_of[run.from]].rank];
        memcpy(move->o->to(move->o->context, &range), move->in + *place, run.count * sizeof(float));
        *place += run.count * sizeof(float);
    }
}

/* False: nobody gets anything any more. */
static bool exchange(struct move *move, int *status) {
    struct cursor own = move->cursors[move->rank];
    size_t sent = 0, tensors = move->o->tensor_count;
    bool is_over = true;
    for (uint32_t rank = 0; rank < move->size; rank++) {
        move->sends[rank] = move->receives[rank] = 0;
        is_over = is_over && move->cursors[rank].tensor == tensors;
    }
    if (is_over) {
        return false;
    }
    for (uint32_t rank = 0; rank < move->size; rank++) {
        collect(move, rank, &sent);
    }
    *status = muster_all_to_all_v(move->o->group, move->out, move->sends, move->in, move->receives, MUSTER_UINT8, NULL);
    if (*status == MUSTER_OK) {
        spread(move, &own);
    }
    return *status == MUSTER_OK;
}

/* ---- all of it ---- */

static int prepare(struct move *move) {
    uint32_t size = move->size;
    size_t room = ROUND_BYTES / size > WINDOW_BYTES_MIN ? ROUND_BYTES / size : WINDOW_BYTES_MIN;
    move->window = room / sizeof(float);
    move->source_of = calloc(move->o->old->part_count, sizeof *move->source_of);
    move->part_of = calloc(size, sizeof *move->part_of);
    move->cursors = calloc(size, sizeof *move->cursors);
    move->sends = calloc(size, sizeof *move->sends);
    move->receives = calloc(size, sizeof *move->receives);
    move->places = calloc(size, sizeof *move->places);
    move->out = malloc(size * room);
    move->in = malloc(room);
    if (!move->source_of || !move->part_of || !move->cursors || !move->sends || !move->receives || !move->places ||
        !move->out || !move->in) {
        return status_fail(MUSTER_ENOMEM, "no memory to move a state in memory to %u ranks", size);
    }
    return find_parts(move);
}

static void done(struct move *move) {
    free(move->source_of);
    free(move->part_of);
    free(move->cursors);
    free(move->sends);
    free(move->receives);
    free(move->places);
    free(move->out);
    free(move->in);
}

int move_state(const struct move_options *options) {
    struct muster_group *group = options->group;
    struct move move = {.o = options, .size = muster_group_size(group), .rank = muster_group_rank(group)};
    int status = snapshot_agree(group, prepare(&move));
    if (status == MUSTER_OK) {
        move.part_of[move.rank] = options->part;
        status = muster_all_gather(group, &move.part_of[move.rank], move.part_of, 1, MUSTER_UINT32, NULL);
    }
    while (status == MUSTER_OK && exchange(&move, &status)) {
    }
    done(&move);
    return status;
}
