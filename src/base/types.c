/* Sizes and names of the element types and reductions (muster/types.h), from their tables. */
#include <muster/types.h>

size_t muster_type_bytes(enum muster_type type) {
    switch ((int)type) {
#define TYPE_CASE(name, value, bytes, text)                                                                            \
    case name:                                                                                                         \
        return bytes;
        MUSTER_TYPE_TABLE(TYPE_CASE)
#undef TYPE_CASE
    default:
        return 0;
    }
}

const char *muster_type_name(enum muster_type type) {
    switch ((int)type) {
#define TYPE_CASE(name, value, bytes, text)                                                                            \
    case name:                                                                                                         \
        return text;
        MUSTER_TYPE_TABLE(TYPE_CASE)
#undef TYPE_CASE
    default:
        return "unknown type";
    }
}

const char *muster_reduction_name(enum muster_reduction reduction) {
    switch ((int)reduction) {
#define REDUCTION_CASE(name, value, text)                                                                              \
    case name:                                                                                                         \
        return text;
        MUSTER_REDUCTION_TABLE(REDUCTION_CASE)
#undef REDUCTION_CASE
    default:
        return "unknown reduction";
    }
}
