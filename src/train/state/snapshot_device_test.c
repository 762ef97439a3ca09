/* Snapshots of tensors on a GPU, on doubles of the driver and of NCCL: the files are those of the same state in memory
 * of the host; a save waits for the caller's stream; errors of the driver leave what was saved before. By one process
 * without a group, and by ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder_test_support.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "comm/nccl/device_ranks_test_support.h"
#include "train/state/device_state_test_support.h"

#include <muster/checkpoint.h>

enum { PATH_BYTES = 256 };

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

static const char *folder_of(const char *name, char out[PATH_BYTES]) {
    (void)str_format(out, PATH_BYTES, "%s/%s", top, name);
    return out;
}

static void remove_folder(struct rank *rank, const char *path, int files) {
    rank_check(rank, folder_remove(path) == files);
}

/* ---- files ---- */

static bool same_file(const char *one, const char *other) {
    FILE *files[2] = {fopen(one, "rbe"), fopen(other, "rbe")};
    int bytes[2] = {0, 0};
    bool is_same = files[0] && files[1];
    while (is_same && bytes[0] != EOF) {
        bytes[0] = getc(files[0]);
        bytes[1] = getc(files[1]);
        is_same = bytes[0] == bytes[1];
    }
    for (int i = 0; i < 2; i++) {
        if (files[i]) {
            (void)fclose(files[i]);
        }
    }
    return is_same;
}

/* All files of one folder are in the other, with the same bytes. */
static int compare_folders(struct rank *rank, const char *one, const char *other) {
    DIR *stream = opendir(one);
    const struct dirent *entry = NULL;
    int count = 0;
    rank_check(rank, stream);
    while ((entry = readdir(stream))) {
        char paths[2][2 * PATH_BYTES];
        if (entry->d_name[0] != '.') {
            (void)str_format(paths[0], sizeof paths[0], "%s/%s", one, entry->d_name);
            (void)str_format(paths[1], sizeof paths[1], "%s/%s", other, entry->d_name);
            rank_check(rank, same_file(paths[0], paths[1]));
            count++;
        }
    }
    (void)closedir(stream);
    return count;
}

/* The GPU has nothing left of ours but the tensors of a state. */
static void check_left(struct rank *rank, unsigned tensors) {
    rank_check(rank, cuda_double_live() == tensors);
}

static int same_files_body(struct rank *rank, void *argument) {
    struct device_state device, host;
    char folders[2][PATH_BYTES];
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "2000", 1);
    device_state_begin(rank);
    device_state_init(rank, &device, true);
    device_state_init(rank, &host, false);
    device_state_fill(&device, 7);
    device_state_fill(&host, 7);
    rank_check_code(rank, muster_snapshot_save(folder_of("device", folders[0]), 1, &device.state, NULL), 0);
    rank_check_code(rank, muster_snapshot_save(folder_of("host", folders[1]), 1, &host.state, NULL), 0);
    rank_check(rank, compare_folders(rank, folders[0], folders[1]) == 2);
    check_left(rank, DEVICE_STATE_TENSORS);
    device_state_fill(&host, 8);
    rank_check_code(rank, muster_snapshot_load(folders[0], 1, 0, &host.state), 0);
    rank_check(rank, device_state_is(&host, 7));
    device_state_fill(&device, 9);
    rank_check_code(rank, muster_snapshot_load_newest(folders[1], &device.state, NULL), 0);
    rank_check(rank, device_state_is(&device, 7));
    /* One tensor of each kind in one state. */
    device.tensors[2].data = host.tensors[2].data;
    rank_check_code(rank, muster_snapshot_save(folders[0], 2, &device.state, NULL), 0);
    rank_check_code(rank, muster_snapshot_save(folders[1], 2, &host.state, NULL), 0);
    rank_check(rank, compare_folders(rank, folders[0], folders[1]) == 4);
    check_left(rank, DEVICE_STATE_TENSORS);
    device_state_done(rank, &device);
    device_state_done(rank, &host);
    remove_folder(rank, folders[0], 4);
    remove_folder(rank, folders[1], 4);
    return 0;
}

static void a_device_and_a_host_write_the_same_files(void **state) {
    (void)state;
    ranks_run(1, same_files_body, NULL);
}

