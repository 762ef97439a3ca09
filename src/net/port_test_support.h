/* For tests: a port where a connection is refused. */
#ifndef NET_PORT_TEST_SUPPORT_H
#define NET_PORT_TEST_SUPPORT_H

#include <stdint.h>

/* A port of 127.0.0.1 that nobody listens on, and that the kernel gives to nobody else while the socket is open; a
 * server that sets SO_REUSEADDR may listen there all the same. Returns the socket, to be closed by the caller. */
int port_hold(uint16_t *out_port);

#endif
