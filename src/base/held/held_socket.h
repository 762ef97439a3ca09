/* The sockets over which held_wire.h's messages go, with descriptors beside them: what both sides need. SOCK_SEQPACKET
 * in the abstract namespace, so that nothing is left in a file system. Nothing here blocks on sockets that do not. */
#ifndef BASE_HELD_SOCKET_H
#define BASE_HELD_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The address of `name`, and its length in *out_length; false: no name of a socket. */
bool held_address(const char *name, struct sockaddr_un *out, socklen_t *out_length);

/* Is the process that connected, or that listens, of this process's own user? */
bool held_peer_is_ours(int socket_fd);
/* The process at the other end, which may have ended; 0: it cannot be named from here (another pid namespace). */
pid_t held_peer_process(int socket_fd);

/* One message; fd -1: without a descriptor. 0 or an errno. */
int held_send(int socket_fd, const void *bytes, size_t count, int fd);

struct held_received {
    size_t count; /* bytes, at most `max`: of a longer message the first ones */
    int fd;       /* the caller's, closed on exec; -1: none, or several, which have been closed */
    bool is_cut;  /* a descriptor came that this process had no number for */
};

/* One message. 0 or an errno; ECONNRESET at the other side's end. */
int held_receive(int socket_fd, void *bytes, size_t max, struct held_received *out);

/* Is it anonymous memory (a memfd), and of how many bytes? */
bool held_is_memory(int fd, uint64_t *out_bytes);

#endif
