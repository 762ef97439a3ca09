/* Encoding and decoding of what agents and the coordinator say; see coordinator_wire.h and
 * docs/formats/coordinator.md. What their fields may be is in coordinator_wire_flaw.c, what messages mean in
 * coordinator.c, whom they come from in coordinator_server.c. */
#include "rendezvous/wire/coordinator_wire.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/formats/protocol.h"
#include "base/status.h"
#include "rendezvous/wire/coordinator_wire_impl.h"

enum { LENGTH_BYTES = 4, KIND_BYTES = 1, HEADER_BYTES = LENGTH_BYTES + KIND_BYTES };
enum { JOIN_FIXED_BYTES = 92, WORLD_FIXED_BYTES = 67, NAME_LENGTH_BYTES = 2, JOIN_NAMES = 4, PAST_BYTES = 50 };

_Static_assert(HEADER_BYTES + JOIN_FIXED_BYTES + JOIN_NAMES * (NAME_LENGTH_BYTES + COORDINATOR_NAME_BYTES_MAX) +
                       PAST_BYTES * COORDINATOR_PASTS_MAX <=
                   COORDINATOR_FRAME_BYTES_MAX,
               "the longest JOIN is a frame");
_Static_assert(HEADER_BYTES + WORLD_FIXED_BYTES + NAME_LENGTH_BYTES + COORDINATOR_NAME_BYTES_MAX + NAME_LENGTH_BYTES +
                       COORDINATOR_TEXT_BYTES_MAX <=
                   COORDINATOR_FRAME_BYTES_MAX,
               "the longest WORLD is a frame");
_Static_assert(HEADER_BYTES + 1 + NAME_LENGTH_BYTES + COORDINATOR_CAUSE_BYTES_MAX + NAME_LENGTH_BYTES +
                       COORDINATOR_TEXT_BYTES_MAX <=
                   COORDINATOR_FRAME_BYTES_MAX,
               "the longest FAILED or CLOSED is a frame");

enum sender { AGENT, COORDINATOR };

/* Who sends it; false for an unknown one. */
static bool kind_sender(unsigned kind, enum sender *out) {
    switch (kind) {
#define KIND_SENDER(name, number, sender)                                                                              \
    case (number):                                                                                                     \
        *out = (sender);                                                                                               \
        return true;
        COORDINATOR_KIND_TABLE(KIND_SENDER)
#undef KIND_SENDER
    default:
        return false;
    }
}

const char *coordinator_kind_name(unsigned kind) {
    switch (kind) {
#define KIND_NAME(name, number, sender)                                                                                \
    case (number):                                                                                                     \
        return #name;
        COORDINATOR_KIND_TABLE(KIND_NAME)
#undef KIND_NAME
    default:
        return "?";
    }
}

static void put_bytes(struct bytes_writer *w, struct kv_slice bytes, size_t bytes_max) {
    w->overrun |= bytes.len > bytes_max;
    bytes_put_number(w, bytes.len, NAME_LENGTH_BYTES);
    bytes_put(w, bytes.data, bytes.len);
}

static void put_name(struct bytes_writer *w, struct kv_slice name) {
    put_bytes(w, name, COORDINATOR_NAME_BYTES_MAX);
}

/* One line of valid text, whatever it was. */
static void put_text(struct bytes_writer *w, struct kv_slice text) {
    w->overrun |= text.len > COORDINATOR_TEXT_BYTES_MAX;
    bytes_put_number(w, text.len, NAME_LENGTH_BYTES);
    for (size_t at = 0; at < text.len && !w->overrun;) {
        size_t step = coordinator_wire_visible(text.data + at, text.len - at);
        bool is_control = text.data[at] < COORDINATOR_CONTROLS || text.data[at] == COORDINATOR_DELETE;
        bytes_put(w, step > 0 ? (const void *)(text.data + at) : is_control ? " " : "?", step > 0 ? step : 1);
        at += step > 0 ? step : 1;
    }
}

static void put_charges(struct bytes_writer *w, const struct coordinator_charges *charges) {
    bytes_put_number(w, charges->failures, 4);
    bytes_put_number(w, charges->changes, 4);
    bytes_put_number(w, charges->preemptions, 4);
}

