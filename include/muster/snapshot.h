/* Snapshots: the state of a training program on disk, so that a crash at any moment loses nothing that was saved.
 *
 * The program describes its state once, as named tensors and named small values; saving reads them, loading writes
 * them. A snapshot of step 10 is two files in the program's folder:
 *
 *   step-10-8c1d9f02a4b3e675.safetensors   the tensors (the hexadecimal number is the checksum of the file)
 *   step-10.json                           the manifest: values and checksums; it is written last
 *
 * Python reads the first with safetensors.torch.load_file() and the second with json.load(); docs/formats/snapshot.md
 * has the details, docs/snapshots.md an example.
 *
 * A save that is cut off, by a signal or a loss of power, leaves the snapshots before it as they were. A snapshot that
 * is incomplete or damaged is never loaded: its checksums say so, the next older one is taken, and the caller is told.
 *
 * Threads: no call here keeps anything between calls; any thread may call, for different folders at the same time.
 * Saving and loading block until the disk is done. State must not change while a call that reads or writes it runs.
 *
 * Errors of every call: MUSTER_EINVAL, MUSTER_ENOMEM, MUSTER_ELIMIT, MUSTER_ESYSTEM. EINVAL is a wrong argument, or a
 * snapshot that holds something else than the state describes; the sentence names the tensor or value. For ESYSTEM it
 * names operation, file and reason. Results are written on success only. */
#ifndef MUSTER_SNAPSHOT_H
#define MUSTER_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>
#include <muster/status.h>
#include <muster/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_TENSOR_DIMS_MAX 8
#define MUSTER_TENSORS_MAX ((size_t)16384)    /* of one snapshot */
#define MUSTER_VALUES_MAX ((size_t)1024)      /* of one snapshot */
#define MUSTER_NAME_MAX ((size_t)256)         /* bytes of a tensor's or value's name, terminator included */
#define MUSTER_VALUE_TEXT_MAX ((size_t)65536) /* bytes of a text, terminator included */

/* A dense array, row-major, whose memory is the caller's: of the host, or of a GPU (docs/snapshots.md). dim_count 0:
 * one element. */
struct muster_tensor {
    const char *name; /* UTF-8; unique among the tensors of a state */
    enum muster_type type;
    uint32_t dim_count;
    uint64_t shape[MUSTER_TENSOR_DIMS_MAX];
    void *data;
};

enum muster_value_kind {
    MUSTER_VALUE_INTEGER,
    MUSTER_VALUE_REAL,
    MUSTER_VALUE_TEXT,
    MUSTER_VALUE_OPTIONAL_INTEGER, /* saved as an integer; a load leaves it as it is where the saved state has none */
};

/* A number or a text that belongs to the state: epoch, learning rate, accuracy. Made by the functions below. */
struct muster_value {
    const char *name; /* UTF-8; unique among the values of a state */
    enum muster_value_kind kind;
    void *data;  /* int64_t, double, or `room` bytes with a text (UTF-8) in them */
    size_t room; /* of a text, terminator included */
};

static inline struct muster_value muster_value_integer(const char *name, int64_t *number) {
    struct muster_value value = {name, MUSTER_VALUE_INTEGER, number, 0};
    return value;
}

/* For what a program has begun to save: the states that it saved before load as well. */
static inline struct muster_value muster_value_optional_integer(const char *name, int64_t *number) {
    struct muster_value value = {name, MUSTER_VALUE_OPTIONAL_INTEGER, number, 0};
    return value;
}

static inline struct muster_value muster_value_real(const char *name, double *number) {
    struct muster_value value = {name, MUSTER_VALUE_REAL, number, 0};
    return value;
}

static inline struct muster_value muster_value_text(const char *name, char *text, size_t room) {
    struct muster_value value = {name, MUSTER_VALUE_TEXT, text, room};
    return value;
}

/* What a snapshot holds. The lists and what they point to are borrowed during a call. Start from
 * MUSTER_SNAPSHOT_STATE_INIT or MUSTER_SNAPSHOT_STATE(tensors, tensor_count, values, value_count). */
struct muster_snapshot_state {
    size_t size; /* of this struct, set by the initializer: lets it grow later */
    const struct muster_tensor *tensors;
    size_t tensor_bytes; /* of each of them, set by the initializer */
    size_t tensor_count;
    const struct muster_value *values;
    size_t value_count;
};
#define MUSTER_SNAPSHOT_STATE(tensors, tensor_count, values, value_count)                                              \
    {                                                                                                                  \
        sizeof(struct muster_snapshot_state), (tensors), sizeof(struct muster_tensor), (tensor_count), (values),       \
            (value_count)                                                                                              \
    }
#define MUSTER_SNAPSHOT_STATE_INIT MUSTER_SNAPSHOT_STATE(NULL, 0, NULL, 0)

/* Start from MUSTER_SNAPSHOT_OPTIONS_INIT. */
struct muster_snapshot_options {
    size_t size;   /* of this struct, set by the initializer: lets it grow later */
    uint32_t keep; /* how many complete snapshots to keep, the new one included; > 0 */
    /* A cudaStream_t or CUstream: tensors on a GPU are read when it has done what it was given before. NULL: the
     * default stream, or that of the group (muster_group_set_stream()). Borrowed during the call. */
    void *stream;
};
#define MUSTER_SNAPSHOT_OPTIONS_INIT                                                                                   \
    { sizeof(struct muster_snapshot_options), 2, NULL }

