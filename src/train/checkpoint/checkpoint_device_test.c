/* Checkpoints of tensors on a GPU, on doubles of the driver and of NCCL: any number of ranks loads what any number has
 * saved, on a GPU or on the host, and the parts are the same files. An error of a rank's driver is every rank's, and
 * the group goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "comm/nccl/device_ranks_test_support.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/checkpoint/checkpoint_test_support.h"

enum { PATH_BYTES = 256, WORLDS = 4, TENSORS = 4 };

static const uint32_t worlds[WORLDS] = {1, 2, 4, 8};

/* Those with an odd index are whole. */
static const struct muster_tensor tensors[TENSORS] = {
    {.name = "cut", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {700, 900}},
    {.name = "whole", .type = MUSTER_UINT16, .dim_count = 1, .shape = {600001}},
    {.name = "bytes", .type = MUSTER_INT8, .dim_count = 1, .shape = {77}},
    {.name = "scalar", .type = MUSTER_FLOAT64},
};

static char top[PATH_BYTES / 4];

static int set_up(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    assert_true(str_format(top, sizeof top, "%s/muster-device-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(top));
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return folder_remove(top) < 0;
}

static void folder_of(char out[PATH_BYTES], const char *kind, uint32_t number) {
    (void)str_format(out, PATH_BYTES, "%s/%s%u", top, kind, number);
}

/* ---- states on a GPU ---- */

struct device_copy {
    void *host[TEST_TENSORS_MAX + TEST_CHUNKS_MAX]; /* where tensors, then chunks, were */
};

static void *move_out(struct rank *rank, void *host, size_t bytes) {
    unsigned long long address = 0;
    rank_check(rank, cuda_library_if_open()->memory_allocate(&address, bytes + 1) == CUDA_OK);
    memcpy(cuda_double_contents(address, bytes), host, bytes);
    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

static void *move_back(struct rank *rank, void *device, void *host, size_t bytes) {
    rank_check(rank, host);
    memcpy(host, cuda_double_contents(device_address(device), bytes), bytes);
    rank_check(rank, cuda_library_if_open()->memory_free(device_address(device)) == CUDA_OK);
    return host;
}

static void to_device(struct rank *rank, struct test_state *t, struct device_copy *copy) {
    for (size_t i = 0; i < t->description.tensor_count; i++) {
        struct muster_tensor *tensor = &t->tensors[i];
        copy->host[i] = tensor->data;
        if (tensor->data) {
            tensor->data = move_out(rank, tensor->data, state_element_count(tensor) * muster_type_bytes(tensor->type));
        }
    }
    for (size_t i = 0; i < t->chunk_count; i++) {
        struct muster_checkpoint_chunk *chunk = &t->chunks[i];
        copy->host[TEST_TENSORS_MAX + i] = chunk->data;
        chunk->data = move_out(rank, chunk->data, chunk->count * muster_type_bytes(tensors[chunk->tensor].type));
    }
}

static void to_host(struct rank *rank, struct test_state *t, struct device_copy *copy) {
    for (size_t i = 0; i < t->description.tensor_count; i++) {
        struct muster_tensor *tensor = &t->tensors[i];
        if (tensor->data) {
            tensor->data = move_back(rank, tensor->data, copy->host[i],
                                     state_element_count(tensor) * muster_type_bytes(tensor->type));
        }
    }
    for (size_t i = 0; i < t->chunk_count; i++) {
        struct muster_checkpoint_chunk *chunk = &t->chunks[i];
        chunk->data = move_back(rank, chunk->data, copy->host[TEST_TENSORS_MAX + i],
                                chunk->count * muster_type_bytes(tensors[chunk->tensor].type));
    }
}

static void init(struct rank *rank, struct test_state *t, uint64_t seed) {
    const struct test_cut cut = {.seed = seed, .rank = rank->rank, .size = rank->size};
    test_state_init(t, tensors, TENSORS, &cut);
}

static int save(struct rank *rank, struct muster_group *group, const char *folder, int64_t step, int64_t tag,
                bool on_device, bool incremental) {
    struct test_state t;
    struct device_copy copy = {.host = {NULL}};
    struct muster_checkpoint_options options = MUSTER_CHECKPOINT_OPTIONS_INIT;
    options.incremental = incremental;
    init(rank, &t, 3);
    test_state_fill(&t, tag);
    if (on_device) {
        to_device(rank, &t, &copy);
    }
    int code = muster_checkpoint_save(group, folder, step, &t.state, &options);
    if (on_device) {
        to_host(rank, &t, &copy);
    }
    rank_check(rank, code || test_state_tag(&t) == tag);
    test_state_done(&t);
    return code;
}

/* The number that all of it comes from, or a code. */
static int64_t load(struct rank *rank, struct muster_group *group, const char *folder, bool on_device,
                    struct muster_checkpoint_found *found) {
    struct test_state t;
    struct device_copy copy = {.host = {NULL}};
    init(rank, &t, 40 + rank->size);
    if (on_device) {
        to_device(rank, &t, &copy);
    }
    int64_t code = muster_checkpoint_load_newest(group, folder, &t.state, NULL, found);
    if (on_device) {
        to_host(rank, &t, &copy);
    }
    code = code ? code : test_state_tag(&t);
    test_state_done(&t);
    return code;
}

static void end(struct device_rank *d) {
    device_rank_end(d);
    rank_check(d->rank, cuda_double_live() == 0);
}

/* ---- worlds ---- */

static void part_path(struct rank *rank, char out[2 * PATH_BYTES], const char *path, int64_t step) {
    struct snapshot_folder folder;
    struct checkpoint_record record = {.step = -1};
    char text[CHECKPOINT_NAME_MAX];
    rank_check_code(rank, snapshot_folder_open(&folder, &snapshot_io_system, path, false), 0);
    rank_check_code(rank, checkpoint_read_record(&folder, step, &record), 0);
    snapshot_folder_close(&folder);
    checkpoint_name_write(text, &(struct checkpoint_name){
                                    .kind = CHECKPOINT_PART, .step = step, .token = record.token, .part = rank->rank});
    (void)str_format(out, 2 * PATH_BYTES, "%s/%s", path, text);
}

static void check_same_part(struct rank *rank, const char *one, const char *other) {
    char paths[2][2 * PATH_BYTES];
    part_path(rank, paths[0], one, 1);
    part_path(rank, paths[1], other, 1);
    FILE *files[2] = {fopen(paths[0], "rbe"), fopen(paths[1], "rbe")};
    rank_check(rank, files[0] && files[1]);
    int byte = 0;
    while (byte != EOF) {
        byte = getc(files[0]);
        rank_check(rank, byte == getc(files[1]));
    }
    (void)fclose(files[0]);
    (void)fclose(files[1]);
}

static int save_body(struct rank *rank, void *argument) {
    struct device_rank d;
    char device[PATH_BYTES], host[PATH_BYTES];
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "500", 1);
    folder_of(device, "device", rank->size);
    folder_of(host, "host", rank->size);
    device_rank_start(rank, &d);
    rank_check_code(rank, save(rank, d.group, device, 1, 100 + rank->size, true, false), 0);
    rank_check_code(rank, save(rank, d.group, host, 1, 100 + rank->size, false, false), 0);
    check_same_part(rank, device, host);
    end(&d);
    return 0;
}

static int load_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    device_rank_start(rank, &d);
    for (size_t i = 0; i < WORLDS; i++) {
        char folder[PATH_BYTES];
        struct muster_checkpoint_found found;
        folder_of(folder, "device", worlds[i]);
        rank_check(rank, load(rank, d.group, folder, false, &found) == 100 + worlds[i]);
        rank_check(rank, load(rank, d.group, folder, true, &found) == 100 + worlds[i]);
        folder_of(folder, "host", worlds[i]);
        rank_check(rank, load(rank, d.group, folder, true, &found) == 100 + worlds[i]);
        rank_check(rank, found.part_count == worlds[i] && found.passed_over == 0);
    }
    end(&d);
    return 0;
}

static void every_world_loads_what_every_world_has_saved(void **state) {
    (void)state;
    for (size_t i = 0; i < WORLDS; i++) {
        ranks_run(worlds[i], save_body, NULL);
    }
    for (size_t i = 0; i < WORLDS; i++) {
        struct ranks_options options = {.ranks_per_host = i == 2 ? 2 : 0};
        ranks_run_with(worlds[i], load_body, NULL, &options);
    }
    for (size_t i = 0; i < WORLDS; i++) {
        char folder[PATH_BYTES];
        folder_of(folder, "device", worlds[i]);
        assert_int_equal(folder_remove(folder), worlds[i] + 2);
        folder_of(folder, "host", worlds[i]);
        assert_int_equal(folder_remove(folder), worlds[i] + 2);
    }
}

/* ---- parts that have not changed ---- */

static int incremental_body(struct rank *rank, void *argument) {
    struct device_rank d;
    char folder[PATH_BYTES], path[2 * PATH_BYTES];
    struct stat info;
    (void)argument;
    folder_of(folder, "same", 0);
    device_rank_start(rank, &d);
    rank_check_code(rank, save(rank, d.group, folder, 1, 5, false, false), 0);
    rank_check_code(rank, save(rank, d.group, folder, 2, 5, true, true), 0);
    part_path(rank, path, folder, 2);
    rank_check(rank, stat(path, &info) == 0 && info.st_nlink == 2);
    rank_check_code(rank, save(rank, d.group, folder, 3, 6, true, true), 0);
    part_path(rank, path, folder, 3);
    rank_check(rank, stat(path, &info) == 0 && info.st_nlink == 1);
    rank_check(rank, load(rank, d.group, folder, true, NULL) == 6);
    end(&d);
    return 0;
}

static void a_part_that_is_the_same_on_a_device_is_taken_over(void **state) {
    (void)state;
    char folder[PATH_BYTES];
    ranks_run(2, incremental_body, NULL);
    folder_of(folder, "same", 0);
    assert_int_equal(folder_remove(folder), 2 * (2 + 2));
}

/* ---- streams ---- */

struct late {
    sem_t open;
    void *to;
    const void *from;
    size_t bytes;
};

static void fill_late(void *argument) {
    struct late *late = argument;
    while (sem_wait(&late->open) != 0) {
    }
    memcpy(cuda_double_contents(device_address(late->to), late->bytes), late->from, late->bytes);
}

static void open_late(void *argument) {
    (void)sem_post(&((struct late *)argument)->open);
}

/* The group's stream gives the tensor its values after the save has begun to wait for it. */
static int held_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct test_state t;
    struct device_copy copy = {.host = {NULL}};
    struct late late;
    char folder[PATH_BYTES];
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "1000", 1);
    folder_of(folder, "held", 0);
    device_rank_start(rank, &d);
    init(rank, &t, 3);
    test_state_fill(&t, 8);
    to_device(rank, &t, &copy);
    late = (struct late){
        .to = t.tensors[1].data, .from = copy.host[1], .bytes = state_element_count(&tensors[1]) * sizeof(uint16_t)};
    (void)sem_init(&late.open, 0, 0);
    memset(cuda_double_contents(device_address(late.to), late.bytes), 0, late.bytes);
    rank_check_code(rank, muster_group_set_stream(d.group, d.stream), 0);
    cuda_double_enqueue(d.stream, fill_late, &late);
    for (int i = 0; i < 100; i++) { /* which takes the default stream longer than all that the save does */
        rank_check(rank, cuda_library_if_open()->set_bytes(device_address(t.tensors[3].data), 0, 0, NULL) == CUDA_OK);
    }
    cuda_double_enqueue(NULL, open_late, &late);
    rank_check_code(rank, muster_checkpoint_save(d.group, folder, 1, &t.state, NULL), 0);
    to_host(rank, &t, &copy);
    test_state_done(&t);
    rank_check(rank, load(rank, d.group, folder, false, NULL) == 8);
    end(&d);
    return 0;
}

