/* Checkpoints against a disk that fails (train/state/disk_model.h): jobs of several ranks that load and save, of which
 * one rank is stopped in the middle of any call, with and without a loss of power; calls that fail; names that others
 * see late; and files in which bits flip. All ranks are played in one thread, each stage by all ranks in any order, as
 * checkpoint_save.c and checkpoint_load.c have them do it.
 *
 *   checkpoint_crash_test                   a few thousand injected troubles
 *   checkpoint_crash_test COUNT [SEED]      so many
 *
 * Prints the seed of a life that went wrong; `checkpoint_crash_test 1 SEED` repeats it. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/checkpoint/checkpoint_test_support.h"
#include "train/state/disk_model.h"

enum {
    STEPS = 8,
    RANKS_HERE_MAX = 4,
    BLOCK_BYTES = 16,
    TAGS_MAX = 64,
    FAULTS_SHOWN_MAX = 10,
    PATIENCE_MS = 4000,
    DELAY_MS = 3000
};

/* What may lie under one step. */
struct expected {
    int64_t promised;         /* a save of this number was complete and nothing has replaced it; 0: none */
    int64_t others[TAGS_MAX]; /* numbers of later saves that did not say so */
    size_t other_count;
};

/* One disk, several jobs after one another. */
struct life {
    struct disk disk;
    struct snapshot_io io;
    struct expected expected[STEPS];
    int64_t found[STEPS]; /* numbers that lie there, as last looked; 0: none */
    uint32_t keep;
    int64_t last_tag;
    uint64_t seed;
    const char *fault; /* the first thing that went wrong */
};

static struct { unsigned long stops, power_losses, failures, damages, loads, faults, lives, late; } tally;

static void fault(struct life *life, const char *what) {
    if (!life->fault) {
        life->fault = what;
        tally.faults++;
        if (tally.faults <= FAULTS_SHOWN_MAX) {
            (void)fprintf(stderr, "seed %" PRIu64 ": %s (%s)\n", life->seed, what, muster_detail());
        }
    }
}

/* ---- a job: ranks and what they have ---- */

struct job {
    uint32_t size;
    struct test_state states[RANKS_HERE_MAX];
};

/* The number of the state that all ranks have in their parts, or 0. Tensors that all have whole are looked at on every
 * rank. */
static int64_t job_tag(const struct job *job) {
    int64_t tag = test_state_tag(&job->states[0]);
    for (uint32_t rank = 1; rank < job->size; rank++) {
        tag = test_state_tag(&job->states[rank]) == tag ? tag : 0;
    }
    return tag;
}

static void job_init(struct life *life, struct job *job) {
    struct test_cut cut = {.seed = disk_random(&life->disk, 1000), .whole = disk_random(&life->disk, 6) == 0};
    cut.size = job->size = 1 + disk_random(&life->disk, RANKS_HERE_MAX);
    for (cut.rank = 0; cut.rank < job->size; cut.rank++) {
        test_state_init(&job->states[cut.rank], test_small, TEST_SMALL_COUNT, &cut);
    }
}

static void job_done(struct job *job) {
    for (uint32_t rank = 0; rank < job->size; rank++) {
        test_state_done(&job->states[rank]);
    }
}

/* ---- loading ---- */

/* What checkpoint_load.c's exchange does: shares of whole tensors reach all. */
static void exchange_shares(struct job *job) {
    for (size_t i = 0; i < TEST_SMALL_COUNT; i++) {
        const struct muster_tensor *tensor = &job->states[0].tensors[i];
        size_t bytes = muster_type_bytes(tensor->type);
        for (uint32_t from = 0; from < job->size && tensor->data; from++) {
            uint64_t count = state_element_count(tensor);
            uint64_t first = state_even_first(count, from, job->size),
                     end = state_even_first(count, from + 1, job->size);
            for (uint32_t to = 0; to < job->size; to++) {
                memmove((uint8_t *)job->states[to].tensors[i].data + first * bytes,
                        (uint8_t *)job->states[from].tensors[i].data + first * bytes, (size_t)(end - first) * bytes);
            }
        }
    }
}