/* Saves the state as the snapshot of `step` (>= 0). `folder` is made if it is missing (the folder it lies in must be
 * there); it belongs to one job. options: NULL for the defaults.
 *
 * On success the snapshot has reached the disk, and complete snapshots of smaller steps beyond the newest keep - 1 are
 * removed. A snapshot of the same step is replaced: at every moment the old or the new one is there. Snapshots of
 * greater steps are left alone. Leftovers of saves that were cut off are removed; no other file is touched.
 *
 * On failure everything saved before is as it was, and temporary files are removed. One process saves in a folder at a
 * time; a second one gets MUSTER_ESYSTEM (it sees the folder locked) where the file system has locks. */
int muster_snapshot_save(const char *folder, int64_t step, const struct muster_snapshot_state *state,
                         const struct muster_snapshot_options *options);

/* A complete snapshot that was found, and what was passed over to find it. */
#define MUSTER_SNAPSHOT_NOTE_MAX 1024
struct muster_snapshot_found {
    int64_t step;
    uint64_t id;                         /* checksum of the content: the same state saved twice has the same id */
    uint32_t passed_over;                /* newer snapshots that cannot be used: damaged, or their save was cut off */
    char note[MUSTER_SNAPSHOT_NOTE_MAX]; /* a sentence for each of them, a line each, cut where it is too long; or "" */
};

/* The newest snapshot of a step up to `step_max` (INT64_MAX: any) that is whole; reads all of it to be sure.
 * MUSTER_ENOENT: there is none, and no complete one was passed over: begin at the beginning (a missing folder, too).
 * MUSTER_ECORRUPT: there are some, but none is whole; the sentence says what is wrong with them.
 * MUSTER_EUNSUPPORTED: the newest was written by a later version, and is not passed over for that. */
int muster_snapshot_find_sized(const char *folder, int64_t step_max, struct muster_snapshot_found *out,
                               size_t out_bytes);
static inline int muster_snapshot_find(const char *folder, int64_t step_max, struct muster_snapshot_found *out) {
    return muster_snapshot_find_sized(folder, step_max, out, sizeof *out);
}

/* Loads the snapshot of `step` and no other. id: as muster_snapshot_find() gave it; 0: whatever lies there. All
 * that the state describes must be in the snapshot, with the same type and shape; what else is in it is left alone.
 * Nothing is written before all of it has been checked against the checksums. If the files change between the check
 * and the reading, the result is MUSTER_ECORRUPT and tensors may be overwritten in part.
 * MUSTER_ENOENT: no snapshot of this step. MUSTER_ECORRUPT: damaged, or another id. */
int muster_snapshot_load(const char *folder, int64_t step, uint64_t id, const struct muster_snapshot_state *state);

/* muster_snapshot_find() and muster_snapshot_load() of what it found. out: may be NULL. */
int muster_snapshot_load_newest_sized(const char *folder, const struct muster_snapshot_state *state,
                                      struct muster_snapshot_found *out, size_t out_bytes);
static inline int muster_snapshot_load_newest(const char *folder, const struct muster_snapshot_state *state,
                                              struct muster_snapshot_found *out) {
    return muster_snapshot_load_newest_sized(folder, state, out, sizeof *out);
}

/* ---- for the ranks of a group ----
 *
 * Collective: every rank calls, with a state of the same names, types and shapes. All get the same result, and on
 * failure the sentence of the rank that failed; what a failed load leaves in memory differs. Further errors are those
 * of the collectives (muster/collective.h). */

/* Ranks that pass `saves` as true save; all return when they have. One rank of the job saves into a folder that all
 * see, or one of each host into a folder of its own. */
int muster_snapshot_save_group(struct muster_group *group, bool saves, const char *folder, int64_t step,
                               const struct muster_snapshot_state *state,
                               const struct muster_snapshot_options *options);

/* Loads the same snapshot on every rank: the newest whole one that any of them sees. Ranks that do not see it whole (a
 * host that is new to the job, a damaged disk) get the state by broadcast from one that does. out: may be NULL. Its
 * step and id are the same on every rank; the rest tells what this rank passed over.
 * MUSTER_ENOENT, MUSTER_ECORRUPT as for muster_snapshot_find(), when no rank has one. Where a rank gets it by
 * broadcast, tensors on a GPU are to be there on all ranks (MUSTER_EMISMATCH), and the group's engine to be "nccl"
 * (MUSTER_EUNSUPPORTED). */
int muster_snapshot_load_group_sized(struct muster_group *group, const char *folder,
                                     const struct muster_snapshot_state *state, struct muster_snapshot_found *out,
                                     size_t out_bytes);
static inline int muster_snapshot_load_group(struct muster_group *group, const char *folder,
                                             const struct muster_snapshot_state *state,
                                             struct muster_snapshot_found *out) {
    return muster_snapshot_load_group_sized(group, folder, state, out, sizeof *out);
}

/* Copies the state of rank `root` to all others: after a shrink, or to newcomers, without a disk. All describe the same
 * names, types, shapes and kinds, in the same order (MUSTER_EMISMATCH on every rank otherwise; the group has not
 * failed). A text is copied into the room that each rank has; MUSTER_EINVAL if it is too small. Tensors on a GPU: as
 * above. Blocks. What a failure leaves in memory differs. */
int muster_snapshot_broadcast(struct muster_group *group, const struct muster_snapshot_state *state, uint32_t root);

/* Loads tensors by name from any safetensors file, such as one that PyTorch wrote; it has no checksums. All that is in
 * the list must be in the file, with the same type and shape. MUSTER_ENOENT: no such file. MUSTER_ECORRUPT: the file is
 * no safetensors file; nothing was written. */
int muster_safetensors_load_sized(const char *path, const struct muster_tensor *tensors, size_t tensor_bytes,
                                  size_t tensor_count);
static inline int muster_safetensors_load(const char *path, const struct muster_tensor *tensors, size_t tensor_count) {
    return muster_safetensors_load_sized(path, tensors, sizeof *tensors, tensor_count);
}

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
