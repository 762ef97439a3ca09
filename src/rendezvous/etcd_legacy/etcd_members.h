/* What the folder of a round says of its members: whose keep-alive is there, who is an agent of Muster's, who is done.
 *
 *   rank_<r>    the keep-alive of a member
 *   muster_<r>  the member is one of ours. Its value is the node's name, with "done " before it when the node is done;
 *               empty from older agents
 *   protocol_<r>  the number of its protocol (base/formats/protocol.h), before the mark
 *
 * Pure: names and values in, counts for job_end.h out. */
#ifndef RENDEZVOUS_ETCD_MEMBERS_H
#define RENDEZVOUS_ETCD_MEMBERS_H

#include "rendezvous/round/job_end.h"
#include "rendezvous/round/node_name.h"
#include "store/client/etcd_v2_answer.h"

enum { ETCD_MEMBERS_NAME_MAX = RDZV_ADDR_MAX + 64, ETCD_MEMBERS_NAMES_MAX = 512 };

struct etcd_members {
    bool all_muster;                   /* every member is one of ours */
    struct job_end_view view;          /* all but reserve, min_nodes and closed */
    char first[ETCD_MEMBERS_NAME_MAX]; /* of rank 0 */
    char lost[ETCD_MEMBERS_NAME_MAX];  /* of a member that is missing and not known to be done; "": none */
    char done[ETCD_MEMBERS_NAMES_MAX]; /* "node a has, node b has", as many as fit; "": none */
    char other[ETCD_MEMBERS_NAME_MAX]; /* of one of ours with another protocol; "": none */
    char other_protocol[12];           /* its number */
};

/* `children`: of `folder`, in any order. The names are cut if they are too long. protocol: this node's number.
 * MUSTER_ENOMEM. */
int etcd_members_read(const struct etcd_v2_node *children, size_t count, const char *folder, uint32_t participants,
                      const char *protocol, struct etcd_members *out);

/* How many have come to the exit barrier: the counter's value as it lies in etcd; NULL: there is none. */
void etcd_members_take_count(struct etcd_members *members, const char *text64);

/* The mark of a node. Returns `out`. */
const char *etcd_members_mark(const char *name, bool is_done, char out[ETCD_MEMBERS_NAME_MAX]);

#endif
