/* Number of workers: --nproc-per-node, and the devices and processors that its words count. */
#ifndef CLI_RUN_DEVICES_H
#define CLI_RUN_DEVICES_H

#include "cli/run/run_machine.h"

/* Most devices that a machine is asked for. */
#define RUN_DEVICES_MAX 1024

/* GPUs of NVIDIA's, else of AMD's, that CUDA_VISIBLE_DEVICES (of AMD's also ROCR_ and HIP_VISIBLE_DEVICES) lets a
 * worker see. Looks at the driver's files; loads nothing. */
uint32_t run_devices_count(const struct run_machine *machine);

/* Processors in this process's affinity mask. */
uint32_t run_processors_count(void);

/* --nproc-per-node's text into 1..LAUNCH_WORKERS_MAX. MUSTER_EINVAL with a sentence. */
int run_nproc_parse(const struct run_machine *machine, const char *text, uint32_t *out);

#endif
