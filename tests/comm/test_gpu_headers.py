#!/usr/bin/env python3
"""What Muster believes of the interfaces of the CUDA driver, NCCL and NVRTC, compared by a compiler with their real headers:
every value, every function, and the layout of NCCL's configuration.

MUSTER_NCCL_HOME: a folder with include/nccl.h (an unpacked nvidia-nccl-cu12: nvidia/nccl). MUSTER_CUDA_HOME: one with
include/cuda.h; /usr/local/cuda without it. MUSTER_NVRTC_HOME: one with include/nvrtc.h (an unpacked
nvidia-cuda-nvrtc-cu12: nvidia/cuda_nvrtc). A header that is not there is skipped, loudly.
"""

import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

CUDA = r"""
#include <cuda.h>
#include "comm/device/cuda_library.h"
#define SAME(name, value, theirs) _Static_assert((int)(value) == (int)(theirs), #theirs);
CUDA_RESULT_TABLE(SAME)
CUDA_CONSTANT_TABLE(SAME)
#define SAME_FUNCTION(member, symbol, parameters) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(((struct cuda_library *)0)->member), __typeof__(&symbol)), #symbol);
CUDA_FUNCTION_TABLE(SAME_FUNCTION)
_Static_assert(sizeof(CUdevice) == sizeof(int) && sizeof(CUdeviceptr) == sizeof(unsigned long long), "handles");
"""

NVRTC = r"""
#include <nvrtc.h>
#include "comm/device/nvrtc_library.h"
#define SAME_FUNCTION(member, symbol, parameters) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(((struct nvrtc_library *)0)->member), __typeof__(&symbol)), #symbol);
NVRTC_FUNCTION_TABLE(SAME_FUNCTION)
_Static_assert((int)NVRTC_OK == (int)NVRTC_SUCCESS && (int)NVRTC_COMPILATION == (int)NVRTC_ERROR_COMPILATION, "results");
"""

# Each function of the second kind has types of NCCL's own. Called with them, through our prototype: layouts are alike.
NCCL = r"""
#include <nccl.h>
#include "comm/nccl/nccl_library.h"
#define SAME(name, value, theirs) _Static_assert((int)(value) == (int)(theirs), #theirs);
NCCL_CONSTANT_TABLE(SAME)
#define SAME_FUNCTION(member, symbol, parameters) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(((struct nccl_library *)0)->member), __typeof__(&symbol)), #symbol);
NCCL_FUNCTION_TABLE(SAME_FUNCTION)
NCCL_TEXT_FUNCTION_TABLE(SAME_FUNCTION)
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
NCCL_OPTIONAL_FUNCTION_TABLE(SAME_FUNCTION)
_Static_assert(NCCL_REVOKE_DEFAULT == 0, "flags of a revoke");
#endif
_Static_assert(sizeof(struct nccl_id) == sizeof(ncclUniqueId) && _Alignof(struct nccl_id) == _Alignof(ncclUniqueId), "id");
#define SAME_PLACE(ours, theirs) \
    _Static_assert(offsetof(struct nccl_config, ours) == offsetof(ncclConfig_t, theirs) && \
                   sizeof(((struct nccl_config *)0)->ours) == sizeof(((ncclConfig_t *)0)->theirs), #theirs);
SAME_PLACE(size, size)
SAME_PLACE(magic, magic)
SAME_PLACE(version, version)
SAME_PLACE(blocking, blocking)
SAME_PLACE(cluster_size, cgaClusterSize)
SAME_PLACE(channels_min, minCTAs)
SAME_PLACE(channels_max, maxCTAs)
SAME_PLACE(network, netName)
SAME_PLACE(split_share, splitShare)
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 25, 0)
SAME_PLACE(traffic_class, trafficClass)
#endif
_Static_assert(NCCL_CONFIG_UNSET == NCCL_CONFIG_UNDEF_INT, "unset");
_Static_assert(NCCL_LEAST_VERSION == NCCL_VERSION(2, 18, 0), "version");
static const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
unsigned magic_of(void) { return theirs.magic; }
ncclResult_t id(ncclUniqueId *out) { return ncclGetUniqueId(out); }
ncclResult_t init(ncclComm_t *comm, int size, ncclUniqueId id, int rank) { return ncclCommInitRank(comm, size, id, rank); }
ncclResult_t init_config(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    return ncclCommInitRankConfig(comm, size, id, rank, config);
}
ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    return ncclCommSplit(comm, color, key, out, config);
}
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
ncclResult_t shrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *out, ncclConfig_t *config, int flags) {
    return ncclCommShrink(comm, excluded, count, out, config, flags);
}
#endif
"""

# What nccl.h takes from CUDA's runtime: names of opaque types.
SHIMS = {
    "cuda_runtime.h": "#include <stddef.h>\ntypedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n"
    "#define CUDART_VERSION 12000\n",
    "cuda_fp16.h": "",
    "cuda_bf16.h": "",
}


def compile_check(folder, name, text, includes):
    source = os.path.join(folder, name)
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-fsyntax-only", "-D_GNU_SOURCE"]
    for include in includes:
        command += ["-isystem", include]
    command += ["-I", os.path.join(ROOT, "src"), "-I", os.path.join(ROOT, "include"), source]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode, result.stderr


def find_header(variable, default, name):
    home = os.environ.get(variable) or default
    path = os.path.join(home, "include") if home else ""
    return path if path and os.path.exists(os.path.join(path, name)) else None


def check(folder, name, text, includes, spoilt):
    code, words = compile_check(folder, name, text, includes)
    assert code == 0, words
    # A value that is wrong is found: the check checks.
    code, words = compile_check(folder, name, text.replace(*spoilt), includes)
    assert code != 0 and "static assertion failed" in words, words
    print(f"ok: {name}")


def main():
    skipped = []
    with tempfile.TemporaryDirectory() as folder:
        cuda = find_header("MUSTER_CUDA_HOME", "/usr/local/cuda", "cuda.h")
        if cuda:
            check(folder, "cuda.c", CUDA, [cuda], ("(int)(value)", "1 + (int)(value)"))
        else:
            skipped.append("no cuda.h (MUSTER_CUDA_HOME)")
        nccl = find_header("MUSTER_NCCL_HOME", None, "nccl.h")
        if nccl:
            shims = os.path.join(folder, "shims")
            os.mkdir(shims)
            for name, text in SHIMS.items():
                with open(os.path.join(shims, name), "w", encoding="utf-8") as file:
                    file.write(text)
            check(folder, "nccl.c", NCCL, [shims, nccl], ("SAME_PLACE(network, netName)", "SAME_PLACE(network, commName)"))
        else:
            skipped.append("no nccl.h (MUSTER_NCCL_HOME)")
        nvrtc = find_header("MUSTER_NVRTC_HOME", None, "nvrtc.h")
        if nvrtc:
            check(folder, "nvrtc.c", NVRTC, [nvrtc], ("NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_INVALID_OPTION"))
        else:
            skipped.append("no nvrtc.h (MUSTER_NVRTC_HOME)")
    if skipped:
        print("SKIP: " + "; ".join(skipped))
        return 77 if len(skipped) == 3 else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
