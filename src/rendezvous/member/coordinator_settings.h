/* What the options of a job say of its coordinator, whichever agent serves it, and by whatever means. */
#ifndef RENDEZVOUS_COORDINATOR_SETTINGS_H
#define RENDEZVOUS_COORDINATOR_SETTINGS_H

#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/rdzv.h"

/* All but hash_seed; run_id is borrowed from the options. MUSTER_EINVAL: limits that cannot be kept,
 * texts that the others would refuse; the sentence names the option. */
int coordinator_settings_read(const struct rdzv_options *options, struct coordinator_settings *out);

#endif
