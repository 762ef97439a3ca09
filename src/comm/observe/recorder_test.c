/* The recorder: golden bytes, damaged files, the ring, and what is left of a process that was killed in a call. */
#include "comm/observe/recorder.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "base/clock.h"
#include "comm/group/ranks_test_support.h"

#define WITHOUT_NAMES_BYTES ((size_t)CALL_RECORD_HEADER_BYTES + (size_t)CALL_RECORD_ENTRIES * CALL_RECORD_ENTRY_BYTES)

static const struct comm_call reduce_call = {
    .operation = COMM_REDUCE, .type = MUSTER_FLOAT32, .reduction = MUSTER_OP_MAX, .root = 3, .count = 0x0102};

static void golden_bytes(void **state) {
    (void)state;
    static const uint8_t head[] = {'M', 'U', 'S', 'T', 'C', 'A', 'L', 'L', 1,   0, 0, 0,
                                   128, 0,   0,   0,   64,  0,   0,   0,   128, 0, 0, 0};
    static const uint8_t entry[] = {
        1,    0, 0, 0, 0, 0, 0, 0, /* number */
        17,   0, 0, 0, 0, 0, 0, 0, /* sequence */
        5,    0, 0, 0,             /* group */
        3,    7, 3, 2,             /* reduce, float32, max, finished */
        2,    1, 0, 0, 0, 0, 0, 0, /* count */
        0xE8, 3, 0, 0, 0, 0, 0, 0, /* begin */
        0xD0, 7, 0, 0, 0, 0, 0, 0, /* end */
        3,    0, 0, 0,             /* root */
        8,    0, 0, 0,             /* size of the group */
        0,    0, 0, 0,             /* status */
        0,    0, 0, 0,
    };
    struct recorder *recorder = recorder_acquire(2, 8);
    struct recorder_place place = {5, 8, 17, 3};
    uint64_t number = recorder_begin(recorder, &reduce_call, &place, 1000);
    recorder_end(recorder, number, 2000, 0);
    const uint8_t *bytes = (const uint8_t *)recorder;
    assert_memory_equal(bytes, head, sizeof head);
    assert_memory_equal(bytes + CALL_RECORD_HEADER_BYTES, entry, sizeof entry);
    struct call_record_header header;
    struct call_record call;
    char text[128];
    assert_true(call_record_read_header(bytes, CALL_RECORD_FILE_BYTES, &header));
    assert_int_equal(header.pid, getpid());
    assert_int_equal(header.rank, 2);
    assert_int_equal(header.world_size, 8);
    assert_int_equal(header.begun_count, 1);
    assert_int_equal(call_record_read(bytes, CALL_RECORD_FILE_BYTES, &call, 1), 1);
    assert_string_equal(call_record_format(&call, "", text, sizeof text),
                        "reduce of 258 float32, max, root 3 (call 17 of group 5), finished");
    recorder_release(recorder);
}

/* Counts per rank: no number says how much that is. */
static void counts_per_rank_are_told(void **state) {
    (void)state;
    static const size_t counts[] = {1, 2};
    const struct comm_call scatter = {
        .operation = COMM_REDUCE_SCATTER, .type = MUSTER_FLOAT32, .reduction = MUSTER_OP_SUM, .receive_counts = counts};
    struct recorder *recorder = recorder_acquire(0, 2);
    const struct recorder_place place = {0, 2, 1, CALL_RECORD_NO_PEER};
    struct call_record call;
    char text[128];
    recorder_end(recorder, recorder_begin(recorder, &scatter, &place, 1), 2, 0);
    assert_int_equal(call_record_read((const uint8_t *)recorder, CALL_RECORD_FILE_BYTES, &call, 1), 1);
    assert_string_equal(call_record_format(&call, "world", text, sizeof text),
                        "reduce_scatter_v of float32, sum (call 1 of group 'world'), finished");
    recorder_release(recorder);
}