static int read_rank(const struct snapshot_folder *folder, const struct checkpoint_map *map, struct job *job,
                     uint32_t rank, int64_t until_ms) {
    struct test_state *state = &job->states[rank];
    struct checkpoint_ranges ranges = {.items = NULL};
    uint32_t order[TEST_SMALL_COUNT];
    int code = checkpoint_match(map, &state->description, order);
    code = code ? code : checkpoint_ranges_of_state(&state->description, order, rank, job->size, &ranges);
    code = code ? code : checkpoint_read_ranges(folder, map, &ranges, until_ms);
    checkpoint_ranges_done(&ranges);
    return code ? code : checkpoint_map_values(map, state->values, 3, true);
}

/* All ranks load the checkpoint of this record. */
static int read_all(struct life *life, const struct snapshot_folder *folder, const struct checkpoint_record *record,
                    struct job *job) {
    struct checkpoint_map map;
    uint8_t *text = NULL;
    int64_t until_ms = life->disk.now_ms + PATIENCE_MS;
    int code = checkpoint_read_map(folder, record, until_ms, &text);
    code = code ? code : checkpoint_map_decode(text, (size_t)record->map_bytes, &map);
    free(text);
    if (code) {
        return code;
    }
    for (uint32_t rank = 0; rank < job->size && code == 0; rank++) {
        code = read_rank(folder, &map, job, rank, until_ms);
    }
    checkpoint_map_done(&map);
    if (code == 0) {
        exchange_shares(job);
    }
    return code;
}

static int64_t loaded_tag(struct life *life, const struct job *job) {
    int64_t tag = job_tag(job);
    tally.loads++;
    if (tag == 0) {
        fault(life, "a load gave a mixture");
    }
    return tag;
}

/* Loads one step with a job of any size; 0 when that is refused. */
static int64_t load_step(struct life *life, int64_t step, int *out_code) {
    struct job job = {.size = 0};
    struct snapshot_folder folder = {.handle = -1};
    struct checkpoint_record record;
    int code = snapshot_folder_open(&folder, &life->io, "d", false);
    job_init(life, &job);
    code = code ? code : checkpoint_read_record(&folder, step, &record);
    code = code ? code : read_all(life, &folder, &record, &job);
    int64_t tag = code ? 0 : loaded_tag(life, &job);
    snapshot_folder_close(&folder);
    job_done(&job);
    if (out_code) {
        *out_code = code;
    }
    return tag;
}

/* Loads the newest that can be loaded, as a job does. Gives its step, or -1. */
static int64_t load_newest(struct life *life, int64_t *out_tag) {
    struct job job = {.size = 0};
    struct snapshot_folder folder = {.handle = -1};
    struct checkpoint_search search = {.next = 0};
    struct checkpoint_record record;
    int64_t step = -1;
    job_init(life, &job);
    int code = snapshot_folder_open(&folder, &life->io, "d", false);
    code = code ? code : checkpoint_search_begin(&search, &folder);
    while (code == 0 && step < 0) {
        code = checkpoint_search_next(&search, &folder, INT64_MAX, &record);
        if (code == 0 && read_all(life, &folder, &record, &job) == 0) {
            step = record.step;
            *out_tag = loaded_tag(life, &job);
        } else if (code == 0) {
            checkpoint_pass_over(&search.found, record.step, muster_detail());
        }
    }
    if ((search.found.passed_over > 0) != (search.found.note[0] != '\0')) {
        fault(life, "passed over without saying so");
    }
    checkpoint_search_done(&search);
    snapshot_folder_close(&folder);
    job_done(&job);
    return step;
}

/* ---- looking ---- */

static bool may_be(const struct expected *expected, int64_t tag) {
    bool known = tag == expected->promised;
    for (size_t i = 0; i < expected->other_count; i++) {
        known = known || tag == expected->others[i];
    }
    return known;
}

/* Would a save that completed have removed `step`? One of a greater step that is there, with enough between. */
static bool is_surplus(const struct life *life, int64_t step) {
    uint32_t newer = 0;
    for (int64_t s = step + 1; s < STEPS; s++) {
        newer += life->found[s] != 0;
    }
    return newer >= life->keep;
}

