/* What a pickle of PyTorch's names, and what each stands for. */
#ifndef TRAIN_TORCH_CLASSES_H
#define TRAIN_TORCH_CLASSES_H

#include "train/archive/archive_impl.h"

enum torch_role {
    TORCH_OTHER, /* left out */
    TORCH_DICT,  /* an object with items: collections.OrderedDict */
    TORCH_SIZE,  /* called with a tuple */
    TORCH_DTYPE, /* detail: its place in torch_types */
    TORCH_STORAGE,
    TORCH_REBUILD_V2, /* called with storage, offset, sizes, strides and more */
    TORCH_REBUILD_V3, /* the same, and a dtype */
    TORCH_WRAPPED,    /* called with a tensor and more */
    TORCH_RETYPED,    /* called with function, type, arguments, state */
    TORCH_BYTES,      /* called with a text and an encoding, or with nothing */
    TORCH_NUMPY_DTYPE,
    TORCH_NUMPY_NDARRAY,
    TORCH_NUMPY_ARRAY,  /* called with the class; its state has the elements */
    TORCH_NUMPY_BUFFER, /* called with bytes, dtype, shape and order */
    TORCH_NUMPY_SCALAR, /* called with dtype and bytes */
    TORCH_METADATA,     /* of distributed checkpoints */
    TORCH_TENSOR_METADATA,
    TORCH_BYTES_METADATA,
    TORCH_CHUNK,
    TORCH_PROPERTIES,
    TORCH_INDEX,
    TORCH_STORAGE_INFO,
};

extern const struct unpickle_classes torch_classes;

/* The types of PyTorch's elements; `detail` of a dtype or a storage is a place in it. */
extern const struct archive_type torch_types[];

/* That of one of numpy's, such as "f4"; NULL: there is none. */
const struct archive_type *torch_numpy_type(const uint8_t *name, size_t bytes);

#endif
