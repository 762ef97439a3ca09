/* Snapshots on a real disk: round trips, what is refused and with which words, what is kept, who may save. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "train/state/snapshot_impl.h"

enum { PATH_BYTES = 512 };

/* A folder that goes with the test. The snapshots are in "snapshots" in it. */
struct fixture {
    char top[PATH_BYTES / 4];
    char folder[PATH_BYTES / 2];
};

static int set_up(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    const char *base = getenv("TMPDIR");
    assert_non_null(fixture);
    assert_true(str_format(fixture->top, sizeof fixture->top, "%s/muster-snapshot-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(fixture->top));
    assert_true(str_format(fixture->folder, sizeof fixture->folder, "%s/snapshots", fixture->top));
    *state = fixture;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *fixture = *state;
    assert_true(folder_remove(fixture->folder) >= 0);
    int code = rmdir(fixture->top);
    free(fixture);
    return code;
}

static int count_each(void *each_ctx, const char *name) {
    *(int *)each_ctx += name[0] != '.';
    return 0;
}

static int count_files(const struct fixture *fixture) {
    int count = 0, folder = snapshot_io_system.open_folder(NULL, fixture->folder, false);
    assert_true(folder >= 0);
    assert_int_equal(snapshot_io_system.list(NULL, folder, count_each, &count), 0);
    snapshot_io_system.close(NULL, folder);
    return count;
}

/* ---- a small state ---- */

struct small {
    float weights[6];
    int64_t epoch;
    double accuracy;
    char note[32];
    struct muster_tensor tensors[1];
    struct muster_value values[3];
    struct muster_snapshot_state state;
};

static void small_init(struct small *s, float first) {
    *s = (struct small){.epoch = (int64_t)first, .accuracy = 0.5, .note = "fine"};
    for (int i = 0; i < 6; i++) {
        s->weights[i] = first + (float)i;
    }
    s->tensors[0] = (struct muster_tensor){
        .name = "fc.weight", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {2, 3}, .data = s->weights};
    s->values[0] = muster_value_integer("epoch", &s->epoch);
    s->values[1] = muster_value_real("accuracy", &s->accuracy);
    s->values[2] = muster_value_text("note", s->note, sizeof s->note);
    s->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(s->tensors, 1, s->values, 3);
}

static void save_small(const struct fixture *fixture, int64_t step) {
    struct small s;
    small_init(&s, (float)step);
    assert_int_equal(muster_snapshot_save(fixture->folder, step, &s.state, NULL), 0);
}

static void data_path(const struct fixture *fixture, int64_t step, char out[PATH_BYTES]) {
    struct snapshot_folder folder;
    struct snapshot_manifest manifest;
    char name[SNAPSHOT_NAME_MAX];
    assert_int_equal(snapshot_folder_open(&folder, &snapshot_io_system, fixture->folder, false), 0);
    assert_int_equal(snapshot_read_manifest(&folder, step, &manifest), 0);
    snapshot_name_data(name, step, manifest.checksum);
    snapshot_manifest_done(&manifest);
    snapshot_folder_close(&folder);
    assert_true(str_format(out, PATH_BYTES, "%s/%s", fixture->folder, name));
}

static void manifest_path(const struct fixture *fixture, int64_t step, char out[PATH_BYTES]) {
    assert_true(str_format(out, PATH_BYTES, "%s/step-%" PRId64 ".json", fixture->folder, step));
}

static void flip(const char *path, off_t at) {
    char byte = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte = (char)(byte ^ 4);
    assert_true(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
}

static void put_file(const struct fixture *fixture, const char *name, const char *text) {
    char path[PATH_BYTES];
    assert_true(str_format(path, sizeof path, "%s/%s", fixture->folder, name));
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static bool exists(const struct fixture *fixture, const char *name) {
    char path[PATH_BYTES];
    return str_format(path, sizeof path, "%s/%s", fixture->folder, name) && access(path, F_OK) == 0;
}

#define assert_detail(part)                                                                                            \
    do {                                                                                                               \
        if (!strstr(muster_detail(), (part))) {                                                                        \
            fail_msg("\"%s\" is not in \"%s\"", (part), muster_detail());                                              \
        }                                                                                                              \
    } while (0)

/* ---- round trips ---- */

static void every_type_and_shape_comes_back(void **state) {
    struct fixture *fixture = *state;
    enum { BYTES = 8 * 24, SCALAR = MUSTER_TYPE_COUNT, EMPTY, MANY_DIMS, TENSORS };
    static uint8_t saved[TENSORS][BYTES], loaded[TENSORS][BYTES];
    struct muster_tensor tensors[TENSORS] = {0};
    char names[TENSORS][16];
    for (size_t i = 0; i < TENSORS; i++) {
        (void)snprintf(names[i], sizeof names[i], "t\xc3\xa4%zu\"", i);
        tensors[i] = (struct muster_tensor){.name = names[i], .type = (enum muster_type)(i % MUSTER_TYPE_COUNT)};
        for (size_t j = 0; j < BYTES; j++) {
            saved[i][j] = (uint8_t)(i * 7 + j);
        }
        tensors[i].data = saved[i];
        tensors[i].dim_count = 3;
        tensors[i].shape[0] = 2, tensors[i].shape[1] = 3, tensors[i].shape[2] = 4;
    }
    tensors[SCALAR].dim_count = 0;    /* one element */
    tensors[EMPTY].shape[1] = 0;      /* none */
    tensors[MANY_DIMS].dim_count = 8; /* 24 in eight dimensions */
    for (size_t i = 3; i < 8; i++) {
        tensors[MANY_DIMS].shape[i] = 1;
    }
    struct muster_snapshot_state s = MUSTER_SNAPSHOT_STATE(tensors, TENSORS, NULL, 0);
    assert_int_equal(muster_snapshot_save(fixture->folder, 0, &s, NULL), 0);
    memset(loaded, 0xee, sizeof loaded);
    for (size_t i = 0; i < TENSORS; i++) {
        tensors[i].data = loaded[i];
    }
    assert_int_equal(muster_snapshot_load(fixture->folder, 0, 0, &s), 0);
    for (size_t i = 0; i < TENSORS; i++) {
        size_t bytes = i == SCALAR ? 1 : i == EMPTY ? 0 : 24 * muster_type_bytes(tensors[i].type);
        assert_memory_equal(loaded[i], saved[i], bytes);
        assert_true(bytes == BYTES || loaded[i][bytes] == 0xee);
    }
}

static void values_come_back_exactly(void **state) {
    struct fixture *fixture = *state;
    static const double reals[] = {0.1, -0.0, 1e-320, 1.7976931348623157e308, 3, (double)NAN, (double)INFINITY};
    static const int64_t integers[] = {0, -1, INT64_MAX, INT64_MIN};
    double real[7], real_back[7] = {0};
    int64_t integer[4], integer_back[4] = {0};
    char text[64] = "a \"quoted\" \\ line\n\xe2\x82\xac", text_back[64] = "";
    struct muster_value values[12], back[12];
    static const char *const names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "nan"};
    memcpy(real, reals, sizeof real);
    memcpy(integer, integers, sizeof integer);
    for (size_t i = 0; i < 7; i++) {
        values[i] = muster_value_real(names[i], &real[i]);
        back[i] = muster_value_real(names[i], &real_back[i]);
    }
    for (size_t i = 0; i < 4; i++) {
        values[7 + i] = muster_value_integer(names[7 + i], &integer[i]);
        back[7 + i] = muster_value_integer(names[7 + i], &integer_back[i]);
    }
    values[11] = muster_value_text(names[11], text, sizeof text);
    back[11] = muster_value_text(names[11], text_back, sizeof text_back);
    assert_int_equal(muster_snapshot_save(fixture->folder, 7,
                                          &(struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(NULL, 0, values, 12), 0),
                     0);
    assert_int_equal(muster_snapshot_load(fixture->folder, 7, 0,
                                          &(struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(NULL, 0, back, 12)),
                     0);
    assert_memory_equal(real, real_back, 5 * sizeof real[0]);
    assert_true(isnan(real_back[5]) && isinf(real_back[6]) && real_back[6] > 0);
    assert_memory_equal(integer, integer_back, sizeof integer);
    assert_string_equal(text, text_back);
}

static void the_same_state_has_the_same_id(void **state) {
    struct fixture *fixture = *state;
    struct muster_snapshot_found first, second, third;
    struct small s;
    save_small(fixture, 5);
    assert_int_equal(muster_snapshot_find(fixture->folder, INT64_MAX, &first), 0);
    save_small(fixture, 5);
    assert_int_equal(muster_snapshot_find(fixture->folder, INT64_MAX, &second), 0);
    assert_true(first.step == 5 && first.id == second.id && first.id != 0);
    assert_int_equal(count_files(fixture), 2);
    small_init(&s, 9);
    assert_int_equal(muster_snapshot_save(fixture->folder, 5, &s.state, NULL), 0);
    assert_int_equal(muster_snapshot_find(fixture->folder, INT64_MAX, &third), 0);
    assert_true(third.id != first.id);
    assert_int_equal(count_files(fixture), 2); /* the data of before has gone */
    assert_int_equal(muster_snapshot_load(fixture->folder, 5, first.id, &s.state), MUSTER_ECORRUPT);
    assert_detail("another snapshot of step 5");
    assert_int_equal(muster_snapshot_load(fixture->folder, 5, third.id, &s.state), 0);
}

/* ---- what is kept ---- */

static void the_newest_are_kept(void **state) {
    struct fixture *fixture = *state;
    struct muster_snapshot_options options = MUSTER_SNAPSHOT_OPTIONS_INIT;
    struct muster_snapshot_found found;
    struct small s;
    for (int64_t step = 1; step <= 5; step++) {
        save_small(fixture, step);
    }
    assert_int_equal(count_files(fixture), 4);
    assert_int_equal(muster_snapshot_find(fixture->folder, 4, &found), 0);
    assert_int_equal(found.step, 4);
    assert_int_equal(muster_snapshot_find(fixture->folder, 3, &found), MUSTER_ENOENT);
    /* Going back to step 2 leaves the later ones alone, and keeps what was just saved. */
    options.keep = 1;
    small_init(&s, 2);
    assert_int_equal(muster_snapshot_save(fixture->folder, 2, &s.state, &options), 0);
    assert_int_equal(count_files(fixture), 6);
    small_init(&s, 6);
    assert_int_equal(muster_snapshot_save(fixture->folder, 6, &s.state, &options), 0);
    assert_int_equal(count_files(fixture), 2);
}

static void a_broken_one_does_not_count_as_kept(void **state) {
    struct fixture *fixture = *state;
    struct muster_snapshot_found found;
    char path[PATH_BYTES];
    save_small(fixture, 1);
    save_small(fixture, 2);
    data_path(fixture, 2, path);
    assert_int_equal(truncate(path, 100), 0);
    save_small(fixture, 3);
    assert_int_equal(muster_snapshot_find(fixture->folder, 2, &found), 0);
    assert_int_equal(found.step, 1);
    save_small(fixture, 4); /* now 3 and 4 are whole */
    assert_int_equal(count_files(fixture), 4);
}

/* A manifest that cannot be read may need any data file of its step: perhaps the disk will read it tomorrow. */
static void the_data_of_a_damaged_manifest_stays(void **state) {
    struct fixture *fixture = *state;
    struct muster_snapshot_found found;
    char path[PATH_BYTES];
    save_small(fixture, 4);
    manifest_path(fixture, 4, path);
    flip(path, 40);
    save_small(fixture, 5);
    flip(path, 40);
    assert_int_equal(muster_snapshot_find(fixture->folder, 4, &found), 0);
    assert_int_equal(found.step, 4);
}

static void only_our_own_leftovers_are_removed(void **state) {
    struct fixture *fixture = *state;
    static const char *const theirs[] = {"step-x.safetensors.tmp",
                                         "step-01.json.tmp",
                                         "model.safetensors",
                                         "step-3",
                                         "step-3-0123456789ABCDEF.safetensors",
                                         "step-3.json.tmp.old"};
    static const char *const ours[] = {"step-3.json.tmp", "step-9.safetensors.tmp",
                                       "step-3-0123456789abcdef.safetensors"};
    save_small(fixture, 1);
    for (size_t i = 0; i < sizeof theirs / sizeof theirs[0]; i++) {
        put_file(fixture, theirs[i], "mine");
    }
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        put_file(fixture, ours[i], "half");
    }
    struct muster_snapshot_found found;
    assert_int_equal(muster_snapshot_find(fixture->folder, INT64_MAX, &found), 0);
    assert_int_equal(found.step, 1);
    assert_int_equal(found.passed_over, 2);
    assert_string_equal(found.note, "step 9: its save was cut off\nstep 3: its save was cut off");
    save_small(fixture, 2);
    for (size_t i = 0; i < sizeof theirs / sizeof theirs[0]; i++) {
        assert_true(exists(fixture, theirs[i]));
    }
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        assert_false(exists(fixture, ours[i]));
    }
}

/* ---- damage ---- */

static void damage_is_passed_over_with_a_sentence(void **state) {
    struct fixture *fixture = *state;
    struct muster_snapshot_options options = MUSTER_SNAPSHOT_OPTIONS_INIT;
    struct muster_snapshot_found found;
    struct small s;
    char path[PATH_BYTES];
    options.keep = 4;
    for (int64_t step = 1; step <= 4; step++) {
        small_init(&s, (float)step);
        assert_int_equal(muster_snapshot_save(fixture->folder, step, &s.state, &options), 0);
    }
    data_path(fixture, 4, path);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    flip(path, info.st_size - 1);
    manifest_path(fixture, 3, path);
    flip(path, 30);
    data_path(fixture, 2, path);
    assert_int_equal(unlink(path), 0);
    small_init(&s, 0);
    assert_int_equal(muster_snapshot_load_newest(fixture->folder, &s.state, &found), 0);
    assert_true(found.step == 1 && found.passed_over == 3 && s.epoch == 1 && s.weights[5] == 6);
    assert_non_null(strstr(found.note, "step 4: "));
    assert_non_null(strstr(found.note, "is damaged: its checksum does not fit\nstep 3: "));
    assert_non_null(strstr(found.note, "step-3.json: the manifest is damaged: its checksum does not fit\nstep 2: "));
    assert_non_null(strstr(found.note, "No such file or directory"));
    manifest_path(fixture, 1, path);
    assert_int_equal(truncate(path, 12), 0);
    small_init(&s, 42);
    assert_int_equal(muster_snapshot_load_newest(fixture->folder, &s.state, &found), MUSTER_ECORRUPT);
    assert_detail("is whole:\nstep 4: ");
    assert_detail("cut off at 12 bytes");
    assert_true(s.epoch == 42 && s.weights[0] == 42); /* nothing of the damaged ones arrived */
}

static void nothing_saved_is_not_damage(void **state) {
    struct fixture *fixture = *state;
    struct muster_snapshot_found found;
    assert_int_equal(muster_snapshot_find(fixture->folder, INT64_MAX, &found), MUSTER_ENOENT);
    assert_detail(fixture->folder);
    assert_int_equal(mkdir(fixture->folder, 0700), 0);
    assert_int_equal(muster_snapshot_find(fixture->folder, INT64_MAX, &found), MUSTER_ENOENT);
    put_file(fixture, "step-1.safetensors.tmp", "the first save, killed");
    assert_int_equal(muster_snapshot_find(fixture->folder, INT64_MAX, &found), MUSTER_ENOENT);
    assert_detail("no snapshot in ");
}

/* ---- what the state and the snapshot must agree on ---- */

static void mismatches_name_the_culprit(void **state) {
    struct fixture *fixture = *state;
    struct small s;
    save_small(fixture, 3);
    small_init(&s, 50);
    s.tensors[0].shape[1] = 4;
    s.tensors[0].shape[0] = 1;
    assert_int_equal(muster_snapshot_load(fixture->folder, 3, 0, &s.state), MUSTER_EINVAL);
    assert_detail("load step 3: tensor fc.weight is float32 [2, 3] in the file, float32 [1, 4] in the program");
    small_init(&s, 50);
    s.tensors[0].name = "fc.bias";
    assert_int_equal(muster_snapshot_load(fixture->folder, 3, 0, &s.state), MUSTER_EINVAL);
    assert_detail("tensor fc.bias is not in the file");
    small_init(&s, 50);
    s.values[0].name = "step";
    assert_int_equal(muster_snapshot_load(fixture->folder, 3, 0, &s.state), MUSTER_EINVAL);
    assert_detail("value step is not in the snapshot");
    s.values[0].kind = MUSTER_VALUE_OPTIONAL_INTEGER;
    assert_int_equal(muster_snapshot_load(fixture->folder, 3, 0, &s.state), 0);
    assert_true(s.weights[0] == 3 && s.epoch == 50);
    s.values[0].name = "epoch"; /* one that is there is like any other */
    assert_int_equal(muster_snapshot_load(fixture->folder, 3, 0, &s.state), 0);
    assert_int_equal(s.epoch, 3);
    s.values[0].name = "note";
    assert_int_equal(muster_snapshot_load(fixture->folder, 3, 0, &s.state), MUSTER_EINVAL);
    assert_detail("value note is no integer in the snapshot");
    small_init(&s, 50);
    s.values[0].kind = MUSTER_VALUE_REAL;
    assert_int_equal(muster_snapshot_load(fixture->folder, 3, 0, &s.state), MUSTER_EINVAL);
    assert_detail("value epoch is no real number in the snapshot");
    small_init(&s, 50);
    s.values[2].room = 4;
    assert_int_equal(muster_snapshot_load(fixture->folder, 3, 0, &s.state), MUSTER_EINVAL);
    assert_detail("the text of note is longer than there is room for");
    assert_true(s.weights[0] == 50 && s.epoch == 50);
    small_init(&s, 50);
    s.state.value_count = 1; /* less than there is, is fine */
    assert_int_equal(muster_snapshot_load(fixture->folder, 3, 0, &s.state), 0);
    assert_true(s.weights[0] == 3 && s.epoch == 3);
    assert_int_equal(muster_snapshot_load(fixture->folder, 4, 0, &s.state), MUSTER_ENOENT);
}

static int try_save(const struct fixture *fixture, struct small *s) {
    int code = muster_snapshot_save(fixture->folder, 1, &s->state, NULL);
    assert_int_not_equal(code, 0);
    assert_int_not_equal(access(fixture->folder, F_OK), 0); /* nothing was written, not even the folder */
    return code;
}

static void bad_states_are_refused_before_anything_is_written(void **state) {
    struct fixture *fixture = *state;
    struct small s;
    struct muster_snapshot_options options = MUSTER_SNAPSHOT_OPTIONS_INIT;
    char long_name[MUSTER_NAME_MAX + 1];
    memset(long_name, 'n', sizeof long_name);
    long_name[MUSTER_NAME_MAX] = '\0';
    small_init(&s, 1);
    struct muster_tensor two[2] = {s.tensors[0], s.tensors[0]};
    s.state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(two, 2, NULL, 0);
    assert_int_equal(try_save(fixture, &s), MUSTER_EINVAL);
    assert_detail("save step 1: two tensors are named fc.weight");
    small_init(&s, 1);
    s.tensors[0].name = long_name;
    assert_int_equal(try_save(fixture, &s), MUSTER_ELIMIT);
    s.tensors[0].name = "\xff";
    assert_int_equal(try_save(fixture, &s), MUSTER_EINVAL);
    assert_detail("is not UTF-8");
    s.tensors[0].name = "__metadata__";
    assert_int_equal(try_save(fixture, &s), MUSTER_EINVAL);
    small_init(&s, 1);
    s.tensors[0].type = MUSTER_TYPE_COUNT;
    assert_int_equal(try_save(fixture, &s), MUSTER_EINVAL);
    small_init(&s, 1);
    s.tensors[0].dim_count = 9;
    assert_int_equal(try_save(fixture, &s), MUSTER_ELIMIT);
    small_init(&s, 1);
    s.tensors[0].shape[0] = UINT64_MAX / 2;
    assert_int_equal(try_save(fixture, &s), MUSTER_ELIMIT);
    small_init(&s, 1);
    s.tensors[0].data = NULL;
    assert_int_equal(try_save(fixture, &s), MUSTER_EINVAL);
    small_init(&s, 1);
    s.values[1].name = "epoch";
    assert_int_equal(try_save(fixture, &s), MUSTER_EINVAL);
    assert_detail("two values are named epoch");
    small_init(&s, 1);
    memset(s.note, 'x', sizeof s.note);
    assert_int_equal(try_save(fixture, &s), MUSTER_ELIMIT);
    small_init(&s, 1);
    s.note[0] = (char)0xc0;
    assert_int_equal(try_save(fixture, &s), MUSTER_EINVAL);
    small_init(&s, 1);
    s.state.tensor_count = MUSTER_TENSORS_MAX + 1;
    assert_int_equal(try_save(fixture, &s), MUSTER_ELIMIT);
    small_init(&s, 1);
    options.keep = 0;
    assert_int_equal(muster_snapshot_save(fixture->folder, 1, &s.state, &options), MUSTER_EINVAL);
    assert_int_equal(muster_snapshot_save(fixture->folder, -1, &s.state, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_snapshot_save(NULL, 1, &s.state, NULL), MUSTER_EINVAL);
}

/* ---- a real disk's refusals ---- */

static void a_full_disk_costs_nothing_older(void **state) {
    struct fixture *fixture = *state;
    struct muster_snapshot_found found;
    struct rlimit limit, tight;
    static uint8_t large[1 << 20];
    struct muster_tensor tensor = {
        .name = "large", .type = MUSTER_UINT8, .dim_count = 1, .shape = {sizeof large}, .data = large};
    struct muster_snapshot_state s = MUSTER_SNAPSHOT_STATE(&tensor, 1, NULL, 0);
    save_small(fixture, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    tight = limit;
    tight.rlim_cur = 300000; /* as good as a full disk: writes come up short, then fail */
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    int code = muster_snapshot_save(fixture->folder, 2, &s, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    (void)signal(SIGXFSZ, old);
    assert_int_equal(code, MUSTER_ESYSTEM);
    assert_detail("save step 2: write ");
    assert_detail("step-2.safetensors.tmp: File too large");
    assert_int_equal(count_files(fixture), 2);
    assert_int_equal(muster_snapshot_find(fixture->folder, INT64_MAX, &found), 0);
    assert_int_equal(found.step, 1);
    assert_int_equal(muster_snapshot_save(fixture->folder, 2, &s, NULL), 0);
}

static void one_process_saves_at_a_time(void **state) {
    struct fixture *fixture = *state;
    struct small s;
    save_small(fixture, 1);
    int fd = open(fixture->folder, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    small_init(&s, 2);
    assert_int_equal(muster_snapshot_save(fixture->folder, 2, &s.state, NULL), MUSTER_ESYSTEM);
    assert_detail("another process is saving");
    assert_int_equal(muster_snapshot_load_newest(fixture->folder, &s.state, NULL), 0); /* loading needs no lock */
    assert_int_equal(close(fd), 0);
    save_small(fixture, 2);
}

static int forked_copy = -1;

/* What fork() in another thread does to the handle of the folder. */
static int lock_and_copy(void *ctx, int folder) {
    int code = snapshot_io_system.lock_folder(ctx, folder);
    forked_copy = dup(folder);
    return code;
}

static void a_forked_child_does_not_keep_the_lock(void **state) {
    struct fixture *fixture = *state;
    struct snapshot_io io = snapshot_io_system;
    struct small s;
    io.lock_folder = lock_and_copy;
    small_init(&s, 1);
    assert_int_equal(snapshot_save(&io, fixture->folder, 1, &s.state, NULL), 0);
    assert_true(forked_copy >= 0);
    save_small(fixture, 2);
    assert_int_equal(close(forked_copy), 0);
}

static void what_is_no_folder_or_no_file_is_said(void **state) {
    struct fixture *fixture = *state;
    struct small s;
    struct muster_snapshot_found found;
    char path[PATH_BYTES];
    small_init(&s, 1);
    assert_true(str_format(path, sizeof path, "%s/missing/snapshots", fixture->top));
    assert_int_equal(muster_snapshot_save(path, 1, &s.state, NULL), MUSTER_ESYSTEM);
    assert_detail("missing/snapshots: No such file or directory");
    assert_int_equal(muster_snapshot_save("/dev/null", 1, &s.state, NULL), MUSTER_ESYSTEM);
    assert_detail("/dev/null: Not a directory");
    save_small(fixture, 1);
    manifest_path(fixture, 2, path);
    assert_int_equal(mkfifo(path, 0600), 0); /* must neither hang nor be believed */
    assert_int_equal(muster_snapshot_find(fixture->folder, INT64_MAX, &found), 0);
    assert_true(found.step == 1 && found.passed_over == 1);
}

/* ---- any safetensors file ---- */

static void a_file_of_others_loads_by_name(void **state) {
    struct fixture *fixture = *state;
    struct small s;
    char path[PATH_BYTES];
    save_small(fixture, 8);
    data_path(fixture, 8, path);
    small_init(&s, 0);
    assert_int_equal(muster_safetensors_load(path, s.tensors, 1), 0);
    assert_true(s.weights[0] == 8 && s.weights[5] == 13);
    assert_int_equal(muster_safetensors_load("/nowhere/x.safetensors", s.tensors, 1), MUSTER_ENOENT);
    assert_true(str_format(path, sizeof path, "%s/none.safetensors", fixture->folder));
    assert_int_equal(muster_safetensors_load(path, s.tensors, 1), MUSTER_ENOENT);
    put_file(fixture, "none.safetensors", "PK and so on");
    assert_int_equal(muster_safetensors_load(path, s.tensors, 1), MUSTER_ECORRUPT);
    assert_detail("none.safetensors: it is cut off, or no safetensors file");
}

#define snapshot_test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        snapshot_test(every_type_and_shape_comes_back),
        snapshot_test(values_come_back_exactly),
        snapshot_test(the_same_state_has_the_same_id),
        snapshot_test(the_newest_are_kept),
        snapshot_test(a_broken_one_does_not_count_as_kept),
        snapshot_test(the_data_of_a_damaged_manifest_stays),
        snapshot_test(only_our_own_leftovers_are_removed),
        snapshot_test(damage_is_passed_over_with_a_sentence),
        snapshot_test(nothing_saved_is_not_damage),
        snapshot_test(mismatches_name_the_culprit),
        snapshot_test(bad_states_are_refused_before_anything_is_written),
        snapshot_test(a_full_disk_costs_nothing_older),
        snapshot_test(one_process_saves_at_a_time),
        snapshot_test(a_forked_child_does_not_keep_the_lock),
        snapshot_test(what_is_no_folder_or_no_file_is_said),
        snapshot_test(a_file_of_others_loads_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