static void put_past(struct bytes_writer *w, const struct coordinator_past *past) {
    bytes_put_number(w, past->round, 8);
    bytes_put_number(w, past->author, 8);
    bytes_put_number(w, past->size, 4);
    bytes_put_number(w, past->group_rank, 4);
    bytes_put_number(w, past->host_rank, 4);
    bytes_put_number(w, past->fate, 1);
    bytes_put_number(w, past->base_round, 8);
    bytes_put_number(w, past->base_author, 8);
    bytes_put_number(w, past->base_count, 4);
    bytes_put_number(w, past->is_confirmed, 1);
}

static void put_pasts(struct bytes_writer *w, const struct coordinator_past *pasts, size_t count) {
    bytes_put_number(w, count, 1);
    for (size_t i = 0; i < count; i++) {
        put_past(w, &pasts[i]);
    }
}

static void put_node(struct bytes_writer *w, const struct coordinator_node *node) {
    bytes_put_number(w, (uint64_t)node->pid, 8);
    bytes_put_number(w, node->identity[0], 8);
    bytes_put_number(w, node->identity[1], 8);
    bytes_put_number(w, node->session, 8);
    bytes_put_number(w, node->min_nodes, 4);
    bytes_put_number(w, node->max_nodes, 4);
    bytes_put_number(w, node->local_world_size, 4);
    bytes_put_number(w, node->store_port, 2);
    bytes_put_number(w, node->uses_agent_store, 1);
    bytes_put_number(w, node->last_round, 8);
    bytes_put_number(w, node->last_author, 8);
    bytes_put_number(w, node->last_world_size, 4);
    bytes_put_number(w, node->last_group_rank, 4);
    bytes_put_number(w, node->last_host_rank, 4);
    bytes_put_number(w, node->fate, 1);
    bytes_put_number(w, node->known_round, 8);
    bytes_put_number(w, node->endpoints, 8);
    bytes_put_number(w, node->is_done, 1);
    put_charges(w, &node->charges);
    bytes_put_number(w, node->is_host, 1);
    put_pasts(w, node->pasts, node->past_count);
    put_name(w, node->run_id);
    put_name(w, node->addr);
    put_name(w, node->role);
    put_name(w, node->topology);
    bytes_put_number(w, node->stop_ms, 8);
    put_name(w, node->host_name);
    bytes_put_number(w, node->wished_rank, 4);
}

static void put_world(struct bytes_writer *w, const struct coordinator_world *world) {
    bytes_put_number(w, world->round, 8);
    bytes_put_number(w, world->author, 8);
    bytes_put_number(w, world->group_rank, 4);
    bytes_put_number(w, world->group_world_size, 4);
    bytes_put_number(w, world->base_global_rank, 4);
    bytes_put_number(w, world->global_world_size, 4);
    bytes_put_number(w, world->base_role_rank, 4);
    bytes_put_number(w, world->role_world_size, 4);
    bytes_put_number(w, world->host_rank, 4);
    put_charges(w, &world->charges);
    bytes_put_number(w, world->max_restarts, 4);
    bytes_put_number(w, world->lease_ms, 8);
    bytes_put_number(w, world->master_port, 2);
    bytes_put_number(w, world->uses_agent_store, 1);
    put_name(w, world->master_addr);
}

static void put_resume(struct bytes_writer *w, const struct coordinator_message *message) {
    bytes_put_number(w, message->node.identity[0], 8);
    bytes_put_number(w, message->node.identity[1], 8);
    bytes_put_number(w, message->node.session, 8);
    bytes_put_number(w, message->received_count, 8);
    put_name(w, message->node.run_id);
}

/* Whether the message opens a connection's talk: it names the protocol's version. */
static bool has_version(enum coordinator_kind kind) {
    return kind == COORDINATOR_JOIN || kind == COORDINATOR_GREET || kind == COORDINATOR_STATUS ||
           kind == COORDINATOR_PROBE || kind == COORDINATOR_RESUME;
}

static bool has_text(enum coordinator_kind kind) {
    switch (kind) {
    case COORDINATOR_FAILED:
    case COORDINATOR_LEAVE:
    case COORDINATOR_CLOSE:
    case COORDINATOR_PREEMPT:
    case COORDINATOR_WORLD:
    case COORDINATOR_CHANGE:
    case COORDINATOR_CLOSED:
    case COORDINATOR_REFUSED:
    case COORDINATOR_STOP:
    case COORDINATOR_HEARD:
    case COORDINATOR_ENGINE:
        return true;
    default:
        return false;
    }
}

