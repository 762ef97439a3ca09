/* NCCL, opened at run time: a program that uses no group of GPUs never opens it, and starts where there is none. */
#ifndef COMM_NCCL_LIBRARY_H
#define COMM_NCCL_LIBRARY_H

#include "comm/nccl/nccl_abi.h"

struct nccl_library {
#define NCCL_MEMBER(member, symbol, parameters) unsigned(*member) parameters; /* NOLINT(bugprone-macro-parentheses) */
    NCCL_FUNCTION_TABLE(NCCL_MEMBER)
    NCCL_NAMED_TYPE_FUNCTION_TABLE(NCCL_MEMBER)
    NCCL_OPTIONAL_FUNCTION_TABLE(NCCL_MEMBER)
    NCCL_OPTIONAL_NAMED_TYPE_FUNCTION_TABLE(NCCL_MEMBER)
#undef NCCL_MEMBER
#define NCCL_TEXT_MEMBER(member, symbol, parameters)                                                                   \
    const char *(*member)parameters; /* NOLINT(bugprone-macro-parentheses) */
    NCCL_TEXT_FUNCTION_TABLE(NCCL_TEXT_MEMBER)
#undef NCCL_TEXT_MEMBER
    char name[256]; /* of its file, for sentences */
    int version;    /* as NCCL_LEAST_VERSION */
};

/* Opened by the first call that succeeds, and kept. The file that MUSTER_NCCL_LIBRARY names; without that,
 * libnccl.so.2: one that the process has loaded already (PyTorch's), else the system's. NULL with MUSTER_EUNSUPPORTED
 * and a sentence. Any thread. */
const struct nccl_library *nccl_library(void);

/* What that call does, without keeping it. All functions or none. MUSTER_EUNSUPPORTED. */
int nccl_library_open(struct nccl_library *out);

/* Fails with "WHAT: NCCL's words (its last error)". comm: NULL, or the communicator concerned. What NCCL blames on
 * another process is MUSTER_EPEER, all else MUSTER_ESYSTEM. */
int nccl_fail(const struct nccl_library *nccl, unsigned result, struct ncclComm *comm, const char *what);

#endif
