/* A stream against the disk model and the real one: what was added is in the file, in order, whatever the sizes; past
 * the page cache only in whole sectors; and a failure in the thread is told to who adds. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_stream.h"
#include "train/state/disk_model.h"

enum { PIECE_BYTES = 2 * DISK_SECTOR_BYTES, BYTES_MAX = 20 * PIECE_BYTES };

static struct disk disk;
static struct snapshot_io io;

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Bytes that tell their place. */
static void fill(uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    }
}

/* Adds `count` bytes in parts of any sizes. The disk's own random numbers are the writing thread's. */
static int add_all(struct checkpoint_stream *stream, const uint8_t *bytes, size_t count) {
    uint32_t random = (uint32_t)count;
    int code = 0;
    for (size_t done = 0, part = 0; done < count && code == 0; done += part) {
        part = 1 + next_random(&random) % (3 * PIECE_BYTES);
        part = part < count - done ? part : count - done;
        code = checkpoint_stream_add(stream, bytes + done, part);
    }
    return code;
}

/* The file "f" of a model, which fails at call `at`. */
static struct checkpoint_pace pace;

static int write_file(const uint8_t *bytes, size_t count, unsigned at) {
    struct snapshot_folder folder;
    struct checkpoint_stream stream;
    disk_start(&disk, at, DISK_FAIL_FOREVER);
    assert_int_equal(snapshot_folder_open(&folder, &io, "d", false), 0);
    int file = io.create(io.ctx, folder.handle, "f");
    if (file < 0) {
        snapshot_folder_close(&folder);
        return status_fail(MUSTER_ESYSTEM, "create");
    }
    assert_int_equal(checkpoint_stream_begin(&stream, &folder, "f", file, count, PIECE_BYTES), 0);
    stream.pace = pace;
    int code = add_all(&stream, bytes, count), end_code = checkpoint_stream_end(&stream);
    io.close(io.ctx, file);
    snapshot_folder_close(&folder);
    return code ? code : end_code;
}

static void any_sizes_are_written_whole(void **state) {
    (void)state;
    uint8_t bytes[BYTES_MAX];
    fill(bytes, sizeof bytes);
    unsigned direct_writes = 0;
    for (size_t count = 0; count <= BYTES_MAX; count++) {
        disk_init(&disk, count);
        io = disk_io(&disk);
        assert_int_equal(write_file(bytes, count, 0), 0);
        const struct disk_file *file = disk_find(&disk, "f");
        assert_int_equal(file->seen_bytes, count);
        assert_memory_equal(file->seen, bytes, count);
        assert_false(disk.was_misaligned);
        assert_true(count > PIECE_BYTES || disk.direct_writes == 0);
        direct_writes += disk.direct_writes;
    }
    assert_true(direct_writes > BYTES_MAX);
}

static void a_failure_at_any_write_is_told(void **state) {
    (void)state;
    uint8_t bytes[BYTES_MAX];
    fill(bytes, sizeof bytes);
    int code = MUSTER_ESYSTEM;
    unsigned at = 1;
    for (; code; at++) {
        disk_init(&disk, at);
        io = disk_io(&disk);
        code = write_file(bytes, sizeof bytes, at);
        assert_true(code == 0 || code == MUSTER_ESYSTEM);
        assert_int_equal(disk_open_handles(&disk), 0);
        assert_true(code == 0 || at == 1 || strstr(muster_detail(), "write d/f: ") != NULL);
    }
    assert_true(at > BYTES_MAX / PIECE_BYTES);
}

/* The model's clock runs in pauses alone. */
static void a_limit_is_kept_until_it_is_lifted(void **state) {
    (void)state;
    enum { BYTES_PER_SECOND = BYTES_MAX / 4 };
    uint8_t bytes[BYTES_MAX];
    atomic_bool is_lifted = false;
    fill(bytes, sizeof bytes);
    for (int lifts = 0; lifts < 2; lifts++) {
        disk_init(&disk, 1);
        io = disk_io(&disk);
        pace = (struct checkpoint_pace){BYTES_PER_SECOND, &is_lifted};
        is_lifted = lifts;
        assert_int_equal(write_file(bytes, sizeof bytes, 0), 0);
        assert_memory_equal(disk_find(&disk, "f")->seen, bytes, sizeof bytes);
        assert_in_range(disk.now_ms, lifts ? 0 : 3800, lifts ? 0 : 4000); /* the last write is not waited for */
    }
    pace = (struct checkpoint_pace){0, NULL};
}

/* A file system that takes the flag and refuses the write. */
static int64_t refuse_direct(void *ctx, int file, const void *bytes, size_t count) {
    return disk.files[0].is_direct ? -EINVAL : snapshot_io_system.write(ctx, file, bytes, count);
}

static int note_direct(void *ctx, int file, bool is_direct) {
    (void)ctx;
    (void)file;
    disk.files[0].is_direct = is_direct;
    return 0;
}

static void a_real_file_is_written_both_ways(void **state) {
    (void)state;
    size_t count = ((size_t)5 << 20) + 123;
    uint8_t *bytes = malloc(count), *read_back = malloc(count);
    assert_true(bytes && read_back);
    fill(bytes, count);
    for (int refuses = 0; refuses < 2; refuses++) {
        char path[] = "/tmp/muster-stream-XXXXXX";
        struct snapshot_io own = snapshot_io_system;
        struct snapshot_folder folder = {.io = &own, .path = "/tmp", .handle = -1};
        struct checkpoint_stream stream;
        int file = mkstemp(path);
        if (refuses) {
            own.write = refuse_direct;
            own.set_direct = note_direct;
        }
        assert_true(file >= 0 && unlink(path) == 0);
        disk_init(&disk, 1);
        assert_int_equal(checkpoint_stream_begin(&stream, &folder, path, file, count, (size_t)1 << 20), 0);
        assert_int_equal(checkpoint_stream_add(&stream, bytes, 1000), 0);
        assert_int_equal(checkpoint_stream_add(&stream, bytes + 1000, count - 1000), 0);
        assert_int_equal(checkpoint_stream_end(&stream), 0);
        assert_int_equal(stream.bytes, count);
        assert_int_equal(pread(file, read_back, count, 0), count);
        assert_memory_equal(read_back, bytes, count);
        (void)close(file);
    }
    free(bytes);
    free(read_back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_sizes_are_written_whole),
        cmocka_unit_test(a_failure_at_any_write_is_told),
        cmocka_unit_test(a_limit_is_kept_until_it_is_lifted),
        cmocka_unit_test(a_real_file_is_written_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
