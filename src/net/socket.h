/* TCP sockets the way every part of Muster wants them: non-blocking, closed on exec, without Nagle's delay. */
#ifndef NET_SOCKET_H
#define NET_SOCKET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* Size of an AF_INET or AF_INET6 address. */
socklen_t net_sockaddr_len(const struct sockaddr *address);

/* A listening socket. v6_only: an IPv6 wildcard leaves IPv4 to another socket. Accepted sockets inherit TCP_NODELAY
 * and keep-alive probes (a peer that vanished silently is noticed after some minutes, so its memory is not held for
 * ever). MUSTER_ESYSTEM, with errno kept (EADDRINUSE, EADDRNOTAVAIL ...) and the address in the detail. */
int net_socket_listen(const struct sockaddr *address, bool v6_only, int *out_fd);

/* Starts to connect. 0: under way (or done): wait until *out_fd is writable, then ask net_socket_connect_result().
 * MUSTER_ESYSTEM with errno kept. */
int net_socket_connect(const struct sockaddr *address, int *out_fd);

/* 0 or the errno with which the attempt ended. A socket that has, by a rare accident on loopback, connected to itself
 * (nobody listens, and the kernel chose the very port as its own) counts as ECONNREFUSED. */
int net_socket_connect_result(int fd);

/* An idle connection is asked after `idle_s`, and then each `interval_s`, at longer intervals if the kernel counts no
 * further. It ends when nothing has been answered for `silence_ms` after that. Without effect where the kernel lacks
 * it. */
void net_socket_keep_alive(int fd, int idle_s, int interval_s, int64_t silence_ms);

/* May the same attempt succeed a little later, when the peer has started? */
bool net_socket_error_is_transient(int error_number);

#endif
