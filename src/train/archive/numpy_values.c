/* numpy's scalars and arrays in a pickle. Both hold their bytes there, not in an entry of the zip archive: as bytes,
 * or, in pickles of protocol 2, as a text to be encoded in Latin-1. See torch_file_impl.h. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "train/archive/torch_file_impl.h"

enum { TEXT_BYTES_A_STEP = 1024 };

/* ---- bytes ---- */

static const struct unpickle_value *arg(const struct torch_file *t, const struct unpickle_value *object,
                                        uint32_t index) {
    return unpickled_at(&t->tree, &unpickled_node(&t->tree, object)->args, index);
}

/* Appends the Latin-1 bytes of a text in UTF-8. False: it has others. */
static bool add_latin1(struct buf *out, const struct unpickle_value *text, int *code) {
    uint8_t *bytes = buf_reserve(out, text->size);
    size_t used = 0;
    if (!bytes) {
        *code = text->size > out->max - out->len ? MUSTER_ELIMIT : MUSTER_ENOMEM;
        return false;
    }
    for (uint32_t i = 0; i < text->size; i++) {
        uint8_t c = text->bytes[i];
        if (c >= 0x80) {
            if ((c != 0xc2 && c != 0xc3) || i + 1 == text->size || (text->bytes[i + 1] & 0xc0) != 0x80) {
                return false;
            }
            c = (uint8_t)((c & 3) << 6 | (text->bytes[++i] & 0x3f));
        }
        bytes[used++] = c;
    }
    buf_commit(out, used);
    return true;
}

/* Appends the `wanted` bytes that a value stands for. False: it is none, or *code says why it cannot be. Many objects
 * may have one value: it is not copied for its size to be found wrong, and reading a text counts as walking. */
static bool add_bytes(struct torch_file *t, const struct unpickle_value *value, uint64_t wanted, struct buf *out,
                      int *code) {
    size_t before = out->len;
    if (value->kind == UNPICKLE_BYTES) {
        *code = value->size == wanted ? buf_append(out, value->bytes, value->size) : 0;
        return *code == 0 && value->size == wanted;
    }
    if (value->kind != UNPICKLE_OBJECT || torch_role_of(t, value) != TORCH_BYTES) {
        return false;
    }
    const struct unpickle_value *text = arg(t, value, 0), *encoding = arg(t, value, 1);
    if (!text) { /* bytes() */
        return wanted == 0;
    }
    if (text->kind != UNPICKLE_TEXT || text->size < wanted || text->size > 2 * wanted || !encoding ||
        !unpickled_is_text(encoding, "latin1")) {
        return false;
    }
    t->steps += text->size / TEXT_BYTES_A_STEP;
    return add_latin1(out, text, code) && out->len - before == wanted;
}

/* ---- types ---- */

/* numpy.dtype("f4", False, True) with the state (3, "<", ...). NULL: none of the types here, or of another byte order.
 */
static const struct archive_type *read_type(const struct torch_file *t, const struct unpickle_value *dtype) {
    if (!dtype || dtype->kind != UNPICKLE_OBJECT || torch_role_of(t, dtype) != TORCH_NUMPY_DTYPE) {
        return NULL;
    }
    const struct unpickle_value *name = arg(t, dtype, 0), *state = &unpickled_node(&t->tree, dtype)->state,
                                *order = unpickled_at(&t->tree, state, 1);
    bool is_ours = !order || unpickled_is_text(order, "<") || unpickled_is_text(order, "|");
    return is_ours && name && name->kind == UNPICKLE_TEXT ? torch_numpy_type(name->bytes, name->size) : NULL;
}

/* ---- scalars ---- */

/* Without ldexp(): an agent that loaded the library of mathematics for it would start later. */
static double half_value(uint16_t half) {
    int exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    int64_t steps = exponent ? (int64_t)(fraction + 0x400) << exponent : (int64_t)fraction << 1; /* of 2^-25 */
    double value = exponent == 0x1f ? (fraction ? (double)NAN : (double)INFINITY) : (double)steps * 0x1p-25;
    return half & 0x8000 ? -value : value;
}

static int add_number(struct torch_file *t, const char *name, enum muster_type type, const uint8_t *bytes) {
    union {
        int8_t i8;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        uint16_t u16;
        uint32_t u32;
        float f32;
        double f64;
        uint8_t bytes[8];
    } as;
    memcpy(as.bytes, bytes, sizeof as.bytes);
    switch (type) {
    case MUSTER_INT8:
        return archive_add_integer(t->archive, name, as.i8);
    case MUSTER_INT16:
        return archive_add_integer(t->archive, name, as.i16);
    case MUSTER_INT32:
        return archive_add_integer(t->archive, name, as.i32);
    case MUSTER_INT64:
        return archive_add_integer(t->archive, name, as.i64);
    case MUSTER_UINT16:
        return archive_add_integer(t->archive, name, as.u16);
    case MUSTER_UINT32:
        return archive_add_integer(t->archive, name, as.u32);
    case MUSTER_UINT64:
        return as.i64 >= 0 ? archive_add_integer(t->archive, name, as.i64)
                           : archive_add_left_out(t->archive, name, "an integer of more than 63 bits");
    case MUSTER_FLOAT16:
        return archive_add_real(t->archive, name, half_value(as.u16));
    case MUSTER_FLOAT32:
        return archive_add_real(t->archive, name, as.f32);
    case MUSTER_FLOAT64:
        return archive_add_real(t->archive, name, as.f64);
    default: /* bool, uint8 */
        return archive_add_integer(t->archive, name, as.bytes[0]);
    }
}

