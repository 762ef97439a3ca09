/* The model with fsdp: each rank keeps a part of the parameters and of all that belongs to them. For sharding.c, which
 * says what the calls do. */
#ifndef EXAMPLES_GPT_SHARDING_FSDP_H
#define EXAMPLES_GPT_SHARDING_FSDP_H

#include "sharding.h"

/* The parameters get their first values here. */
void sharding_fsdp_init(struct sharding *sharding, const struct first_values *first);

struct gpt_memory sharding_fsdp_memory(struct sharding *sharding);

void sharding_fsdp_make_optimizer(struct sharding *sharding, const struct muster_optimizer_group *groups,
                                  struct muster_optimizer **out);

#endif