static void put_fields(struct bytes_writer *w, const struct coordinator_message *message) {
    if (has_version(message->kind)) {
        bytes_put_number(w, protocol_agents(), 2);
    }
    switch (message->kind) {
    case COORDINATOR_JOIN:
        put_node(w, &message->node);
        break;
    case COORDINATOR_PROBE:
        put_name(w, message->node.run_id);
        break;
    case COORDINATOR_GREET:
        bytes_put(w, message->nonce, sizeof message->nonce);
        break;
    case COORDINATOR_CHALLENGE:
        bytes_put(w, message->nonce, sizeof message->nonce);
        bytes_put(w, message->tag, sizeof message->tag);
        break;
    case COORDINATOR_PROOF:
        bytes_put(w, message->tag, sizeof message->tag);
        break;
    case COORDINATOR_PREEMPT:
    case COORDINATOR_STOP:
        bytes_put_number(w, message->grace_ms, 8);
        break;
    case COORDINATOR_WORLD:
        put_world(w, &message->world);
        break;
    case COORDINATOR_PROPOSE:
        bytes_put_number(w, message->stamp_ms, 8);
        put_past(w, &message->proposal.world);
        put_pasts(w, message->proposal.pasts, message->proposal.past_count);
        break;
    case COORDINATOR_ACCEPT:
        bytes_put_number(w, message->round, 8);
        bytes_put_number(w, message->stamp_ms, 8);
        break;
    case COORDINATOR_ALIVE:
        bytes_put_number(w, message->stamp_ms, 8);
        bytes_put_number(w, message->lease_ms, 8);
        bytes_put_number(w, message->received_count, 8);
        break;
    case COORDINATOR_HEARD:
        bytes_put_number(w, message->stamp_ms, 8);
        bytes_put_number(w, message->has_host, 1);
        bytes_put_number(w, message->lease_ms, 8);
        bytes_put_number(w, message->received_count, 8);
        break;
    case COORDINATOR_RESUME:
        put_resume(w, message);
        break;
    case COORDINATOR_RESUMED:
        bytes_put_number(w, message->received_count, 8);
        break;
    case COORDINATOR_CHANGE:
        bytes_put_number(w, message->change, 1);
        break;
    case COORDINATOR_REFUSED:
        bytes_put_number(w, (uint32_t)message->status, 4);
        break;
    case COORDINATOR_FAILED:
        bytes_put_number(w, message->is_final, 1);
        put_bytes(w, message->cause, COORDINATOR_CAUSE_BYTES_MAX);
        break;
    case COORDINATOR_CLOSE:
        bytes_put_number(w, message->has_failed, 1);
        break;
    case COORDINATOR_CLOSED:
        bytes_put_number(w, message->has_failed, 1);
        put_bytes(w, message->cause, COORDINATOR_CAUSE_BYTES_MAX);
        break;
    case COORDINATOR_REPORT:
        bytes_put_number(w, message->is_last, 1);
        put_bytes(w, message->report, COORDINATOR_REPORT_BYTES_MAX);
        break;
    case COORDINATOR_SERVES:
        bytes_put_number(w, message->service.is_serving, 1);
        bytes_put_number(w, message->service.is_running, 1);
        bytes_put_number(w, message->service.round, 8);
        bytes_put_number(w, message->service.member_count, 4);
        break;
    default: /* a sentence, or nothing */
        break;
    }
    if (has_text(message->kind)) {
        put_text(w, message->text);
    }
}

