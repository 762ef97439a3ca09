/* Inside an archive: files, and where in them the tensors lie. */
#ifndef TRAIN_ARCHIVE_IMPL_H
#define TRAIN_ARCHIVE_IMPL_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/formats/unpickle.h"
#include "train/archive/archive.h"
#include "train/archive/crc32.h"
#include "train/checkpoint/checkpoint_view.h"
#include "train/state/checksum.h"
#include "train/state/snapshot_manifest.h"

/* ---- files: archive_file.c ---- */

/* Reads shorter than this go through a copy of the block of the file that they lie in. */
enum { ARCHIVE_WINDOW_BYTES = 4096, ARCHIVE_OPEN_MAX = 32 };

/* The number of archive->memory where a file's is expected. */
#define ARCHIVE_IN_MEMORY UINT32_MAX

struct archive_file {
    char *path;
    uint64_t bytes;
    bool follows_links;
};

/* One of the files that are open at a time. */
struct archive_slot {
    int fd; /* -1: none */
    uint32_t file;
    uint64_t window_at;
    uint32_t window_bytes;
    uint8_t window[ARCHIVE_WINDOW_BYTES];
};

/* ---- tensors ---- */

/* A box of a tensor, and where its elements lie: element (i, j, ...) of the box is at data_at + (i * stride[0] + j *
 * stride[1] + ...) * element_bytes of the file. All of them are inside of the file. */
struct archive_piece {
    uint32_t file;
    uint64_t data_at;
    uint64_t start[MUSTER_TENSOR_DIMS_MAX]; /* of the box, in the tensor */
    uint64_t size[MUSTER_TENSOR_DIMS_MAX];
    uint64_t stride[MUSTER_TENSOR_DIMS_MAX];
    /* The checksum of all of its bytes, or 0: it has none. It is compared when they have been read in order. */
    uint32_t crc, crc_so_far;
    uint64_t crc_bytes; /* read so far */
};

/* What archive_next() reads at a time. */
#define ARCHIVE_BLOCK_BYTES ((uint64_t)4 << 20)

struct archive {
    const char *kind;
    struct archive_file *files;
    size_t file_count, file_room;
    struct archive_slot *slots; /* ARCHIVE_OPEN_MAX; that of a file is its number modulo that */
    struct archive_tensor *tensors;
    size_t tensor_count, tensor_room;
    struct archive_piece *pieces;
    size_t piece_count, piece_room;
    struct archive_value *values;
    size_t value_count, value_room;
    struct buf memory; /* the file ARCHIVE_IN_MEMORY: elements that a pickle holds */
    uint8_t *block;    /* ARCHIVE_BLOCK_BYTES, allocated when first needed */
    uint8_t *scratch;  /* as large: a run of elements that is to be spread */
    struct crc32 crc;
    int64_t step;                       /* of Muster's own files; -1 */
    struct checkpoint_view *view;       /* a checkpoint: tensors have no pieces, and are read through it. Or NULL */
    struct snapshot_manifest *manifest; /* a snapshot: has the checksums. Or NULL */
    struct buf passed_over;             /* with a terminator, or empty */
};

/* Adds a file. The path is copied. MUSTER_ENOENT, MUSTER_ESYSTEM, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int archive_add_file(struct archive *archive, const char *path, bool follows_links, uint32_t *out);
/* "FOLDER/name": a file of a folder, by a name from outside, which must be a single one. */
int archive_add_file_of(struct archive *archive, const char *folder, const char *name, bool follows_links,
                        uint32_t *out);

/* Reads exactly these bytes. MUSTER_ECORRUPT: they are not there. */
int archive_read(struct archive *archive, uint32_t file, uint64_t offset, void *out, uint64_t count);
/* The same into new memory with a zero behind it, for the caller to free. MUSTER_ELIMIT: more than `most`. */
int archive_read_new(struct archive *archive, uint32_t file, uint64_t offset, uint64_t count, uint64_t most,
                     uint8_t **out);