/* A file of any program, without a manifest. */
static int safetensors_body(struct rank *rank, void *argument) {
    struct device_state device, host;
    struct muster_snapshot_found found;
    char folder[PATH_BYTES], path[2 * PATH_BYTES];
    (void)argument;
    device_state_begin(rank);
    device_state_init(rank, &device, true);
    device_state_init(rank, &host, false);
    device_state_fill(&host, 5);
    rank_check_code(rank, muster_snapshot_save(folder_of("host", folder), 1, &host.state, NULL), 0);
    rank_check_code(rank, muster_snapshot_find(folder, 1, &found), 0);
    DIR *stream = opendir(folder);
    const struct dirent *entry = stream ? readdir(stream) : NULL;
    while (entry && !strstr(entry->d_name, ".safetensors")) {
        entry = readdir(stream);
    }
    rank_check(rank, entry);
    (void)str_format(path, sizeof path, "%s/%s", folder, entry->d_name);
    (void)closedir(stream);
    rank_check_code(rank, muster_safetensors_load(path, device.tensors, DEVICE_STATE_TENSORS), 0);
    device.tag = 5;
    rank_check(rank, device_state_is(&device, 5));
    device_state_done(rank, &device);
    device_state_done(rank, &host);
    remove_folder(rank, folder, 2);
    check_left(rank, 0);
    return 0;
}

static void any_safetensors_file_is_loaded_to_a_device(void **state) {
    (void)state;
    ranks_run(1, safetensors_body, NULL);
}

/* ---- a driver that the program has started itself ---- */

#define CUDA_PROTOTYPE(member, symbol, parameters) unsigned symbol parameters; /* the double's, which is linked */
CUDA_FUNCTION_TABLE(CUDA_PROTOTYPE)
#undef CUDA_PROTOTYPE

enum { OWN_COUNT = 1000 };

