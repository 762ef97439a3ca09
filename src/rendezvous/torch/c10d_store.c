/* The store that holds the rendezvous' state: a server that this node hosts or reaches (store_link.h), with
 * store_type=file a file that all nodes share, or an etcd with the keys of PyTorch's etcd-v2 backend. Of a file nobody
 * hears: its state is read once a second; an etcd tells of changes. With both, a node that vanishes is noticed by its
 * silence, as among PyTorch's agents. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd/etcd_link.h"
#include "rendezvous/round/worker_store.h"
#include "rendezvous/torch/c10d_impl.h"

#include <muster/status.h>

/* ---- a server ---- */

static void on_link_ready(void *ctx) {
    struct c10d *c = ctx;
    c->client = store_link_client(c->link);
    c10d_begin(c);
}

static void on_link_failed(void *ctx, int status) {
    struct c10d *c = ctx;
    c->client = NULL;
    failures_lost(&c->rdzv->failures);
    c10d_fail(c, status);
}

static int open_link(struct c10d *c) {
    const struct rdzv_options *o = &c->rdzv->options;
    struct net_endpoint endpoint = {.host = "localhost", .port = 0};
    int rc = o->standalone ? MUSTER_OK : net_endpoint_parse(o->endpoint ? o->endpoint : "", &endpoint);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct store_link_options link = {
        .visitors = o->standalone ? NULL : &c->rdzv->visitors,
        .guest = &c->rdzv->guest,
        .clock = &c->rdzv->clock,
        .host = endpoint.host,
        .port = endpoint.port < 0 ? RDZV_DEFAULT_PORT : (uint16_t)endpoint.port,
        .is_host = o->standalone ? 1 : o->conf.is_host,
        .is_default = !o->endpoint || o->endpoint[0] == '\0',
        .others_come = !o->standalone && o->max_nodes > 1,
        .timeout_ms = o->conf.read_timeout_ms,
        .connect_ms =
            o->conf.join_timeout_ms < o->conf.read_timeout_ms ? o->conf.join_timeout_ms : o->conf.read_timeout_ms,
        .silence_ms = o->conf.silence_timeout_ms,
        .on_change = c10d_host_changed,
        .on_disconnect = c10d_host_disconnected,
        .on_ready = on_link_ready,
        .on_failed = on_link_failed,
        .ctx = c,
    };
    return store_link_create(c->rdzv->loop, &link, &c->link);
}

/* ---- a file ---- */

static void on_file_state(void *ctx, int status) {
    struct c10d *c = ctx;
    if (status == MUSTER_OK) {
        c10d_begin(c);
    } else {
        c10d_fail(c, status_prefix(status, "the rendezvous file cannot be used"));
    }
}

/* Whoever answers is judged by this node's clock. */
static int with_clock(struct c10d *c, int rc, struct kv_client **out) {
    if (rc == MUSTER_OK) {
        kv_client_set_clock(*out, &c->rdzv->clock);
    }
    return rc;
}

static int connect_file(struct c10d *c, kv_client_state_cb *on_state, struct kv_client **out) {
    return with_clock(
        c, kv_client_create_file(c->rdzv->loop, c->file_path, c->rdzv->options.conf.read_timeout_ms, on_state, c, out),
        out);
}

/* As PyTorch's agents do when no endpoint is given. */
static int make_file(struct c10d *c) {
    const char *folder = getenv("TMPDIR");
    c->file_path = str_format_new("%s/muster_rendezvous_XXXXXX", folder && folder[0] ? folder : "/tmp");
    if (!c->file_path) {
        return status_fail(MUSTER_ENOMEM, "no memory for a path");
    }
    int fd = mkostemp(c->file_path, O_CLOEXEC);
    if (fd < 0) {
        return status_fail_errno(errno, "the rendezvous file %s cannot be made", c->file_path);
    }
    (void)close(fd);
    c->file_is_ours = true;
    if (c->rdzv->options.max_nodes > 1) {
        log_warning(
            "--rdzv-endpoint is not given: no other node knows of this job's rendezvous file, %s. Give all nodes "
            "--rdzv-endpoint=PATH of one that they share",
            c->file_path);
    } else {
        log_info("the rendezvous file is %s", c->file_path);
    }
    return MUSTER_OK;
}

