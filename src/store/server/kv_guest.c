/* Another protocol's connections on the store's port; see kv_guest.h. Their bytes come in through
 * kv_serve.c and go out through kv_connection.c, like those of the store's clients. */
#include "store/server/kv_guest.h"

#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>

#include "base/status.h"
#include "net/endpoint.h"
#include "store/server/kv_engine_impl.h"

bool kv_guest_owns(const struct kv_connection *connection, uint8_t first_byte) {
    const struct kv_guest *guest = &connection->engine->guest;
    bool is_guests = first_byte == guest->first_byte || (first_byte != 0 && first_byte == guest->other_first_byte);
    return connection->seat || (guest->serve && is_guests);
}

/* Its first bytes have come. False when it had to be dropped. */
static bool seat(struct kv_connection *connection) {
    struct kv_seat *made = calloc(1, sizeof *made);
    socklen_t len = sizeof made->peer;
    if (!made) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for its state");
        kv_connection_drop(connection);
        return false;
    }
    if (getpeername(connection->fd, (struct sockaddr *)&made->peer, &len) < 0) { /* gone before it was looked at */
        free(made);
        kv_connection_kill(connection);
        return false;
    }
    connection->seat = made;
    return kv_connection_make_stranger(connection);
}

size_t kv_guest_serve(struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    const struct kv_guest *guest = &connection->engine->guest;
    if (!connection->seat && !seat(connection)) {
        return 0;
    }
    size_t used = guest->serve(guest->ctx, connection, bytes, len);
    if (used == SIZE_MAX) {
        kv_connection_flush(connection); /* it may have been told why */
        kv_connection_drop(connection);
        return 0;
    }
    assert(used <= len);
    if (used == 0 && len >= guest->input_max) {
        (void)status_fail(MUSTER_EPROTOCOL, "a message of more than %zu bytes", guest->input_max);
        kv_connection_drop(connection);
    }
    return used;
}

void kv_guest_send(struct kv_connection *connection, const void *bytes, size_t len) {
    struct kv_engine *engine = connection->engine;
    if (connection->is_dead || connection->is_at_end) {
        return;
    }
    size_t owed = kv_output_len(&connection->out);
    if (connection == engine->current && owed + len > KV_OUTPUT_PAUSE_BYTES) {
        kv_connection_flush(connection);
        owed = kv_output_len(&connection->out);
    }
    if (len > KV_GUEST_OUTPUT_BYTES_MAX - owed) {
        (void)status_fail(MUSTER_ELIMIT, "it does not read: %zu bytes wait for it", owed);
        kv_connection_drop(connection);
        return;
    }
    kv_connection_deliver(engine, &connection->session, kv_slice_of(bytes, len), NULL);
}

void kv_guest_end(struct kv_connection *connection) {
    if (!connection->is_dead && !connection->is_at_end) {
        kv_connection_end(connection);
    }
}

void kv_guest_drop(struct kv_connection *connection) {
    kv_connection_drop(connection);
}

bool kv_guest_is_over(const struct kv_connection *connection) {
    return connection->is_dead || connection->is_at_end;
}

void kv_guest_warn(const struct kv_connection *connection) {
    char text[NET_ADDRESS_TEXT_MAX];
    (void)net_address_format((const struct sockaddr *)&connection->seat->peer, text);
    kv_engine_warn(connection->engine, "connection from %s: %s", text, muster_detail());
}

void kv_guest_settle(struct kv_connection *connection) {
    kv_connection_settle(connection);
}

int kv_guest_admit(struct kv_connection *connection, bool lasting) {
    if (connection->is_admitting) {
        return MUSTER_OK;
    }
    int rc = kv_admission_add(&connection->engine->admission, &connection->address);
    connection->is_admitting = rc == MUSTER_OK && !lasting;
    return rc;
}

void kv_guest_set(struct kv_connection *connection, void *data) {
    connection->seat->data = data;
}

void *kv_guest_data(const struct kv_connection *connection) {
    return connection->seat->data;
}

bool kv_guest_peer_has_ended(const struct kv_connection *connection) {
    return connection->peer_has_ended;
}

bool kv_guest_peer_has_reset(const struct kv_connection *connection) {
    return connection->peer_has_reset;
}

int64_t kv_guest_quiet_ms(const struct kv_connection *connection) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    return getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 ? (int64_t)info.tcpi_last_data_recv : -1;
}

void kv_guest_peer(const struct kv_connection *connection, struct sockaddr_storage *out) {
    *out = connection->seat->peer;
}
