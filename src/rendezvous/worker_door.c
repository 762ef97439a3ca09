/* Who comes to a workers' store in the name of a node; see worker_door.h. */
#include "rendezvous/worker_door.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "rendezvous/coordinator_line.h"

struct visitor {
    struct visitor *previous, *next;
    struct coordinator_line line;
};

struct worker_door {
    struct kv_guest guest;
    struct coordinator_gate gate;
    char *run_id; /* owned */
    struct visitor *visitors;
    struct buf frame; /* scratch */
};

static struct visitor *make_visitor(struct worker_door *door, struct kv_connection *connection) {
    struct visitor *visitor = calloc(1, sizeof *visitor);
    if (!visitor) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for another node");
        return NULL;
    }
    visitor->next = door->visitors;
    if (visitor->next) {
        visitor->next->previous = visitor;
    }
    door->visitors = visitor;
    kv_guest_set(connection, visitor);
    return visitor;
}

static void send_message(struct worker_door *door, struct kv_connection *connection, struct visitor *visitor,
                         const struct coordinator_message *message) {
    buf_clear(&door->frame);
    if (coordinator_line_put(&visitor->line, &door->gate, &door->frame, message)) {
        kv_guest_drop(connection);
        return;
    }
    kv_guest_send(connection, buf_bytes(&door->frame), door->frame.len);
}

/* The status detail says why, to it and to the log. */
static size_t refuse(struct worker_door *door, struct kv_connection *connection, struct visitor *visitor) {
    char why[MUSTER_DETAIL_MAX];
    memcpy(why, muster_detail(), strlen(muster_detail()) + 1);
    send_message(door, connection, visitor,
                 &(struct coordinator_message){
                     .kind = COORDINATOR_REFUSED, .status = MUSTER_EPROTOCOL, .text = kv_slice_text(why)});
    (void)status_fail(MUSTER_EPROTOCOL, "%s", why);
    return SIZE_MAX;
}

static size_t serve(void *ctx, struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct worker_door *door = ctx;
    struct visitor *visitor = kv_guest_data(connection);
    struct coordinator_message message;
    size_t used = 0;
    visitor = visitor ? visitor : make_visitor(door, connection);
    if (!visitor) {
        return SIZE_MAX;
    }
    buf_clear(&door->frame);
    switch (coordinator_line_take(&visitor->line, &door->gate, bytes, len, &door->frame, &message, &used)) {
    case COORDINATOR_LINE_MORE:
        return 0;
    case COORDINATOR_LINE_STEP:
        kv_guest_send(connection, buf_bytes(&door->frame), door->frame.len);
        if (visitor->line.stage == COORDINATOR_LINE_OPEN) {
            kv_guest_settle(connection);
            return kv_guest_admit(connection, true) ? SIZE_MAX : used;
        }
        return used;
    case COORDINATOR_LINE_MESSAGE:
        if (message.kind == COORDINATOR_ALIVE) {
            send_message(door, connection, visitor, &(struct coordinator_message){.kind = COORDINATOR_HEARD});
            kv_guest_end(connection);
            return used;
        }
        (void)status_fail(MUSTER_EPROTOCOL, "%s to a workers' store", coordinator_kind_name(message.kind));
        return refuse(door, connection, visitor);
    case COORDINATOR_LINE_REFUSED:
        return refuse(door, connection, visitor);
    case COORDINATOR_LINE_BROKEN:
        break;
    }
    return SIZE_MAX;
}

static void free_visitor(struct visitor *visitor) {
    (void)coordinator_line_end(&visitor->line);
    free(visitor);
}

static void on_ended(void *ctx, struct kv_connection *connection) {
    struct worker_door *door = ctx;
    struct visitor *visitor = kv_guest_data(connection);
    if (!visitor) {
        return;
    }
    *(visitor->previous ? &visitor->previous->next : &door->visitors) = visitor->next;
    if (visitor->next) {
        visitor->next->previous = visitor->previous;
    }
    if (!coordinator_line_end(&visitor->line)) {
        kv_guest_warn(connection);
    }
    free_visitor(visitor);
}

int worker_door_create(const struct secret *secret, const char *run_id, struct worker_door **out) {
    struct worker_door *door = calloc(1, sizeof *door);
    char *copy = strdup(run_id);
    if (!door || !copy) {
        free(door);
        free(copy);
        return status_fail(MUSTER_ENOMEM, "no memory for the door of the workers' store");
    }
    door->run_id = copy;
    door->gate = (struct coordinator_gate){.secret = secret, .run_id = kv_slice_text(copy)};
    door->guest = (struct kv_guest){.first_byte = (uint8_t)COORDINATOR_HELLO[0],
                                    .input_max = COORDINATOR_LINE_BYTES_MAX,
                                    .serve = serve,
                                    .ended = on_ended,
                                    .ctx = door};
    buf_init(&door->frame, COORDINATOR_LINE_BYTES_MAX);
    *out = door;
    return MUSTER_OK;
}

void worker_door_free(struct worker_door *door) {
    if (!door) {
        return;
    }
    for (struct visitor *visitor = door->visitors, *next; visitor; visitor = next) {
        next = visitor->next;
        free_visitor(visitor);
    }
    free(door->run_id);
    buf_done(&door->frame);
    free(door);
}

const struct kv_guest *worker_door_guest(const struct worker_door *door) {
    return &door->guest;
}
