/* The guardian's side of the preload server: a process that has imported what workers need, and forks them.
 *
 * A worker that is to be a fork waits here until the server has imported, goes to it as an order, and comes back as a
 * child of the guardian: the server forks twice, the process between the two ends, and the orphan falls to the
 * guardian, a child subreaper. The child tells its process id and waits. It runs the worker's program when the guardian
 * knows it, so its end cannot be missed.
 *
 * Whatever goes wrong costs a start as usual, never a failure: the server refuses, ends, makes no progress, or does not
 * answer in time.
 *
 * Frames (guardian_channel.h) on the server's stdout, a stream socket. To the server: ORDER, the body of a spawn frame
 * as it is, with three descriptors: the worker's stdout and stderr, and a packet socket; and with its given_fd, if it
 * has one. From the server: IMPORTING, once a second at most, with the name of the module that it imports; LEFT_OUT,
 * with the reason why it starts over without a module; READY or REFUSED, once, with a text. On the packet socket, from
 * the server's child: 'P' and its process id, a 32-bit integer; or 'N' and the reason why there is no such child. To
 * the child: 'G', and it goes on; the end, and it ends. Integers are in host order.
 *
 * One thread, nothing blocks but guardian_preload_settle(). */
#ifndef AGENT_GUARDIAN_PRELOAD_H
#define AGENT_GUARDIAN_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/guardian/guardian.h"
#include "agent/guardian/guardian_channel.h"
#include "agent/guardian/guardian_wire.h"

/* What comes beside the frame of a worker: -1, or 0 for the last one, where there is none. */
struct spawn_fds {
    int out, err, given;
};

enum guardian_preload_frame {
    PRELOAD_FRAME_ORDER = 1,
    PRELOAD_FRAME_READY = 2,
    PRELOAD_FRAME_REFUSED = 3,
    PRELOAD_FRAME_IMPORTING = 4,
    PRELOAD_FRAME_LEFT_OUT = 5
};

/* How long the server may take for a fork, since the one before. A fork takes milliseconds; beyond this time the server
 * is taken for stuck. */
#define GUARDIAN_PRELOAD_FORK_MS 5000

/* How long it may import one module, if MUSTER_PRELOAD_TIMEOUT does not say it (seconds). Beyond it the server is given
 * up: it is stopped, or the import hangs. */
#define GUARDIAN_PRELOAD_IMPORT_S 60
#define GUARDIAN_PRELOAD_TIMEOUT_MAX_S 86400
#define GUARDIAN_PRELOAD_TIMEOUT_VARIABLE "MUSTER_PRELOAD_TIMEOUT"
#define GUARDIAN_PRELOAD_MODULE_BYTES 128
/* What the variable's text (NULL: not set) means. False: it is no such number, and the usual time holds. */
bool guardian_preload_timeout(const char *text, int64_t *out_ns);

/* What the guardian does for it. */
struct guardian_preload_host {
    void *ctx;
    /* Events (EPOLLIN and so on) of `fd` are wanted; `is_new`: for the first time. Closing ends it. */
    bool (*watch)(void *ctx, int fd, uint32_t events, bool is_server, bool is_new);
    /* A worker as usual. The body of its frame, and what came beside it, are borrowed. */
    void (*spawn)(void *ctx, const uint8_t *body, size_t length, const struct spawn_fds *fds);
    /* The worker `id` is not started: it was told to end before. */
    void (*skip)(void *ctx, uint32_t id);
    /* The worker `id` is this child. False: it is no child of the guardian's, or there is no room for it. */
    bool (*adopt)(void *ctx, uint32_t id, pid_t pid);
    void (*tell)(void *ctx, const struct guardian_preload_news *news);
};

enum guardian_preload_state { PRELOAD_NONE, PRELOAD_IMPORTING, PRELOAD_READY };

struct preload_order; /* a worker that is to be a fork */

struct guardian_preload {
    struct guardian_preload_host host;
    enum guardian_preload_state state;
    pid_t pid; /* of the server, until it has been reaped; 0: there is none */
    struct guardian_channel channel;
    bool has_channel;
    bool writes; /* EPOLLOUT is asked for */
    int64_t import_timeout_ns;
    int64_t import_ns;   /* when it has last said what it imports */
    int64_t answered_ns; /* when a fork has last come, or was refused */
    char importing[GUARDIAN_PRELOAD_MODULE_BYTES];
    struct preload_order *first;
    size_t order_count, orders_max; /* each holds descriptors, and the guardian may have so many */
};

void guardian_preload_init(struct guardian_preload *p, const struct guardian_preload_host *host);

/* Starts a server, in place of one that is there. What comes of it is told. */
void guardian_preload_start(struct guardian_preload *p, const struct guardian_order *order);

/* A worker's spawn frame. True: the fork is on its way, or will be when the server has imported; the descriptors are
 * taken. False: there is no server, or too many wait for it; nothing was taken. */
bool guardian_preload_take(struct guardian_preload *p, const uint8_t *body, size_t length, const struct spawn_fds *fds);

/* Something happened on the server's socket, or on a child's. */
void guardian_preload_heard(struct guardian_preload *p, uint32_t events);
void guardian_preload_child_heard(struct guardian_preload *p, int fd);

/* Milliseconds until the oldest fork, or the import, is overdue; -1: none is under way. Afterwards, a server that is
 * overdue is given up. */
int guardian_preload_wait_ms(const struct guardian_preload *p, int64_t now_ns);
void guardian_preload_expire(struct guardian_preload *p, int64_t now_ns);

/* What is under way is brought to its end, before an order to end that is about all workers: forks are waited for, and
 * workers that the server has not been told of are skipped. */
void guardian_preload_settle(struct guardian_preload *p);

/* A child of the guardian's has been reaped. True if it was the server. */
bool guardian_preload_ended(struct guardian_preload *p, pid_t pid, int wait_status);

/* Kills the server. Nothing is told. */
void guardian_preload_stop(struct guardian_preload *p);

#endif