static int open_file(struct c10d *c) {
    const struct rdzv_options *o = &c->rdzv->options;
    int rc = MUSTER_OK;
    if (!o->endpoint || o->endpoint[0] == '\0') {
        rc = make_file(c);
    } else {
        c->file_path = strdup(o->endpoint);
        rc = c->file_path ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a path");
    }
    return rc == MUSTER_OK ? connect_file(c, on_file_state, &c->client) : rc;
}

/* ---- an etcd ---- */

/* PyTorch's: what is not written for two hours has been forgotten by its job. */
enum { ETCD_STATE_TTL_S = 7200, ETCD_PATH_MAX = RDZV_RUN_ID_MAX + 64 };

static void on_etcd_state(void *ctx, int status) {
    struct c10d *c = ctx;
    if (status == MUSTER_OK) {
        c10d_begin(c);
    } else {
        c10d_fail(c, status_prefix(status, "the rendezvous '%s' in etcd", c->rdzv->options.run_id));
    }
}

static int connect_etcd(struct c10d *c, kv_client_state_cb *on_state, struct kv_client **out) {
    char path[ETCD_PATH_MAX];
    (void)str_format(path, sizeof path, "/torch/elastic/rendezvous/%s", c->rdzv->options.run_id);
    struct kv_client_etcd_options options = {.etcd = c->etcd,
                                             .folder = "/torch/elastic/store/",
                                             .state_key = c->key,
                                             .state_path = path,
                                             .state_ttl_s = ETCD_STATE_TTL_S};
    return with_clock(c, kv_client_create_etcd(c->rdzv->loop, &options, on_state, c, out), out);
}

static int open_etcd(struct c10d *c) {
    int rc = etcd_link_open(c->rdzv, &c->etcd);
    return rc == MUSTER_OK ? connect_etcd(c, on_etcd_state, &c->client) : rc;
}

/* ---- any ---- */

int c10d_store_open(struct c10d *c) {
    const struct rdzv_options *o = &c->rdzv->options;
    if (o->backend == RDZV_BACKEND_ETCD_V2) {
        return open_etcd(c);
    }
    return o->conf.store_is_file && !o->standalone ? open_file(c) : open_link(c);
}

void c10d_store_close(struct c10d *c) {
    if (c->link) {
        store_link_close(c->link);
    } else {
        kv_client_close(c->client);
    }
    etcd_v2_close(c->etcd);
    if (c->file_is_ours) {
        (void)unlink(c->file_path);
    }
    free(c->file_path);
}

int c10d_store_connect(struct c10d *c, kv_client_state_cb *on_state, struct kv_client **out) {
    if (c->link) {
        int rc = store_link_connect(c->link, on_state, c, out);
        if (rc == MUSTER_OK) {
            kv_client_set_resumes(*out, true);
        }
        return rc;
    }
    if (c->etcd) {
        return connect_etcd(c, on_state, out);
    }
    return connect_file(c, on_state, out);
}

struct kv_server *c10d_store_server(const struct c10d *c) {
    return c->link ? store_link_server(c->link) : NULL;
}

bool c10d_store_is_loopback(const struct c10d *c) {
    return c->link && store_link_is_loopback(c->link);
}

void c10d_store_own_address(const struct c10d *c, char out[RDZV_ADDR_MAX]) {
    struct sockaddr_storage local;
    char text[NET_ADDRESS_TEXT_MAX];
    if (c->etcd) {
        bool tells = etcd_v2_local_address(c->etcd, text);
        etcd_link_own_address(tells ? text : "", &c->rdzv->options, out);
        return;
    }
    bool tells = kv_client_local_address(c->client, &local) == MUSTER_OK;
    worker_store_told_address(c->rdzv->options.local_addr, tells ? (struct sockaddr *)&local : NULL,
                              c10d_store_is_loopback(c), out, RDZV_ADDR_MAX);
}

const char *c10d_store_describe(const struct c10d *c, char *out, size_t size) {
    if (c->link) {
        return store_link_describe(c->link, out, size);
    }
    (void)str_format(out, size, "%s", c->etcd ? etcd_v2_describe(c->etcd) : c->file_path);
    return out;
}
