/* Looking for the workers' store of earlier rounds; see master_search.h. For each round CHECK, GET, GET, and a look at
 * the store itself; then the round before. */
#include "rendezvous/torch/master_search.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

/* A store that nobody has named for this long has been outlived by its rounds. */
enum { ROUNDS_MAX = 256, KEY_MAX = 512 };

struct master_search {
    struct master_search_options options;
    char key[KEY_MAX];
    char own_addr[NET_HOST_MAX];
    int64_t round; /* looked at now */
    struct master_found found;
    struct store_sweep *sweep;
    uv_timer_t timer; /* answers from the loop when there is no round to look at */
    master_search_cb *cb;
    void *ctx;
};

static void finish(struct master_search *s, int status) {
    s->cb(s->ctx, status, &s->found);
}

static void key_of(const struct master_search *s, char out[KEY_MAX + 64], const char *name) {
    (void)str_format(out, KEY_MAX + 64, "%s.%lld/%s", s->key, (long long)s->round, name);
}

static void look_before(struct master_search *s);

/* ---- the store itself ---- */

static void on_swept(void *ctx, int status, bool is_muster) {
    struct master_search *s = ctx;
    store_sweep_close(s->sweep);
    s->sweep = NULL;
    if (status == MUSTER_OK && (!is_muster || s->options.accept_muster)) {
        finish(s, MUSTER_OK);
    } else {
        look_before(s);
    }
}

static void visit(struct master_search *s) {
    if (s->options.own_port != 0 && s->found.port == s->options.own_port && strcmp(s->found.addr, s->own_addr) == 0) {
        finish(s, MUSTER_OK);
        return;
    }
    int rc = store_sweep_start(s->options.loop, s->found.addr, s->found.port, on_swept, s, &s->sweep);
    if (rc != MUSTER_OK) {
        finish(s, rc);
    }
}

/* ---- what the round was told ---- */

/* False for what is no text of at most size - 1 bytes. */
static bool copy_value(const struct kv_reply *reply, char *out, size_t size) {
    const struct kv_slice *value = &reply->values[0];
    if (reply->status != MUSTER_OK || value->len == 0 || value->len >= size || memchr(value->data, '\0', value->len)) {
        return false;
    }
    memcpy(out, value->data, value->len);
    out[value->len] = '\0';
    return true;
}

static void on_port(void *ctx, const struct kv_reply *reply) {
    struct master_search *s = ctx;
    char text[8];
    int64_t port = 0;
    if (reply->status == MUSTER_ECONNECT) {
        finish(s, reply->status);
    } else if (copy_value(reply, text, sizeof text) && str_parse_i64(text, &port) && port > 0 && port <= UINT16_MAX) {
        s->found.port = (uint16_t)port;
        visit(s);
    } else {
        look_before(s);
    }
}

static void get(struct master_search *s, const char *name, kv_reply_cb *cb) {
    char key[KEY_MAX + 64];
    key_of(s, key, name);
    int rc = kv_client_get(s->options.waiter, key, false, 0, cb, s);
    if (rc != MUSTER_OK) {
        finish(s, rc);
    }
}

static void on_node(void *ctx, const struct kv_reply *reply) {
    struct master_search *s = ctx;
    if (reply->status == MUSTER_ECONNECT) {
        finish(s, reply->status);
    } else if (copy_value(reply, s->found.node, sizeof s->found.node) &&
               s->options.accept_host(s->ctx, s->found.node)) {
        get(s, "MASTER_PORT", on_port);
    } else {
        look_before(s);
    }
}

static void on_node_present(void *ctx, const struct kv_reply *reply) {
    struct master_search *s = ctx;
    if (reply->status == MUSTER_ECONNECT) {
        finish(s, reply->status);
    } else if (reply->status == MUSTER_OK && reply->number != 0) {
        get(s, "MASTER_NODE", on_node);
    } else {
        look_before(s);
    }
}

static void on_addr(void *ctx, const struct kv_reply *reply) {
    struct master_search *s = ctx;
    char key[KEY_MAX + 64];
    if (reply->status == MUSTER_ECONNECT) {
        finish(s, reply->status);
        return;
    }
    if (!copy_value(reply, s->found.addr, sizeof s->found.addr)) {
        look_before(s);
        return;
    }
    if (s->options.accept_host(s->ctx, s->found.addr)) {
        (void)str_copy(s->found.node, sizeof s->found.node, s->found.addr);
        get(s, "MASTER_PORT", on_port);
        return;
    }
    key_of(s, key, "MASTER_NODE");
    const char *const keys[] = {key};
    int rc = kv_client_check(s->options.waiter, (const char *const *)keys, 1, on_node_present, s);
    if (rc != MUSTER_OK) {
        finish(s, rc);
    }
}

static void on_present(void *ctx, const struct kv_reply *reply) {
    struct master_search *s = ctx;
    if (reply->status != MUSTER_OK) {
        finish(s, reply->status);
        return;
    }
    if (reply->number == 0) {
        look_before(s);
        return;
    }
    get(s, "MASTER_ADDR", on_addr);
}

static int look(struct master_search *s) {
    char addr_key[KEY_MAX + 64];
    char port_key[KEY_MAX + 64];
    key_of(s, addr_key, "MASTER_ADDR");
    key_of(s, port_key, "MASTER_PORT");
    const char *keys[] = {addr_key, port_key};
    return kv_client_check(s->options.waiter, keys, 2, on_present, s);
}

static void on_nothing(uv_timer_t *timer) {
    finish(timer->data, status_fail(MUSTER_ENOENT, "no earlier round names a workers' store that is still there"));
}

static void look_before(struct master_search *s) {
    if (s->round == 0 || s->round + ROUNDS_MAX == s->options.round) {
        (void)uv_timer_start(&s->timer, on_nothing, 0, 0);
        return;
    }
    s->round--;
    int rc = look(s);
    if (rc != MUSTER_OK) {
        finish(s, rc);
    }
}

/* ---- lifetime ---- */

static void on_timer_closed(uv_handle_t *handle) {
    free(handle->data);
}

int master_search_start(const struct master_search_options *options, master_search_cb *cb, void *ctx,
                        struct master_search **out) {
    struct master_search *s = calloc(1, sizeof *s);
    if (!s) {
        return status_fail(MUSTER_ENOMEM, "no memory to look for the workers' store");
    }
    (void)uv_timer_init(options->loop, &s->timer);
    s->timer.data = s;
    s->options = *options;
    s->round = options->round;
    s->cb = cb;
    s->ctx = ctx;
    int rc =
        str_copy(s->key, sizeof s->key, options->key) && str_copy(s->own_addr, sizeof s->own_addr, options->own_addr)
            ? MUSTER_OK
            : status_fail(MUSTER_EINVAL, "the run id or an address is too long");
    if (rc == MUSTER_OK && s->round > 0) {
        s->round--;
        rc = look(s);
    } else if (rc == MUSTER_OK) {
        look_before(s);
    }
    if (rc != MUSTER_OK) {
        master_search_close(s);
        return rc;
    }
    *out = s;
    return MUSTER_OK;
}

void master_search_close(struct master_search *search) {
    if (search) {
        store_sweep_close(search->sweep);
        uv_close((uv_handle_t *)&search->timer, on_timer_closed);
    }
}
