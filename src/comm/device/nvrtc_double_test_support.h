/* A double of libnvrtc.so.12 for tests, a shared library of its own: MUSTER_NVRTC_LIBRARY names it. It compiles
 * nothing: it knows our kernels, whose text (kernels_template.h) is compiled into it, as C. It has the double of the
 * CUDA driver know them when they have been "compiled"; there they compute in memory of the device. Source that lacks
 * one of them is refused, and so is another GPU than that double's.
 *
 * Faults: MUSTER_DOUBLE_NVRTC (fault_test_support.h), of nvrtcCompileProgram alone. */
#ifndef COMM_NVRTC_DOUBLE_TEST_SUPPORT_H
#define COMM_NVRTC_DOUBLE_TEST_SUPPORT_H

#include "comm/device/nvrtc_library.h"

#define NVRTC_DOUBLE_API __attribute__((visibility("default")))

#define NVRTC_DOUBLE_FUNCTION(member, symbol, parameters) NVRTC_DOUBLE_API unsigned symbol parameters;
NVRTC_FUNCTION_TABLE(NVRTC_DOUBLE_FUNCTION)
#undef NVRTC_DOUBLE_FUNCTION
NVRTC_DOUBLE_API const char *nvrtcGetErrorString(unsigned result);

#endif
