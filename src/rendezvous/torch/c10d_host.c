/* On the host of the store: a node whose connection has ended is removed from the shared state at once, so that the
 * others need not wait for its heartbeat to expire. Works for PyTorch's agents too. */
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/torch/c10d_impl.h"
#include "rendezvous/torch/pickle.h"

#include <muster/status.h>

/* On the wire every key begins with a slash. */
static bool is_state_key(const struct c10d *c, struct kv_slice key) {
    size_t len = strlen(c->key);
    return key.len == len + 1 && key.data[0] == '/' && memcmp(key.data + 1, c->key, len) == 0;
}

void c10d_host_changed(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                       struct kv_slice new_value) {
    struct c10d *c = ctx;
    rdzv_store_heard(c->rdzv, connection, key, new_value);
    if (connection != 0 && c->link) {
        c10d_introduce_heard(c, c10d_store_server(c), key, new_value);
    }
    if (connection == 0 || !is_state_key(c, key) || liveness_knows(&c->liveness, connection)) {
        return;
    }
    struct rdzv_state before;
    struct rdzv_state after;
    rdzv_state_init(&before);
    rdzv_state_init(&after);
    /* What cannot be read tells nothing; whoever adopts it will say so. */
    if (c10d_read_state(old_value, &before) == MUSTER_OK && c10d_read_state(new_value, &after) == MUSTER_OK) {
        (void)liveness_wrote(&c->liveness, connection, &before, &after);
    }
    rdzv_state_done(&before);
    rdzv_state_done(&after);
}

static int remove_dead(struct c10d *c, struct kv_slice key, const struct rdzv_node *node) {
    struct kv_slice value;
    struct kv_server *server = c10d_store_server(c);
    if (!kv_server_get(server, key, &value)) {
        return MUSTER_OK;
    }
    struct rdzv_state state;
    struct buf text;
    rdzv_state_init(&state);
    buf_init(&text, PICKLE_BYTES_MAX);
    int rc = c10d_read_state(value, &state);
    /* A job that has ended well needs no graves: its nodes go one after another. Where it was closed before, those that
     * work must hear which nodes have gone; where survivors go on they wait at the end for all that have not gone. */
    bool is_needed = !(state.closed && c->barrier_passed) || c->rdzv->options.survivors_continue;
    if (rc == MUSTER_OK && is_needed && rdzv_state_remove_dead(&state, node, c->rdzv->options.min_nodes)) {
        char name[RDZV_NODE_TEXT_MAX];
        log_info("the connection of node %s has ended: it is taken out of the rendezvous",
                 rdzv_node_format(node, name));
        rc = pickle_write_text(&state, &text);
        if (rc == MUSTER_OK) {
            rc = kv_server_set(server, key, kv_slice_of(buf_bytes(&text), text.len));
        }
    }
    buf_done(&text);
    rdzv_state_done(&state);
    return rc;
}

void c10d_host_disconnected(void *ctx, uint64_t connection, enum kv_end end) {
    struct c10d *c = ctx;
    struct rdzv_node node;
    if (!liveness_ended(&c->liveness, connection, &node)) {
        return;
    }
    char key[C10D_KEY_MAX + 1];
    (void)str_format(key, sizeof key, "/%s", c->key);
    /* Where nobody has said that it has ended its heartbeats tell. When it comes back they make it known again. */
    if (end != KV_END_SILENT && remove_dead(c, kv_slice_text(key), &node) != MUSTER_OK) {
        char name[RDZV_NODE_TEXT_MAX];
        log_warning("node %s has gone, but cannot be taken out of the rendezvous: %s", rdzv_node_format(&node, name),
                    muster_detail());
    }
    if (c->end.serves_on && c->in_barrier && !c10d_end_is_needed(c)) {
        c10d_round_barrier_over(c, false);
    }
    uv_timer_t *linger = rdzv_timer(c->rdzv, RDZV_TIMER_LINGER);
    if (uv_is_active((uv_handle_t *)linger) && c->has_machine &&
        liveness_count_others(&c->liveness, &c->machine.self) == 0) {
        (void)uv_timer_stop(linger);
        rdzv_tell_shutdown_done(c->rdzv);
    }
}
