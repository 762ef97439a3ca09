/* For tests: a port where a connection is refused. */
#ifndef NET_PORT_TEST_SUPPORT_H
#define NET_PORT_TEST_SUPPORT_H

#include <stdint.h>

/* A port that nobody listens on, at any address, and that the kernel gives to nobody else while the socket is open, not
 * even to a connection from another address, beside which a server of all addresses could not listen. A server that
 * sets SO_REUSEADDR may listen there. Returns the socket, to be closed by the caller. */
int port_hold(uint16_t *out_port);

#endif
