/* Which rendezvous of its process this one is: part of a node's name on the wire. */
#ifndef RENDEZVOUS_LOCAL_ID_H
#define RENDEZVOUS_LOCAL_ID_H

#include <stdint.h>

/* PyTorch's rule: the first rendezvous of a process is number 0, which is all that an agent has. */
uint32_t rdzv_next_local_id(void);

#endif
