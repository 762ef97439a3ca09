/* Raw options into a checked struct launch_config, with torchrun's later checks and rewrites. */
#ifndef CLI_RUN_CONFIG_H
#define CLI_RUN_CONFIG_H

#include "agent/launch/launch.h"
#include "cli/run/run_machine.h"

#define RUN_STDERR_TAIL_MAX 1000
#define RUN_PREEMPT_GRACE_S_MAX 86400
#define RUN_RESTART_BACKOFF_S_MAX 3600

/* --outcome alone, first: what is wrong with the rest is told there, too. MUSTER_ENOMEM. */
int run_config_take_outcome(const struct options *options, struct launch_config *out);

/* `out` must be initialised; free it with launch_config_done() whatever the result. Reads files, variables and the
 * affinity mask; writes nothing. MUSTER_EINVAL and others with a sentence that names the option. */
int run_config_build(const struct options *options, const struct run_machine *machine, struct launch_config *out);

/* --redirects and --tee: "3" or "0:3,1:2". `name` is for the message. */
int run_stream_map_parse(const char *name, const char *text, struct launch_stream_map *out);

/* "a,b,,c" is "a" and "b,c". */
int run_filters_parse(const char *text, struct launch_strings *out);

#endif
