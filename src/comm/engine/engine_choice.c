/* The rule behind MUSTER_ENGINE=auto; see engine_choice.h. */
#include "comm/engine/engine_choice.h"

#include <stddef.h>
#include <string.h>

#include "base/status.h"

static const char *const names[ENGINE_KIND_COUNT] = {
#define ENGINE_KIND_TEXT(name, value, text) [value] = (text),
    ENGINE_KIND_TABLE(ENGINE_KIND_TEXT)
#undef ENGINE_KIND_TEXT
};

#define ENGINE_KIND_LIST(name, value, text) ", '" text "'"
static const char known[] = /* behind ", " */ ENGINE_KIND_TABLE(ENGINE_KIND_LIST);
#undef ENGINE_KIND_LIST

const char *engine_kind_name(enum engine_kind kind) {
    return (unsigned)kind < ENGINE_KIND_COUNT ? names[kind] : "unknown engine";
}

int engine_kind_parse(const char *text, const char *where, enum engine_kind *out) {
    *out = ENGINE_AUTO;
    if (!text || *text == '\0') {
        return 0;
    }
    for (unsigned kind = 0; kind < ENGINE_KIND_COUNT; kind++) {
        if (strcmp(text, names[kind]) == 0) {
            *out = (enum engine_kind)kind;
            return 0;
        }
    }
    return status_fail(MUSTER_EINVAL, "%s is '%.40s'; it can be %s", where, text, known + 2);
}

struct engine_choice engine_choose(enum engine_kind wish, uint32_t common_facts, uint32_t host_count) {
    if (wish != ENGINE_AUTO) {
        return (struct engine_choice){wish, "as asked for"};
    }
    if (host_count == 1) {
        return (struct engine_choice){ENGINE_MUSTER, "one host, whose memory all ranks share"};
    }
    if (!(common_facts & ENGINE_FACT_FABRIC)) {
        return (struct engine_choice){ENGINE_MUSTER, "not all hosts have a fabric that MPI would use better than TCP"};
    }
    if (!(common_facts & ENGINE_FACT_MPI_STARTED)) {
        return (struct engine_choice){ENGINE_MUSTER, "the hosts have a fabric, but MPI could not start on all ranks: "
                                                     "mpirun, srun and muster run --mpi would let it"};
    }
    return common_facts & ENGINE_FACT_MPI_FOUND
               ? (struct engine_choice){ENGINE_MPI, "several hosts with a fabric, and MPI is there on all ranks"}
               : (struct engine_choice){ENGINE_MUSTER,
                                        "the hosts have a fabric, but not all ranks find an MPI library"};
}