static void a_save_waits_for_the_groups_stream(void **state) {
    (void)state;
    char folder[PATH_BYTES];
    ranks_run(2, held_body, NULL);
    folder_of(folder, "held", 0);
    assert_int_equal(folder_remove(folder), 2 + 2);
}

/* ---- errors ---- */

struct fault {
    const char *rule, *saving, *loading; /* rank 1's; the sentences; NULL: it works */
};

static int fault_body(struct rank *rank, void *argument) {
    const struct fault *fault = argument;
    struct device_rank d;
    struct muster_checkpoint_found found;
    char folder[PATH_BYTES];
    if (rank->rank == 1) {
        (void)setenv("MUSTER_DOUBLE_CUDA", fault->rule, 1);
    }
    folder_of(folder, "fault", 0);
    device_rank_start(rank, &d);
    rank_check_code(rank, save(rank, d.group, folder, 1, 1, false, false), 0);
    rank_check_code(rank, save(rank, d.group, folder, 2, 2, true, false), fault->saving ? MUSTER_ESYSTEM : 0);
    if (fault->saving) {
        device_rank_expect_sentence(rank, fault->saving);
    }
    rank_check(rank, load(rank, d.group, folder, false, &found) == (fault->saving ? 1 : 2));
    rank_check(rank, found.passed_over == 0);
    rank_check(rank, load(rank, d.group, folder, true, NULL) == (fault->loading  ? MUSTER_ESYSTEM
                                                                 : fault->saving ? 1
                                                                                 : 2));
    if (fault->loading) {
        device_rank_expect_sentence(rank, fault->loading);
        rank_check(rank, load(rank, d.group, folder, true, NULL) == 2);
    }
    rank_check_code(rank, muster_group_status(d.group), 0);
    end(&d);
    return 0;
}

