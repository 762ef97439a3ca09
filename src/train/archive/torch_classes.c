/* See torch_classes.h. An object of a class that is not here is left out by name. None of them is ever called: a row
 * only says what an object of that class means. */
#include "train/archive/torch_classes.h"

#include <string.h>

enum {
    TYPE_UINT8,
    TYPE_INT8,
    TYPE_INT16,
    TYPE_INT32,
    TYPE_INT64,
    TYPE_UINT16,
    TYPE_UINT32,
    TYPE_UINT64,
    TYPE_FLOAT16,
    TYPE_BFLOAT16,
    TYPE_FLOAT32,
    TYPE_FLOAT64,
    TYPE_BOOL,
    TYPE_COMPLEX32,
    TYPE_COMPLEX64,
    TYPE_COMPLEX128,
    TYPE_FLOAT8_E4M3FN,
    TYPE_FLOAT8_E5M2,
    TYPE_FLOAT8_E4M3FNUZ,
    TYPE_FLOAT8_E5M2FNUZ,
    TYPE_FLOAT8_E8M0FNU,
    TYPE_FLOAT4_E2M1FN_X2,
    TYPE_UNTYPED, /* a storage of bytes, whose type the tensor says */
};

const struct archive_type torch_types[] = {
    [TYPE_UINT8] = {MUSTER_UINT8, 1, "uint8"},
    [TYPE_INT8] = {MUSTER_INT8, 1, "int8"},
    [TYPE_INT16] = {MUSTER_INT16, 2, "int16"},
    [TYPE_INT32] = {MUSTER_INT32, 4, "int32"},
    [TYPE_INT64] = {MUSTER_INT64, 8, "int64"},
    [TYPE_UINT16] = {MUSTER_UINT16, 2, "uint16"},
    [TYPE_UINT32] = {MUSTER_UINT32, 4, "uint32"},
    [TYPE_UINT64] = {MUSTER_UINT64, 8, "uint64"},
    [TYPE_FLOAT16] = {MUSTER_FLOAT16, 2, "float16"},
    [TYPE_BFLOAT16] = {MUSTER_BFLOAT16, 2, "bfloat16"},
    [TYPE_FLOAT32] = {MUSTER_FLOAT32, 4, "float32"},
    [TYPE_FLOAT64] = {MUSTER_FLOAT64, 8, "float64"},
    [TYPE_BOOL] = {MUSTER_TYPE_COUNT, 1, "bool"},
    [TYPE_COMPLEX32] = {MUSTER_TYPE_COUNT, 4, "complex32"},
    [TYPE_COMPLEX64] = {MUSTER_TYPE_COUNT, 8, "complex64"},
    [TYPE_COMPLEX128] = {MUSTER_TYPE_COUNT, 16, "complex128"},
    [TYPE_FLOAT8_E4M3FN] = {MUSTER_TYPE_COUNT, 1, "float8_e4m3fn"},
    [TYPE_FLOAT8_E5M2] = {MUSTER_TYPE_COUNT, 1, "float8_e5m2"},
    [TYPE_FLOAT8_E4M3FNUZ] = {MUSTER_TYPE_COUNT, 1, "float8_e4m3fnuz"},
    [TYPE_FLOAT8_E5M2FNUZ] = {MUSTER_TYPE_COUNT, 1, "float8_e5m2fnuz"},
    [TYPE_FLOAT8_E8M0FNU] = {MUSTER_TYPE_COUNT, 1, "float8_e8m0fnu"},
    [TYPE_FLOAT4_E2M1FN_X2] = {MUSTER_TYPE_COUNT, 1, "float4_e2m1fn_x2"},
    [TYPE_UNTYPED] = {MUSTER_TYPE_COUNT, 1, "bytes"},
};

#define DCP_METADATA "torch.distributed.checkpoint.metadata"

