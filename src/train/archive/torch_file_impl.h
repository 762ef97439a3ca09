/* What the parts of the reader of torch.save files share: opening, tensors, the walk through what was saved. */
#ifndef TRAIN_TORCH_FILE_IMPL_H
#define TRAIN_TORCH_FILE_IMPL_H

#include "train/archive/torch_classes.h"
#include "train/archive/zip.h"

/* One archive. */
struct torch_file {
    struct archive *archive;
    uint32_t file;
    struct zip zip;
    char folder[ZIP_NAME_MAX + 1]; /* all entries are in it: "archive/" */
    uint8_t *pickle;
    struct unpickled tree;
    /* The walk. */
    uint64_t steps;
    char path[ARCHIVE_NAME_MAX]; /* the keys so far, joined by dots */
    size_t path_bytes;
};

/* ---- torch_tensor.c ---- */

/* A call that makes a tensor. */
struct torch_call {
    enum torch_role role; /* TORCH_REBUILD_V2, TORCH_REBUILD_V3 */
    struct unpickle_value args;
};

/* What a class or an object is for; TORCH_OTHER for what is neither. */
enum torch_role torch_role_of(const struct torch_file *t, const struct unpickle_value *value);

/* Looks through what parameters and buffers are wrapped in. False: the value is no tensor. */
bool torch_find_call(const struct torch_file *t, const struct unpickle_value *value, struct torch_call *out);

/* A tuple of numbers that are not negative, such as a shape. False: it is none, or has too many. */
bool torch_read_numbers(const struct torch_file *t, const struct unpickle_value *tuple, uint64_t *out,
                        uint32_t *out_count);

/* MUSTER_ECORRUPT, with a sentence that begins with the path; MUSTER_EUNSUPPORTED: it is as PyTorch writes it, and not
 * read here. */
int torch_read_tensor(const struct torch_file *t, const struct torch_call *call, struct torch_tensor *out);

/* Adds a tensor of one piece. */
int torch_add_tensor(struct torch_file *t, uint32_t file, const char *name, const struct torch_tensor *tensor);

/* ---- numpy_values.c ---- */

/* Adds a scalar of numpy's as a value, and an array as a tensor. *out_is_one: it was one of those that are read. */
int numpy_add(struct torch_file *t, const struct unpickle_value *value, const char *name, bool *out_is_one);
#define NUMPY_BYTES_MAX ARCHIVE_PICKLE_BYTES_MAX

/* ---- torch_walk.c ---- */

/* Adds everything below `value` to the archive, under names that begin with `prefix`. */
int torch_walk(struct torch_file *t, const struct unpickle_value *value, const char *prefix);

#endif