static void an_error_of_one_ranks_driver_is_every_ranks(void **state) {
    (void)state;
    static const struct fault faults[] = {
        {"error:cuMemcpyDtoHAsync_v2:2:700",
         "save step 2: rank 1: tensor cut: copy from the GPU: CUDA_ERROR_ILLEGAL_ADDRESS (as the double says)", NULL},
        {"error:cuMemcpyHtoDAsync_v2:1:719", NULL,
         "load step 2: rank 1: tensor cut: copy to the GPU: CUDA_ERROR_LAUNCH_FAILED (as the double says)"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char folder[PATH_BYTES];
        struct fault fault = faults[i];
        ranks_run(3, fault_body, &fault);
        folder_of(folder, "fault", 0);
        assert_true(folder_remove(folder) == (fault.saving ? 1 : 2) * (3 + 2));
    }
}

/* ---- groups that cannot send what is on a GPU ---- */

static int engines_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_group_options plain = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *muster = NULL;
    char folder[PATH_BYTES];
    (void)argument;
    folder_of(folder, "engines", 0);
    device_rank_start(rank, &d);
    plain.engine = "muster";
    rank_check_code(rank, muster_group_split(d.group, 0, 0, &plain, &muster), 0);
    /* A save sends no tensor: any engine will do, and each rank may have its own memory. */
    rank_check_code(rank, save(rank, muster, folder, 1, 9, rank->rank == 1, false), 0);
    rank_check(rank, load(rank, muster, folder, true, NULL) == MUSTER_EUNSUPPORTED);
    device_rank_expect_sentence(
        rank, "rank 0: tensor whole is in memory of the GPU, which the group's engine, 'muster', cannot send");
    rank_check(rank, load(rank, d.group, folder, rank->rank == 1, NULL) == MUSTER_EMISMATCH);
    device_rank_expect_sentence(rank, "which of them have data, which are on a GPU, values");
    rank_check(rank, load(rank, d.group, folder, true, NULL) == 9);
    muster_group_free(muster);
    end(&d);
    return 0;
}

static void a_load_says_which_engine_it_needs(void **state) {
    (void)state;
    char folder[PATH_BYTES];
    ranks_run(2, engines_body, NULL);
    folder_of(folder, "engines", 0);
    assert_int_equal(folder_remove(folder), 2 + 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_world_loads_what_every_world_has_saved),
        cmocka_unit_test(a_part_that_is_the_same_on_a_device_is_taken_over),
        cmocka_unit_test(a_save_waits_for_the_groups_stream),
        cmocka_unit_test(an_error_of_one_ranks_driver_is_every_ranks),
        cmocka_unit_test(a_load_says_which_engine_it_needs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
