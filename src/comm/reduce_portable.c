/* Reductions with vectors of 16 bytes, which every target of GCC and clang has or imitates. */
#define VECTOR_BYTES 16
#define TABLE_NAME reduce_table_portable
#include "comm/reduce_template.h"
