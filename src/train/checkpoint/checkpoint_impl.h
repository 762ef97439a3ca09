/* What saving and loading a checkpoint are made of: what each rank does by itself, between the collectives of
 * checkpoint_save.c and checkpoint_load.c. So a test can play all ranks on a disk that fails. */
#ifndef TRAIN_CHECKPOINT_IMPL_H
#define TRAIN_CHECKPOINT_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/device/device_stage.h"
#include "train/checkpoint/checkpoint_map.h"
#include "train/checkpoint/checkpoint_name.h"
#include "train/checkpoint/checkpoint_progress.h"
#include "train/checkpoint/checkpoint_record.h"
#include "train/checkpoint/checkpoint_rename.h"
#include "train/checkpoint/checkpoint_watched.h"
#include "train/state/snapshot_files.h"
#include "train/state/snapshot_parts.h"
#include "train/state/state_description.h"

#include <muster/checkpoint.h>

/* Bytes that are checksummed and handed to the kernel at a time: they stay in the processor's cache between the two. */
enum { CHECKPOINT_PIECE_BYTES = 256 * 1024 };
/* Bytes of a part that are written at a time. */
enum { CHECKPOINT_WRITE_BYTES = 8 << 20 };

/* ---- checkpoint_folder.c ---- */

/* The files of ours in a folder, newest step first, a step's record first. Owned. */
struct checkpoint_listing {
    struct checkpoint_name *files;
    size_t count;
};
int checkpoint_list(const struct snapshot_folder *folder, struct checkpoint_listing *out);
void checkpoint_listing_done(struct checkpoint_listing *listing);

/* Reads and checks the record of `step`. MUSTER_ENOENT: there is none. MUSTER_ECORRUPT, MUSTER_EUNSUPPORTED. */
int checkpoint_read_record(const struct snapshot_folder *folder, int64_t step, struct checkpoint_record *out);

/* Removes what saves that were cut off have left: files that no record names. spared: NULL, or a token whose map and
 * parts stay, whatever is seen. Only while the folder is locked. */
int checkpoint_sweep(const struct snapshot_folder *folder, const uint64_t *spared);

/* Removes checkpoints of smaller steps than `step` beyond the newest `keep` - 1 of them whose files are all there.
 * Quiet: what cannot be removed stays for the next time. Only while the folder is locked. */
void checkpoint_prune(const struct snapshot_folder *folder, int64_t step, uint32_t keep);

/* ---- checkpoint_find.c ---- */

/* A search for the newest checkpoint, from newer to older ones. */
struct checkpoint_search {
    struct checkpoint_listing listing;
    size_t next;       /* file of the listing */
    bool any_complete; /* a record was seen */
    struct muster_checkpoint_found found;
};
/* Lists the folder, which is borrowed. Also after a failure the search is to be handed to checkpoint_search_done(). */
int checkpoint_search_begin(struct checkpoint_search *search, const struct snapshot_folder *folder);
/* The next record of a step up to step_max; only records are read. MUSTER_ENOENT, MUSTER_ECORRUPT: there is none;
 * MUSTER_EUNSUPPORTED. */
int checkpoint_search_next(struct checkpoint_search *search, const struct snapshot_folder *folder, int64_t step_max,
                           struct checkpoint_record *out);
void checkpoint_search_done(struct checkpoint_search *search);
void checkpoint_pass_over(struct muster_checkpoint_found *found, int64_t step, const char *why);

/* ---- checkpoint_write.c ---- */

struct checkpoint_settings {
    uint32_t keep;
    int64_t visible_ms;        /* how long to wait for files of other hosts */
    uint64_t block_bytes;      /* CHECKPOINT_BLOCK_BYTES; tests have smaller ones */
    size_t write_bytes;        /* CHECKPOINT_WRITE_BYTES; likewise */
    uint64_t bytes_per_second; /* 0: no limit */
    bool incremental;          /* a part that has not changed is not written again */
    struct checkpoint_listener listener;
    const struct checkpoint_watch *watch; /* NULL: none */
    void *stream; /* the caller's: what is on a GPU is read after its work so far. NULL: the default one */
};

/* An older checkpoint, and this rank's part of it. */
struct checkpoint_base {
    bool has_part; /* the rest counts only then */
    int64_t step;
    uint64_t token;
    struct checkpoint_part part;
};

/* What one rank has to do for a save. */
struct checkpoint_save {
    struct snapshot_folder folder;
    int64_t step;
    uint64_t token;
    uint32_t rank, size;
    const struct state_description *state;
    struct checkpoint_settings settings;
    struct checkpoint_map map;            /* the tensors; rank 0 has the rest, too */
    struct checkpoint_ranges ranges;      /* of this rank, with data but where it comes from the source */
    const struct snapshot_source *source; /* NULL: all ranges have data */
    struct checkpoint_base base;          /* whose parts may be taken over */
    bool locked;
    bool published; /* the record may have got its name */
};
/* Checks what can be known to be wrong before anything is written. All is borrowed. Also after a failure the save is to
 * be handed to checkpoint_save_end(). */
int checkpoint_save_begin(struct checkpoint_save *save, const struct snapshot_io *io, const char *path, int64_t step,
                          const struct state_description *state, uint32_t rank, uint32_t size);
