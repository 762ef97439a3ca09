/* What has been saved, by whomever: Muster's checkpoints and snapshots, PyTorch's files (torch.save), its distributed
 * checkpoints (DCP folders), and safetensors files, one or many with an index. They are read as data, whoever wrote
 * them: no code in them runs, no path in them leads out of their folder, and memory is bounded, whatever they say.
 *
 * An archive is a list of tensors, which are read one after another by pieces, and a list of numbers and texts.
 * Names are the keys that lead to a tensor, joined by dots: "model.0.weight".
 *
 * Threads: one at a time for an archive. Blocks while the disk works. */
#ifndef TRAIN_ARCHIVE_H
#define TRAIN_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/snapshot.h>

#define ARCHIVE_TENSORS_MAX ((size_t)262144)
#define ARCHIVE_PIECES_MAX ((size_t)1 << 20) /* of all tensors together */
#define ARCHIVE_CHUNKS_MAX ((uint32_t)16384) /* of one tensor */
/* Tensors may have so many times the bytes of the files, or up to so many bytes in any case. */
#define ARCHIVE_EXPANSION_MAX ((uint64_t)64)
#define ARCHIVE_EXPANDED_BYTES_MIN ((uint64_t)1 << 30)
#define ARCHIVE_VALUES_MAX ((size_t)65536)
#define ARCHIVE_FILES_MAX ((size_t)65536)
#define ARCHIVE_NAME_MAX ((size_t)1024)
#define ARCHIVE_PICKLE_BYTES_MAX ((uint64_t)512 << 20)

struct checksum;

struct archive_tensor {
    char *name;
    const char *type_name; /* as Muster calls it, or PyTorch */
    enum muster_type type; /* MUSTER_TYPE_COUNT: one that Muster has not */
    uint32_t dim_count;
    uint64_t shape[MUSTER_TENSOR_DIMS_MAX];
    uint64_t bytes;
    uint32_t element_bytes;
    uint32_t first_piece, piece_count; /* where it lies: archive_impl.h */
    uint64_t element;                  /* where reading it goes on */
    struct checksum *checksum;         /* of a snapshot's that was read in part: of that part. Owned, or NULL */
};

/* A number, a text, or something that is neither, of which only the description is known. */
struct archive_value {
    char *name;
    bool is_left_out;
    enum muster_value_kind kind;
    int64_t integer;
    double real;
    char *text; /* or the description of what is left out */
};

struct archive;

/* A save of Muster's in a folder, judged by its record or manifest alone. code: 0, or why it cannot be read, with
 * muster_detail(): MUSTER_ENOENT (the save was cut off), MUSTER_ECORRUPT, MUSTER_EUNSUPPORTED. */
struct archive_saved {
    int64_t step;
    bool is_snapshot;
    int code;
    uint32_t part_count; /* of a checkpoint */
    uint64_t bytes;
};
/* A result other than 0 ends the listing, which then gives it. */
typedef int archive_saved_fn(void *context, const struct archive_saved *saved);
/* Calls `each` for all checkpoints, then for all snapshots, the newest first. MUSTER_ENOENT: no such folder. */
int archive_each_saved(const char *folder, archive_saved_fn *each, void *context);

/* path: a torch.save file, a safetensors file, an index of such files (*.index.json), the record of a checkpoint
 * (checkpoint-10.json) or the manifest of a snapshot (step-10.json); or a folder with a .metadata, an index or one file
 * in it, or with checkpoints and snapshots, of which it is the newest that can be read (archive_passed_over()). All
 * that can be known to be wrong without reading the tensors is found here. MUSTER_ENOENT, MUSTER_ECORRUPT,
 * MUSTER_EUNSUPPORTED (a kind of file that is not read), MUSTER_ELIMIT, MUSTER_ENOMEM, MUSTER_ESYSTEM; the sentence
 * names file and tensor. */
int archive_open(const char *path, struct archive **out);
/* NULL is accepted. */
void archive_close(struct archive *archive);

/* "torch.save file" and so on. */
const char *archive_kind(const struct archive *archive);
/* Of a checkpoint or snapshot; -1: it is neither. */
int64_t archive_step(const struct archive *archive);

/* The newer saves of a folder that could not be read, a sentence in each line: "step 30: its save was cut off". "":
 * there are none. */
const char *archive_passed_over(const struct archive *archive);

size_t archive_tensor_count(const struct archive *archive);
const struct archive_tensor *archive_tensor(const struct archive *archive, size_t index);
size_t archive_value_count(const struct archive *archive);
const struct archive_value *archive_value(const struct archive *archive, size_t index);

/* The next bytes of tensor `number`, row-major without gaps: whole elements, at least one of them, at most `most` bytes
 * (one element at least) and a few MiB. They are borrowed until the next call. Goes on where the last call for this
 * tensor has ended, whatever was read in between, and begins again after its last byte, or a failure. Not to be called
 * for a tensor without bytes. */
int archive_next(struct archive *archive, size_t number, uint64_t most, const void **out, uint64_t *out_bytes);

/* Told of damage by a sentence. done: bytes that have been read since the last call; a sentence or 0 bytes. A result
 * other than 0 ends the work with it. */
typedef int archive_verify_fn(void *context, const char *sentence, uint64_t done);
/* Reads all of it once, and compares all checksums that there are; the tensors of a snapshot that is damaged a second
 * time, to tell which ones are. MUSTER_ESYSTEM and so on: it could not go on; damage is
 * no failure. */
int archive_verify(struct archive *archive, archive_verify_fn *tell, void *context);

#endif
