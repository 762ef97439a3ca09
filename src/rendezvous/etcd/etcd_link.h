/* From rendezvous options to an etcd, for the backends that keep their rendezvous in one. */
#ifndef RENDEZVOUS_ETCD_LINK_H
#define RENDEZVOUS_ETCD_LINK_H

#include "rendezvous/etcd/etcd3_client.h"
#include "rendezvous/rdzv.h"
#include "rendezvous/round/node_name.h"
#include "store/client/etcd_v2.h"

/* MUSTER_EINVAL (endpoints), MUSTER_EUNSUPPORTED (no libcurl), MUSTER_ENOMEM. */
int etcd_link_open(struct rdzv *rdzv, struct etcd_v2 **out);

/* The same for etcd-v3, with the password from its file, which is not kept. */
int etcd_link_open_v3(uv_loop_t *loop, const struct rdzv_options *options, struct etcd3_client **out);

/* By which address others reach this node: --local-addr, else the one that etcd was reached from (`connection`; "": not
 * known), else any that is not loopback (an etcd on loopback may be each node's own gateway). */
void etcd_link_own_address(const char *connection, const struct rdzv_options *options, char out[RDZV_ADDR_MAX]);

#endif
