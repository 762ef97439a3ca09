/* Who comes to a workers' store in the name of a node; see admission_server.h. */
#include "rendezvous/member/admission_server.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "rendezvous/wire/coordinator_line.h"

struct visitor {
    struct visitor *previous, *next;
    struct coordinator_line line;
};

struct admission_server {
    struct kv_guest guest;
    struct coordinator_gate gate;
    char *run_id; /* owned */
    struct visitor *visitors;
    struct buf frame; /* scratch */
};

static struct visitor *make_visitor(struct admission_server *server, struct kv_connection *connection) {
    struct visitor *visitor = calloc(1, sizeof *visitor);
    if (!visitor) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for another node");
        return NULL;
    }
    visitor->next = server->visitors;
    if (visitor->next) {
        visitor->next->previous = visitor;
    }
    server->visitors = visitor;
    kv_guest_set(connection, visitor);
    return visitor;
}

static void send_message(struct admission_server *server, struct kv_connection *connection, struct visitor *visitor,
                         const struct coordinator_message *message) {
    buf_clear(&server->frame);
    if (coordinator_wire_put(&server->frame, message) ||
        coordinator_line_seal(&visitor->line, &server->gate, &server->frame)) {
        kv_guest_drop(connection);
        return;
    }
    kv_guest_send(connection, buf_bytes(&server->frame), server->frame.len);
}

/* The status detail says why, to it and to the log. */
static size_t refuse(struct admission_server *server, struct kv_connection *connection, struct visitor *visitor) {
    char why[MUSTER_DETAIL_MAX];
    memcpy(why, muster_detail(), strlen(muster_detail()) + 1);
    send_message(server, connection, visitor,
                 &(struct coordinator_message){
                     .kind = COORDINATOR_REFUSED, .status = MUSTER_EPROTOCOL, .text = kv_slice_text(why)});
    (void)status_fail(MUSTER_EPROTOCOL, "%s", why);
    return SIZE_MAX;
}

static size_t serve(void *ctx, struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct admission_server *server = ctx;
    struct visitor *visitor = kv_guest_data(connection);
    struct coordinator_message message;
    size_t used = 0;
    visitor = visitor ? visitor : make_visitor(server, connection);
    if (!visitor) {
        return SIZE_MAX;
    }
    buf_clear(&server->frame);
    switch (coordinator_line_take(&visitor->line, &server->gate, bytes, len, &server->frame, &message, &used)) {
    case COORDINATOR_LINE_MORE:
        return 0;
    case COORDINATOR_LINE_STEP:
        kv_guest_send(connection, buf_bytes(&server->frame), server->frame.len);
        if (visitor->line.stage == COORDINATOR_LINE_OPEN) {
            kv_guest_settle(connection);
            return kv_guest_admit(connection, true) ? SIZE_MAX : used;
        }
        return used;
    case COORDINATOR_LINE_MESSAGE:
        if (message.kind == COORDINATOR_ALIVE) {
            send_message(server, connection, visitor, &(struct coordinator_message){.kind = COORDINATOR_HEARD});
            kv_guest_end(connection);
            return used;
        }
        (void)status_fail(MUSTER_EPROTOCOL, "%s to a workers' store", coordinator_kind_name(message.kind));
        return refuse(server, connection, visitor);
    case COORDINATOR_LINE_REFUSED:
        return refuse(server, connection, visitor);
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
    struct admission_server *server = ctx;
    struct visitor *visitor = kv_guest_data(connection);
    if (!visitor) {
        return;
    }
    *(visitor->previous ? &visitor->previous->next : &server->visitors) = visitor->next;
    if (visitor->next) {
        visitor->next->previous = visitor->previous;
    }
    if (!coordinator_line_end(&visitor->line)) {
        kv_guest_warn(connection);
    }
    free_visitor(visitor);
}

int admission_server_create(const struct secret *secret, const char *run_id, struct admission_server **out) {
    struct admission_server *server = calloc(1, sizeof *server);
    char *copy = strdup(run_id);
    if (!server || !copy) {
        free(server);
        free(copy);
        return status_fail(MUSTER_ENOMEM, "no memory for the admission server of the workers' store");
    }
    server->run_id = copy;
    server->gate = (struct coordinator_gate){.secret = secret, .run_id = kv_slice_text(copy)};
    server->guest = (struct kv_guest){.first_byte = (uint8_t)COORDINATOR_HELLO[0],
                                      .input_max = COORDINATOR_LINE_BYTES_MAX,
                                      .serve = serve,
                                      .ended = on_ended,
                                      .ctx = server};
    buf_init(&server->frame, COORDINATOR_LINE_BYTES_MAX);
    *out = server;
    return MUSTER_OK;
}

void admission_server_free(struct admission_server *server) {
    if (!server) {
        return;
    }
    for (struct visitor *visitor = server->visitors, *next; visitor; visitor = next) {
        next = visitor->next;
        free_visitor(visitor);
    }
    free(server->run_id);
    buf_done(&server->frame);
    free(server);
}

const struct kv_guest *admission_server_guest(const struct admission_server *server) {
    return &server->guest;
}