/* Rank 0: makes and locks the folder, removes leftovers, draws save->token, which all are to be told. */
int checkpoint_save_open(struct checkpoint_save *save);
/* Rank 0, after that: the map of the newest checkpoint up to the step, and its record. Its parts may be taken over if
 * they are as many, and have blocks of the same size. MUSTER_ENOENT, or any other reason why there is none; *out is to
 * be handed to checkpoint_map_done() in any case. */
int checkpoint_save_find_base(const struct checkpoint_save *save, struct checkpoint_map *out);
/* ---- checkpoint_part.c ---- */

/* Each rank, with the token: writes its part, which is on the disk when it succeeds. With save->base the file of that
 * gets another name instead, if it has the same content. */
int checkpoint_save_part(struct checkpoint_save *save, struct checkpoint_part *out);

/* ---- checkpoint_write.c ---- */

/* Rank 0, when all have written, with all parts in save->map: makes the checkpoint complete. witnesses: ranks whose
 * files it has to see first, to be sure that all ranks write into one folder. */
int checkpoint_save_commit(struct checkpoint_save *save, const uint32_t *witnesses, uint32_t witness_count);
/* Each rank, at the end; ok: the checkpoint is complete. Rank 0 removes what is not wanted any more. Keeps the detail.
 */
void checkpoint_save_end(struct checkpoint_save *save, bool ok);

/* The ranges that a rank of a group of `size` saves, or loads by itself: its share of what every rank has whole, and
 * its chunks. order: of each tensor of the state, its number in the checkpoint. MUSTER_ENOMEM. */
int checkpoint_ranges_of_state(const struct state_description *state, const uint32_t *order, uint32_t rank,
                               uint32_t size, struct checkpoint_ranges *out);

/* ---- checkpoint_read.c ---- */

/* The time of the table's clock until which to wait for files: visible_ms (>= 0) from now, at most for ever. */
int64_t checkpoint_until_ms(const struct snapshot_io *io, int64_t visible_ms);

/* Opens a file that has `bytes` bytes for reading. If it is not there, or is shorter, waits for it to come into sight
 * until the table's clock says until_ms. MUSTER_ECORRUPT: it did not, or it is longer. */
int checkpoint_open_file(const struct snapshot_folder *folder, const struct checkpoint_name *name, uint64_t bytes,
                         int64_t until_ms, int *out_file);

/* Reads the map that the record names, as it is in the file. *out is the caller's to free(). MUSTER_ECORRUPT. */
int checkpoint_read_map(const struct snapshot_folder *folder, const struct checkpoint_record *record, int64_t until_ms,
                        uint8_t **out);

/* Finds the tensors of the state in the map, by the names that `renames` gives them. order: room for one number each.
 * MUSTER_EINVAL names what is missing, or of another type or shape; values, too. */
int checkpoint_match(const struct checkpoint_map *map, const struct state_description *state,
                     const struct checkpoint_renames *renames, uint32_t *order);

/* Reads these ranges, which are sorted, and checks each block that has something of them. stage: through which they
 * come to memory of a GPU. MUSTER_ECORRUPT. */
int checkpoint_read_ranges(const struct snapshot_folder *folder, const struct checkpoint_map *map,
                           const struct checkpoint_ranges *wanted, int64_t until_ms,
                           const struct checkpoint_listener *listener, struct device_stage *stage);

/* A part that is read here and there. Blocks are compared with their checksums, which are read one by one: its header
 * and the other checksums are not looked at, so that a few elements of many parts cost a few bytes of each. */
struct checkpoint_part_reader;
/* Borrows folder and map. No file is open yet. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int checkpoint_part_reader_create(const struct snapshot_folder *folder, const struct checkpoint_map *map, uint32_t part,
                                  struct checkpoint_part_reader **out);
/* NULL is accepted. */
void checkpoint_part_reader_free(struct checkpoint_part_reader *reader);
/* What the part has of a wanted range. Opens the file if it is not open. MUSTER_ECORRUPT names file and tensor. */
int checkpoint_part_reader_read(struct checkpoint_part_reader *reader, const struct checkpoint_range *wanted);
/* Its file need not stay open until the next read. */
void checkpoint_part_reader_rest(struct checkpoint_part_reader *reader);
/* Reads all of it, header and checksums too. MUSTER_ECORRUPT: the first damage. */
int checkpoint_part_reader_verify(struct checkpoint_part_reader *reader);

/* ---- checkpoint_parts.c ---- */

/* checkpoint_save_parts() on any disk. */
int checkpoint_save_parts_on(const struct snapshot_io *io, const char *path, int64_t step,
                             const struct state_description *state, uint32_t part_count,
                             const struct checkpoint_settings *settings, const struct snapshot_source *source);

/* ---- with a group, on any disk ---- */

int checkpoint_save_group(const struct snapshot_io *io, struct muster_group *group, const char *path, int64_t step,
                          const struct state_description *state, const struct checkpoint_settings *settings);
int checkpoint_load_group(const struct snapshot_io *io, struct muster_group *group, const char *path,
                          const struct state_description *state, const struct muster_checkpoint_load_options *options,
                          struct muster_checkpoint_found *out);
int checkpoint_find(const struct snapshot_io *io, const char *path, int64_t step_max,
                    struct muster_checkpoint_found *out);

#endif
