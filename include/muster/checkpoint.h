/* Checkpoints: the state of a job on disk, of which every rank writes a part at the same time.
 *
 * A snapshot (muster/snapshot.h) is one file, and one rank writes it. A checkpoint is for states that are large, or
 * that no rank has whole: each rank of a group writes its own part into a folder that all see, and any other number of
 * ranks loads it. A checkpoint of step 10 is
 *
 *   checkpoint-10.json                               the record; it is written last, and makes the checkpoint complete
 *   checkpoint-10-8c1d9f02a4b3e675.json              the map: tensors, values, and which part has what
 *   checkpoint-10-8c1d9f02a4b3e675-0.safetensors     what rank 0 has written, and so on for each rank
 *
 * (the hexadecimal number is drawn for each save). docs/formats/checkpoint.md has the details, docs/snapshots.md tells
 * how it is used.
 *
 * A save that is cut off, on any rank and at any moment, leaves the checkpoints before it as they were. What is damaged
 * is never loaded: checksums of all that is read say so, and all ranks take the next older checkpoint together.
 *
 * Threads: no call here keeps anything between calls; calls on one group are made as its collectives are. State must
 * not change while a call that reads or writes it runs. Saving and loading block until the disk is done.
 *
 * Errors of every call: MUSTER_EINVAL, MUSTER_ENOMEM, MUSTER_ELIMIT, MUSTER_ESYSTEM, and, of those with a group, those
 * of the collectives (muster/collective.h). All ranks get the same result and the sentence of the rank that failed.
 * Results are written on success only. */
#ifndef MUSTER_CHECKPOINT_H
#define MUSTER_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>
#include <muster/snapshot.h>
#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* Elements [first, first + count) of a tensor, row-major, that this rank has. */
struct muster_checkpoint_chunk {
    size_t tensor; /* index in the list of tensors */
    uint64_t first, count;
    void *data; /* of the chunk's first element */
};

/* What a checkpoint holds. All ranks describe the same tensors, in the same order, and the same values. The lists and
 * what they point to are borrowed during a call.
 * - Data is in memory of the host, or of a GPU (docs/snapshots.md).
 * - A tensor with data: every rank has all of it. Each rank saves its share of it, and all get all of it in a load.
 * - A tensor whose data is NULL: each rank has the chunks of it that it lists, any number of any sizes. In a save each
 *   element must be in exactly one chunk of one rank (MUSTER_EINVAL names the first that is not); where ranks have
 *   copies, one of them lists a chunk. In a load each rank gets the chunks that it lists, whoever lists the same.
 * - Values are those of rank 0 when they are saved; every rank gets them.
 * Start from MUSTER_CHECKPOINT_STATE_INIT, or from MUSTER_CHECKPOINT_STATE() with all lists. */
struct muster_checkpoint_state {
    size_t size; /* of this struct, set by the initializer: lets it grow later */
    const struct muster_tensor *tensors;
    size_t tensor_bytes; /* of each of them, set by the initializer */
    size_t tensor_count;
    const struct muster_checkpoint_chunk *chunks; /* in any order */
    size_t chunk_bytes;                           /* of each of them, set by the initializer */
    size_t chunk_count;
    const struct muster_value *values;
    size_t value_count;
};
#define MUSTER_CHECKPOINT_STATE(tensors, tensor_count, chunks, chunk_count, values, value_count)                       \
    {                                                                                                                  \
        sizeof(struct muster_checkpoint_state), (tensors), sizeof(struct muster_tensor), (tensor_count), (chunks),     \
            sizeof(struct muster_checkpoint_chunk), (chunk_count), (values), (value_count)                             \
    }
#define MUSTER_CHECKPOINT_STATE_INIT MUSTER_CHECKPOINT_STATE(NULL, 0, NULL, 0, NULL, 0)

#define MUSTER_CHECKPOINT_VISIBLE_MS INT64_C(10000)

/* How far a rank is with what it writes or reads. */
struct muster_checkpoint_progress {
    int64_t step;
    bool is_load;
    uint64_t bytes, total_bytes; /* of this rank: so far, and in all */
    double seconds;              /* since its first byte; bytes / seconds is the speed */
};
/* Called by the thread that saves or loads: after a second and each second from then on, and at the end if it was
 * called before. It must not call anything of the group. */
typedef void muster_checkpoint_progress_fn(void *context, const struct muster_checkpoint_progress *progress);

