/* Messages as requests of comm/p2p; see messages_muster.h. */
#include "comm/hierarchy/messages_muster.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"

_Static_assert(sizeof(struct p2p_request) <= COMM_MESSAGE_OWN_BYTES, "a request fits into a message");
_Static_assert(_Alignof(struct p2p_request) <= 16, "and is aligned there");

enum { REQUESTS_ON_STACK = 16 };

static struct p2p_request *request_of(struct comm_message *message) {
    return (struct p2p_request *)(void *)message->own;
}

static const struct p2p_request *request_of_const(const struct comm_message *message) {
    return (const struct p2p_request *)(const void *)message->own;
}

static struct p2p_envelope envelope_of(const struct messages_muster_config *config,
                                       const struct comm_message *message) {
    return (struct p2p_envelope){
        .group = config->group,
        .lane = P2P_MESSAGES,
        .peer = message->peer == MUSTER_ANY_RANK ? P2P_ANY_PEER : config->peers[message->peer],
        .tag = message->tag,
        .fingerprint = (uint64_t)message->type,
        .is_blocking = message->is_blocking,
        .members = config->peers,
        .member_count = config->size,
    };
}

int messages_muster_post(const struct messages_muster_config *config, struct comm_message *message,
                         int64_t deadline_ns) {
    struct p2p_envelope envelope = envelope_of(config, message);
    return message->is_send
               ? p2p_send(config->p2p, request_of(message), &envelope, message->buffer, message->bytes, deadline_ns)
               : p2p_receive(config->p2p, request_of(message), &envelope, message->buffer, message->bytes, deadline_ns);
}

/* The group's size: it is none of its ranks. */
static uint32_t find_rank(const struct messages_muster_config *config, uint32_t peer) {
    uint32_t rank = 0;
    while (rank < config->size && config->peers[rank] != peer) {
        rank++;
    }
    return rank;
}

static uint32_t rank_of_peer(const struct messages_muster_config *config, uint32_t peer) {
    uint32_t rank = find_rank(config, peer);
    assert(rank < config->size);
    return rank;
}

/* What a receive has got. */
static void take_result(const struct messages_muster_config *config, struct comm_message *message) {
    const struct p2p_request *request = request_of_const(message);
    if (!message->is_send) {
        message->bytes = request->bytes;
        message->peer = message->peer == MUSTER_ANY_RANK ? rank_of_peer(config, request->envelope.peer) : message->peer;
    }
}

static int no_memory(const struct messages_muster_config *config, struct comm_message *const *messages, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct p2p_request *requests[] = {request_of(messages[i])};
        p2p_withdraw(config->p2p, requests, 1);
        (void)p2p_collect(requests, 1, 0);
    }
    return status_fail(MUSTER_ENOMEM, "no memory to wait for %zu messages", count);
}

int messages_muster_wait(const struct messages_muster_config *config, struct comm_message *const *messages,
                         size_t count, int64_t deadline_ns) {
    struct p2p_request *few[REQUESTS_ON_STACK] = {0};
    struct p2p_request **requests = count <= REQUESTS_ON_STACK ? few : calloc(count, sizeof(struct p2p_request *));
    if (!requests) {
        return no_memory(config, messages, count);
    }
    for (size_t i = 0; i < count; i++) {
        requests[i] = request_of(messages[i]);
    }
    int code = p2p_wait(config->p2p, config->waiter, requests, count, deadline_ns);
    if (requests != few) {
        free(requests);
    }
    for (size_t i = 0; code == 0 && i < count; i++) {
        take_result(config, messages[i]);
    }
    return code;
}

int messages_muster_let_go(const struct messages_muster_config *config, struct comm_message *message) {
    return p2p_let_go(config->p2p, request_of(message));
}

void messages_muster_forget(struct comm_message *message) {
    p2p_forget(request_of(message));
}

bool messages_muster_has_ended(const struct comm_message *message) {
    return atomic_load_explicit(&request_of_const(message)->done, memory_order_acquire) != 0;
}

size_t messages_muster_list_arrived(const struct messages_muster_config *config, const struct comm_message *receive,
                                    struct comm_arrived *out, size_t max) {
    struct p2p_arrived arrived[COMM_ARRIVED_MAX];
    uint32_t peer = envelope_of(config, receive).peer;
    size_t count =
        p2p_list_arrived(config->p2p, config->group, peer, arrived, max < COMM_ARRIVED_MAX ? max : COMM_ARRIVED_MAX);
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t rank = find_rank(config, arrived[i].peer);
        if (rank < config->size) {
            out[used++] = (struct comm_arrived){rank, (uint32_t)arrived[i].tag};
        }
    }
    return used;
}

bool messages_muster_send_now(const struct messages_muster_config *config, const struct comm_message *message,
                              int64_t *out_ns) {
    struct p2p_envelope envelope = envelope_of(config, message);
    return p2p_send_short(config->p2p, &envelope, message->buffer, message->bytes, out_ns);
}

struct p2p_link *messages_muster_expect(const struct messages_muster_config *config, const struct comm_message *message,
                                        int64_t *out_ns) {
    return message->peer == MUSTER_ANY_RANK
               ? NULL
               : p2p_expect_short(config->p2p, config->peers[message->peer], message->bytes, out_ns);
}

bool messages_muster_take_now(const struct messages_muster_config *config, struct comm_message *message,
                              struct p2p_link *link, int64_t *out_ns) {
    struct p2p_envelope envelope = envelope_of(config, message);
    struct p2p_short came;
    if (!p2p_receive_short(config->p2p, config->waiter, link, &envelope, message->buffer, message->bytes, &came)) {
        return false;
    }
    message->bytes = came.bytes;
    *out_ns = came.end_ns;
    return true;
}