/* scalar(dtype, bytes) */
static int add_scalar(struct torch_file *t, const struct unpickle_value *object, const char *name, bool *out_is_one) {
    const struct unpickle_value *dtype = arg(t, object, 0), *value = arg(t, object, 1);
    const struct archive_type *type = read_type(t, dtype);
    uint8_t bytes[8] = {0};
    struct buf buf;
    buf_init(&buf, NUMPY_BYTES_MAX);
    int code = 0;
    *out_is_one = type && type->element_bytes <= sizeof bytes && strncmp(type->name, "complex", 7) != 0 && value &&
                  add_bytes(t, value, type->element_bytes, &buf, &code);
    if (*out_is_one) {
        memcpy(bytes, buf_bytes(&buf), buf.len);
        code = add_number(t, name, type->type, bytes);
    }
    buf_done(&buf);
    return code;
}

/* ---- arrays ---- */

/* What an array is made of; the values may be NULL. */
struct array {
    const struct unpickle_value *shape, *dtype, *bytes;
    const struct unpickle_value *axes; /* that the dimensions are of the elements' ones; NULL: the same */
    bool is_fortran;
};

/* _reconstruct(numpy.ndarray, (0,), b"b") with the state (1, shape, dtype, is_fortran, bytes), or _frombuffer(bytes,
 * dtype, shape, "C"), "F" or "K" with the order of the axes. */
static struct array read_array(const struct torch_file *t, const struct unpickle_value *object) {
    if (torch_role_of(t, object) == TORCH_NUMPY_BUFFER) {
        const struct unpickle_value *order = arg(t, object, 3), *axes = arg(t, object, 4);
        bool is_fortran = order && unpickled_is_text(order, "F"), is_turned = order && unpickled_is_text(order, "K");
        if (!order || (!is_fortran && !is_turned && !unpickled_is_text(order, "C")) || (is_turned && !axes)) {
            return (struct array){.shape = NULL};
        }
        return (struct array){.shape = arg(t, object, 2),
                              .dtype = arg(t, object, 1),
                              .bytes = arg(t, object, 0),
                              .axes = is_turned ? axes : NULL,
                              .is_fortran = is_fortran};
    }
    const struct unpickle_value *class = arg(t, object, 0), *state = &unpickled_node(&t->tree, object)->state,
                                *is_fortran = unpickled_at(&t->tree, state, 3);
    if (!class || class->kind != UNPICKLE_CLASS || torch_role_of(t, class) != TORCH_NUMPY_NDARRAY || !is_fortran) {
        return (struct array){.shape = NULL}; /* of a class of its own, which may mean more than its elements */
    }
    return (struct array){.shape = unpickled_at(&t->tree, state, 1),
                          .dtype = unpickled_at(&t->tree, state, 2),
                          .bytes = unpickled_at(&t->tree, state, 4),
                          .is_fortran = is_fortran->kind <= UNPICKLE_INT && is_fortran->number != 0};
}

/* The elements a step of each dimension goes on by, and all elements. False: there are too many. */
static bool lay_out(const struct array *array, struct torch_tensor *tensor, uint64_t *out_elements) {
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        uint32_t dim = array->is_fortran ? i : tensor->dim_count - 1 - i;
        tensor->stride[dim] = elements;
        if (__builtin_mul_overflow(elements, tensor->shape[dim], &elements) || elements > NUMPY_BYTES_MAX) {
            return false;
        }
    }
    *out_elements = elements;
    return true;
}

/* Puts the dimensions in the array's order. False: that is none. */
static bool turn(const struct torch_file *t, const struct array *array, struct torch_tensor *tensor) {
    const struct torch_tensor before = *tensor;
    uint64_t axes[MUSTER_TENSOR_DIMS_MAX];
    uint32_t count = 0, seen = 0;
    if (!array->axes) {
        return true;
    }
    if (!torch_read_numbers(t, array->axes, axes, &count) || count != tensor->dim_count) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (axes[i] >= count || (seen & 1U << axes[i])) {
            return false;
        }
        seen |= 1U << axes[i];
        tensor->shape[i] = before.shape[axes[i]];
        tensor->stride[i] = before.stride[axes[i]];
    }
    return true;
}

static int add_array(struct torch_file *t, const struct unpickle_value *object, const char *name, bool *out_is_one) {
    const struct array array = read_array(t, object);
    const struct archive_type *type = read_type(t, array.dtype);
    struct torch_tensor tensor = {.dim_count = 0};
    struct buf *memory = &t->archive->memory;
    size_t before = memory->len;
    uint64_t elements = 0;
    int code = 0;
    *out_is_one = type && array.shape && array.bytes &&
                  torch_read_numbers(t, array.shape, tensor.shape, &tensor.dim_count) &&
                  lay_out(&array, &tensor, &elements) && turn(t, &array, &tensor) &&
                  add_bytes(t, array.bytes, elements * type->element_bytes, memory, &code);
    if (!*out_is_one) {
        memory->len = before;
        return code;
    }
    tensor.type = *type;
    tensor.data_at = before;
    return torch_add_tensor(t, ARCHIVE_IN_MEMORY, name, &tensor);
}

int numpy_add(struct torch_file *t, const struct unpickle_value *value, const char *name, bool *out_is_one) {
    enum torch_role role = value->kind == UNPICKLE_OBJECT ? torch_role_of(t, value) : TORCH_OTHER;
    *out_is_one = false;
    return role == TORCH_NUMPY_SCALAR                                ? add_scalar(t, value, name, out_is_one)
           : role == TORCH_NUMPY_ARRAY || role == TORCH_NUMPY_BUFFER ? add_array(t, value, name, out_is_one)
                                                                     : 0;
}
