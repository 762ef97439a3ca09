/* See checkpoint_job_test_support.h. */
#include "train/checkpoint/checkpoint_job_test_support.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void job_init(struct job *job, const struct test_cut *cut) {
    struct test_cut own = *cut;
    *job = (struct job){.size = cut->size};
    for (own.rank = 0; own.rank < job->size; own.rank++) {
        test_state_init(&job->states[own.rank], test_small, TEST_SMALL_COUNT, &own);
    }
}

void job_done(struct job *job) {
    for (uint32_t rank = 0; rank < job->size; rank++) {
        test_state_done(&job->states[rank]);
    }
}

void job_fill(struct job *job, int64_t tag) {
    for (uint32_t rank = 0; rank < job->size; rank++) {
        test_state_fill(&job->states[rank], tag);
    }
}

int64_t job_tag(const struct job *job) {
    int64_t tag = test_state_tag(&job->states[0]);
    for (uint32_t rank = 1; rank < job->size; rank++) {
        tag = test_state_tag(&job->states[rank]) == tag ? tag : 0;
    }
    return tag;
}

/* ---- loading ---- */

/* What checkpoint_load.c's exchange does: shares of whole tensors reach all. */
static void exchange_tensor(struct job *job, size_t index) {
    const struct muster_tensor *tensor = &job->states[0].tensors[index];
    size_t bytes = muster_type_bytes(tensor->type);
    uint64_t count = state_element_count(tensor);
    for (uint32_t from = 0; from < job->size; from++) {
        uint64_t first = state_even_first(count, from, job->size), end = state_even_first(count, from + 1, job->size);
        for (uint32_t to = 0; to < job->size; to++) {
            memmove((uint8_t *)job->states[to].tensors[index].data + first * bytes,
                    (uint8_t *)job->states[from].tensors[index].data + first * bytes, (size_t)(end - first) * bytes);
        }
    }
}

static int load_rank(struct job *job, const struct snapshot_folder *folder, const struct checkpoint_map *map,
                     uint32_t rank, int64_t until_ms) {
    struct test_state *state = &job->states[rank];
    struct checkpoint_ranges ranges = {.items = NULL};
    uint32_t order[TEST_SMALL_COUNT];
    const struct checkpoint_renames none = {NULL, 0};
    const struct checkpoint_listener nobody = {.tell = NULL};
    struct device_stage stage;
    device_stage_init(&stage, NULL, 0);
    int code = checkpoint_match(map, &state->description, &none, order);
    code = code ? code : checkpoint_ranges_of_state(&state->description, order, rank, job->size, &ranges);
    code = code ? code : checkpoint_read_ranges(folder, map, &ranges, until_ms, &nobody, &stage);
    checkpoint_ranges_done(&ranges);
    return code ? code : checkpoint_map_values(map, state->values, 3, true);
}

int job_load(struct job *job, const struct snapshot_folder *folder, const struct checkpoint_record *record) {
    struct checkpoint_map map;
    uint8_t *text = NULL;
    int64_t until_ms = folder->io->now_ms(folder->io->ctx) + JOB_PATIENCE_MS;
    int code = checkpoint_read_map(folder, record, until_ms, &text);
    code = code ? code : checkpoint_map_decode(text, (size_t)record->map_bytes, &map);
    free(text);
    if (code) {
        return code;
    }
    for (uint32_t rank = 0; rank < job->size && code == 0; rank++) {
        code = load_rank(job, folder, &map, rank, until_ms);
    }
    checkpoint_map_done(&map);
    for (size_t i = 0; i < TEST_SMALL_COUNT && code == 0; i++) {
        if (job->states[0].tensors[i].data) {
            exchange_tensor(job, i);
        }
    }
    return code;
}

/* ---- saving ---- */

/* A save by all ranks of a job. */
struct saving {
    struct job *job;
    struct disk *disk;
    struct checkpoint_save saves[JOB_RANKS_MAX];
    struct job_trouble *trouble;
};

/* The disk's trouble is of one rank: before it does something, and after. */
static void enter(struct saving *s, uint32_t rank) {
    const struct job_trouble *t = s->trouble;
    bool mine = rank == t->victim && t->at > 0;
    s->disk->calls = mine ? t->calls : 0;
    s->disk->at = mine ? t->at : 0;
    s->disk->trouble = t->trouble;
    s->disk->stopped = mine && t->is_dead;
}

static void leave(struct saving *s, uint32_t rank) {
    struct job_trouble *t = s->trouble;
    if (rank == t->victim && t->at > 0) {
        t->calls = s->disk->calls;
        t->is_dead = s->disk->stopped;
        t->was_troubled = t->was_troubled || s->disk->troubled;
    }
    s->disk->stopped = false;
    s->disk->at = 0;
}

static int begin_all(struct saving *s, const struct snapshot_io *io, int64_t step,
                     const struct checkpoint_settings *settings) {
    int code = 0;
    for (uint32_t rank = 0; rank < s->job->size; rank++) {
        struct checkpoint_save *save = &s->saves[rank];
        int own = checkpoint_save_begin(save, io, "d", step, &s->job->states[rank].description, rank, s->job->size);
        save->settings = *settings;
        code = code ? code : own;
    }
    return code;
}

