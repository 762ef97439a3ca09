/* What a model needs, sharded and not, and what would make it fit: numbers, and how they are written down. Pure. */
#ifndef CLI_FSDP_REPORT_H
#define CLI_FSDP_REPORT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "cli/fsdp/fsdp_model.h"

enum {
    FSDP_REPORT_BYTES_MAX = 65536,
    FSDP_REPORT_STATES_MAX = 16,
    FSDP_REPORT_PARTS_MAX = 4 << 20, /* units times ranks */
    FSDP_REPORT_ADVICE_MAX = 8,
    FSDP_REPORT_HOSTS_TRIED = 64, /* further ones */
};

struct fsdp_question {
    uint32_t hosts, ranks_per_host, states;
    struct muster_fsdp_options options;
    uint64_t memory_bytes; /* of a host; 0: not asked */
};

/* A change with which it fits. */
struct fsdp_advice {
    char change[96]; /* as options: "--hosts 4" */
    uint64_t bytes;  /* of a host */
};

struct fsdp_report {
    size_t count, learning_count; /* elements */
    size_t largest;               /* number of the largest unit */
    size_t largest_count;
    struct muster_fsdp_memory fsdp;
    uint64_t fsdp_bytes; /* of a host with all its ranks */
    /* DDP, of a rank, and of a host. */
    uint64_t ddp_parameter_bytes, ddp_gradient_bytes, ddp_state_bytes, ddp_bytes;
    struct fsdp_advice advice[FSDP_REPORT_ADVICE_MAX];
    size_t advice_count;
};

/* MUSTER_EINVAL, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int fsdp_report_make(const struct fsdp_model *model, const struct fsdp_question *question, struct fsdp_report *out);

/* As a table, or as a JSON object. */
int fsdp_report_text(struct buf *out, const struct fsdp_model *model, const struct fsdp_question *question,
                     const struct fsdp_report *report);
int fsdp_report_json(struct buf *out, const struct fsdp_model *model, const struct fsdp_question *question,
                     const struct fsdp_report *report);

#endif
