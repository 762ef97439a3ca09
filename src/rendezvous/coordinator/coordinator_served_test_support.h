/* For tests: a coordinator served over a real socket, agents that join it as they do, and callers who are nobody. All
 * in one thread on one loop: nobody sleeps. */
#ifndef RENDEZVOUS_COORDINATOR_SERVED_TEST_SUPPORT_H
#define RENDEZVOUS_COORDINATOR_SERVED_TEST_SUPPORT_H

#include <netinet/in.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_server.h"
#include "rendezvous/member/native_connection.h"
#include "store/server/kv_server.h"

#define SERVED_LONG_MS INT64_C(3600000)

/* ---- the coordinator of job "job", of two nodes ---- */

struct served {
    uv_loop_t loop;
    struct kv_server *store;
    struct coordinator_server *server;
    struct sockaddr_in address;
    char warning[1500]; /* the last one that was logged */
    unsigned warnings;
};

/* The loop, and what is logged; one at a time. */
void served_begin(struct served *served);
void served_end(struct served *served); /* all else in the loop is closed, or closing */

/* `secret` and `tls` may be NULL. */
void served_open(struct served *served, const struct secret *secret, const struct tls_context *tls,
                 int64_t join_patience_ms, size_t strangers_max);
void served_open_with(struct served *served, const struct coordinator_server_options *options,
                      struct kv_server_options store);
/* The store with this guest, and no coordinator of its own; NULL: a store alone. */
void served_listen(struct served *served, const struct kv_guest *guest, size_t strangers_max);
void served_close(struct served *served);

size_t served_member_count(const struct served *served);
void served_run_until_members(struct served *served, size_t count);
void served_run_until_warned(struct served *served, unsigned count);

/* ---- agents ---- */

struct served_node {
    struct served *served;
    struct native_connection *session;
    unsigned number;
    bool asks; /* how the job does, and does not join */
    bool is_open, is_lost;
    int status;
    char why[MUSTER_DETAIL_MAX];
    unsigned heard[256]; /* messages of each kind */
};

struct coordinator_message served_join(unsigned number);
void served_node_open(struct served *served, struct served_node *node, unsigned number, const struct secret *secret,
                      const struct tls_context *tls);
void served_run_until_heard(const struct served_node *node, enum coordinator_kind kind, unsigned count);
void served_run_until_lost(const struct served_node *node);
void served_nodes_close(struct served_node *nodes, size_t count);

/* Nodes 0 and 1, until they have their WORLD. */
void served_form(struct served *served, struct served_node nodes[2], const struct secret *secret,
                 const struct tls_context *tls);
/* The job goes on as if nothing had happened: a failure is told, and nobody has left. */
void served_expect_unharmed(struct served *served, struct served_node nodes[2]);

/* ---- callers: bytes ---- */

/* A socket that does not block. */
int served_call(const struct served *served);
/* Serves until something has come for the caller: how many bytes; 0: the connection has ended. */
size_t served_receive(struct served *served, int fd, uint8_t *bytes, size_t size);
/* Serves until it has ended, whatever is said, and closes it. */
void served_expect_end(struct served *served, int fd);

#endif