/* Start from MUSTER_CHECKPOINT_OPTIONS_INIT. */
struct muster_checkpoint_options {
    size_t size;        /* of this struct, set by the initializer: lets it grow later */
    uint32_t keep;      /* how many complete checkpoints to keep, the new one included; > 0 */
    int64_t visible_ms; /* how long rank 0 waits until it sees a file of every host; >= 0 */
    /* The most that this rank writes in a second, so that others get at the disk or the network. 0: no limit. */
    uint64_t bytes_per_second;
    /* A rank whose part is, bit for bit, its part of the checkpoint before (the newest up to this step) does not write
     * it again. The file gets a second name (a hard link), and a disk has it once; so damage to it is damage to both.
     * Costs a comparison of checksums up to the first block that differs. Where the world or the split has changed, or
     * the file system has no hard links, the part is written. Equal on all ranks. */
    bool incremental;
    muster_checkpoint_progress_fn *progress; /* NULL: rank 0 writes a log line now and then (MUSTER_DEBUG=INFO) */
    void *progress_context;
};
#define MUSTER_CHECKPOINT_OPTIONS_INIT                                                                                 \
    { sizeof(struct muster_checkpoint_options), 2, MUSTER_CHECKPOINT_VISIBLE_MS, 0, false, NULL, NULL }

/* Saves the state as the checkpoint of `step` (>= 0). Collective: every rank calls, with the same step and keep.
 * `folder` is one that all ranks see. It is made if it is missing (the folder it lies in must be there), and belongs to
 * one job; snapshots may lie in it as well. options: NULL for the defaults.
 *
 * On success the checkpoint has reached the disk, and complete checkpoints of smaller steps beyond the newest keep - 1
 * are removed. A checkpoint of the same step is replaced: at every moment the old or the new one is there. Checkpoints
 * of greater steps are left alone. Leftovers of saves that were cut off are removed; no other file is touched.
 *
 * On failure everything saved before is as it was, and the group goes on: a full disk costs a checkpoint, not the
 * training. One group saves in a folder at a time; another one gets MUSTER_ESYSTEM where the file system has locks. If
 * the group itself fails, because a rank dies, the checkpoint may be complete or not; a load says which.
 * MUSTER_EMISMATCH: the ranks describe different states, or other steps. */
int muster_checkpoint_save(struct muster_group *group, const char *folder, int64_t step,
                           const struct muster_checkpoint_state *state,
                           const struct muster_checkpoint_options *options);

/* A checkpoint that was found, and what was passed over to find it. */
struct muster_checkpoint_found {
    int64_t step;
    uint64_t id;                         /* of this save: a save of the same step again has another */
    uint32_t part_count;                 /* ranks that saved it */
    uint32_t passed_over;                /* newer checkpoints that cannot be used: damaged, or their save was cut off */
    char note[MUSTER_SNAPSHOT_NOTE_MAX]; /* a sentence for each of them, a line each, cut where it is too long; or "" */
};

/* The newest checkpoint of a step up to `step_max` (INT64_MAX: any). Reads records alone, of at most 64 KiB each:
 * damage to the parts shows when they are loaded. Not collective. MUSTER_ENOENT: there is none, and no complete one was
 * passed over: begin at the beginning (a missing folder, too). MUSTER_ECORRUPT: there are some, but the record of none
 * can be read. MUSTER_EUNSUPPORTED: the newest was written by a later version, and is not passed over for that. */
int muster_checkpoint_find_sized(const char *folder, int64_t step_max, struct muster_checkpoint_found *out,
                                 size_t out_bytes);
static inline int muster_checkpoint_find(const char *folder, int64_t step_max, struct muster_checkpoint_found *out) {
    return muster_checkpoint_find_sized(folder, step_max, out, sizeof *out);
}

/* Start from MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT. */
struct muster_checkpoint_load_options {
    size_t size;        /* of this struct, set by the initializer: lets it grow later */
    int64_t step_max;   /* load the newest up to this step */
    int64_t visible_ms; /* how long to wait for files that other hosts have written and that are not in sight; >= 0 */
    /* Tensors that have other names in the checkpoint, equal on all ranks: "encoder.*=model.encoder.*" says that
     * encoder.weight is model.encoder.weight there. Before the = stands what the program calls it, with one * at most,
     * which stands for any characters; behind it what the checkpoint does, with a * where these go. Of several that fit
     * the first one counts. The list and its strings are borrowed. */
    const char *const *renames;
    size_t rename_count;
    muster_checkpoint_progress_fn *progress; /* as in muster_checkpoint_options */
    void *progress_context;
};
#define MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT                                                                            \
    { sizeof(struct muster_checkpoint_load_options), INT64_MAX, MUSTER_CHECKPOINT_VISIBLE_MS, NULL, 0, NULL, NULL }