/* Looks at every step, and for the newest. */
static void look(struct life *life) {
    int64_t newest = -1, tag = 0;
    disk_start(&life->disk, 0, DISK_STOP);
    for (int64_t step = 0; step < STEPS; step++) {
        life->found[step] = load_step(life, step, NULL);
        newest = life->found[step] ? step : newest;
    }
    for (int64_t step = 0; step < STEPS; step++) {
        const struct expected *expected = &life->expected[step];
        if (life->found[step] && !may_be(expected, life->found[step])) {
            fault(life, "a step holds what was never saved as it, or was replaced");
        }
        if (!life->found[step] && expected->promised && !is_surplus(life, step)) {
            fault(life, "a checkpoint that was saved is lost");
        }
    }
    int64_t loaded = load_newest(life, &tag);
    if (loaded != newest || (newest >= 0 && tag != life->found[newest])) {
        fault(life, "the newest whole checkpoint is not the one loaded");
    }
    if (disk_open_handles(&life->disk) != 0) {
        fault(life, "a handle is left open");
    }
}

static void add_other(struct expected *expected, int64_t tag) {
    if (tag != 0 && !may_be(expected, tag)) {
        assert_true(expected->other_count < TAGS_MAX);
        expected->others[expected->other_count++] = tag;
    }
}

/* A save of `step` is complete: what is there now is what must stay. */
static void promise(struct life *life, int64_t step, int64_t tag, bool troubled) {
    int64_t before[STEPS];
    memcpy(before, life->found, sizeof before);
    life->expected[step] = (struct expected){.promised = tag};
    if (life->disk.delay_ms > 0) {
        int64_t early = 0; /* of other hosts, which see some names and not others */
        int64_t seen = load_newest(life, &early);
        if (seen >= 0 && early != tag && early != before[seen]) {
            fault(life, "a load that came early gave something else");
        }
        life->disk.now_ms += DELAY_MS;
    }
    look(life);
    uint32_t kept = 1;
    for (int64_t s = step - 1; s >= 0; s--) {
        bool wanted = before[s] && kept < life->keep;
        kept += wanted;
        if (life->found[s] != (wanted ? before[s] : 0) && !troubled) {
            fault(life, "other checkpoints are kept than the newest");
        }
    }
    if (life->found[step] != tag) {
        fault(life, "what was saved is not there");
    }
    /* What was removed may be back after a loss of power, since nobody waits for removals: older than what is promised,
     * it does no harm. */
    for (int64_t s = 0; s < STEPS; s++) {
        int64_t removed = life->expected[s].promised;
        if (life->found[s]) {
            life->expected[s] = (struct expected){.promised = life->found[s]};
        } else {
            life->expected[s].promised = 0;
            add_other(&life->expected[s], removed);
        }
    }
}

/* ---- saving ---- */

/* A save by all ranks of a job. */
struct saving {
    struct life *life;
    struct job *job;
    struct checkpoint_save saves[RANKS_HERE_MAX];
    uint32_t victim;   /* which rank has the trouble */
    unsigned at, seen; /* at which of its calls; calls that it has made */
    enum disk_trouble trouble;
    bool is_dead, was_troubled;
};

/* The disk's trouble is of one rank: before it does something, and after. */
static void enter(struct saving *s, uint32_t rank) {
    struct disk *disk = &s->life->disk;
    bool mine = rank == s->victim && s->at > 0;
    disk->calls = mine ? s->seen : 0;
    disk->at = mine ? s->at : 0;
    disk->trouble = s->trouble;
    disk->stopped = mine && s->is_dead;
}

static void leave(struct saving *s, uint32_t rank) {
    struct disk *disk = &s->life->disk;
    if (rank == s->victim && s->at > 0) {
        s->seen = disk->calls;
        s->is_dead = disk->stopped;
        s->was_troubled = s->was_troubled || disk->troubled;
    }
    disk->stopped = false;
    disk->at = 0;
}

