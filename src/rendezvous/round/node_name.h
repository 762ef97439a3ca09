/* What names a node in every backend that sorts nodes by it: address, process id, and a number of its own. */
#ifndef RENDEZVOUS_NODE_NAME_H
#define RENDEZVOUS_NODE_NAME_H

#include <stdint.h>

#define RDZV_NODES_MAX 65536 /* nodes of one job with PyTorch's backends; more are refused when read and when added */
#define RDZV_ADDR_MAX 256    /* bytes of a node's address, terminator included */

struct rdzv_node {
    char addr[RDZV_ADDR_MAX]; /* UTF-8 without NUL */
    int64_t pid;
    int64_t local_id;
};

#endif
