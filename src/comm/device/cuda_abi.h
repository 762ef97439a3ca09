/* The interface of NVIDIA's CUDA driver, as far as Muster calls it: results, constants, and a table of functions. The
 * driver's header is not needed to build, and the driver's library is opened at run time (cuda_library.h).
 *
 * Source of the facts: cuda.h of the CUDA toolkit, and "CUDA Driver API" (docs.nvidia.com/cuda/cuda-driver-api). Where
 * that header has a second version of a function, the table has it (`_v2`). tests/comm/test_gpu_headers.py compares all
 * of this with a real cuda.h where there is one. */
#ifndef COMM_CUDA_ABI_H
#define COMM_CUDA_ABI_H

#include <stddef.h>

/* Opaque objects have the driver's tags, so that a compiler that sees both headers can compare the functions. */
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

/* Our name, value, the driver's name. */
#define CUDA_RESULT_TABLE(X)                                                                                           \
    X(CUDA_OK, 0, CUDA_SUCCESS)                                                                                        \
    X(CUDA_INVALID_VALUE, 1, CUDA_ERROR_INVALID_VALUE)                                                                 \
    X(CUDA_OUT_OF_MEMORY, 2, CUDA_ERROR_OUT_OF_MEMORY)                                                                 \
    X(CUDA_NOT_INITIALIZED, 3, CUDA_ERROR_NOT_INITIALIZED)                                                             \
    X(CUDA_STUB_LIBRARY, 34, CUDA_ERROR_STUB_LIBRARY)                                                                  \
    X(CUDA_NO_DEVICE, 100, CUDA_ERROR_NO_DEVICE)                                                                       \
    X(CUDA_INVALID_DEVICE, 101, CUDA_ERROR_INVALID_DEVICE)                                                             \
    X(CUDA_INVALID_IMAGE, 200, CUDA_ERROR_INVALID_IMAGE)                                                               \
    X(CUDA_INVALID_CONTEXT, 201, CUDA_ERROR_INVALID_CONTEXT)                                                           \
    X(CUDA_INVALID_HANDLE, 400, CUDA_ERROR_INVALID_HANDLE)                                                             \
    X(CUDA_NOT_FOUND, 500, CUDA_ERROR_NOT_FOUND)                                                                       \
    X(CUDA_NOT_READY, 600, CUDA_ERROR_NOT_READY)                                                                       \
    X(CUDA_ILLEGAL_ADDRESS, 700, CUDA_ERROR_ILLEGAL_ADDRESS)                                                           \
    X(CUDA_LAUNCH_FAILED, 719, CUDA_ERROR_LAUNCH_FAILED)                                                               \
    X(CUDA_SYSTEM_DRIVER_MISMATCH, 803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)                                             \
    X(CUDA_UNKNOWN, 999, CUDA_ERROR_UNKNOWN)

