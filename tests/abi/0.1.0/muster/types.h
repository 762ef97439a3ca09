/* Element types and reductions, as every collective, tensor and snapshot names them. */
#ifndef MUSTER_TYPES_H
#define MUSTER_TYPES_H

#include <stddef.h>

#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* One table: name, value, bytes of an element, text. The values stand in files and on the wire and never change. */
#define MUSTER_TYPE_TABLE(X)                                                                                           \
    X(MUSTER_INT8, 0, 1, "int8")                                                                                       \
    X(MUSTER_UINT8, 1, 1, "uint8")                                                                                     \
    X(MUSTER_INT16, 2, 2, "int16")                                                                                     \
    X(MUSTER_INT32, 3, 4, "int32")                                                                                     \
    X(MUSTER_INT64, 4, 8, "int64")                                                                                     \
    X(MUSTER_FLOAT16, 5, 2, "float16")                                                                                 \
    X(MUSTER_BFLOAT16, 6, 2, "bfloat16")                                                                               \
    X(MUSTER_FLOAT32, 7, 4, "float32")                                                                                 \
    X(MUSTER_FLOAT64, 8, 8, "float64")                                                                                 \
    X(MUSTER_UINT16, 9, 2, "uint16")                                                                                   \
    X(MUSTER_UINT32, 10, 4, "uint32")                                                                                  \
    X(MUSTER_UINT64, 11, 8, "uint64")

enum muster_type {
#define MUSTER_TYPE_ENUM(name, value, bytes, text) name = (value),
    MUSTER_TYPE_TABLE(MUSTER_TYPE_ENUM)
#undef MUSTER_TYPE_ENUM
        MUSTER_TYPE_COUNT
};

/* Bytes of one element, 0 for a value that is no type; "float32" and so on, "unknown type". Any thread. */
size_t muster_type_bytes(enum muster_type type);
const char *muster_type_name(enum muster_type type);

/* How elements of several ranks become one. Integers wrap around; AVERAGE of integers divides the wrapped sum and
 * rounds towards zero. float16 and bfloat16 are added up in float32 and rounded to nearest even: once among the ranks
 * of one host, and at each hop between hosts. MIN and MAX of a NaN and a number are NaN, as in PyTorch. The BIT
 * operations are for integers only. */
#define MUSTER_REDUCTION_TABLE(X)                                                                                      \
    X(MUSTER_OP_SUM, 0, "sum")                                                                                         \
    X(MUSTER_OP_PRODUCT, 1, "product")                                                                                 \
    X(MUSTER_OP_MIN, 2, "min")                                                                                         \
    X(MUSTER_OP_MAX, 3, "max")                                                                                         \
    X(MUSTER_OP_AVERAGE, 4, "average")                                                                                 \
    X(MUSTER_OP_BIT_AND, 5, "bit and")                                                                                 \
    X(MUSTER_OP_BIT_OR, 6, "bit or")                                                                                   \
    X(MUSTER_OP_BIT_XOR, 7, "bit xor")

enum muster_reduction {
#define MUSTER_REDUCTION_ENUM(name, value, text) name = (value),
    MUSTER_REDUCTION_TABLE(MUSTER_REDUCTION_ENUM)
#undef MUSTER_REDUCTION_ENUM
        MUSTER_REDUCTION_COUNT
};

/* "sum" and so on, "unknown reduction". Any thread. */
const char *muster_reduction_name(enum muster_reduction reduction);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
