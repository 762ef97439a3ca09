/* What `muster doctor` looks at, and what it finds. Pure: no I/O, no allocation. */
#ifndef DOCTOR_FINDING_H
#define DOCTOR_FINDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(ID, name, what it looks at): in the order in which they are printed. */
#define DOCTOR_CHECK_TABLE(X)                                                                                          \
    X(NAMES, "names", "this node's name and those of --rdzv-endpoint resolve, both ways")                              \
    X(INTERFACES, "interfaces", "network interfaces, routes, and the address that other nodes are told")               \
    X(PORTS, "ports", "the rendezvous port: free, reachable, or who serves it")                                        \
    X(CLOCK, "clock", "synchronised, steady, and not in the past")                                                     \
    X(LIMITS, "limits", "open files, processes, locked memory, core files")                                            \
    X(MEMORY, "memory", "/dev/shm, the container's limit, huge pages")                                                 \
    X(TEMPORARY, "temporary", "the temporary folder takes files")                                                      \
    X(KERNEL, "kernel", "the system calls that the launcher and libmuster use")                                        \
    X(PROCESSORS, "processors", "processors, quota, affinity, NUMA, OMP_NUM_THREADS")                                  \
    X(GPUS, "gpus", "GPUs, their driver, and the libraries that have to match it")                                     \
    X(INFINIBAND, "infiniband", "InfiniBand and RoCE ports")                                                           \
    X(NCCL, "nccl", "variables of NCCL: names, values, contradictions")                                                \
    X(ENVIRONMENT, "environment", "variables that a launcher reads, or that are left from another job")                \
    X(NODES, "nodes", "with --nnodes: what differs between the nodes, and whether they know each other's names")       \
    X(NETWORK, "network", "with --nnodes: latency, bandwidth and clocks of each pair of nodes")

enum doctor_check {
#define DOCTOR_CHECK_ENUM(id, name, about) DOCTOR_##id,
    DOCTOR_CHECK_TABLE(DOCTOR_CHECK_ENUM)
#undef DOCTOR_CHECK_ENUM
        DOCTOR_CHECK_COUNT
};

extern const char *const doctor_check_names[DOCTOR_CHECK_COUNT];
extern const char *const doctor_check_abouts[DOCTOR_CHECK_COUNT];

/* A set of checks: bit 1 << enum doctor_check. */
typedef uint32_t doctor_checks;
#define DOCTOR_CHECKS_ALL ((doctor_checks)((1u << DOCTOR_CHECK_COUNT) - 1))
#define DOCTOR_CHECK_BIT(check) ((doctor_checks)1 << (check))

/* "names,ports". MUSTER_EINVAL with a sentence that names the one that is not known. */
int doctor_checks_parse(const char *text, doctor_checks *out);

enum doctor_level {
    DOCTOR_OK,
    DOCTOR_NOTE,    /* worth knowing; a job runs */
    DOCTOR_WARNING, /* a job may fail, hang or be slow */
    DOCTOR_ERROR,   /* a job will not run */
    DOCTOR_LEVEL_COUNT,
};
extern const char *const doctor_level_names[DOCTOR_LEVEL_COUNT];

#define DOCTOR_WHAT_MAX 320
#define DOCTOR_ADVICE_MAX 400
#define DOCTOR_FINDINGS_MAX 256

struct doctor_finding {
    enum doctor_check check;
    enum doctor_level level;
    char what[DOCTOR_WHAT_MAX];     /* one sentence, without a full stop */
    char advice[DOCTOR_ADVICE_MAX]; /* what to do; "" where there is nothing to be done */
};

struct doctor_findings {
    struct doctor_finding list[DOCTOR_FINDINGS_MAX];
    size_t count;
    size_t omitted_count; /* that found no room; the last entry is overwritten by them */
};

/* Adds one; the entry is for doctor_advise(), and valid until the next is added. */
struct doctor_finding *doctor_find(struct doctor_findings *out, enum doctor_check check, enum doctor_level level,
                                   const char *format, ...) __attribute__((format(printf, 4, 5)));
void doctor_advise(struct doctor_finding *finding, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How many there are of a level. */
size_t doctor_count(const struct doctor_findings *findings, enum doctor_level level);
/* The worst level of the findings of one check; DOCTOR_OK without any. */
enum doctor_level doctor_worst(const struct doctor_findings *findings, enum doctor_check check);

#endif
