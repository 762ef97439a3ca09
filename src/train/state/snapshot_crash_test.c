/* Snapshots against a disk that fails (disk_model.h): programs that load, train and save, and are stopped in the middle
 * of any call, with and without a loss of power; calls that fail; and files in which bits flip.
 *
 *   snapshot_crash_test                   a few thousand injected troubles
 *   snapshot_crash_test COUNT [SEED]      so many
 *
 * Prints the seed of a life that went wrong; `snapshot_crash_test 1 SEED` repeats it. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "base/testing/parts_test_support.h"
#include "train/state/disk_model.h"
#include "train/state/snapshot_impl.h"

enum { STEPS = 16, WEIGHTS = 40, NAME_BYTES = 64, FAULTS_SHOWN_MAX = 10 };

/* ---- what is saved: everything in it comes from one number, so that a mixture is seen ---- */

struct model {
    float weights[WEIGHTS];
    uint8_t random_state[37];
    int64_t step;
    double loss;
    char note[NAME_BYTES];
    struct muster_tensor tensors[3];
    struct muster_value values[3];
    struct muster_snapshot_state state;
};

static void model_init(struct model *m) {
    m->tensors[0] = (struct muster_tensor){
        .name = "random", .type = MUSTER_UINT8, .dim_count = 1, .shape = {37}, .data = m->random_state};
    m->tensors[1] = (struct muster_tensor){
        .name = "w", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {4, 10}, .data = m->weights};
    m->tensors[2] = (struct muster_tensor){.name = "none", .type = MUSTER_INT16, .dim_count = 1, .shape = {0}};
    m->values[0] = muster_value_integer("step", &m->step);
    m->values[1] = muster_value_real("loss", &m->loss);
    m->values[2] = muster_value_text("note", m->note, sizeof m->note);
    m->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(m->tensors, 3, m->values, 3);
}

static void model_fill(struct model *m, uint32_t tag) {
    for (size_t i = 0; i < WEIGHTS; i++) {
        m->weights[i] = (float)(tag % 65536) + (float)i / 64;
    }
    for (size_t i = 0; i < sizeof m->random_state; i++) {
        m->random_state[i] = (uint8_t)(tag * 31 + i);
    }
    m->step = tag;
    m->loss = 1.0 / tag;
    (void)snprintf(m->note, sizeof m->note, "saved as number %" PRIu32, tag);
}

/* The number it was filled from, or 0 when it is a mixture. */
static uint32_t model_tag(const struct model *m) {
    struct model wanted;
    uint32_t tag = (uint32_t)m->step;
    model_fill(&wanted, tag);
    bool same = memcmp((const void *)m->weights, (const void *)wanted.weights, sizeof m->weights) == 0 &&
                m->loss == wanted.loss && memcmp(m->random_state, wanted.random_state, sizeof m->random_state) == 0 &&
                strcmp(m->note, wanted.note) == 0;
    return same ? tag : 0;
}

/* ---- a life: one disk, several programs after one another ---- */

enum { TAGS_MAX = 32 };

/* What may lie under one step. */
struct expected {
    uint32_t promised;         /* a save of this number returned success and nothing has replaced it; 0: none */
    uint32_t others[TAGS_MAX]; /* numbers of later saves that did not return success */
    size_t other_count;
};

struct life {
    struct disk disk;
    struct snapshot_io io;
    struct expected expected[STEPS];
    uint32_t found[STEPS]; /* numbers that lie there, as last looked; 0: none */
    uint32_t keep;
    uint32_t last_tag;
    uint64_t seed;
    const char *fault; /* the first thing that went wrong */
};

static struct { unsigned long stops, power_losses, failures, damages, loads, faults, lives; } tally;

static void fault(struct life *life, const char *what) {
    if (!life->fault) {
        life->fault = what;
        tally.faults++;
        if (tally.faults <= FAULTS_SHOWN_MAX) {
            (void)fprintf(stderr, "seed %" PRIu64 ": %s (%s)\n", life->seed, what, muster_detail());
        }
    }
}