static void groups_have_names(void **state) {
    (void)state;
    static const uint8_t slot[] = {5, 0, 0, 0, 1, 0, 0, 0, 'o', 'd', 'd', 's', 0};
    struct recorder *recorder = recorder_acquire(0, 1);
    const uint8_t *bytes = (const uint8_t *)recorder;
    char name[CALL_RECORD_NAME_BYTES], text[128];
    assert_int_equal(bytes[36], CALL_RECORD_GROUPS);
    assert_false(call_record_group_name(bytes, CALL_RECORD_FILE_BYTES, 5, name));
    recorder_name_group(recorder, 5, "odds", "muster (one host)");
    recorder_name_group(recorder, 5, "odds", "muster (one host)");
    assert_memory_equal(recorder->groups, slot, sizeof slot);
    assert_true(call_record_group_name(bytes, CALL_RECORD_FILE_BYTES, 5, name));
    const struct call_record call = {
        .sequence = 17, .group = 5, .operation = COMM_BARRIER, .state = CALL_RECORD_BEGUN, .peer = CALL_RECORD_NO_PEER};
    assert_string_equal(call_record_format(&call, name, text, sizeof text), "barrier (call 17 of group 'odds'), begun");
    assert_false(call_record_group_name(bytes, WITHOUT_NAMES_BYTES, 5, name));
    recorder_name_group(recorder, 5, "evens", "mpi (as asked for)");
    recorder_name_group(recorder, 5, "odds", "muster (one host)"); /* which of them it is, nobody knows any more */
    assert_false(call_record_group_name(bytes, CALL_RECORD_FILE_BYTES, 5, name));
    for (uint32_t id = 6; id < 6 + CALL_RECORD_GROUPS; id++) {
        recorder_name_group(recorder, id, "bell\a", "muster");
    }
    assert_false(call_record_group_name(bytes, CALL_RECORD_FILE_BYTES, 5, name)); /* only the newest */
    assert_true(call_record_group_name(bytes, CALL_RECORD_FILE_BYTES, 6, name));
    assert_string_equal(name, "bell?");
    recorder_name_group(recorder, 0, "world", "muster (as asked for)");
    for (uint32_t id = 100; id < 100 + 3 * CALL_RECORD_GROUPS; id++) {
        recorder_name_group(recorder, id, "part", "mpi");
    }
    assert_true(call_record_group_name(bytes, CALL_RECORD_FILE_BYTES, 0, name)); /* the root group's stays */
    assert_string_equal(name, "world");
    assert_true(call_record_group_name(bytes, CALL_RECORD_FILE_BYTES, 99 + 3 * CALL_RECORD_GROUPS, name));
    recorder_release(recorder);
}

static const char *engine_of(const struct recorder *recorder, uint32_t group) {
    static char engine[CALL_RECORD_ENGINE_BYTES];
    bool has_one = call_record_group_engine((const uint8_t *)recorder, CALL_RECORD_FILE_BYTES, group, engine);
    assert_int_equal(has_one, engine[0] != '\0');
    return engine;
}

