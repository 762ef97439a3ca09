/* The kernels of batch norm in the double of NVRTC: their text (norm_template.h), compiled as C. */
#ifndef COMM_NORM_DOUBLE_TEST_SUPPORT_H
#define COMM_NORM_DOUBLE_TEST_SUPPORT_H

#include <stddef.h>

/* Lets the double of the CUDA driver know them. */
void norm_double_register(void);
/* The name of the kernel `i`; NULL behind the last one. */
const char *norm_double_name(size_t i);

#endif
