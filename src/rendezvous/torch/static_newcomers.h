/* On node rank 0 of a static job: agents that come with a rank that another one has. See static_newcomers.c. */
#ifndef RENDEZVOUS_STATIC_NEWCOMERS_H
#define RENDEZVOUS_STATIC_NEWCOMERS_H

#include "rendezvous/torch/static_host.h"

/* An agent says that it is here, the `number`-th of its rank. True: it has the place. */
bool static_newcomers_come(struct static_host *h, uint32_t rank, uint64_t connection, uint64_t number);
/* It waits for the host's word on this connection. */
void static_newcomers_watch(struct static_host *h, uint32_t rank, uint64_t connection);
/* The agent that has the place answers. */
void static_newcomers_stays(struct static_host *h, uint32_t rank, uint64_t connection, struct kv_slice answer);
/* A connection has ended. True: something has to be told. */
bool static_newcomers_lost(struct static_host *h, uint64_t connection);
bool static_newcomers_keep(const struct static_host *h, uint64_t connection);
/* If the agent of the rank has gone, who waits for its place has it. */
void static_newcomers_promote(struct static_host *h, uint32_t rank);
/* From outside of the server: asks, and tells newcomers what has become of them. */
void static_newcomers_act(struct static_host *h);

#endif
