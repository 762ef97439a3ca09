/* Checkpoints against a disk that fails (train/state/disk_model.h): jobs of several ranks that load and save, of which
 * one rank is stopped in the middle of any call, with and without a loss of power; calls that fail; names that others
 * see late; and files in which bits flip.
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
#include "base/testing/parts_test_support.h"
#include "train/checkpoint/checkpoint_job_test_support.h"

enum { SEEDS = 12, SEEDS_FEW = 3 }; /* of saves that are stopped at each call */
enum { STEPS = 8, TAGS_MAX = 64, FAULTS_SHOWN_MAX = 10, DELAY_MS = 3000 };

/* What may lie under one step. */
struct expected {
    int64_t promised;         /* a save of this number was complete and nothing has replaced it; 0: none */
    int64_t others[TAGS_MAX]; /* numbers of later saves that did not say so */
    size_t other_count;
};

/* Who saves: ranks, one process for all, or now these and now that. */
enum savers { ANY, RANKS, ALONE };

/* One disk, several jobs after one another. */
struct life {
    enum savers savers;
    struct disk disk;
    struct snapshot_io io;
    struct expected expected[STEPS];
    int64_t found[STEPS]; /* numbers that lie there, as last looked; 0: none */
    uint32_t keep;
    int64_t last_tag;
    struct test_cut last_cut; /* of the last save */
    uint64_t seed;
    const char *fault; /* the first thing that went wrong */
};

static struct { unsigned long stops, power_losses, failures, damages, loads, faults, lives, late, links, alone; } tally;

static void fault(struct life *life, const char *what) {
    if (!life->fault) {
        life->fault = what;
        tally.faults++;
        if (tally.faults <= FAULTS_SHOWN_MAX) {
            (void)fprintf(stderr, "seed %" PRIu64 ": %s (%s)\n", life->seed, what, muster_detail());
        }
    }
}

/* ---- loading ---- */

/* A job of any size, cut in any way. */
static struct test_cut any_cut(struct life *life) {
    struct test_cut cut = {.seed = disk_random(&life->disk, 1000), .whole = disk_random(&life->disk, 6) == 0};
    cut.size = 1 + disk_random(&life->disk, JOB_RANKS_MAX);
    return cut;
}

