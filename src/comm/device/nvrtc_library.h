/* NVRTC, NVIDIA's compiler for kernels, opened at run time by whoever needs a kernel: its functions, in a table, as in
 * cuda_abi.h. Source of the facts: nvrtc.h. */
#ifndef COMM_NVRTC_LIBRARY_H
#define COMM_NVRTC_LIBRARY_H

#include <stddef.h>

struct _nvrtcProgram; /* NVIDIA's tag */

enum { NVRTC_OK = 0, NVRTC_COMPILATION = 6 };

/* Name in our table, symbol, parameters. All return an nvrtcResult, an enumeration without negative values. */
#define NVRTC_FUNCTION_TABLE(X)                                                                                        \
    X(version, nvrtcVersion, (int *major, int *minor))                                                                 \
    X(create, nvrtcCreateProgram,                                                                                      \
      (struct _nvrtcProgram * *out, const char *source, const char *name, int header_count,                            \
       const char *const *headers, const char *const *header_names))                                                   \
    X(destroy, nvrtcDestroyProgram, (struct _nvrtcProgram * *program))                                                 \
    X(compile, nvrtcCompileProgram, (struct _nvrtcProgram * program, int option_count, const char *const *options))    \
    X(image_bytes, nvrtcGetCUBINSize, (struct _nvrtcProgram * program, size_t * out))                                  \
    X(image, nvrtcGetCUBIN, (struct _nvrtcProgram * program, char *out))                                               \
    X(log_bytes, nvrtcGetProgramLogSize, (struct _nvrtcProgram * program, size_t * out))                               \
    X(log, nvrtcGetProgramLog, (struct _nvrtcProgram * program, char *out))

struct nvrtc_library {
#define NVRTC_MEMBER(member, symbol, parameters)                                                                       \
    unsigned(*member) parameters; /* NOLINT(bugprone-macro-parentheses)                                                \
                                   */
    NVRTC_FUNCTION_TABLE(NVRTC_MEMBER)
#undef NVRTC_MEMBER
    const char *(*error_string)(unsigned result); /* nvrtcGetErrorString */
    char name[256];                               /* of its file, for sentences */
    int major, minor;
};

/* Opens the file that MUSTER_NVRTC_LIBRARY names; without that, the newest NVRTC that is no newer than the driver,
 * whose version is as in cuda_library.h: one that the process has loaded (PyTorch's), else the system's. It stays open.
 * MUSTER_EUNSUPPORTED, with a sentence. */
int nvrtc_library_open(int driver_version, struct nvrtc_library *out);

#endif
