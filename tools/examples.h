/* What an example in a header or a page takes from the program around it (tools/compile-examples): a piece of code has
 * these names without saying what they are. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/muster.h>

extern struct muster_group *group;
extern struct muster_ddp *ddp;
extern struct muster_fsdp *fsdp;
extern struct muster_fsdp_view view;
extern struct muster_optimizer *optimizer;
extern struct muster_sampler *sampler;
extern struct muster_sampler_options options;
extern struct muster_state *state;
extern struct muster_snapshot_state extra, saved;
extern int64_t step, steps, epoch, epochs;
extern size_t unit, units, count, batch_size;
extern uint32_t v, first, V;
extern uint64_t *indices;
extern int layer, last, status;
extern bool stepped;
extern double *losses, loss;
extern float *first_values;
extern const float *const *gradients;
extern void *model, *batch;

/* The program's own functions, with whatever arguments. */
double forward();
void backward(), train_on(), optimizer_step(), *batch_of();
