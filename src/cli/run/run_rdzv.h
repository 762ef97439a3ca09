/* Rendezvous options: backend, endpoint, id, number of nodes and --rdzv-conf into struct rdzv_options. */
#ifndef CLI_RUN_RDZV_H
#define CLI_RUN_RDZV_H

#include "agent/launch/launch.h"
#include "cli/run/run_machine.h"

#define RUN_NODES_MAX 65536 /* nodes of a job */
#define RUN_SPARES_MAX 1000000u
#define RUN_SECONDS_MAX 1000000000u /* any time-out, about 30 years */
#define RUN_STORE_PORT_DEFAULT 29500

/* Parses --rdzv-conf for `backend` into `out`, over its defaults. Keys that are unknown, or that the backend does not
 * read, are warned about and ignored, whatever their values; those that would protect the job are errors.
 * MUSTER_EINVAL. */
int run_rdzv_conf_parse(const char *text, enum rdzv_backend backend, struct rdzv_conf *out);

/* --nnodes: "4", or "1:4". MUSTER_EINVAL. */
int run_rdzv_parse_nodes(const char *text, uint32_t *min_nodes, uint32_t *max_nodes);

/* The settings of an etcd, if the backend uses one: certificates and users that are half given or would not be used,
 * files that cannot be read. MUSTER_EINVAL. */
int run_rdzv_check_etcd(const struct launch_config *config);

/* Fills config->rdzv except local_world_size, and the strings it borrows (backend_name, run_id, endpoint,
 * local_addr, role). MUSTER_EINVAL, MUSTER_EUNSUPPORTED, MUSTER_ENOMEM. */
int run_rdzv_build(const struct options *options, const struct run_machine *machine, struct launch_config *config);

#endif
