/* A checkpoint of many parts by one process: it is, byte by byte, what ranks save; any number of parts loads; and a
 * source that ends it leaves what was there. (A disk that fails: checkpoint_crash_test.c.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_job_test_support.h"
#include "train/checkpoint/checkpoint_parts.h"

static struct disk disk;
static struct snapshot_io io;

static void begin(void) {
    disk_init(&disk, 1);
    io = disk_io(&disk);
    status_clear();
}

/* parts: 0 for a save by the ranks of the job. */
static int save(int64_t step, int64_t tag, uint32_t ranks, uint32_t parts, int (*go_on)(void *), void *context) {
    const struct test_cut whole = {.size = ranks, .whole = true};
    struct job_trouble none = {.at = 0};
    struct job job;
    job_init(&job, &whole);
    job.alone_parts = parts;
    job.go_on = go_on;
    job.go_on_context = context;
    job_fill(&job, tag);
    int code = job_save(&job, &disk, &io, step, 8, &none);
    job_done(&job);
    assert_int_equal(disk_open_handles(&disk), 0);
    return code;
}

static struct checkpoint_record record_of(int64_t step) {
    struct snapshot_folder folder;
    struct checkpoint_record record;
    assert_int_equal(snapshot_folder_open(&folder, &io, "d", false), 0);
    assert_int_equal(checkpoint_read_record(&folder, step, &record), 0);
    snapshot_folder_close(&folder);
    return record;
}

/* What a job of so many ranks, cut in any way, loads. */
static int64_t load(int64_t step, uint32_t ranks) {
    const struct test_cut cut = {.seed = ranks, .size = ranks};
    const struct checkpoint_record record = record_of(step);
    struct snapshot_folder folder;
    struct job job;
    job_init(&job, &cut);
    assert_int_equal(snapshot_folder_open(&folder, &io, "d", false), 0);
    assert_int_equal(job_load(&job, &folder, &record), 0);
    int64_t tag = job_tag(&job);
    snapshot_folder_close(&folder);
    job_done(&job);
    return tag;
}

static const struct disk_file *part_of(const struct checkpoint_record *record, uint32_t part) {
    char text[CHECKPOINT_NAME_MAX];
    const struct checkpoint_name name = {
        .kind = CHECKPOINT_PART, .step = record->step, .token = record->token, .part = part};
    checkpoint_name_write(text, &name);
    const struct disk_file *file = disk_find(&disk, text);
    assert_non_null(file);
    return file;
}

static void parts_are_those_of_ranks(void **state) {
    (void)state;
    for (uint32_t ranks = 1; ranks <= JOB_RANKS_MAX; ranks++) {
        begin();
        assert_int_equal(save(1, 5, ranks, 0, NULL, NULL), 0);
        assert_int_equal(save(2, 5, ranks, ranks, NULL, NULL), 0);
        const struct checkpoint_record by_ranks = record_of(1), by_one = record_of(2);
        assert_int_equal(by_one.part_count, ranks);
        assert_int_equal(by_one.bytes, by_ranks.bytes);
        assert_int_equal(by_one.map_bytes, by_ranks.map_bytes);
        for (uint32_t part = 0; part < ranks; part++) {
            const struct disk_file *one = part_of(&by_ranks, part), *other = part_of(&by_one, part);
            assert_int_equal(one->seen_bytes, other->seen_bytes);
            assert_memory_equal(one->seen, other->seen, one->seen_bytes);
        }
    }
}

/* Tensors have 1 to 63 elements: of a hundred parts, some have nothing at all. */
static void any_number_of_parts_loads_with_any_number_of_ranks(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 2, 3, 5, 8, 62, 63, 64, 100};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        begin();
        assert_int_equal(save(1, (int64_t)i + 1, 1, counts[i], NULL, NULL), 0);
        assert_int_equal(record_of(1).part_count, counts[i]);
        for (uint32_t ranks = 1; ranks <= JOB_RANKS_MAX; ranks++) {
            assert_int_equal(load(1, ranks), (int64_t)i + 1);
        }
    }
}

static void the_same_step_is_replaced(void **state) {
    (void)state;
    begin();
    assert_int_equal(save(1, 5, 3, 0, NULL, NULL), 0);
    assert_int_equal(save(1, 6, 1, 7, NULL, NULL), 0);
    assert_int_equal(load(1, 2), 6);
    assert_int_equal(disk_count(&disk, ".safetensors"), 7);
    assert_int_equal(disk_count(&disk, ".json"), 2);
}

static int refuse(void *context) {
    int *left = context;
    return (*left)-- > 0 ? 0 : status_fail(MUSTER_ECANCELED, "no more of it");
}

/* Before each part, and once before the record. */
static void a_source_that_does_not_go_on_leaves_what_was_there(void **state) {
    (void)state;
    enum { PARTS = 5 };
    for (int asked = 0; asked <= PARTS + 1; asked++) {
        int left = asked;
        begin();
        assert_int_equal(save(1, 5, 2, 0, NULL, NULL), 0);
        int code = save(1 + asked % 2, 6, 1, PARTS, refuse, &left);
        assert_int_equal(code, asked <= PARTS ? MUSTER_ECANCELED : 0);
        if (code) {
            assert_non_null(strstr(muster_detail(), "no more of it"));
            assert_int_equal(disk_count(&disk, ".safetensors"), 2);
            assert_int_equal(disk_count(&disk, ".json"), 2);
            assert_int_equal(load(1, 2), 5);
        } else {
            assert_int_equal(load(1 + asked % 2, 2), 6);
        }
    }
}

static void numbers_of_parts_have_limits(void **state) {
    (void)state;
    static const uint32_t counts[] = {0, MUSTER_GROUP_SIZE_MAX + 1};
    const struct muster_snapshot_state nothing = MUSTER_SNAPSHOT_STATE(NULL, 0, NULL, 0);
    const struct snapshot_source source = {.context = NULL};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        assert_int_equal(checkpoint_save_parts("nowhere", 1, &nothing, counts[i], 2, &source), MUSTER_EINVAL);
        assert_non_null(strstr(muster_detail(), "1 to 65536"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_those_of_ranks),
        cmocka_unit_test(any_number_of_parts_loads_with_any_number_of_ranks),
        cmocka_unit_test(the_same_step_is_replaced),
        cmocka_unit_test(a_source_that_does_not_go_on_leaves_what_was_there),
        cmocka_unit_test(numbers_of_parts_have_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