/* As load_step(), of a file that changed after it had been found whole: what comes out is right, or it fails. */
static void load_changed(struct life *life, int64_t step) {
    struct model m;
    memset(&m, 0, sizeof m);
    model_init(&m);
    int code = snapshot_load(&life->io, "d", &(struct snapshot_wanted){step, 0, true, NULL}, &m.state);
    if (code == 0 && model_tag(&m) != life->found[step]) {
        fault(life, "a file that changed while it was loaded gave something else");
    }
}

/* Loads one step; 0 when that is refused. */
static uint32_t load_step(struct life *life, int64_t step, int *out_code) {
    struct model m;
    memset(&m, 0, sizeof m);
    model_init(&m);
    int code = snapshot_load(&life->io, "d", &(struct snapshot_wanted){step, 0, false, NULL}, &m.state);
    tally.loads++;
    if (out_code) {
        *out_code = code;
    }
    if (code) {
        for (size_t i = 0; i < WEIGHTS; i++) {
            if (m.weights[i] != 0) {
                fault(life, "a refused load has written");
            }
        }
        return 0;
    }
    uint32_t tag = model_tag(&m);
    if (tag == 0) {
        fault(life, "a load gave a mixture");
    }
    return tag;
}

static bool may_be(const struct expected *expected, uint32_t tag) {
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
    int64_t newest = -1;
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
            fault(life, "a snapshot that was saved is lost");
        }
    }
    struct muster_snapshot_found found;
    int code = snapshot_find(&life->io, "d", INT64_MAX, &found);
    if (newest < 0 ? code == 0 : code != 0 || found.step != newest) {
        fault(life, "the newest whole snapshot is not the one found");
    }
    if (code == 0 && (found.passed_over > 0) != (found.note[0] != '\0')) {
        fault(life, "passed over without saying so");
    }
    if (disk_open_handles(&life->disk) != 0) {
        fault(life, "a handle is left open");
    }
}

static void add_other(struct expected *expected, uint32_t tag) {
    if (tag != 0 && !may_be(expected, tag)) {
        assert_true(expected->other_count < TAGS_MAX);
        expected->others[expected->other_count++] = tag;
    }
}

/* A save of `step` has returned success: what is there now is what must stay. */
static void promise(struct life *life, int64_t step, uint32_t tag, bool troubled) {
    uint32_t before[STEPS];
    memcpy(before, life->found, sizeof before);
    life->expected[step] = (struct expected){.promised = tag};
    look(life);
    uint32_t kept = 1;
    for (int64_t s = step - 1; s >= 0; s--) {
        bool wanted = before[s] && kept < life->keep;
        kept += wanted;
        if (life->found[s] != (wanted ? before[s] : 0) && !troubled) {
            fault(life, "other snapshots are kept than the newest");
        }
    }
    if (life->found[step] != tag) {
        fault(life, "what was saved is not there");
    }
    /* What was removed may be back after a loss of power, since nobody waits for removals: older than what is promised,
     * it does no harm. */
    for (int64_t s = 0; s < STEPS; s++) {
        uint32_t removed = life->expected[s].promised;
        if (life->found[s]) {
            life->expected[s] = (struct expected){.promised = life->found[s]};
        } else {
            life->expected[s].promised = 0;
            add_other(&life->expected[s], removed);
        }
    }
}