int coordinator_wire_put(struct buf *out, const struct coordinator_message *message) {
    uint8_t bytes[COORDINATOR_FRAME_BYTES_MAX];
    struct bytes_writer w = {.data = bytes, .size = sizeof bytes, .used = LENGTH_BYTES};
    enum sender sender;
    assert(kind_sender(message->kind, &sender));
    const char *flaw = coordinator_wire_flaw(message);
    if (flaw) {
        return status_fail(MUSTER_EINVAL, "%s: %s", coordinator_kind_name(message->kind), flaw);
    }
    bytes_put_number(&w, message->kind, KIND_BYTES);
    put_fields(&w, message);
    if (w.overrun) {
        return status_fail(MUSTER_ELIMIT,
                           "%s: a name has more than %zu bytes, the sentence more than %zu, or a record more than %zu",
                           coordinator_kind_name(message->kind), COORDINATOR_NAME_BYTES_MAX, COORDINATOR_TEXT_BYTES_MAX,
                           COORDINATOR_CAUSE_BYTES_MAX);
    }
    struct bytes_writer length = {.data = bytes, .size = LENGTH_BYTES};
    bytes_put_number(&length, w.used - LENGTH_BYTES, LENGTH_BYTES);
    return buf_append(out, bytes, w.used);
}

static struct kv_slice get_string(struct bytes_reader *r, size_t bytes_max) {
    size_t len = bytes_get_number(r, NAME_LENGTH_BYTES);
    r->overrun |= len > bytes_max;
    const uint8_t *bytes = bytes_get(r, len);
    return kv_slice_of(bytes, bytes ? len : 0);
}

/* A truth value has one way to be written. */
static bool get_bool(struct bytes_reader *r) {
    uint64_t value = bytes_get_number(r, 1);
    r->overrun |= value > 1;
    return value == 1;
}

static void get_charges(struct bytes_reader *r, struct coordinator_charges *out) {
    out->failures = (uint32_t)bytes_get_number(r, 4);
    out->changes = (uint32_t)bytes_get_number(r, 4);
    out->preemptions = (uint32_t)bytes_get_number(r, 4);
}

static void get_past(struct bytes_reader *r, struct coordinator_past *out) {
    out->round = bytes_get_number(r, 8);
    out->author = bytes_get_number(r, 8);
    out->size = (uint32_t)bytes_get_number(r, 4);
    out->group_rank = (uint32_t)bytes_get_number(r, 4);
    out->host_rank = (uint32_t)bytes_get_number(r, 4);
    out->fate = (enum coordinator_fate)bytes_get_number(r, 1);
    out->base_round = bytes_get_number(r, 8);
    out->base_author = bytes_get_number(r, 8);
    out->base_count = (uint32_t)bytes_get_number(r, 4);
    out->is_confirmed = get_bool(r);
}

static void get_pasts(struct bytes_reader *r, struct coordinator_past *out, size_t *count) {
    *count = bytes_get_number(r, 1);
    r->overrun |= *count > COORDINATOR_PASTS_MAX;
    for (size_t i = 0; i < *count && !r->overrun; i++) {
        get_past(r, &out[i]);
    }
}

static void get_node(struct bytes_reader *r, struct coordinator_node *out) {
    out->pid = (int64_t)bytes_get_number(r, 8);
    out->identity[0] = bytes_get_number(r, 8);
    out->identity[1] = bytes_get_number(r, 8);
    out->session = bytes_get_number(r, 8);
    out->min_nodes = (uint32_t)bytes_get_number(r, 4);
    out->max_nodes = (uint32_t)bytes_get_number(r, 4);
    out->local_world_size = (uint32_t)bytes_get_number(r, 4);
    out->store_port = (uint16_t)bytes_get_number(r, 2);
    out->uses_agent_store = get_bool(r);
    out->last_round = bytes_get_number(r, 8);
    out->last_author = bytes_get_number(r, 8);
    out->last_world_size = (uint32_t)bytes_get_number(r, 4);
    out->last_group_rank = (uint32_t)bytes_get_number(r, 4);
    out->last_host_rank = (uint32_t)bytes_get_number(r, 4);
    out->fate = (enum coordinator_fate)bytes_get_number(r, 1);
    out->known_round = bytes_get_number(r, 8);
    out->endpoints = bytes_get_number(r, 8);
    out->is_done = get_bool(r);
    get_charges(r, &out->charges);
    out->is_host = get_bool(r);
    get_pasts(r, out->pasts, &out->past_count);
    out->run_id = get_string(r, COORDINATOR_NAME_BYTES_MAX);
    out->addr = get_string(r, COORDINATOR_NAME_BYTES_MAX);
    out->role = get_string(r, COORDINATOR_NAME_BYTES_MAX);
    out->topology = get_string(r, COORDINATOR_NAME_BYTES_MAX);
    out->stop_ms = bytes_get_number(r, 8);
    out->host_name = get_string(r, COORDINATOR_NAME_BYTES_MAX);
    out->wished_rank = (uint32_t)bytes_get_number(r, 4);
}