/* Memory of the GPU, as any program has it. */
static float *own_memory(struct rank *rank) {
    struct CUctx_st *context = NULL;
    unsigned long long address = 0;
    rank_check(rank, !cuda_library_if_open());
    rank_check(rank, cuInit(0) == CUDA_OK && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_OK);
    rank_check(rank, cuCtxSetCurrent(context) == CUDA_OK);
    rank_check(rank, cuMemAlloc_v2(&address, OWN_COUNT * sizeof(float)) == CUDA_OK);
    return (float *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

enum own_call { OWN_SAVE, OWN_LOAD, OWN_LOAD_GROUP, OWN_BROADCAST, OWN_CHECKPOINT, OWN_CHECKPOINT_LOAD, OWN_CALLS };

static int make_call(enum own_call call, struct muster_group *group, const char *folder,
                     const struct muster_snapshot_state *state) {
    const struct muster_checkpoint_state checkpoint =
        MUSTER_CHECKPOINT_STATE(state->tensors, state->tensor_count, NULL, 0, NULL, 0);
    switch (call) {
    case OWN_SAVE:
        return muster_snapshot_save(folder, 2, state, NULL);
    case OWN_LOAD:
        return muster_snapshot_load(folder, 1, 0, state);
    case OWN_LOAD_GROUP:
        return muster_snapshot_load_group(group, folder, state, NULL);
    case OWN_BROADCAST:
        return muster_snapshot_broadcast(group, state, 0);
    case OWN_CHECKPOINT:
        return muster_checkpoint_save(group, folder, 2, &checkpoint, NULL);
    default:
        return muster_checkpoint_load_newest(group, folder, &checkpoint, NULL, NULL);
    }
}

/* The first call of ours that a program makes with memory of a GPU, in a group that knows nothing of GPUs. */
static int own_driver_body(struct rank *rank, void *argument) {
    const enum own_call *call = argument;
    static float host[OWN_COUNT];
    (void)setenv("MUSTER_ENGINE", "muster", 1);
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_tensor tensor = {
        .name = "w", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {OWN_COUNT}, .data = host};
    const struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(&tensor, 1, NULL, 0);
    char folder[PATH_BYTES];
    for (size_t i = 0; i < OWN_COUNT; i++) {
        host[i] = (float)i;
    }
    folder_of("own", folder);
    rank_check_code(rank, muster_snapshot_save(folder, 1, &state, NULL), 0);
    rank_check_code(rank, make_call(OWN_CHECKPOINT, group, folder, &state), 0);
    tensor.data = own_memory(rank);
    float *there = cuda_double_contents(device_address(tensor.data), sizeof host);
    memset(there, 0, sizeof host);
    rank_check_code(rank, make_call(*call, group, folder, &state), 0);
    rank_check(rank, cuda_library_if_open());
    bool is_load = *call == OWN_LOAD || *call == OWN_LOAD_GROUP || *call == OWN_CHECKPOINT_LOAD;
    for (size_t i = 0; i < OWN_COUNT; i++) {
        rank_check(rank, there[i] == (is_load ? (float)i : 0));
    }
    rank_check(rank, cuMemFree_v2(device_address(tensor.data)) == CUDA_OK);
    muster_group_free(group);
    check_left(rank, 0);
    rank_check(rank, folder_remove(folder) > 0);
    return 0;
}

static void no_group_has_to_open_the_driver_first(void **state) {
    (void)state;
    for (int i = 0; i < OWN_CALLS; i++) {
        enum own_call call = (enum own_call)i;
        ranks_run(1, own_driver_body, &call);
    }
}

/* ---- streams ---- */

/* The caller's stream fills the tensors after the call has begun to wait for it. argument: by the group's stream? */
static int held_stream_body(struct rank *rank, void *argument) {
    const bool *by_group = argument;
    struct muster_snapshot_options options = MUSTER_SNAPSHOT_OPTIONS_INIT;
    struct device_rank d;
    struct device_state device, host;
    char folder[PATH_BYTES];
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "1000", 1);
    device_rank_start(rank, &d);
    device_state_init(rank, &device, true);
    device_state_init(rank, &host, false);
    struct device_gate *gate = device_gate_new();
    device_state_fill(&device, 1);
    folder_of("held", folder);
    device_state_fill_late(&device, 2, d.stream, gate);
    cuda_double_enqueue(NULL, device_gate_open, gate); /* which the default stream does at some time */
    if (*by_group) {
        rank_check_code(rank, muster_group_set_stream(d.group, d.stream), 0);
        rank_check_code(rank, muster_snapshot_save_group(d.group, true, folder, 1, &device.state, NULL), 0);
    } else {
        options.stream = d.stream;
        rank_check_code(rank, muster_snapshot_save(folder, 1, &device.state, &options), 0);
    }
    rank_check_code(rank, muster_snapshot_load_newest(folder, &host.state, NULL), 0);
    rank_check(rank, device_state_is(&host, 2));
    /* A load comes after the work of before, which it would else be overwritten by. */
    gate = device_gate_new();
    device_state_fill_late(&device, 3, *by_group ? d.stream : NULL, gate);
    cuda_double_enqueue(*by_group ? NULL : d.stream, device_gate_open, gate);
    rank_check_code(rank,
                    *by_group ? muster_snapshot_load_group(d.group, folder, &device.state, NULL)
                              : muster_snapshot_load_newest(folder, &device.state, NULL),
                    0);
    rank_check(rank, device_state_is(&device, 2));
    device_state_done(rank, &device);
    device_state_done(rank, &host);
    device_rank_end(&d);
    check_left(rank, 0);
    remove_folder(rank, folder, 2);
    return 0;
}

static void what_the_stream_was_given_before_comes_first(void **state) {
    (void)state;
    bool by_group = false;
    ranks_run(1, held_stream_body, &by_group);
    by_group = true;
    ranks_run(1, held_stream_body, &by_group);
}

/* ---- errors ---- */

struct fault {
    const char *rule, *saving, *loading; /* the sentences; NULL: it works */
};

static int fault_body(struct rank *rank, void *argument) {
    const struct fault *fault = argument;
    struct device_state device, host;
    char folder[PATH_BYTES];
    (void)setenv("MUSTER_DOUBLE_CUDA", fault->rule, 1);
    device_state_begin(rank);
    device_state_init(rank, &device, true);
    device_state_init(rank, &host, false);
    device_state_fill(&device, 4);
    device_state_fill(&host, 3);
    rank_check_code(rank, muster_snapshot_save(folder_of("fault", folder), 1, &host.state, NULL), 0);
    rank_check_code(rank, muster_snapshot_save(folder, 2, &device.state, NULL), fault->saving ? MUSTER_ESYSTEM : 0);
    if (fault->saving) {
        struct muster_snapshot_found found;
        device_rank_expect_sentence(rank, fault->saving);
        rank_check_code(rank, muster_snapshot_load_newest(folder, &host.state, &found), 0);
        rank_check(rank, device_state_is(&host, 3) && found.step == 1 && found.passed_over == 0); /* no leftovers */
    }
    rank_check_code(rank, muster_snapshot_load(folder, 1, 0, &device.state), fault->loading ? MUSTER_ESYSTEM : 0);
    if (fault->loading) {
        device_rank_expect_sentence(rank, fault->loading);
    }
    check_left(rank, DEVICE_STATE_TENSORS);
    device_state_done(rank, &device);
    device_state_done(rank, &host);
    remove_folder(rank, folder, fault->saving ? 2 : 4);
    return 0;
}

static void an_error_of_the_driver_leaves_the_old_snapshot_whole(void **state) {
    (void)state;
    static const struct fault faults[] = {
        {"error:cuMemcpyDtoHAsync_v2:3:700",
         "save step 2: tensor weight: copy from the GPU: CUDA_ERROR_ILLEGAL_ADDRESS (as the double says)", NULL},
        {"error:cuEventSynchronize:6:719", "save step 2: tensor half: copy from the GPU: CUDA_ERROR_LAUNCH_FAILED",
         NULL},
        {"error:cuMemAllocHost_v2:2:999", "save step 2: tensor scalar: pin memory for copies: CUDA_ERROR_UNKNOWN",
         NULL},
        {"error:cuMemcpyHtoDAsync_v2:7:700", NULL,
         "load step 1: tensor weight: copy to the GPU: CUDA_ERROR_ILLEGAL_ADDRESS (as the double says)"},
        {"error:cuStreamWaitEvent:2:400", NULL, "load step 1: tensor bytes: wait for the caller's stream: "},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct fault fault = faults[i];
        ranks_run(1, fault_body, &fault);
    }
}

/* ---- ranks ---- */

/* A folder for each host: rank 0's has the snapshot, the others' ranks get it from there, over NCCL. */
static int hosts_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct device_state s;
    struct muster_snapshot_found found;
    char folder[PATH_BYTES], name[16];
    (void)argument;
    device_rank_start(rank, &d);
    device_state_init(rank, &s, true);
    uint32_t host = muster_group_host_of(d.group, rank->rank);
    bool saves = muster_group_local_rank(d.group) == 0;
    (void)str_format(name, sizeof name, "host%u", host);
    folder_of(name, folder);
    device_state_fill(&s, 6);
    rank_check_code(rank, muster_snapshot_save_group(d.group, saves, folder, 1, &s.state, NULL), 0);
    device_state_fill(&s, 100 + rank->rank);
    rank_check_code(rank, muster_snapshot_load_group(d.group, folder, &s.state, &found), 0);
    rank_check(rank, device_state_is(&s, 6) && found.step == 1);
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    if (saves && host > 0) {
        remove_folder(rank, folder, 2); /* a new host */
    }
    device_state_fill(&s, 100 + rank->rank);
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    rank_check_code(rank, muster_snapshot_load_group(d.group, folder, &s.state, NULL), 0);
    rank_check(rank, device_state_is(&s, 6));
    device_state_fill(&s, rank->rank);
    rank_check_code(rank, muster_snapshot_broadcast(d.group, &s.state, rank->size - 1), 0);
    rank_check(rank, device_state_is(&s, rank->size - 1));
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    if (saves && host == 0) {
        remove_folder(rank, folder, 2);
    }
    device_state_done(rank, &s);
    device_rank_end(&d);
    check_left(rank, 0);
    return 0;
}

