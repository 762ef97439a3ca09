/* Memory for many floats. */
#ifndef EXAMPLES_GPT_FLOATS_H
#define EXAMPLES_GPT_FLOATS_H

#include <stddef.h>

/* Zeroed; fails when there is none (fail.h). free() frees it. */
float *floats_allocate(size_t count);

#endif
