/* The sends and receives of Muster's own engine: over comm/p2p, whatever link there is between two ranks. */
#ifndef COMM_MESSAGES_MUSTER_H
#define COMM_MESSAGES_MUSTER_H

#include "comm/engine/message.h"
#include "comm/p2p/p2p.h"

/* Borrowed as long as the engine lives. */
struct messages_muster_config {
    struct p2p *p2p;
    struct comm_waiter *waiter; /* of messages */
    uint32_t group;             /* its id */
    const uint32_t *peers;      /* per rank of the group: its number in the root group */
    uint32_t size;
};

int messages_muster_post(const struct messages_muster_config *config, struct comm_message *message,
                         int64_t deadline_ns);
int messages_muster_wait(const struct messages_muster_config *config, struct comm_message *const *messages,
                         size_t count, int64_t deadline_ns);
int messages_muster_let_go(const struct messages_muster_config *config, struct comm_message *message);
void messages_muster_forget(struct comm_message *message);
bool messages_muster_has_ended(const struct comm_message *message);
size_t messages_muster_list_arrived(const struct messages_muster_config *config, const struct comm_message *receive,
                                    struct comm_arrived *out, size_t max);
bool messages_muster_send_now(const struct messages_muster_config *config, const struct comm_message *message,
                              int64_t *out_ns);
struct p2p_link *messages_muster_expect(const struct messages_muster_config *config, const struct comm_message *message,
                                        int64_t *out_ns);
bool messages_muster_take_now(const struct messages_muster_config *config, struct comm_message *message,
                              struct p2p_link *link, int64_t *out_ns);

#endif