static void ranks_save_and_load_on_the_device(void **state) {
    (void)state;
    static const struct { uint32_t ranks, a_host; } worlds[] = {{1, 0}, {2, 1}, {4, 2}, {8, 4}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        struct ranks_options options = {.ranks_per_host = worlds[i].a_host};
        ranks_run_with(worlds[i].ranks, hosts_body, NULL, &options);
    }
}

/* Without the disk, all must have a tensor in the same memory, and an engine that can send it. */
static int refusal_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct device_state s;
    struct muster_group_options plain = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *muster = NULL;
    char folder[PATH_BYTES];
    (void)argument;
    device_rank_start(rank, &d);
    plain.engine = "muster";
    rank_check_code(rank, muster_group_split(d.group, 0, 0, &plain, &muster), 0);
    device_state_init(rank, &s, rank->rank == 1);
    device_state_fill(&s, rank->rank);
    rank_check_code(rank, muster_snapshot_broadcast(d.group, &s.state, 0), MUSTER_EMISMATCH);
    device_rank_expect_sentence(rank, "which tensors are on a GPU, must be the same");
    rank_check_code(rank, muster_snapshot_broadcast(muster, &s.state, 0), MUSTER_EUNSUPPORTED);
    device_rank_expect_sentence(
        rank, "rank 1: tensor bytes is in memory of the GPU, which the group's engine, 'muster', cannot send "
              "to other ranks: make the group with the engine 'nccl'");
    /* Where each reads the files for itself, both are right, with any engine. */
    folder_of("both", folder);
    rank_check_code(rank, muster_snapshot_save_group(muster, rank->rank == 1, folder, 1, &s.state, NULL), 0);
    device_state_fill(&s, 50);
    rank_check_code(rank, muster_snapshot_load_group(muster, folder, &s.state, NULL), 0);
    rank_check(rank, device_state_is(&s, 1));
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    if (rank->rank == 0) {
        remove_folder(rank, folder, 2);
    }
    device_state_done(rank, &s);
    muster_group_free(muster);
    device_rank_end(&d);
    return 0;
}

static void ranks_with_other_memory_are_told(void **state) {
    (void)state;
    ranks_run(2, refusal_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_and_a_host_write_the_same_files),
        cmocka_unit_test(any_safetensors_file_is_loaded_to_a_device),
        cmocka_unit_test(no_group_has_to_open_the_driver_first),
        cmocka_unit_test(what_the_stream_was_given_before_comes_first),
        cmocka_unit_test(an_error_of_the_driver_leaves_the_old_snapshot_whole),
        cmocka_unit_test(ranks_save_and_load_on_the_device),
        cmocka_unit_test(ranks_with_other_memory_are_told),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