static void groups_have_engines(void **state) {
    (void)state;
    static const uint8_t slot[] = "mpi (as asked for)";
    char long_text[2 * CALL_RECORD_ENGINE_BYTES], cut[CALL_RECORD_ENGINE_BYTES];
    struct recorder *recorder = recorder_acquire(0, 1);
    assert_string_equal(engine_of(recorder, 0), "");
    recorder_name_group(recorder, 5, "odds", "muster (one host)");
    recorder_name_group(recorder, 0, "world", "mpi (as asked for)");
    const uint8_t *engines =
        (const uint8_t *)recorder + WITHOUT_NAMES_BYTES + CALL_RECORD_GROUPS * CALL_RECORD_GROUP_BYTES;
    assert_memory_equal(engines + CALL_RECORD_ENGINE_BYTES, slot, sizeof slot); /* the second place */
    assert_string_equal(engine_of(recorder, 0), "mpi (as asked for)");
    assert_string_equal(engine_of(recorder, 5), "muster (one host)");
    recorder_name_group(recorder, 0, "another world", "muster (a group of one rank)");
    assert_string_equal(engine_of(recorder, 0), "muster (a group of one rank)"); /* the newest of that id */
    recorder_name_group(recorder, 0, "world", "x\x1b[2J\n\xff");
    assert_string_equal(engine_of(recorder, 0), "x?[2J??");
    memset(long_text, 'y', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    (void)snprintf(cut, sizeof cut, "%.*s", CALL_RECORD_ENGINE_BYTES - 1, long_text);
    recorder_name_group(recorder, 0, "world", long_text);
    assert_string_equal(engine_of(recorder, 0), cut);
    for (uint32_t id = 6; id < 6 + CALL_RECORD_GROUPS; id++) {
        recorder_name_group(recorder, id, "part", "mpi");
    }
    assert_string_equal(engine_of(recorder, 5), ""); /* only the newest */
    assert_string_equal(engine_of(recorder, 0), cut);
    assert_string_equal(engine_of(recorder, 5 + CALL_RECORD_GROUPS), "mpi");
    recorder_release(recorder);
}

/* As libraries before wrote it, and as a damaged one may be. */
static void files_without_engines_have_none(void **state) {
    (void)state;
    struct recorder *recorder = recorder_acquire(0, 1);
    const size_t names_bytes = CALL_RECORD_FILE_BYTES - CALL_RECORD_GROUPS * CALL_RECORD_ENGINE_BYTES;
    char engine[CALL_RECORD_ENGINE_BYTES], name[CALL_RECORD_NAME_BYTES];
    uint8_t *copy = malloc(CALL_RECORD_FILE_BYTES);
    assert_non_null(copy);
    recorder_name_group(recorder, 7, "part", "mpi");
    recorder_name_group(recorder, 0, "world", "mpi");
    memcpy(copy, recorder, CALL_RECORD_FILE_BYTES);
    recorder_release(recorder);
    for (size_t len = 0; len <= CALL_RECORD_FILE_BYTES; len++) {
        uint8_t *cut = malloc(len ? len : 1);
        assert_non_null(cut);
        memcpy(cut, copy, len);
        bool is_there = call_record_group_engine(cut, len, 0, engine);
        assert_int_equal(is_there, len >= names_bytes + 2 * CALL_RECORD_ENGINE_BYTES);
        free(cut);
    }
    assert_true(call_record_group_name(copy, names_bytes, 0, name));
    memset(copy + names_bytes + CALL_RECORD_ENGINE_BYTES, 'z', CALL_RECORD_ENGINE_BYTES); /* no end */
    assert_true(call_record_group_engine(copy, CALL_RECORD_FILE_BYTES, 0, engine));
    assert_int_equal(strlen(engine), CALL_RECORD_ENGINE_BYTES - 1);
    memset(copy + 36, 0xFF, 4); /* so many groups that their engines would be far behind the end */
    assert_false(call_record_group_engine(copy, CALL_RECORD_FILE_BYTES, 0, engine));
    free(copy);
}

static void the_ring_keeps_the_newest(void **state) {
    (void)state;
    enum { CALLS = 3 * CALL_RECORD_ENTRIES + 5 };
    struct recorder *recorder = recorder_acquire(0, 1);
    const uint8_t *bytes = (const uint8_t *)recorder;
    static struct call_record calls[CALL_RECORD_ENTRIES + 1];
    assert_int_equal(call_record_read(bytes, CALL_RECORD_FILE_BYTES, calls, CALL_RECORD_ENTRIES), 0);
    uint64_t first = 0;
    for (uint64_t i = 1; i <= CALLS; i++) {
        struct recorder_place place = {0, 1, i, CALL_RECORD_NO_PEER};
        uint64_t number = recorder_begin(recorder, &reduce_call, &place, (int64_t)i);
        first = i == 1 ? number : first;
        if (i != CALLS) {
            recorder_end(recorder, number, (int64_t)i + 1, i % 2 ? 0 : MUSTER_EPEER);
        }
    }
    recorder_end(recorder, first, 1, MUSTER_ETIMEOUT); /* its entry has another call */
    assert_int_equal(call_record_read(bytes, CALL_RECORD_FILE_BYTES, calls, CALL_RECORD_ENTRIES + 1),
                     CALL_RECORD_ENTRIES);
    for (uint64_t i = 0; i < CALL_RECORD_ENTRIES; i++) {
        uint64_t expected = CALLS - CALL_RECORD_ENTRIES + 1 + i;
        assert_int_equal(calls[i].sequence, expected);
        assert_int_equal(calls[i].state, expected == CALLS ? CALL_RECORD_BEGUN
                                         : expected % 2    ? CALL_RECORD_FINISHED
                                                           : CALL_RECORD_FAILED);
    }
    assert_int_equal(call_record_read(bytes, CALL_RECORD_FILE_BYTES, calls, 2), 2);
    assert_int_equal(calls[1].sequence, CALLS);
    recorder_release(recorder);
}

static void damaged_files_are_refused_or_harmless(void **state) {
    (void)state;
    struct recorder *recorder = recorder_acquire(0, 1);
    struct recorder_place place = {0, 1, 1, 0};
    (void)recorder_begin(recorder, &reduce_call, &place, 1);
    uint8_t *copy = malloc(CALL_RECORD_FILE_BYTES);
    static struct call_record calls[CALL_RECORD_ENTRIES];
    struct call_record_header header;
    const size_t whole = WITHOUT_NAMES_BYTES;
    char text[256], name[CALL_RECORD_NAME_BYTES], engine[CALL_RECORD_ENGINE_BYTES];
    assert_non_null(copy);
    recorder_name_group(recorder, 0, "world", "muster (as asked for)");
    memcpy(copy, recorder, CALL_RECORD_FILE_BYTES);
    recorder_release(recorder);
    for (size_t len = 0; len < CALL_RECORD_FILE_BYTES; len += len < 200 ? 1 : 97) {
        uint8_t *cut = malloc(len ? len : 1);
        assert_non_null(cut);
        memcpy(cut, copy, len);
        assert_int_equal(call_record_read_header(cut, len, &header), len >= whole);
        assert_int_equal(call_record_read(cut, len, calls, CALL_RECORD_ENTRIES), len >= whole);
        assert_int_equal(call_record_group_name(cut, len, 0, name), len >= whole + CALL_RECORD_GROUP_BYTES);
        free(cut);
    }
    for (size_t at = 0; at < CALL_RECORD_HEADER_BYTES + CALL_RECORD_ENTRY_BYTES; at++) {
        uint8_t before = copy[at];
        for (unsigned value = 0; value < 256; value += 51) {
            copy[at] = (uint8_t)value;
            size_t count = call_record_read(copy, CALL_RECORD_FILE_BYTES, calls, CALL_RECORD_ENTRIES);
            (void)call_record_group_name(copy, CALL_RECORD_FILE_BYTES, 0, name);
            (void)call_record_group_engine(copy, CALL_RECORD_FILE_BYTES, 0, engine);
            for (size_t i = 0; i < count; i++) {
                assert_true(strlen(call_record_format(&calls[i], name, text, sizeof text)) < sizeof text);
            }
        }
        copy[at] = before;
    }
    memset(copy + 56, 0xFF, 8); /* as many calls as can be counted */
    (void)call_record_read(copy, CALL_RECORD_FILE_BYTES, calls, CALL_RECORD_ENTRIES);
    free(copy);
}

/* ---- after a SIGKILL ---- */

static int be_killed_in_a_call(struct rank *rank, void *folder) {
    char path[96];
    (void)snprintf(path, sizeof path, "%s/error-%u.json", (const char *)folder, rank->rank);
    rank_check(rank, setenv("TORCHELASTIC_ERROR_FILE", path, 1) == 0);
    struct muster_group *group = rank_group(rank, NULL);
    char engine[CALL_RECORD_ENGINE_BYTES];
    (void)snprintf(engine, sizeof engine, "%s (%s)", muster_group_engine(group), muster_group_engine_reason(group));
    rank_report(rank, engine);
    float values[4] = {0};
    for (int i = 0; i < 3; i++) {
        rank_check_code(rank, muster_all_reduce(group, values, values, 4, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    }
    rank_mark(rank, 1);
    if (rank->rank == 0) {
        (void)muster_barrier(group, NULL);
    } else {
        rank_await_signal(rank, 1);
    }
    return 0;
}

static size_t read_file(const char *path, uint8_t *out, size_t max) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, max);
    if (fd >= 0) {
        (void)close(fd);
    }
    return n > 0 ? (size_t)n : 0;
}

static void the_file_survives_a_sigkill(void **state) {
    (void)state;
    char folder[] = "/tmp/muster-recorder-test-XXXXXX", path[128], text[128], name[CALL_RECORD_NAME_BYTES];
    char engine[CALL_RECORD_ENGINE_BYTES];
    static uint8_t bytes[CALL_RECORD_FILE_BYTES];
    struct call_record calls[8];
    assert_non_null(mkdtemp(folder));
    struct ranks *ranks = ranks_start(2, be_killed_in_a_call, folder, NULL);
    ranks_await(ranks, 1, 1);
    (void)snprintf(path, sizeof path, "%s/error-0.json" CALL_RECORD_SUFFIX, folder);
    size_t count = 0;
    int64_t deadline_ns = clock_monotonic_ns() + RANKS_PATIENCE_MS * CLOCK_NS_PER_MS;
    do { /* until rank 0 is in its fourth call */
        assert_true(clock_monotonic_ns() < deadline_ns);
        (void)poll(NULL, 0, 1);
        size_t len = read_file(path, bytes, sizeof bytes);
        count = call_record_read(bytes, len, calls, 8);
    } while (count < 4);
    ranks_kill(ranks, 0);
    ranks_kill(ranks, 1);
    assert_int_equal(ranks_wait(ranks, 0), RANKS_KILLED - SIGKILL);
    count = call_record_read(bytes, read_file(path, bytes, sizeof bytes), calls, 8);
    assert_int_equal(count, 4);
    assert_true(call_record_group_name(bytes, CALL_RECORD_FILE_BYTES, calls[0].group, name));
    assert_true(call_record_group_engine(bytes, CALL_RECORD_FILE_BYTES, CALL_RECORD_ROOT_GROUP, engine));
    assert_string_equal(engine, ranks_report(ranks, 0));
    assert_string_equal(call_record_format(&calls[0], name, text, sizeof text),
                        "all_reduce of 4 float32, sum (call 1 of group 'world'), finished");
    assert_string_equal(call_record_format(&calls[3], name, text, sizeof text),
                        "barrier (call 4 of group 'world'), begun");
    assert_true(calls[3].begin_ns >= calls[2].end_ns && calls[2].end_ns >= calls[2].begin_ns);
    ranks_free(ranks);
    for (int rank = 0; rank < 2; rank++) {
        (void)snprintf(path, sizeof path, "%s/error-%d.json" CALL_RECORD_SUFFIX, folder, rank);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(counts_per_rank_are_told),
        cmocka_unit_test(groups_have_names),
        cmocka_unit_test(groups_have_engines),
        cmocka_unit_test(files_without_engines_have_none),
        cmocka_unit_test(the_ring_keeps_the_newest),
        cmocka_unit_test(damaged_files_are_refused_or_harmless),
        cmocka_unit_test(the_file_survives_a_sigkill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
