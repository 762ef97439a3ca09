/* Frames with descriptors over a stream socket, without ever blocking: the two ends of the agent-guardian talk.
 *
 * What the frames mean is in guardian_wire.h. Both ends are the same program, so integers are in host order. */
#ifndef AGENT_GUARDIAN_CHANNEL_H
#define AGENT_GUARDIAN_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define GUARDIAN_FRAME_BYTES_MAX (9u << 20) /* a spawn of GUARDIAN_SPAWN_BYTES_MAX with its head fits */
#define GUARDIAN_FRAME_FDS_MAX 4
#define GUARDIAN_FDS_HELD_MAX 8 /* received and not yet taken: those of at most two frames */

struct guardian_frame {
    uint32_t kind;
    uint32_t length; /* of the body that follows */
};

struct guardian_channel_packet; /* a frame that the socket has not taken yet */

struct guardian_channel {
    int fd;
    struct buf in;
    size_t in_taken; /* bytes of the frame handed out last, dropped by the next call */
    int fds[GUARDIAN_FDS_HELD_MAX];
    size_t fd_count;
    struct guardian_channel_packet *first, *last;
    size_t queued_bytes;
    size_t queue_max_bytes;
};

/* Takes `fd`, which must be a connected non-blocking stream socket. */
void guardian_channel_init(struct guardian_channel *c, int fd, size_t queue_max_bytes);

/* Closes the socket and every descriptor still held. */
void guardian_channel_done(struct guardian_channel *c);

/* Sends a frame or queues what the socket does not take at once; only then `body` is copied and `fds` are duplicated.
 * MUSTER_ECLOSED (peer gone), MUSTER_ELIMIT, MUSTER_ENOMEM, MUSTER_ESYSTEM. No memory in the middle of a frame shuts
 * the channel down. */
int guardian_channel_send(struct guardian_channel *c, uint32_t kind, const void *body, size_t length, const int *fds,
                          size_t fd_count);

/* Sends what is queued as far as the socket takes it. MUSTER_ECLOSED. */
int guardian_channel_flush(struct guardian_channel *c);

static inline bool guardian_channel_waits(const struct guardian_channel *c) {
    return c->first != NULL;
}

/* One read from the socket; no data waiting is fine. MUSTER_ECLOSED at the peer's end, MUSTER_EPROTOCOL. */
int guardian_channel_receive(struct guardian_channel *c);

/* The next whole frame: true, with its body (valid until the next call on `c`). */
bool guardian_channel_next(struct guardian_channel *c, struct guardian_frame *out, const uint8_t **body);

/* Gives the oldest received descriptor (close-on-exec), or -1. */
int guardian_channel_take_fd(struct guardian_channel *c);

#endif