void archive_close_files(struct archive *archive);

/* ---- the list: archive_list.c ---- */

/* Makes room for one more in an array of at most `most`. MUSTER_ELIMIT ("more than N `what`"), MUSTER_ENOMEM. */
int archive_grow(void **array, size_t element_bytes, size_t count, size_t *room, size_t most, const char *what);

/* A type of elements, by Muster's value or, where Muster has none, by its name. */
struct archive_type {
    enum muster_type type;
    uint32_t element_bytes;
    const char *name;
};

/* Adds a tensor without pieces; the name (bytes, not terminated) is copied. Checks the shape: MUSTER_ECORRUPT. */
int archive_add_tensor(struct archive *archive, const char *name, struct archive_type type, uint32_t dim_count,
                       const uint64_t *shape);
/* Adds a piece to the tensor added last. */
int archive_add_piece(struct archive *archive, const struct archive_piece *piece);

int archive_add_integer(struct archive *archive, const char *name, int64_t integer);
int archive_add_real(struct archive *archive, const char *name, double real);
int archive_add_text(struct archive *archive, const char *name, const uint8_t *text, size_t bytes);
int archive_add_left_out(struct archive *archive, const char *name, const char *description);

/* Of tensors that have one name (of the keys "a.b", and "a" and "b"), and of values, all but the first get another one:
 * "a.b (2)". MUSTER_ENOMEM, MUSTER_ELIMIT. */
int archive_name_apart(struct archive *archive);

/* Are the elements of all pieces of a tensor in it, none in two, and none missing? MUSTER_ECORRUPT. Sorts the pieces.
 */
int archive_check_cover(struct archive *archive, const struct archive_tensor *tensor);

/* ---- the kinds ---- */

/* A torch.save archive in `bytes` bytes of a file. Names begin with `prefix`, or are the keys alone if it is "". */
int torch_file_read(struct archive *archive, uint32_t file, uint64_t base, uint64_t bytes, const char *prefix);

/* The one tensor in it: its type and shape must be these; out->file, data_at and stride are set. */
struct torch_tensor {
    struct archive_type type;
    uint32_t dim_count;
    uint64_t shape[MUSTER_TENSOR_DIMS_MAX];
    uint64_t stride[MUSTER_TENSOR_DIMS_MAX];
    uint64_t data_at;
    uint32_t crc; /* of all its bytes, which lie in order; 0: there is none */
};
int torch_file_read_tensor(struct archive *archive, uint32_t file, uint64_t base, uint64_t bytes,
                           struct torch_tensor *out);

/* Muster's own: muster_files.c. The newest of a folder that can be read; MUSTER_ENOENT without a sentence: there is no
 * save; MUSTER_ECORRUPT: none that can be read. */
int muster_folder_read(struct archive *archive, const char *folder);
/* Is this the name of a record or a manifest? Then reads that. */
bool muster_file_is(const char *name);
int muster_file_read(struct archive *archive, const char *folder, const char *name);
/* Of a checkpoint: elements of a tensor. */
int muster_view_read(struct archive *archive, size_t tensor, uint64_t first, uint64_t count, void *out);
/* Of a snapshot: these are the next bytes of a tensor; after the last ones its checksum is compared. MUSTER_ECORRUPT,
 * MUSTER_ENOMEM. */
int muster_snapshot_check(struct archive *archive, size_t number, const void *bytes, uint64_t count);
/* Of both. *out_done: all that can be told was told. Else it is a snapshot whose file is damaged, and its tensors tell
 * where. */
int muster_files_verify(struct archive *archive, archive_verify_fn *tell, void *context, bool *out_done);
void muster_files_done(struct archive *archive);

int dcp_read(struct archive *archive, const char *folder);
int safetensors_file_read(struct archive *archive, const char *path);
/* folder: where the files lie. */
int safetensors_index_read(struct archive *archive, const char *path, const char *folder);

#endif