/* What rank 0 hears from all: the ranges that no rule tells. */
static int gather_ranges(struct saving *s) {
    struct checkpoint_map *map = &s->saves[0].map;
    size_t total = 0;
    for (uint32_t rank = 0; rank < s->job->size; rank++) {
        total += s->saves[rank].ranges.count;
    }
    int code = checkpoint_map_make_room(map, s->job->size, total);
    map->range_count = 0;
    for (uint32_t rank = 0; rank < s->job->size && code == 0; rank++) {
        const struct checkpoint_ranges *ranges = &s->saves[rank].ranges;
        map->parts[rank].listed.items = map->ranges + map->range_count;
        for (size_t i = 0; i < ranges->count; i++) {
            if (!map->tensors[ranges->items[i].tensor].is_even) {
                map->ranges[map->range_count] = ranges->items[i];
                map->ranges[map->range_count++].data = NULL;
                map->parts[rank].listed.count++;
            }
        }
    }
    return code ? code : checkpoint_map_check(map);
}

/* What rank 0 tells all of the checkpoint before. */
static void share_base(struct saving *s) {
    struct checkpoint_map map;
    enter(s, 0);
    int code = checkpoint_save_find_base(&s->saves[0], &map);
    leave(s, 0);
    for (uint32_t rank = 0; rank < s->job->size && code == 0; rank++) {
        s->saves[rank].base =
            (struct checkpoint_base){.has_part = true, .step = map.step, .token = map.token, .part = map.parts[rank]};
        s->saves[rank].base.part.listed = (struct checkpoint_ranges){.items = NULL};
    }
    checkpoint_map_done(&map);
}

/* Each in any order, and each to its end, also when another has failed: so it is in real life. */
static int save_parts(struct saving *s) {
    uint32_t shift = disk_random(s->disk, s->job->size);
    int code = 0;
    for (uint32_t i = 0; i < s->job->size; i++) {
        uint32_t rank = (i + shift) % s->job->size;
        struct checkpoint_part *part = &s->saves[0].map.parts[rank];
        struct checkpoint_part own = {.bytes = 0};
        s->saves[rank].token = s->saves[0].token;
        enter(s, rank);
        int result = checkpoint_save_part(&s->saves[rank], &own);
        leave(s, rank);
        code = code ? code : result;
        part->bytes = own.bytes;
        part->data_at = own.data_at;
        part->digest = own.digest;
    }
    return code;
}

/* ---- saving by one process ---- */

/* A state that comes in pieces of any size, each tensor from its beginning to its end. */
struct feed {
    const struct job *job;
    uint64_t done[TEST_TENSORS_MAX], random;
    uint8_t piece[64]; /* overwritten by the next one */
};

static int next_piece(void *context, size_t tensor, uint64_t most, const void **out, uint64_t *out_bytes) {
    struct feed *feed = context;
    const struct muster_tensor *of = &feed->job->states[0].tensors[tensor];
    uint64_t room = most < sizeof feed->piece ? most : sizeof feed->piece;
    uint64_t count = 1 + test_random(&feed->random, (uint32_t)room);
    memcpy(feed->piece, (const uint8_t *)of->data + feed->done[tensor], count);
    feed->done[tensor] += count;
    assert(feed->done[tensor] <= state_element_count(of) * muster_type_bytes(of->type));
    *out = feed->piece;
    *out_bytes = count;
    return 0;
}

static int go_on(void *context) {
    const struct job *job = ((struct feed *)context)->job;
    return job->go_on ? job->go_on(job->go_on_context) : 0;
}

static int save_alone(struct saving *s, const struct snapshot_io *io, int64_t step,
                      const struct checkpoint_settings *settings) {
    struct feed feed = {.job = s->job, .random = (uint64_t)step};
    const struct snapshot_source source = {.context = &feed, .next = next_piece, .go_on = go_on};
    struct state_description description = s->job->states[0].description;
    struct muster_tensor tensors[TEST_TENSORS_MAX];
    for (size_t i = 0; i < description.tensor_count; i++) {
        tensors[i] = description.tensors[i];
        tensors[i].data = snapshot_from_source;
    }
    description.tensors = tensors;
    enter(s, s->trouble->victim);
    int code = checkpoint_save_parts_on(io, "d", step, &description, s->job->alone_parts, settings, &source);
    leave(s, s->trouble->victim);
    return code;
}

/* ---- both ---- */

int job_save(struct job *job, struct disk *disk, const struct snapshot_io *io, int64_t step, uint32_t keep,
             struct job_trouble *trouble) {
    static const uint32_t witnesses[JOB_RANKS_MAX] = {0, 1, 2, 3};
    const struct checkpoint_settings settings = {.keep = keep,
                                                 .visible_ms = JOB_PATIENCE_MS,
                                                 .block_bytes = JOB_BLOCK_BYTES,
                                                 .write_bytes = JOB_WRITE_BYTES,
                                                 .incremental = job->is_incremental};
    struct saving s = {.job = job, .disk = disk, .trouble = trouble};
    if (job->alone_parts > 0) {
        return save_alone(&s, io, step, &settings);
    }
    int code = begin_all(&s, io, step, &settings);
    code = code ? code : gather_ranges(&s);
    enter(&s, 0);
    code = code ? code : checkpoint_save_open(&s.saves[0]);
    leave(&s, 0);
    if (code == 0 && job->is_incremental) {
        share_base(&s);
    }
    code = code ? code : save_parts(&s);
    enter(&s, 0);
    code = code ? code : checkpoint_save_commit(&s.saves[0], witnesses, job->size);
    leave(&s, 0);
    for (uint32_t rank = 0; rank < job->size; rank++) {
        enter(&s, rank);
        checkpoint_save_end(&s.saves[rank], code == 0);
        leave(&s, rank);
    }
    return code;
}
