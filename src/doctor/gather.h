/* Reads the facts of this machine: /proc, /sys, the kernel, name servers, the rendezvous port. Whatever may hang or
 * crash runs aside, within DOCTOR_TIMEOUT_MS altogether. */
#ifndef DOCTOR_GATHER_H
#define DOCTOR_GATHER_H

#include "doctor/facts.h"

/* What the `wanted` checks need. `environment`: environ or the like. Blocks, for a bounded time; starts child
 * processes: not for processes with threads. MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int doctor_gather(doctor_checks wanted, const struct net_endpoint_list *endpoints, uint32_t node_count,
                  char *const *environment, struct doctor_facts *out);

#endif
