/* The exchange after a round; see exchange.h. A chain of requests, each started by the answer to the one before:
 *
 *   rank 0: SET MASTER_*                   others: WAIT role_info/0, CHECK and GET MASTER_*
 *   all:    SET role_info/<rank>
 *   rank 0: MULTI_GET role_info/0.. (wait), MULTI_SET assigned_ranks/0..
 *   all:    GET assigned_ranks/<rank> (wait) */
#include "rendezvous/round/exchange.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/round/role_table.h"

#define KEY_MAX 1024

struct exchange {
    struct exchange_options options;
    char prefix[KEY_MAX / 2];
    char role[ROLE_NAME_MAX];
    struct exchange_result result;
    exchange_cb *cb;
    void *ctx;
};

static void finish(struct exchange *e, int status) {
    e->cb(e->ctx, status, &e->result);
}

static void key_of(const struct exchange *e, char key[KEY_MAX], const char *name) {
    (void)str_format(key, KEY_MAX, "%s%s", e->prefix, name);
}

static void numbered_key(const struct exchange *e, char key[KEY_MAX], const char *name, uint32_t number) {
    (void)str_format(key, KEY_MAX, "%storchelastic/%s/%u", e->prefix, name, number);
}

/* `count` keys of one family in one allocation: an array of pointers followed by the texts. NULL without memory. */
static const char **numbered_keys(const struct exchange *e, const char *name) {
    uint32_t count = e->options.node_count;
    size_t room = strlen(e->prefix) + strlen(name) + 32;
    char **keys = malloc(count * (sizeof *keys + room));
    char *text = (char *)(keys + count);
    for (uint32_t i = 0; keys && i < count; i++, text += room) {
        keys[i] = text;
        (void)str_format(text, room, "%storchelastic/%s/%u", e->prefix, name, i);
    }
    return (const char **)keys;
}

/* ---- ranks ---- */

static void on_assigned(void *ctx, const struct kv_reply *reply) {
    struct exchange *e = ctx;
    struct assigned_ranks ranks;
    int rc = reply->status;
    if (rc == MUSTER_OK) {
        rc = assigned_ranks_read((const char *)reply->values[0].data, reply->values[0].len, &ranks);
    }
    if (rc == MUSTER_OK) {
        e->result.base_global_rank = ranks.base_global_rank;
        e->result.global_world_size = ranks.global_world_size;
        e->result.base_role_rank = ranks.base_role_rank;
        e->result.role_world_size = ranks.role_world_size;
    }
    finish(e, rc);
}

static int await_assigned(struct exchange *e) {
    char key[KEY_MAX];
    numbered_key(e, key, "assigned_ranks", e->options.rank);
    return kv_client_get(e->options.waiter, key, true, e->options.timeout_ms, on_assigned, e);
}

static int publish_ranks(struct exchange *e, const struct assigned_ranks *ranks) {
    uint32_t count = e->options.node_count;
    struct kv_slice *values = calloc(count, sizeof *values);
    const char **keys = numbered_keys(e, "assigned_ranks");
    int rc = values && keys ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for the ranks of %u nodes", count);
    for (uint32_t i = 0; rc == MUSTER_OK && i < count; i++) {
        char *text = assigned_ranks_write(&ranks[i]);
        if (!text) {
            rc = status_fail(MUSTER_ENOMEM, "no memory for the ranks of %u nodes", count);
            break;
        }
        values[i] = kv_slice_text(text);
    }
    if (rc == MUSTER_OK) {
        rc = kv_client_multi_set(e->options.client, keys, values, count, NULL, NULL);
    }
    for (uint32_t i = 0; values && i < count; i++) {
        free((void *)(uintptr_t)values[i].data);
    }
    free(values);
    free(keys);
    return rc;
}