static void any_job(struct life *life, struct job *job) {
    const struct test_cut cut = any_cut(life);
    job_init(job, &cut);
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
    any_job(life, &job);
    code = code ? code : checkpoint_read_record(&folder, step, &record);
    code = code ? code : job_load(&job, &folder, &record);
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
    any_job(life, &job);
    int code = snapshot_folder_open(&folder, &life->io, "d", false);
    code = code ? code : checkpoint_search_begin(&search, &folder);
    while (code == 0 && step < 0) {
        code = checkpoint_search_next(&search, &folder, INT64_MAX, &record);
        if (code == 0 && job_load(&job, &folder, &record) == 0) {
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

/* One save, in which a rank has trouble at its call `at`. False: it has died, or the save failed. */
static bool save_step(struct life *life, int64_t step, unsigned at, enum disk_trouble trouble) {
    struct job job = {.size = 0};
    /* Nothing has changed since the last save, now and then, so that parts can be taken over. */
    bool is_same = life->last_tag > 0 && disk_random(&life->disk, 3) == 0;
    struct test_cut cut = is_same ? life->last_cut : any_cut(life);
    bool is_alone = life->savers == ALONE || (life->savers == ANY && disk_random(&life->disk, 4) == 0);
    cut.whole = cut.whole || is_alone;
    life->last_cut = cut;
    job_init(&job, &cut);
    job.alone_parts = is_alone ? cut.size : 0;
    tally.alone += is_alone;
    job.is_incremental = is_same || disk_random(&life->disk, 4) == 0;
    struct job_trouble t = {.victim = disk_random(&life->disk, job.size), .at = at, .trouble = trouble};
    int64_t tag = is_same ? life->last_tag : ++life->last_tag;
    job_fill(&job, tag);
    add_other(&life->expected[step], tag);
    disk_start(&life->disk, 0, DISK_STOP);
    status_clear();
    int code = job_save(&job, &life->disk, &life->io, step, life->keep, &t);
    if (disk_open_handles(&life->disk) != 0) {
        fault(life, "a save leaves a handle open");
    }
    if (code && (!t.was_troubled || muster_detail()[0] == '\0')) {
        fault(life, "a save failed without trouble, or without a word");
    }
    if (code && trouble == DISK_FAIL && life->disk.delay_ms == 0 && disk_count(&life->disk, ".tmp") != 0) {
        fault(life, "a failed save leaves a temporary file");
    }
    job_done(&job);
    if (code == 0) {
        promise(life, step, tag, t.was_troubled || life->disk.delay_ms > 0);
    }
    tally.stops += t.was_troubled && trouble == DISK_STOP;
    tally.failures += t.was_troubled && trouble != DISK_STOP;
    return code == 0 && !t.is_dead;
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

/* Is it a part of this step, too? */
static bool is_shared(struct life *life, const struct disk_file *file, int64_t step) {
    bool is = false;
    for (int i = 0; i < life->disk.name_count; i++) {
        const char *text = life->disk.names[i].text;
        struct checkpoint_name name = checkpoint_name_parse(text);
        is = is || (name.kind != CHECKPOINT_OTHER && name.step == step && disk_find(&life->disk, text) == file);
    }
    return is;
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
        int64_t other = s == step || !life->found[s] ? 0 : load_step(life, s, NULL);
        bool may_be_refused = other == 0 && is_shared(life, file, s);
        if (s != step && life->found[s] && other != life->found[s] && !may_be_refused) {
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
    life->last_cut = (struct test_cut){.size = 0};
    life->keep = 1 + disk_random(&life->disk, 3);
    life->savers = ANY;
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
    tally.links += life.disk.links;
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
        "calls, %lu damaged files; %lu loads checked in %lu lives, %lu of them with late names; %lu parts were taken "
        "over, and %lu saves were of one process; %lu faults\n",
        injected(), tally.stops, tally.power_losses, tally.failures, tally.damages, tally.loads, tally.lives,
        tally.late, tally.links, tally.alone, tally.faults);
}

/* One life with a checkpoint of step 1, saved with number 1. */
static struct life *small_life(uint64_t seed, enum savers savers) {
    static struct life life;
    life_init(&life, seed);
    life.savers = savers;
    life.keep = 1 + (uint32_t)(seed % 2);
    assert_true(save_step(&life, 1, 0, DISK_STOP));
    return &life;
}

/* A rank reads no more than it needs, so that damage elsewhere is not its business: here one needs everything. */
static void every_flipped_bit_and_every_cut_is_seen(void **state) {
    (void)state;
    struct life *life = small_life(1, RANKS);
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
    unsigned calls = 0, seeds = part_is_wanted("whole_matrix") ? SEEDS : SEEDS_FEW;
    for (uint64_t seed = 1; seed <= 2 * seeds; seed++) {
        for (int kind = 0; kind < 6; kind++) {
            bool done = false;
            for (unsigned at = 1; !done; at++) {
                struct life *life = small_life(seed, RANKS);
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

/* The same, of one process that saves all parts: all calls are its own, and every one of them has its trouble. */
static void parts_of_one_process_stopped_at_any_call_leave_the_one_before(void **state) {
    (void)state;
    unsigned calls = 0, seeds = part_is_wanted("whole_matrix") ? SEEDS : SEEDS_FEW;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        for (int kind = 0; kind < 6; kind++) {
            bool done = false;
            for (unsigned at = 1; !done; at++) {
                struct life *life = small_life(seed, ALONE);
                unsigned long troubles = tally.stops + tally.failures;
                (void)save_step(life, 2 - (int64_t)(seed / 2 % 2), at, (enum disk_trouble)(kind / 2));
                done = tally.stops + tally.failures == troubles; /* there is no such call */
                calls = at > calls ? at : calls;
                if (kind % 2) {
                    disk_lose_power(&life->disk);
                }
                look(life);
                assert_null(life->fault);
            }
        }
    }
    assert_in_range(calls, 50, 500);
}

static void nothing_bad_is_loaded_and_nothing_saved_is_lost(void **state) {
    (void)state;
    run_lives(1500, 1);
    assert_int_equal(tally.faults, 0);
    assert_true(tally.stops > 100 && tally.power_losses > 50 && tally.failures > 50 && tally.damages > 500 &&
                tally.links > 100 && tally.alone > 100);
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
        cmocka_unit_test(parts_of_one_process_stopped_at_any_call_leave_the_one_before),
        cmocka_unit_test(nothing_bad_is_loaded_and_nothing_saved_is_lost),
        cmocka_unit_test(a_lying_disk_is_found_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
