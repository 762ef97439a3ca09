/* Which engine carries out the calls of a group: what the program or the environment wishes, and what is chosen where
 * it is left to Muster. Pure. */
#ifndef COMM_ENGINE_CHOICE_H
#define COMM_ENGINE_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

/* One table: name, value (on the wire), text. */
#define ENGINE_KIND_TABLE(X)                                                                                           \
    X(ENGINE_AUTO, 0, "auto")                                                                                          \
    X(ENGINE_MUSTER, 1, "muster")                                                                                      \
    X(ENGINE_MPI, 2, "mpi")                                                                                            \
    X(ENGINE_NCCL, 3, "nccl")

enum engine_kind {
#define ENGINE_KIND_ENUM(name, value, text) name = (value),
    ENGINE_KIND_TABLE(ENGINE_KIND_ENUM)
#undef ENGINE_KIND_ENUM
        ENGINE_KIND_COUNT
};

/* "mpi"; "unknown engine". Static. */
const char *engine_kind_name(enum engine_kind kind);
/* text: NULL or "" is auto. MUSTER_EINVAL, with the names that there are; where: who says so ("MUSTER_ENGINE"). */
int engine_kind_parse(const char *text, const char *where, enum engine_kind *out);

/* What a rank knows of its machine. Bits; what all ranks of a job have is their AND. */
enum engine_fact {
    ENGINE_FACT_FABRIC = 1,      /* a network that MPI drives better than TCP: InfiniBand, RoCE, Slingshot */
    ENGINE_FACT_MPI_STARTED = 2, /* MPI would find the other ranks: mpirun, srun or muster run --mpi serves it */
    ENGINE_FACT_MPI_FOUND = 4,   /* its library can be opened; only looked for where the other two hold */
};

struct engine_choice {
    enum engine_kind kind; /* not ENGINE_AUTO */
    const char *reason;    /* for logs: "one host". Static */
};

/* common_facts: of all ranks of the job. */
struct engine_choice engine_choose(enum engine_kind wish, uint32_t common_facts, uint32_t host_count);

#endif