/* Loads the newest checkpoint that any host sees, the same on every rank. Collective; the number of ranks, and who has
 * which chunks, may be other than in the save, and a tensor that was saved from chunks may be loaded whole, and the
 * other way round. One rank a host looks for records. Each rank reads what it needs and nothing else: the blocks of 1
 * MiB that have something of its chunks, and of tensors with data a share, which the ranks then exchange.
 *
 * If a rank finds damage, or does not see a file in time, all ranks pass over this checkpoint and take the next older
 * one. out: may be NULL; the same on every rank. Tensors may have been written in part when a load fails.
 * A tensor with data that is on a GPU is there on all ranks (MUSTER_EMISMATCH), in a group with the engine "nccl"
 * (MUSTER_EUNSUPPORTED); chunks need neither.
 * MUSTER_ENOENT, MUSTER_ECORRUPT, MUSTER_EUNSUPPORTED as for muster_checkpoint_find(); MUSTER_EINVAL also for a
 * tensor or value that is not in the checkpoint or of another type or shape; the sentence names it. */
int muster_checkpoint_load_newest_sized(struct muster_group *group, const char *folder,
                                        const struct muster_checkpoint_state *state,
                                        const struct muster_checkpoint_load_options *options,
                                        struct muster_checkpoint_found *out, size_t out_bytes);
static inline int muster_checkpoint_load_newest(struct muster_group *group, const char *folder,
                                                const struct muster_checkpoint_state *state,
                                                const struct muster_checkpoint_load_options *options,
                                                struct muster_checkpoint_found *out) {
    return muster_checkpoint_load_newest_sized(group, folder, state, options, out, sizeof *out);
}

/* ---- In the background ----
 *
 * muster_fsdp_start_checkpoint() and muster_state_start_checkpoint() save the committed state by a thread, while
 * training goes on. The thread reads the committed copy, and the second step of the optimizer that follows is to be
 * written there. */

/* What if the thread still reads by then? */
enum muster_background_overlap {
    /* It is soon done, because it copies this rank's share of the state first, and saves that: as many bytes of memory,
     * reserved by the first save. The optimizer waits for the copying at most. */
    MUSTER_BACKGROUND_OVERLAP_COPY,
    /* The optimizer waits until this rank's share has been written. */
    MUSTER_BACKGROUND_OVERLAP_WAIT,
    /* The save is given up, on all ranks. */
    MUSTER_BACKGROUND_OVERLAP_GIVE_UP,
};

/* Start from MUSTER_BACKGROUND_OPTIONS_INIT. */
struct muster_background_options {
    size_t size; /* of this struct, set by the initializer: lets it grow later */
    /* NULL for the defaults; borrowed during the call, and what its progress_context points to until the save has
     * ended. Its bytes_per_second is no limit any more while somebody waits for the save. */
    const struct muster_checkpoint_options *checkpoint;
    enum muster_background_overlap overlap;
    /* Waits for a save that is under way, rather than skip this one: for the last. Equal on all ranks. */
    bool must_start;
};
#define MUSTER_BACKGROUND_OPTIONS_INIT                                                                                 \
    { sizeof(struct muster_background_options), NULL, MUSTER_BACKGROUND_OVERLAP_COPY, false }

/* Of all saves in the background so far. started = completed + failed + given_up + is_running. */
struct muster_background_statistics {
    uint64_t started, completed, failed, given_up;
    uint64_t skipped;       /* fell due while another one was under way: not among those that were started */
    int64_t last_step;      /* of the newest that was completed; -1: none */
    uint64_t waited_count;  /* steps of the optimizer that have waited for a thread, or do now */
    int64_t waited_ns;      /* and how long */
    int32_t last_status;    /* of the last save that has ended */
    bool is_running;        /* one is under way on this rank */
    char last_failure[256]; /* its sentence, if it failed, cut where it is too long; or "" */
};

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