static void get_world(struct bytes_reader *r, struct coordinator_world *out) {
    out->round = bytes_get_number(r, 8);
    out->author = bytes_get_number(r, 8);
    out->group_rank = (uint32_t)bytes_get_number(r, 4);
    out->group_world_size = (uint32_t)bytes_get_number(r, 4);
    out->base_global_rank = (uint32_t)bytes_get_number(r, 4);
    out->global_world_size = (uint32_t)bytes_get_number(r, 4);
    out->base_role_rank = (uint32_t)bytes_get_number(r, 4);
    out->role_world_size = (uint32_t)bytes_get_number(r, 4);
    out->host_rank = (uint32_t)bytes_get_number(r, 4);
    get_charges(r, &out->charges);
    out->max_restarts = (uint32_t)bytes_get_number(r, 4);
    out->lease_ms = bytes_get_number(r, 8);
    out->master_port = (uint16_t)bytes_get_number(r, 2);
    out->uses_agent_store = get_bool(r);
    out->master_addr = get_string(r, COORDINATOR_NAME_BYTES_MAX);
}

static void get_bytes(struct bytes_reader *r, uint8_t *out, size_t len) {
    const uint8_t *bytes = bytes_get(r, len);
    if (bytes) {
        memcpy(out, bytes, len);
    }
}

static void get_resume(struct bytes_reader *r, struct coordinator_message *out) {
    out->node.identity[0] = bytes_get_number(r, 8);
    out->node.identity[1] = bytes_get_number(r, 8);
    out->node.session = bytes_get_number(r, 8);
    out->received_count = bytes_get_number(r, 8);
    out->node.run_id = get_string(r, COORDINATOR_NAME_BYTES_MAX);
}

static void get_fields(struct bytes_reader *r, struct coordinator_message *out) {
    switch (out->kind) {
    case COORDINATOR_JOIN:
        get_node(r, &out->node);
        break;
    case COORDINATOR_PROBE:
        out->node.run_id = get_string(r, COORDINATOR_NAME_BYTES_MAX);
        break;
    case COORDINATOR_GREET:
        get_bytes(r, out->nonce, sizeof out->nonce);
        break;
    case COORDINATOR_CHALLENGE:
        get_bytes(r, out->nonce, sizeof out->nonce);
        get_bytes(r, out->tag, sizeof out->tag);
        break;
    case COORDINATOR_PROOF:
        get_bytes(r, out->tag, sizeof out->tag);
        break;
    case COORDINATOR_PREEMPT:
    case COORDINATOR_STOP:
        out->grace_ms = bytes_get_number(r, 8);
        break;
    case COORDINATOR_WORLD:
        get_world(r, &out->world);
        break;
    case COORDINATOR_PROPOSE:
        out->stamp_ms = bytes_get_number(r, 8);
        get_past(r, &out->proposal.world);
        get_pasts(r, out->proposal.pasts, &out->proposal.past_count);
        break;
    case COORDINATOR_ACCEPT:
        out->round = bytes_get_number(r, 8);
        out->stamp_ms = bytes_get_number(r, 8);
        break;
    case COORDINATOR_ALIVE:
        out->stamp_ms = bytes_get_number(r, 8);
        out->lease_ms = bytes_get_number(r, 8);
        out->received_count = bytes_get_number(r, 8);
        break;
    case COORDINATOR_HEARD:
        out->stamp_ms = bytes_get_number(r, 8);
        out->has_host = get_bool(r);
        out->lease_ms = bytes_get_number(r, 8);
        out->received_count = bytes_get_number(r, 8);
        break;
    case COORDINATOR_RESUME:
        get_resume(r, out);
        break;
    case COORDINATOR_RESUMED:
        out->received_count = bytes_get_number(r, 8);
        break;
    case COORDINATOR_CHANGE:
        out->change = (enum coordinator_change)bytes_get_number(r, 1);
        break;
    case COORDINATOR_REFUSED:
        out->status = (int32_t)(uint32_t)bytes_get_number(r, 4);
        break;
    case COORDINATOR_FAILED:
        out->is_final = get_bool(r);
        out->cause = get_string(r, COORDINATOR_CAUSE_BYTES_MAX);
        break;
    case COORDINATOR_CLOSE:
        out->has_failed = get_bool(r);
        break;
    case COORDINATOR_CLOSED:
        out->has_failed = get_bool(r);
        out->cause = get_string(r, COORDINATOR_CAUSE_BYTES_MAX);
        break;
    case COORDINATOR_REPORT:
        out->is_last = get_bool(r);
        out->report = get_string(r, COORDINATOR_REPORT_BYTES_MAX);
        break;
    case COORDINATOR_SERVES:
        out->service.is_serving = get_bool(r);
        out->service.is_running = get_bool(r);
        out->service.round = bytes_get_number(r, 8);
        out->service.member_count = (uint32_t)bytes_get_number(r, 4);
        break;
    default:
        break;
    }
    if (has_text(out->kind)) {
        out->text = get_string(r, COORDINATOR_TEXT_BYTES_MAX);
    }
}

