/* The model of `muster fsdp plan`: the units of a GPT, or those of a file. */
#ifndef CLI_FSDP_MODEL_H
#define CLI_FSDP_MODEL_H

#include <stddef.h>

#include <muster/fsdp.h>

struct json_t;

enum {
    FSDP_MODEL_FILE_BYTES_MAX = 64 << 20,
    FSDP_MODEL_GPT_NUMBER_MAX = 1 << 24, /* of each number of a GPT */
};

struct fsdp_model {
    struct muster_fsdp_unit *units;
    size_t unit_count;
    struct muster_fsdp_parameter *parameters; /* of all units */
    size_t parameter_count;
    char *names;         /* what a GPT's are called */
    struct json_t *tree; /* the file's */
};

/* "layers,heads,width,context,vocabulary": a unit for the embeddings, one a block, one for what comes last; shapes and
 * names are minGPT's. MUSTER_EINVAL, MUSTER_ENOMEM. */
int fsdp_model_gpt(const char *text, struct fsdp_model *out);

/* A file: [{"name": "embedding", "parameters": [{"name": "wte", "count": 38597376, "block": 768, "frozen": false}]}].
 * MUSTER_EINVAL (the sentence says where), MUSTER_ESYSTEM, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int fsdp_model_read(const char *path, struct fsdp_model *out);

/* Elements of all parameters, and of those that learn. Not more than SIZE_MAX / 1024: MUSTER_ELIMIT. */
int fsdp_model_count(const struct fsdp_model *model, size_t *out_all, size_t *out_learning);

/* A zeroed one is accepted. */
void fsdp_model_free(struct fsdp_model *model);

#endif