static const struct unpickle_class list[] = {
    {"torch._utils", "_rebuild_tensor_v2", TORCH_REBUILD_V2, 0},
    {"torch._utils", "_rebuild_tensor_v3", TORCH_REBUILD_V3, 0},
    {"torch._utils", "_rebuild_parameter", TORCH_WRAPPED, 0},
    {"torch._utils", "_rebuild_parameter_with_state", TORCH_WRAPPED, 0},
    {"torch._tensor", "_rebuild_from_type_v2", TORCH_RETYPED, 0},
    {"torch", "Size", TORCH_SIZE, 0},
    {"torch", "ByteStorage", TORCH_STORAGE, TYPE_UINT8},
    {"torch", "CharStorage", TORCH_STORAGE, TYPE_INT8},
    {"torch", "ShortStorage", TORCH_STORAGE, TYPE_INT16},
    {"torch", "IntStorage", TORCH_STORAGE, TYPE_INT32},
    {"torch", "LongStorage", TORCH_STORAGE, TYPE_INT64},
    {"torch", "HalfStorage", TORCH_STORAGE, TYPE_FLOAT16},
    {"torch", "BFloat16Storage", TORCH_STORAGE, TYPE_BFLOAT16},
    {"torch", "FloatStorage", TORCH_STORAGE, TYPE_FLOAT32},
    {"torch", "DoubleStorage", TORCH_STORAGE, TYPE_FLOAT64},
    {"torch", "BoolStorage", TORCH_STORAGE, TYPE_BOOL},
    {"torch", "ComplexFloatStorage", TORCH_STORAGE, TYPE_COMPLEX64},
    {"torch", "ComplexDoubleStorage", TORCH_STORAGE, TYPE_COMPLEX128},
    {"torch.storage", "UntypedStorage", TORCH_STORAGE, TYPE_UNTYPED},
    {"torch", "uint8", TORCH_DTYPE, TYPE_UINT8},
    {"torch", "int8", TORCH_DTYPE, TYPE_INT8},
    {"torch", "int16", TORCH_DTYPE, TYPE_INT16},
    {"torch", "int32", TORCH_DTYPE, TYPE_INT32},
    {"torch", "int64", TORCH_DTYPE, TYPE_INT64},
    {"torch", "uint16", TORCH_DTYPE, TYPE_UINT16},
    {"torch", "uint32", TORCH_DTYPE, TYPE_UINT32},
    {"torch", "uint64", TORCH_DTYPE, TYPE_UINT64},
    {"torch", "float16", TORCH_DTYPE, TYPE_FLOAT16},
    {"torch", "bfloat16", TORCH_DTYPE, TYPE_BFLOAT16},
    {"torch", "float32", TORCH_DTYPE, TYPE_FLOAT32},
    {"torch", "float64", TORCH_DTYPE, TYPE_FLOAT64},
    {"torch", "bool", TORCH_DTYPE, TYPE_BOOL},
    {"torch", "complex32", TORCH_DTYPE, TYPE_COMPLEX32},
    {"torch", "complex64", TORCH_DTYPE, TYPE_COMPLEX64},
    {"torch", "complex128", TORCH_DTYPE, TYPE_COMPLEX128},
    {"torch", "float8_e4m3fn", TORCH_DTYPE, TYPE_FLOAT8_E4M3FN},
    {"torch", "float8_e5m2", TORCH_DTYPE, TYPE_FLOAT8_E5M2},
    {"torch", "float8_e4m3fnuz", TORCH_DTYPE, TYPE_FLOAT8_E4M3FNUZ},
    {"torch", "float8_e5m2fnuz", TORCH_DTYPE, TYPE_FLOAT8_E5M2FNUZ},
    {"torch", "float8_e8m0fnu", TORCH_DTYPE, TYPE_FLOAT8_E8M0FNU},
    {"torch", "float4_e2m1fn_x2", TORCH_DTYPE, TYPE_FLOAT4_E2M1FN_X2},
    {"collections", "OrderedDict", TORCH_DICT, 0},
    {"collections", "defaultdict", TORCH_DICT, 0},
    /* Protocol 2 has Python 2's names. */
    {"_codecs", "encode", TORCH_BYTES, 0},
    {"__builtin__", "bytes", TORCH_BYTES, 0},
    {"builtins", "bytes", TORCH_BYTES, 0},
    {"__builtin__", "bytearray", TORCH_BYTES, 0},
    {"builtins", "bytearray", TORCH_BYTES, 0},
    {"numpy", "dtype", TORCH_NUMPY_DTYPE, 0},
    {"numpy", "ndarray", TORCH_NUMPY_NDARRAY, 0},
    {"numpy.core.multiarray", "_reconstruct", TORCH_NUMPY_ARRAY, 0}, /* before numpy 2 */
    {"numpy._core.multiarray", "_reconstruct", TORCH_NUMPY_ARRAY, 0},
    {"numpy.core.numeric", "_frombuffer", TORCH_NUMPY_BUFFER, 0},
    {"numpy._core.numeric", "_frombuffer", TORCH_NUMPY_BUFFER, 0},
    {"numpy.core.multiarray", "scalar", TORCH_NUMPY_SCALAR, 0},
    {"numpy._core.multiarray", "scalar", TORCH_NUMPY_SCALAR, 0},
    {DCP_METADATA, "Metadata", TORCH_METADATA, 0},
    {DCP_METADATA, "TensorStorageMetadata", TORCH_TENSOR_METADATA, 0},
    {DCP_METADATA, "BytesStorageMetadata", TORCH_BYTES_METADATA, 0},
    {DCP_METADATA, "ChunkStorageMetadata", TORCH_CHUNK, 0},
    {DCP_METADATA, "TensorProperties", TORCH_PROPERTIES, 0},
    {DCP_METADATA, "MetadataIndex", TORCH_INDEX, 0},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", TORCH_STORAGE_INFO, 0},
};

const struct unpickle_classes torch_classes = {
    .list = list, .count = sizeof list / sizeof *list, .takes_others = true, .others_role = TORCH_OTHER};

const struct archive_type *torch_numpy_type(const uint8_t *name, size_t bytes) {
    static const struct {
        char name[4];
        int type;
    } types[] = {{"b1", TYPE_BOOL},      {"i1", TYPE_INT8},       {"i2", TYPE_INT16},   {"i4", TYPE_INT32},
                 {"i8", TYPE_INT64},     {"u1", TYPE_UINT8},      {"u2", TYPE_UINT16},  {"u4", TYPE_UINT32},
                 {"u8", TYPE_UINT64},    {"f2", TYPE_FLOAT16},    {"f4", TYPE_FLOAT32}, {"f8", TYPE_FLOAT64},
                 {"c8", TYPE_COMPLEX64}, {"c16", TYPE_COMPLEX128}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strlen(types[i].name) == bytes && memcmp(types[i].name, name, bytes) == 0) {
            return &torch_types[types[i].type];
        }
    }
    return NULL;
}
