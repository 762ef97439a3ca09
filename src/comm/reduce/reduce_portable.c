/* Reductions with vectors of 16 bytes, which every target of GCC and clang has or imitates: the template as it is. */
#include "comm/reduce/reduce_template.h"
