/* Who is ours, and the numbers of our protocols (base/formats/protocol.h): each of our agents tells its number in a
 * key, and then introduces itself with another one, before it is in the state that it shares with PyTorch's. The host
 * of a store hears such keys. Where no agent hosts it (a file, an etcd), each reads those of the nodes that it sees in
 * the state. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "rendezvous/torch/c10d_impl.h"

#include <muster/status.h>

static void protocol_key(const struct c10d *c, const char *node, char out[C10D_INTRODUCTION_MAX]) {
    (void)str_format(out, C10D_INTRODUCTION_MAX, "%s.protocol/%s", c->key, node);
}

void c10d_introduction(const struct c10d *c, const struct rdzv_node *node, char out[C10D_INTRODUCTION_MAX]) {
    char text[RDZV_NODE_TEXT_MAX];
    (void)str_format(out, C10D_INTRODUCTION_MAX, "%s.muster/%s", c->key, rdzv_node_format(node, text));
}

bool c10d_introduction_is_at_work(struct kv_slice value) {
    return kv_slice_equal(value, kv_slice_text("1"));
}

int c10d_introduce(struct c10d *c) {
    char key[C10D_INTRODUCTION_MAX], node[RDZV_NODE_TEXT_MAX];
    protocol_key(c, rdzv_node_format(&c->machine.self, node), key);
    int rc = kv_client_set(c->client, key, kv_slice_text(c->rdzv->visitors.self.protocol), NULL, NULL);
    c10d_introduction(c, &c->machine.self, key);
    return rc ? rc : kv_client_set(c->client, key, kv_slice_text("1"), NULL, NULL);
}

/* ---- a store here ---- */

void c10d_introduce_heard(struct c10d *c, const struct kv_server *store, struct kv_slice key, struct kv_slice value) {
    char introduction[C10D_INTRODUCTION_MAX], protocol[C10D_INTRODUCTION_MAX + 1], node[RDZV_NODE_TEXT_MAX];
    struct kv_slice number;
    (void)str_format(introduction, sizeof introduction, "/%s.muster/", c->key);
    size_t skipped = strlen(introduction);
    if (!c10d_introduction_is_at_work(value) || key.len <= skipped || key.len - skipped >= sizeof node ||
        memcmp(key.data, introduction, skipped) != 0) {
        return;
    }
    memcpy(node, key.data + skipped, key.len - skipped);
    node[key.len - skipped] = '\0';
    protocol[0] = '/';
    protocol_key(c, node, protocol + 1);
    if (!kv_server_get(store, kv_slice_text(protocol), &number)) {
        rdzv_agent_speaks(c->rdzv, node, kv_slice_text("0"));
    }
}

/* ---- a file, or an etcd ---- */

static void ask(struct c10d *c);

static void answered(struct c10d *c, struct kv_slice number) {
    struct c10d_protocol *p = &c->protocol;
    char node[RDZV_NODE_TEXT_MAX];
    p->is_asking = false;
    if (number.len > 0) {
        rdzv_agent_speaks(c->rdzv, rdzv_node_format(&p->nodes[p->asked], node), number);
    }
    p->asked++;
    ask(c);
}

static void on_introduction(void *ctx, const struct kv_reply *reply) {
    bool is_old = reply->status == MUSTER_OK && c10d_introduction_is_at_work(reply->values[0]);
    answered(ctx, kv_slice_text(is_old ? "0" : ""));
}

static void on_number(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    char key[C10D_INTRODUCTION_MAX];
    if (reply->status == MUSTER_OK && reply->values[0].len > 0) {
        answered(c, reply->values[0]);
        return;
    }
    c10d_introduction(c, &c->protocol.nodes[c->protocol.asked], key);
    if (reply->status != MUSTER_OK || kv_client_find(c->client, key, on_introduction, c) != MUSTER_OK) {
        answered(c, kv_slice_text(""));
    }
}

static void ask(struct c10d *c) {
    struct c10d_protocol *p = &c->protocol;
    char key[C10D_INTRODUCTION_MAX], node[RDZV_NODE_TEXT_MAX];
    if (!p->is_asking && p->asked < p->count && c->client) {
        protocol_key(c, rdzv_node_format(&p->nodes[p->asked], node), key);
        p->is_asking = kv_client_find(c->client, key, on_number, c) == MUSTER_OK;
    }
}

static bool is_known(const struct c10d_protocol *p, const struct rdzv_node *node) {
    for (size_t i = 0; i < p->count; i++) {
        if (rdzv_node_compare(&p->nodes[i], node) == 0) {
            return true;
        }
    }
    return false;
}

void c10d_introduce_look(struct c10d *c) {
    struct c10d_protocol *p = &c->protocol;
    const struct rdzv_state *state = &c->machine.state;
    if (c->link) {
        return;
    }
    if (!p->nodes && !(p->nodes = calloc(C10D_PROTOCOL_NODES_MAX, sizeof *p->nodes))) {
        return; /* nothing hangs on it but a sentence */
    }
    for (size_t i = 0; i < state->member_count && p->count < C10D_PROTOCOL_NODES_MAX; i++) {
        const struct rdzv_node *node = &state->members[i].node;
        if (rdzv_node_compare(node, &c->machine.self) != 0 && !is_known(p, node)) {
            p->nodes[p->count++] = *node;
        }
    }
    ask(c);
}