/* One save, with trouble at call `at`. False: the program has ended. */
static bool save_step(struct life *life, int64_t step, unsigned at, enum disk_trouble trouble) {
    struct model m;
    struct muster_snapshot_options options = MUSTER_SNAPSHOT_OPTIONS_INIT;
    options.keep = life->keep;
    model_init(&m);
    uint32_t tag = disk_random(&life->disk, 8) == 0 && life->found[step] ? life->found[step] : ++life->last_tag;
    model_fill(&m, tag);
    add_other(&life->expected[step], tag);
    disk_start(&life->disk, at, trouble);
    int code = snapshot_save(&life->io, "d", step, &m.state, &options);
    bool troubled = life->disk.troubled;
    if (disk_open_handles(&life->disk) != 0) {
        fault(life, "a save leaves a handle open");
    }
    if (code && (!troubled || muster_detail()[0] == '\0')) {
        fault(life, "a save failed without trouble, or without a word");
    }
    if (code && trouble == DISK_FAIL && disk_count(&life->disk, ".tmp") != 0) {
        fault(life, "a failed save leaves a temporary file");
    }
    if (code == 0) {
        promise(life, step, tag, troubled);
    }
    tally.stops += troubled && trouble == DISK_STOP;
    tally.failures += troubled && trouble != DISK_STOP;
    return code == 0;
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

/* Damages one file of a whole snapshot, looks whether that one and no other is refused, and mends it. */
static void damage_one(struct life *life, int64_t step) {
    char text[SNAPSHOT_NAME_MAX];
    struct disk_file *file = NULL;
    snapshot_name_manifest(text, step);
    for (int i = 0; i < life->disk.name_count && disk_random(&life->disk, 2) == 0; i++) {
        struct snapshot_name name = snapshot_name_parse(life->disk.names[i].text);
        if (name.kind == SNAPSHOT_DATA && name.step == step) {
            (void)str_copy(text, sizeof text, life->disk.names[i].text);
            break;
        }
    }
    file = disk_find(&life->disk, text);
    if (!file || file->seen_bytes == 0 || file->seen_bytes == DISK_FILE_BYTES_MAX) {
        return;
    }
    struct disk_file healthy = *file;
    disk_start(&life->disk, 0, DISK_STOP);
    file = disk_find(&life->disk, text);
    /* A data file that the manifest does not name can be what it likes. */
    bool needed = damage(&life->disk, file);
    int code = 0;
    uint32_t tag = load_step(life, step, &code);
    load_changed(life, step);
    struct muster_snapshot_found found;
    int find_code = snapshot_find(&life->io, "d", INT64_MAX, &found);
    if (needed && tag != 0 && tag != life->found[step]) {
        fault(life, "damage was loaded");
    }
    if (needed && tag == 0 && code != MUSTER_ECORRUPT) {
        fault(life, "damage is called something else");
    }
    if (find_code == 0 && tag == 0 && (found.step == step || (found.step < step && found.passed_over == 0))) {
        fault(life, "damage was passed over in silence");
    }
    for (int64_t s = 0; s < STEPS; s++) {
        if (s != step && life->found[s] && load_step(life, s, NULL) != life->found[s]) {
            fault(life, "damage to one snapshot reaches another");
        }
    }
    *file = healthy;
    tally.damages += needed;
    if (load_step(life, step, NULL) != life->found[step]) {
        fault(life, "a mended snapshot does not load");
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

/* A program: goes on from the newest snapshot, saves a few times, and gets into trouble at some call. */
static void run_program(struct life *life) {
    int64_t step = newest_of(life) + (int64_t)disk_random(&life->disk, 4);
    enum disk_trouble trouble = disk_random(&life->disk, 3) < 2   ? DISK_STOP
                                : disk_random(&life->disk, 2) < 1 ? DISK_FAIL
                                                                  : DISK_FAIL_FOREVER;
    bool alive = true;
    uint32_t saves = 1 + disk_random(&life->disk, 3);
    for (uint32_t i = 0; i < saves && alive && !life->fault; i++, step += disk_random(&life->disk, 3)) {
        step = step < 0 ? 0 : step >= STEPS ? STEPS - 1 : step;
        bool last = i + 1 == saves;
        alive = save_step(life, step, last ? 1 + disk_random(&life->disk, 26) : 0, trouble);
    }
    if (!alive && disk_random(&life->disk, 2) == 0) {
        disk_lose_power(&life->disk);
        tally.power_losses++;
    }
    look(life);
    for (int64_t s = 0; s < STEPS && !life->fault; s++) {
        if (life->found[s]) {
            damage_one(life, s);
        }
    }
}

enum lie { NO_LIE, IGNORES_FILE_SYNC, IGNORES_FOLDER_SYNC };

static void run_life(uint64_t seed, enum lie lie) {
    static struct life life;
    disk_init(&life.disk, seed);
    life.disk.ignores_file_sync = lie == IGNORES_FILE_SYNC;
    life.disk.ignores_folder_sync = lie == IGNORES_FOLDER_SYNC;
    life.io = disk_io(&life.disk);
    life.seed = seed;
    life.fault = NULL;
    life.last_tag = 0;
    life.keep = 1 + disk_random(&life.disk, 3);
    memset(life.expected, 0, sizeof life.expected);
    memset(life.found, 0, sizeof life.found);
    tally.lives++;
    for (int i = 0; i < 6 && !life.fault; i++) {
        run_program(&life);
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
    (void)printf("%lu troubles: %lu stops in the middle of a save and %lu losses of power after one, %lu failed calls, "
                 "%lu damaged files; %lu loads checked in %lu lives, %lu faults\n",
                 injected(), tally.stops, tally.power_losses, tally.failures, tally.damages, tally.loads, tally.lives,
                 tally.faults);
}

/* One life with a snapshot of step 1, saved with number 1. */
static struct life *small_life(uint64_t seed) {
    static struct life life;
    disk_init(&life.disk, seed);
    life.io = disk_io(&life.disk);
    life.seed = seed;
    life.fault = NULL;
    life.last_tag = 0;
    life.keep = 1 + (uint32_t)(seed % 2);
    memset(life.expected, 0, sizeof life.expected);
    memset(life.found, 0, sizeof life.found);
    assert_true(save_step(&life, 1, 0, DISK_STOP));
    return &life;
}

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

/* The second save is stopped at each of its calls, with each kind of trouble, and power is lost or not; what a call
 * that was cut had done, and what the disk had kept, differs from seed to seed. */
static void a_save_stopped_at_any_call_leaves_the_one_before(void **state) {
    (void)state;
    unsigned calls = 0, seeds = part_is_wanted("whole_matrix") ? 20 : 8;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        for (int kind = 0; kind < 6; kind++) {
            bool done = false;
            for (unsigned at = 1; !done; at++) {
                struct life *life = small_life(seed);
                done = save_step(life, 2, at, (enum disk_trouble)(kind / 2)) && !life->disk.troubled;
                calls = at > calls ? at : calls;
                if (kind % 2) {
                    disk_lose_power(&life->disk);
                }
                look(life);
                assert_null(life->fault);
                done = done || at > 100;
            }
        }
    }
    assert_in_range(calls, 14, 100);
}

static void nothing_bad_is_loaded_and_nothing_saved_is_lost(void **state) {
    (void)state;
    run_lives(4000, 1);
    assert_int_equal(tally.faults, 0);
    assert_true(tally.stops > 100 && tally.power_losses > 50 && tally.failures > 50 && tally.damages > 1000);
}

/* The test can fail: on disks that do not do what they say, snapshots are lost, and it notices. */
static void a_lying_disk_is_found_out(void **state) {
    (void)state;
    for (int lie = IGNORES_FILE_SYNC; lie <= IGNORES_FOLDER_SYNC; lie++) {
        memset(&tally, 0, sizeof tally);
        tally.faults = FAULTS_SHOWN_MAX; /* they are expected: not a word */
        for (uint64_t seed = 1; seed <= 100; seed++) {
            run_life(seed, (enum lie)lie);
        }
        assert_true(tally.faults - FAULTS_SHOWN_MAX > 10);
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