static int assign(struct exchange *e, const struct kv_reply *reply) {
    size_t count = e->options.node_count;
    struct role_info *infos = calloc(count, sizeof *infos);
    struct assigned_ranks *ranks = calloc(count, sizeof *ranks);
    int rc = infos && ranks && reply->value_count == count
                 ? MUSTER_OK
                 : status_fail(MUSTER_ENOMEM, "no memory for the roles of %zu nodes", count);
    for (size_t i = 0; rc == MUSTER_OK && i < count; i++) {
        rc = role_info_read((const char *)reply->values[i].data, reply->values[i].len, &infos[i]);
    }
    if (rc == MUSTER_OK) {
        rc = role_table_assign(infos, count, ranks);
    }
    if (rc == MUSTER_OK) {
        rc = publish_ranks(e, ranks);
    }
    free(infos);
    free(ranks);
    return rc;
}

static void on_roles(void *ctx, const struct kv_reply *reply) {
    struct exchange *e = ctx;
    int rc = reply->status;
    if (rc == MUSTER_OK) {
        rc = assign(e, reply);
    }
    if (rc == MUSTER_OK) {
        rc = await_assigned(e);
    }
    if (rc != MUSTER_OK) {
        finish(e, rc);
    }
}

static int tell_role(struct exchange *e) {
    char key[KEY_MAX];
    struct role_info own = {.local_world_size = e->options.local_world_size};
    (void)str_copy(own.role, sizeof own.role, e->role);
    char *text = role_info_write(&own, e->options.rank);
    if (!text) {
        return status_fail(MUSTER_ENOMEM, "no memory, or the role '%s' is no UTF-8 text", e->role);
    }
    numbered_key(e, key, "role_info", e->options.rank);
    int rc = kv_client_set(e->options.client, key, kv_slice_text(text), NULL, NULL);
    free(text);
    if (rc != MUSTER_OK || e->options.rank != 0) {
        return rc != MUSTER_OK ? rc : await_assigned(e);
    }
    const char **keys = numbered_keys(e, "role_info");
    if (!keys) {
        return status_fail(MUSTER_ENOMEM, "no memory for the roles of %u nodes", e->options.node_count);
    }
    rc = kv_client_multi_get(e->options.waiter, keys, e->options.node_count, e->options.timeout_ms, on_roles, e);
    free(keys);
    return rc;
}

/* ---- the workers' store ---- */

static int read_port(const struct kv_slice *value, uint16_t *out) {
    char text[8] = "";
    int64_t port = 0;
    if (value->len >= sizeof text) {
        return status_fail(MUSTER_ECORRUPT, "MASTER_PORT is no port");
    }
    memcpy(text, value->data, value->len);
    if (!str_parse_i64(text, &port) || port < 0 || port > UINT16_MAX) {
        return status_fail(MUSTER_ECORRUPT, "MASTER_PORT '%s' is no port", text);
    }
    *out = (uint16_t)port;
    return MUSTER_OK;
}

static int read_address(struct exchange *e, const struct kv_reply *reply) {
    const struct kv_slice *host = &reply->values[0];
    if (reply->value_count != 2 || host->len == 0 || host->len >= sizeof e->result.master_addr ||
        memchr(host->data, '\0', host->len)) {
        return status_fail(MUSTER_ECORRUPT, "MASTER_ADDR is no host");
    }
    memcpy(e->result.master_addr, host->data, host->len);
    e->result.master_addr[host->len] = '\0';
    return read_port(&reply->values[1], &e->result.master_port);
}

/* Every node starts alike: the ranks follow from the group rank. Asking for the own key makes the answer come from the
 * loop. */
static void on_identical(void *ctx, const struct kv_reply *reply) {
    struct exchange *e = ctx;
    uint64_t world = (uint64_t)e->options.node_count * e->options.local_world_size;
    if (reply->status == MUSTER_OK && world <= INT32_MAX) {
        e->result.base_global_rank = e->result.base_role_rank = e->options.rank * e->options.local_world_size;
        e->result.global_world_size = e->result.role_world_size = (uint32_t)world;
    }
    finish(e, world <= INT32_MAX ? reply->status : status_fail(MUSTER_ELIMIT, "a world of more than 2^31 workers"));
}

static int after_address(struct exchange *e) {
    if (!e->options.identical) {
        return tell_role(e);
    }
    const char *none = e->prefix; /* any key will do */
    return kv_client_check(e->options.waiter, &none, 1, on_identical, e);
}

static int no_address(void) {
    return status_fail(MUSTER_ENOENT, "rank 0 does not say where the workers' store is");
}

