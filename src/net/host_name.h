/* This machine's names, and whether it reaches itself. */
#ifndef NET_HOST_NAME_H
#define NET_HOST_NAME_H

#include "net/endpoint.h"

/* gethostname(), "" if there is none. Does not block. */
void net_host_name(char out[NET_HOST_MAX]);

/* The full name, as Python's socket.getfqdn() finds it, so that nodes are ordered as PyTorch's agents order themselves.
 * It is the first name with a dot among the canonical name and the aliases of the host name's first address. Without
 * such a name it is the canonical name, and the host name if nothing can be looked up. Blocks as long as the system's
 * resolver does. */
void net_full_host_name(char out[NET_HOST_MAX]);

/* The interface "lo" is there and not up: nothing on this machine (or in this network namespace) reaches 127.0.0.1. */
bool net_loopback_is_down(void);

#endif
