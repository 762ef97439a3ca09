/* An agent's place on etcd: a lease that says it is alive, a key to which it writes, a key that it reads, and the
 * leader's key, for which it stands when there is no leader. To the agent it is what a connection to the coordinator is
 * to the native backend's: it opens when there is a leader, and is lost when that one, or this agent, is given up.
 *
 * On a libuv loop; nothing blocks. Callbacks come from the loop; any of them may call anything here, close included. */
#ifndef RENDEZVOUS_ETCD3_BOARD_H
#define RENDEZVOUS_ETCD3_BOARD_H

#include <uv.h>

#include "rendezvous/coordinator.h"
#include "rendezvous/etcd3_client.h"

struct etcd3_board;

struct etcd3_board_options {
    struct etcd3_client *client;             /* borrowed until close */
    const char *prefix;                      /* of all jobs' keys: "/muster"; copied */
    struct coordinator_settings coordinator; /* should this agent lead */
    uint64_t keep_alive_interval_ms;
    uint64_t silence_ms;        /* after which an agent is given up: the lease's time to live, in whole seconds */
    uint64_t first_patience_ms; /* to reach etcd at all; later it is waited for without end */
    uint64_t end_patience_ms;   /* to give the lease back */
    /* There is a leader: what is sent from now on is for that one. */
    void (*on_open)(void *ctx);
    /* Borrowed until return. */
    void (*on_message)(void *ctx, const struct coordinator_message *message);
    /* What was said is void; etcd3_board_open() makes it anew. MUSTER_ECLOSED: the leader, or this agent's lease, is
     * gone. Anything else (see etcd3_done_cb) is not for waiting. muster_detail() says why. */
    void (*on_lost)(void *ctx, int status);
    void *ctx;
};

/* MUSTER_ENOMEM, MUSTER_EINVAL (run id too long for a key). */
int etcd3_board_create(uv_loop_t *loop, const struct etcd3_board_options *options, struct etcd3_board **out);

/* on_open or on_lost follows. Nothing while it is open, or on its way. */
void etcd3_board_open(struct etcd3_board *board);

/* MUSTER_ECLOSED (not open), MUSTER_ENOMEM, MUSTER_ELIMIT. */
int etcd3_board_send(struct etcd3_board *board, const struct coordinator_message *message);

/* Random, for as long as the lease lives: by it the leader knows this agent. While open. */
const uint64_t *etcd3_board_identity(const struct etcd3_board *board);
bool etcd3_board_leads(const struct etcd3_board *board);

/* Writes what has been sent, lets the others hear what this agent has decided if it leads, and takes its keys away.
 * `done` once, perhaps at once, and no other callback any more; then close it. */
void etcd3_board_end(struct etcd3_board *board, void (*done)(void *ctx));

/* At once: the keys go when the lease expires. Frees during later turns of the loop. NULL accepted. */
void etcd3_board_close(struct etcd3_board *board);

#endif