#define CUDA_CONSTANT_TABLE(X)                                                                                         \
    X(CUDA_POINTER_CONTEXT, 1, CU_POINTER_ATTRIBUTE_CONTEXT)                                                           \
    X(CUDA_POINTER_MEMORY_TYPE, 2, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                                                   \
    X(CUDA_POINTER_IS_MANAGED, 8, CU_POINTER_ATTRIBUTE_IS_MANAGED)                                                     \
    X(CUDA_POINTER_DEVICE_ORDINAL, 9, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                                             \
    X(CUDA_MEMORY_HOST, 1, CU_MEMORYTYPE_HOST)                                                                         \
    X(CUDA_MEMORY_DEVICE, 2, CU_MEMORYTYPE_DEVICE)                                                                     \
    X(CUDA_CAPABILITY_MAJOR, 75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                                         \
    X(CUDA_CAPABILITY_MINOR, 76, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                                         \
    X(CUDA_STREAM_DEFAULT, 0, CU_STREAM_DEFAULT)                                                                       \
    X(CUDA_STREAM_NON_BLOCKING, 1, CU_STREAM_NON_BLOCKING)                                                             \
    X(CUDA_EVENT_DISABLE_TIMING, 2, CU_EVENT_DISABLE_TIMING)

enum cuda_result {
#define CUDA_ENUM(name, value, theirs) name = (value),
    CUDA_RESULT_TABLE(CUDA_ENUM)
};
enum cuda_constant { CUDA_CONSTANT_TABLE(CUDA_ENUM) };
#undef CUDA_ENUM

/* Name in our table, symbol, parameters. All return a CUresult, an enumeration without negative values, so unsigned. A
 * CUdevice is an int, a CUdeviceptr an unsigned long long. Default streams: NULL. */
#define CUDA_FUNCTION_TABLE(X)                                                                                         \
    X(init, cuInit, (unsigned flags))                                                                                  \
    X(driver_version, cuDriverGetVersion, (int *out))                                                                  \
    X(error_name, cuGetErrorName, (unsigned result, const char **out))                                                 \
    X(error_string, cuGetErrorString, (unsigned result, const char **out))                                             \
    X(device_count, cuDeviceGetCount, (int *out))                                                                      \
    X(device_get, cuDeviceGet, (int *out, int ordinal))                                                                \
    X(device_attribute, cuDeviceGetAttribute, (int *out, unsigned attribute, int device))                              \
    X(context_current, cuCtxGetCurrent, (struct CUctx_st * *out))                                                      \
    X(context_set_current, cuCtxSetCurrent, (struct CUctx_st * context))                                               \
    X(context_device, cuCtxGetDevice, (int *out))                                                                      \
    X(primary_context_retain, cuDevicePrimaryCtxRetain, (struct CUctx_st * *out, int device))                          \
    X(primary_context_release, cuDevicePrimaryCtxRelease_v2, (int device))                                             \
    X(pointer_attribute, cuPointerGetAttribute, (void *out, unsigned attribute, unsigned long long pointer))           \
    X(memory_allocate, cuMemAlloc_v2, (unsigned long long *out, size_t bytes))                                         \
    X(memory_free, cuMemFree_v2, (unsigned long long pointer))                                                         \
    X(host_allocate, cuMemAllocHost_v2, (void **out, size_t bytes))                                                    \
    X(host_free, cuMemFreeHost, (void *memory))                                                                        \
    X(copy_to_device, cuMemcpyHtoDAsync_v2,                                                                            \
      (unsigned long long to, const void *from, size_t bytes, struct CUstream_st *stream))                             \
    X(copy_to_host, cuMemcpyDtoHAsync_v2,                                                                              \
      (void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream))                                   \
    X(copy_on_device, cuMemcpyDtoDAsync_v2,                                                                            \
      (unsigned long long to, unsigned long long from, size_t bytes, struct CUstream_st *stream))                      \
    X(set_bytes, cuMemsetD8Async,                                                                                      \
      (unsigned long long to, unsigned char value, size_t bytes, struct CUstream_st *stream))                          \
    X(stream_create, cuStreamCreate, (struct CUstream_st * *out, unsigned flags))                                      \
    X(stream_destroy, cuStreamDestroy_v2, (struct CUstream_st * stream))                                               \
    X(stream_synchronize, cuStreamSynchronize, (struct CUstream_st * stream))                                          \
    X(stream_query, cuStreamQuery, (struct CUstream_st * stream))                                                      \
    X(stream_wait_event, cuStreamWaitEvent, (struct CUstream_st * stream, struct CUevent_st * event, unsigned flags))  \
    X(event_create, cuEventCreate, (struct CUevent_st * *out, unsigned flags))                                         \
    X(event_destroy, cuEventDestroy_v2, (struct CUevent_st * event))                                                   \
    X(event_record, cuEventRecord, (struct CUevent_st * event, struct CUstream_st * stream))                           \
    X(event_query, cuEventQuery, (struct CUevent_st * event))                                                          \
    X(event_synchronize, cuEventSynchronize, (struct CUevent_st * event))                                              \
    X(module_load, cuModuleLoadData, (struct CUmod_st * *out, const void *image))                                      \
    X(module_unload, cuModuleUnload, (struct CUmod_st * module))                                                       \
    X(module_function, cuModuleGetFunction, (struct CUfunc_st * *out, struct CUmod_st * module, const char *name))     \
    X(launch, cuLaunchKernel,                                                                                          \
      (struct CUfunc_st * function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,               \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream, void **parameters,       \
       void **extra))

#endif