/* What follows the header, all of it there. False with the detail. */
static bool get_rest(struct bytes_reader *r, struct coordinator_message *out) {
    const char *name = coordinator_kind_name(out->kind);
    uint32_t protocol = has_version(out->kind) ? (uint32_t)bytes_get_number(r, 2) : protocol_agents();
    if (protocol != protocol_agents() && !r->overrun) {
        char sentence[PROTOCOL_SENTENCE_SIZE];
        (void)status_fail(MUSTER_EPROTOCOL, "%s: %s", name,
                          protocol_differs("the agent that sent it", protocol, "the host of the rendezvous",
                                           protocol_agents(), sentence));
        return false;
    }
    get_fields(r, out);
    const char *flaw = r->overrun || r->used != r->size       ? "its fields do not fit its length or their limits"
                       : !coordinator_wire_is_text(out->text) ? "its sentence is not text"
                                                              : coordinator_wire_flaw(out);
    if (flaw) {
        (void)status_fail(MUSTER_EPROTOCOL, "%s: %s", name, flaw);
    }
    return !flaw;
}

/* The length, and the kind if that is there. */
static enum coordinator_parse get_header(const uint8_t *bytes, size_t len, bool from_agent, size_t *out_length) {
    struct bytes_reader r = {.data = bytes, .size = len};
    enum sender sender = AGENT, expected = from_agent ? AGENT : COORDINATOR;
    size_t length = bytes_get_number(&r, LENGTH_BYTES);
    if (r.overrun) {
        return COORDINATOR_MORE;
    }
    if (length < KIND_BYTES || length > COORDINATOR_FRAME_BYTES_MAX - LENGTH_BYTES) {
        (void)status_fail(MUSTER_EPROTOCOL, "a message of %zu bytes", length);
        return COORDINATOR_MALFORMED;
    }
    unsigned kind = (unsigned)bytes_get_number(&r, KIND_BYTES);
    if (r.overrun) {
        return COORDINATOR_MORE;
    }
    if (!kind_sender(kind, &sender) || sender != expected) {
        (void)status_fail(MUSTER_EPROTOCOL, "a message of kind %u (%s) from %s", kind, coordinator_kind_name(kind),
                          from_agent ? "an agent" : "the coordinator");
        return COORDINATOR_MALFORMED;
    }
    *out_length = length;
    return length > len - LENGTH_BYTES ? COORDINATOR_MORE : COORDINATOR_COMPLETE;
}

enum coordinator_parse coordinator_wire_get(const uint8_t *bytes, size_t len, bool from_agent,
                                            struct coordinator_message *out, size_t *used) {
    size_t length = 0;
    enum coordinator_parse parse = get_header(bytes, len, from_agent, &length);
    if (parse != COORDINATOR_COMPLETE) {
        return parse;
    }
    struct coordinator_message message = {.kind = (enum coordinator_kind)bytes[LENGTH_BYTES]};
    struct bytes_reader r = {.data = bytes + HEADER_BYTES, .size = length - KIND_BYTES};
    if (!get_rest(&r, &message)) {
        return COORDINATOR_MALFORMED;
    }
    *out = message;
    *used = LENGTH_BYTES + length;
    return COORDINATOR_COMPLETE;
}