static void on_address(void *ctx, const struct kv_reply *reply) {
    struct exchange *e = ctx;
    int rc = reply->status == MUSTER_ETIMEOUT && e->options.identical ? no_address() : reply->status;
    if (rc == MUSTER_OK) {
        rc = read_address(e, reply);
    }
    if (rc == MUSTER_OK) {
        rc = after_address(e);
    }
    if (rc != MUSTER_OK) {
        finish(e, rc);
    }
}

static int tell_address(struct exchange *e) {
    char key[KEY_MAX];
    char port[8];
    key_of(e, key, "MASTER_ADDR");
    int rc = kv_client_set(e->options.client, key, kv_slice_text(e->result.master_addr), NULL, NULL);
    key_of(e, key, "MASTER_PORT");
    (void)str_format(port, sizeof port, "%u", (unsigned)e->result.master_port);
    return rc == MUSTER_OK ? kv_client_set(e->options.client, key, kv_slice_text(port), NULL, NULL) : rc;
}

struct address_keys {
    char host[KEY_MAX];
    char port[KEY_MAX];
    const char *both[2];
};

static void address_keys(const struct exchange *e, struct address_keys *out) {
    key_of(e, out->host, "MASTER_ADDR");
    key_of(e, out->port, "MASTER_PORT");
    out->both[0] = out->host;
    out->both[1] = out->port;
}

static int get_address(struct exchange *e, uint64_t timeout_ms) {
    struct address_keys keys;
    address_keys(e, &keys);
    return kv_client_multi_get(e->options.waiter, keys.both, 2, timeout_ms, on_address, e);
}

static void on_address_present(void *ctx, const struct kv_reply *reply) {
    struct exchange *e = ctx;
    int rc = reply->status;
    if (rc == MUSTER_OK) {
        rc = reply->number != 0 ? get_address(e, e->options.timeout_ms) : no_address();
    }
    if (rc != MUSTER_OK) {
        finish(e, rc);
    }
}

static void on_rank_0_here(void *ctx, const struct kv_reply *reply) {
    struct exchange *e = ctx;
    struct address_keys keys;
    address_keys(e, &keys);
    int rc = reply->status;
    if (rc == MUSTER_OK) {
        rc = kv_client_check(e->options.waiter, keys.both, 2, on_address_present, e);
    }
    if (rc != MUSTER_OK) {
        finish(e, rc);
    }
}

/* Every agent tells the address, if it does, before its role: once the role is there, an absent address stays absent.
 */
static int learn_address(struct exchange *e) {
    char key[KEY_MAX];
    if (e->options.identical) {
        return get_address(e, e->options.address_timeout_ms);
    }
    numbered_key(e, key, "role_info", 0);
    const char *keys[] = {key};
    return kv_client_wait(e->options.waiter, keys, 1, e->options.timeout_ms, on_rank_0_here, e);
}

static int begin(struct exchange *e) {
    if (!e->options.address_known) {
        return learn_address(e);
    }
    int rc = e->options.publish_address ? tell_address(e) : MUSTER_OK;
    return rc == MUSTER_OK ? after_address(e) : rc;
}

int exchange_start(const struct exchange_options *options, exchange_cb *cb, void *ctx, struct exchange **out) {
    struct exchange *e = calloc(1, sizeof *e);
    if (!e) {
        return status_fail(MUSTER_ENOMEM, "no memory for the exchange after a round");
    }
    *e = (struct exchange){.options = *options, .cb = cb, .ctx = ctx};
    bool fits =
        str_copy(e->prefix, sizeof e->prefix, options->prefix) && str_copy(e->role, sizeof e->role, options->role);
    if (options->address_known) {
        fits = fits && str_copy(e->result.master_addr, sizeof e->result.master_addr, options->master_addr);
        e->result.master_port = options->master_port;
    }
    int rc = fits ? begin(e) : status_fail(MUSTER_EINVAL, "the run id, the role or an address is too long");
    if (rc != MUSTER_OK) {
        free(e);
        return rc;
    }
    *out = e;
    return MUSTER_OK;
}

void exchange_close(struct exchange *exchange) {
    free(exchange);
}
