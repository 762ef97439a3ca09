/* What the fields of the coordinator's messages may be; see coordinator_wire.h and docs/formats/coordinator.md. */
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"
#include "rendezvous/wire/coordinator_wire_impl.h"

/* ---- text ---- */

size_t coordinator_wire_visible(const uint8_t *bytes, size_t len) {
    return bytes[0] < COORDINATOR_CONTROLS || bytes[0] == COORDINATOR_DELETE ? 0 : utf8_length(bytes, len);
}

bool coordinator_wire_is_text(struct kv_slice text) {
    for (size_t at = 0; at < text.len;) {
        size_t step = coordinator_wire_visible(text.data + at, text.len - at);
        if (step == 0) {
            return false;
        }
        at += step;
    }
    return true;
}

/* What a host name or a numeric address is made of, as net_endpoint_parse() has it. */
static bool is_host(struct kv_slice text) {
    static const char others[] = "_.:-%";
    for (size_t i = 0; i < text.len; i++) {
        uint8_t byte = text.data[i], lower = byte | 0x20;
        bool good = (byte >= '0' && byte <= '9') || (lower >= 'a' && lower <= 'z') ||
                    (byte != 0 && strchr(others, byte) != NULL);
        if (!good) {
            return false;
        }
    }
    return true;
}

bool coordinator_wire_is_name(struct kv_slice text) {
    return text.len <= COORDINATOR_NAME_BYTES_MAX && coordinator_wire_is_text(text);
}

bool coordinator_wire_is_address(struct kv_slice text) {
    return text.len <= COORDINATOR_NAME_BYTES_MAX && is_host(text);
}

/* ---- fields ---- */

static bool is_status(int32_t status) {
    switch (status) {
#define STATUS_CASE(name, value, text) case (value):
        MUSTER_STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
        return status < 0;
    default:
        return false;
    }
}

static bool is_rank_or_none(uint32_t rank, uint32_t world_size) {
    return rank < world_size || rank == COORDINATOR_NO_RANK;
}

int coordinator_wire_compare_pasts(const struct coordinator_past *a, const struct coordinator_past *b) {
    return a->round != b->round ? (a->round > b->round) - (a->round < b->round)
                                : (a->author > b->author) - (a->author < b->author);
}

static const char *past_flaw(const struct coordinator_past *past) {
    bool fits = past->round > past->base_round && past->size > 0 && is_rank_or_none(past->group_rank, past->size) &&
                is_rank_or_none(past->host_rank, past->size) && past->base_count <= past->size;
    if (!fits) {
        return "the round, size and ranks of a world before do not match";
    }
    return past->fate <= COORDINATOR_DEAD ? NULL : "an unknown fate of the coordinator before";
}

static const char *pasts_flaw(const struct coordinator_past *pasts, size_t count) {
    if (count > COORDINATOR_PASTS_MAX) {
        return "too many worlds before";
    }
    for (size_t i = 0; i < count; i++) {
        const char *flaw = past_flaw(&pasts[i]);
        if (flaw || (i > 0 && coordinator_wire_compare_pasts(&pasts[i - 1], &pasts[i]) >= 0)) {
            return flaw ? flaw : "worlds before that are not in their order";
        }
    }
    return NULL;
}

static const char *node_flaw(const struct coordinator_node *node) {
    if (node->run_id.len == 0 || !coordinator_wire_is_text(node->run_id)) {
        return "its run id is empty or not text";
    }
    if (!is_host(node->addr)) {
        return "its address is none";
    }
    if (!coordinator_wire_is_text(node->role) || !coordinator_wire_is_text(node->topology)) {
        return "its role or topology label is not text";
    }
    if (!coordinator_wire_is_text(node->host_name)) {
        return "its host name is not text";
    }
    if (node->pid <= 0) {
        return "its process id is not positive";
    }
    if (node->min_nodes == 0 || node->max_nodes < node->min_nodes) {
        return "its numbers of nodes make no range";
    }
    if (node->local_world_size == 0 || node->local_world_size > COORDINATOR_LOCAL_WORLD_SIZE_MAX) {
        return "its number of workers is out of range";
    }
    if (node->store_port == 0) {
        return "it has no port for the workers' store";
    }
    bool fits = node->last_round > 0
                    ? node->last_group_rank < node->last_world_size &&
                          is_rank_or_none(node->last_host_rank, node->last_world_size)
                    : node->last_author == 0 && node->last_world_size == 0 && node->last_group_rank == 0 &&
                          node->last_host_rank == 0 && node->fate == COORDINATOR_UNKNOWN;
    if (!fits || ((node->is_done || node->stop_ms > 0) && node->last_round == 0)) {
        return "its last round, world and ranks do not match";
    }
    if (node->stop_ms > COORDINATOR_GRACE_MS_MAX) {
        return "more than a day of grace";
    }
    if (node->fate > COORDINATOR_DEAD) {
        return "an unknown fate of the coordinator before";
    }
    return pasts_flaw(node->pasts, node->past_count);
}

static const char *proposal_flaw(const struct coordinator_proposal *proposal) {
    const char *flaw = past_flaw(&proposal->world);
    return flaw ? flaw : pasts_flaw(proposal->pasts, proposal->past_count);
}

static const char *world_flaw(const struct coordinator_world *world) {
    if (world->round == 0) {
        return "round 0";
    }
    if (world->group_rank >= world->group_world_size || world->base_global_rank >= world->global_world_size ||
        world->base_role_rank >= world->role_world_size) {
        return "a rank outside its world";
    }
    if (!is_rank_or_none(world->host_rank, world->group_world_size)) {
        return "its coordinator is outside its world";
    }
    if (world->group_world_size > world->global_world_size || world->role_world_size > world->global_world_size) {
        return "fewer workers than there are nodes, or than one role has";
    }
    if (world->master_addr.len == 0 || !is_host(world->master_addr) || world->master_port == 0) {
        return "no address where the workers meet";
    }
    if (world->lease_ms > COORDINATOR_LEASE_MS_MAX) {
        return "a lease of more than a year";
    }
    return NULL;
}

const char *coordinator_wire_flaw(const struct coordinator_message *message) {
    switch (message->kind) {
    case COORDINATOR_JOIN:
        return node_flaw(&message->node);
    case COORDINATOR_WORLD:
        return world_flaw(&message->world);
    case COORDINATOR_PROPOSE:
        return proposal_flaw(&message->proposal);
    case COORDINATOR_CHANGE:
        return message->change >= COORDINATOR_NODE_ARRIVED && message->change <= COORDINATOR_NODE_FAILED
                   ? NULL
                   : "an unknown change";
    case COORDINATOR_REFUSED:
        return is_status(message->status) ? NULL : "an unknown status";
    case COORDINATOR_PREEMPT:
    case COORDINATOR_STOP:
        return message->grace_ms <= COORDINATOR_GRACE_MS_MAX ? NULL : "more than a day of grace";
    case COORDINATOR_PROBE:
    case COORDINATOR_RESUME:
        return message->node.run_id.len > 0 && coordinator_wire_is_text(message->node.run_id)
                   ? NULL
                   : "its run id is empty or not text";
    case COORDINATOR_HEARD:
        return message->lease_ms <= COORDINATOR_LEASE_MS_MAX ? NULL : "a lease of more than a year";
    case COORDINATOR_SERVES:
        return message->service.is_serving || (!message->service.is_running && message->service.member_count == 0)
                   ? NULL
                   : "a world of nobody";
    default:
        return NULL;
    }
}