static int begin_all(struct saving *s, int64_t step) {
    int code = 0;
    for (uint32_t rank = 0; rank < s->job->size; rank++) {
        struct checkpoint_save *save = &s->saves[rank];
        int own =
            checkpoint_save_begin(save, &s->life->io, "d", step, &s->job->states[rank].description, rank, s->job->size);
        save->settings =
            (struct checkpoint_settings){.keep = s->life->keep, .visible_ms = PATIENCE_MS, .block_bytes = BLOCK_BYTES};
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

/* Each in any order, and each to its end, also when another has failed: so it is in real life. */
static int save_parts(struct saving *s) {
    uint32_t shift = disk_random(&s->life->disk, s->job->size);
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

static int run_saving(struct saving *s, int64_t step) {
    static const uint32_t witnesses[RANKS_HERE_MAX] = {0, 1, 2, 3};
    int code = begin_all(s, step);
    code = code ? code : gather_ranges(s);
    enter(s, 0);
    code = code ? code : checkpoint_save_open(&s->saves[0]);
    leave(s, 0);
    code = code ? code : save_parts(s);
    enter(s, 0);
    code = code ? code : checkpoint_save_commit(&s->saves[0], witnesses, s->job->size);
    leave(s, 0);
    for (uint32_t rank = 0; rank < s->job->size; rank++) {
        enter(s, rank);
        checkpoint_save_end(&s->saves[rank], code == 0);
        leave(s, rank);
    }
    return code;
}

/* One save, in which rank `victim` has trouble at its call `at`. False: a rank has died, or the save failed. */
static bool save_step(struct life *life, int64_t step, unsigned at, enum disk_trouble trouble) {
    struct job job = {.size = 0};
    struct saving s = {.life = life, .job = &job, .at = at, .trouble = trouble};
    job_init(life, &job);
    s.victim = disk_random(&life->disk, job.size);
    int64_t tag = ++life->last_tag;
    for (uint32_t rank = 0; rank < job.size; rank++) {
        test_state_fill(&job.states[rank], tag);
    }
    add_other(&life->expected[step], tag);
    disk_start(&life->disk, 0, DISK_STOP);
    status_clear();
    int code = run_saving(&s, step);
    if (disk_open_handles(&life->disk) != 0) {
        fault(life, "a save leaves a handle open");
    }
    if (code && (!s.was_troubled || muster_detail()[0] == '\0')) {
        fault(life, "a save failed without trouble, or without a word");
    }
    if (code && trouble == DISK_FAIL && life->disk.delay_ms == 0 && disk_count(&life->disk, ".tmp") != 0) {
        fault(life, "a failed save leaves a temporary file");
    }
    job_done(&job);
    if (code == 0) {
        promise(life, step, tag, s.was_troubled || life->disk.delay_ms > 0);
    }
    tally.stops += s.was_troubled && trouble == DISK_STOP;
    tally.failures += s.was_troubled && trouble != DISK_STOP;
    return code == 0 && !s.is_dead;
}

/* ---- damage ---- */

/* Flips a bit, cuts, lengthens, or zeroes a sector of one file; false when that changes nothing. */
static bool damage(struct disk *disk, struct disk_file *file) {
    size_t bytes = file->seen_bytes, at = disk_random(disk, (uint32_t)bytes);
    bool changed = true;
    switch (disk_random(disk, 8)) {
    case 0:
        file->seen_bytes = at;
        break;
    case 1:
        file->seen[file->seen_bytes++] = (uint8_t)disk_random(disk, 256);
        break;
    case 2:
        changed = false;
        for (size_t i = at; i < bytes && i < at + DISK_SECTOR_BYTES; i++) {
            changed = changed || file->seen[i] != 0;
            file->seen[i] = 0;
        }
        break;
    default:
        file->seen[at] ^= (uint8_t)(1u << disk_random(disk, 8));
    }
    return changed;
}

/* A file of a step, any of them. */
static struct disk_file *pick_file(struct life *life, int64_t step) {
    struct disk *disk = &life->disk;
    int first = (int)disk_random(disk, (uint32_t)disk->name_count);
    for (int i = 0; i < disk->name_count; i++) {
        const char *text = disk->names[(first + i) % disk->name_count].text;
        struct checkpoint_name name = checkpoint_name_parse(text);
        struct disk_file *file = name.kind != CHECKPOINT_OTHER && name.step == step ? disk_find(disk, text) : NULL;
        if (file && file->seen_bytes > 0 && file->seen_bytes < DISK_FILE_BYTES_MAX) {
            return file;
        }
    }
    return NULL;
}

/* Damages one file of a whole checkpoint, looks whether that one and no other is refused, and mends it. */
static void damage_one(struct life *life, int64_t step) {
    int code = 0;
    int64_t newest_tag = 0;
    disk_start(&life->disk, 0, DISK_STOP);
    struct disk_file *file = pick_file(life, step);
    if (!file) {
        return;
    }
    struct disk_file healthy = *file;
    bool changed = damage(&life->disk, file);
    int64_t tag = load_step(life, step, &code);
    if (tag != 0 && tag != life->found[step]) {
        fault(life, "damage was loaded");
    }
    if (tag == 0 && (!changed || code != MUSTER_ECORRUPT)) {
        fault(life, "damage is called something else");
    }
    int64_t newest = load_newest(life, &newest_tag);
    if (newest >= 0 && (newest_tag != life->found[newest] || (newest == step && tag == 0))) {
        fault(life, "the newest is damaged, and was loaded");
    }
    for (int64_t s = 0; s < STEPS; s++) {
        if (s != step && life->found[s] && load_step(life, s, NULL) != life->found[s]) {
            fault(life, "damage to one checkpoint reaches another");
        }
    }
    *file = healthy;
    tally.damages += changed;
    if (load_step(life, step, NULL) != life->found[step]) {
        fault(life, "a mended checkpoint does not load");
    }
}

/* ---- */

static int64_t newest_of(const struct life *life) {
    int64_t newest = -1;
    for (int64_t step = 0; step < STEPS; step++) {
        newest = life->found[step] ? step : newest;
    }
    return newest;
}

/* A job: goes on from the newest checkpoint, saves a few times, and gets into trouble at some call. */
static void run_job(struct life *life) {
    int64_t step = newest_of(life) + (int64_t)disk_random(&life->disk, 3);
    enum disk_trouble trouble = disk_random(&life->disk, 3) < 2   ? DISK_STOP
                                : disk_random(&life->disk, 2) < 1 ? DISK_FAIL
                                                                  : DISK_FAIL_FOREVER;
    bool alive = true;
    uint32_t saves = 1 + disk_random(&life->disk, 3);
    for (uint32_t i = 0; i < saves && alive && !life->fault; i++, step += disk_random(&life->disk, 3)) {
        step = step < 0 ? 0 : step >= STEPS ? STEPS - 1 : step;
        alive = save_step(life, step, i + 1 == saves ? 1 + disk_random(&life->disk, 45) : 0, trouble);
    }
    if (!alive && disk_random(&life->disk, 2) == 0) {
        disk_lose_power(&life->disk);
        tally.power_losses++;
    }
    life->disk.now_ms += DELAY_MS; /* the next job starts when all names are in sight */
    look(life);
    for (int64_t s = 0; s < STEPS && !life->fault; s++) {
        if (life->found[s]) {
            damage_one(life, s);
        }
    }
}

enum lie { NO_LIE, IGNORES_FILE_SYNC, IGNORES_FOLDER_SYNC };

static void life_init(struct life *life, uint64_t seed) {
    disk_init(&life->disk, seed);
    life->io = disk_io(&life->disk);
    life->seed = seed;
    life->fault = NULL;
    life->last_tag = 0;
    life->keep = 1 + disk_random(&life->disk, 3);
    memset(life->expected, 0, sizeof life->expected);
    memset(life->found, 0, sizeof life->found);
}

static void run_life(uint64_t seed, enum lie lie) {
    static struct life life;
    life_init(&life, seed);
    life.disk.ignores_file_sync = lie == IGNORES_FILE_SYNC;
    life.disk.ignores_folder_sync = lie == IGNORES_FOLDER_SYNC;
    life.disk.delay_ms = seed % 4 == 0 ? DELAY_MS : 0;
    tally.late += seed % 4 == 0;
    tally.lives++;
    for (int i = 0; i < 5 && !life.fault; i++) {
        run_job(&life);
    }
}

static unsigned long injected(void) {
    return tally.stops + tally.failures + tally.damages;
}

static void run_lives(unsigned long count, uint64_t seed) {
    memset(&tally, 0, sizeof tally);
    while (injected() < count && tally.faults < FAULTS_SHOWN_MAX) {
        run_life(seed++, NO_LIE);
    }
    (void)printf(
        "%lu troubles: %lu ranks stopped in the middle of a save and %lu losses of power after one, %lu failed "
        "calls, %lu damaged files; %lu loads checked in %lu lives, %lu of them with late names, %lu faults\n",
        injected(), tally.stops, tally.power_losses, tally.failures, tally.damages, tally.loads, tally.lives,
        tally.late, tally.faults);
}

/* One life with a checkpoint of step 1, saved with number 1. */
static struct life *small_life(uint64_t seed) {
    static struct life life;
    life_init(&life, seed);
    life.keep = 1 + (uint32_t)(seed % 2);
    assert_true(save_step(&life, 1, 0, DISK_STOP));
    return &life;
}

/* A rank reads no more than it needs, so that damage elsewhere is not its business: here one needs everything. */
static void every_flipped_bit_and_every_cut_is_seen(void **state) {
    (void)state;
    struct life *life = small_life(1);
    for (int i = 0; i < life->disk.name_count; i++) {
        struct disk_file *file = disk_find(&life->disk, life->disk.names[i].text);
        if (!file) {
            continue;
        }
        for (size_t bit = 0; bit < file->seen_bytes * 8; bit++) {
            file->seen[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(load_step(life, 1, NULL), 0);
            file->seen[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        size_t whole = file->seen_bytes;
        for (file->seen_bytes = 0; file->seen_bytes < whole; file->seen_bytes++) {
            assert_int_equal(load_step(life, 1, NULL), 0);
        }
        assert_int_equal(load_step(life, 1, NULL), 1);
    }
    assert_int_equal(tally.faults, 0);
}

/* The second save, of the same step in odd cases, is stopped at each call of a rank, with each kind of trouble, and
 * power is lost or not. */
static void a_save_stopped_at_any_call_leaves_the_one_before(void **state) {
    (void)state;
    unsigned calls = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        for (int kind = 0; kind < 6; kind++) {
            bool done = false;
            for (unsigned at = 1; !done; at++) {
                struct life *life = small_life(seed);
                done = save_step(life, 2 - (int64_t)(seed / 2 % 2), at, (enum disk_trouble)(kind / 2)) &&
                       at > 30; /* of all ranks: the victim differs from try to try */
                calls = at > calls ? at : calls;
                if (kind % 2) {
                    disk_lose_power(&life->disk);
                }
                look(life);
                assert_null(life->fault);
            }
        }
    }
    assert_in_range(calls, 30, 200);
}

static void nothing_bad_is_loaded_and_nothing_saved_is_lost(void **state) {
    (void)state;
    run_lives(3000, 1);
    assert_int_equal(tally.faults, 0);
    assert_true(tally.stops > 100 && tally.power_losses > 50 && tally.failures > 50 && tally.damages > 500);
}

/* The test can fail: on disks that do not do what they say, checkpoints are lost, and it notices. */
static void a_lying_disk_is_found_out(void **state) {
    (void)state;
    for (int lie = IGNORES_FILE_SYNC; lie <= IGNORES_FOLDER_SYNC; lie++) {
        memset(&tally, 0, sizeof tally);
        tally.faults = FAULTS_SHOWN_MAX; /* they are expected: not a word */
        for (uint64_t seed = 1; seed <= 60; seed++) {
            run_life(seed, (enum lie)lie);
        }
        assert_true(tally.faults - FAULTS_SHOWN_MAX > 5);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) {
        run_lives(strtoul(argv[1], NULL, 10), argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
        return tally.faults == 0 ? 0 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flipped_bit_and_every_cut_is_seen),
        cmocka_unit_test(a_save_stopped_at_any_call_leaves_the_one_before),
        cmocka_unit_test(nothing_bad_is_loaded_and_nothing_saved_is_lost),
        cmocka_unit_test(a_lying_disk_is_found_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
