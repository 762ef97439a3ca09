/* See mpi_exchange.h. A wait holds up what is asked for behind it on a connection of the store, so each exchange under
 * way has a connection to itself; one that has ended leaves it to the next. */
#include "agent/mpi/mpi_exchange.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "store/client/kv_client.h"

enum { KEY_MAX = MPI_EXCHANGE_NAME_MAX + 96, CONNECT_MS = 60 * 1000, TRY_S = 5 };

struct exchange { /* under way; or idle, with a connection */
    struct exchange *next;
    struct mpi_exchange *owner;
    struct kv_client *client;
    mpi_exchange_cb *done;
    void *ctx;
    bool is_idle;
};

struct mpi_exchange {
    uv_loop_t *loop;
    struct net_address address;
    uint64_t round;
    uint32_t node, node_count;
    struct kv_client *client; /* for what does not wait */
    struct exchange *first;
    uint64_t asked; /* questions of this node */
    mpi_exchange_asked_cb *on_asked;
    void *asked_ctx;
    struct exchange *listener;
    uint64_t heard; /* questions of others */
};

struct question { /* of this node */
    struct mpi_exchange *x;
    mpi_exchange_cb *done;
    void *ctx;
    uint32_t node;
    uint64_t serial;
    size_t length;
    char text[];
};

struct mpi_question {
    struct mpi_exchange *x;
    uint32_t from;
    uint64_t serial;
};

static void key_of(const struct mpi_exchange *x, const char *name, uint32_t node, char out[KEY_MAX]) {
    (void)str_format(out, KEY_MAX, "muster/pmi/%" PRIu64 "/%s/%u", x->round, name, node);
}

/* What fails is answered to whoever waits. */
static void on_state(void *ctx, int status) {
    (void)ctx;
    (void)status;
}

static bool answers(const struct net_address *address) {
    const struct timeval patience = {.tv_sec = TRY_S};
    int fd = socket(address->sockaddr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connects = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0 &&
                    connect(fd, (const struct sockaddr *)&address->sockaddr, address->len) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return connects;
}

/* A name may have addresses at which nobody listens. */
static struct net_address choose(const struct net_addresses *addresses) {
    size_t at = 0;
    while (at + 1 < addresses->count && !answers(&addresses->list[at])) {
        at++;
    }
    return addresses->list[at];
}

int mpi_exchange_create(uv_loop_t *loop, const struct mpi_exchange_options *options, struct mpi_exchange **out) {
    struct net_addresses addresses;
    int code = net_resolve(options->master_addr, options->master_port, &addresses);
    if (code) {
        return status_prefix(code, "the workers' store");
    }
    struct mpi_exchange *x = calloc(1, sizeof *x);
    if (!x) {
        return status_fail(MUSTER_ENOMEM, "no memory to reach the workers' store");
    }
    *x = (struct mpi_exchange){.loop = loop,
                               .address = choose(&addresses),
                               .round = options->round,
                               .node = options->node,
                               .node_count = options->node_count};
    code = kv_client_create(loop, (const struct sockaddr *)&x->address.sockaddr, CONNECT_MS, on_state, x, &x->client);
    if (code) {
        free(x);
        return code;
    }
    *out = x;
    return 0;
}

void mpi_exchange_close(struct mpi_exchange *x) {
    if (!x) {
        return;
    }
    kv_client_close(x->client);
    while (x->first) {
        struct exchange *e = x->first;
        x->first = e->next;
        kv_client_close(e->client);
        free(e);
    }
    free(x);
}

/* ---- one exchange ---- */

static struct exchange *exchange_take(struct mpi_exchange *x) {
    for (struct exchange *e = x->first; e; e = e->next) {
        if (e->is_idle) {
            return e;
        }
    }
    struct exchange *e = calloc(1, sizeof *e);
    if (!e) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for an exchange");
        return NULL;
    }
    e->owner = x;
    if (kv_client_create(x->loop, (const struct sockaddr *)&x->address.sockaddr, CONNECT_MS, on_state, e, &e->client)) {
        free(e);
        return NULL;
    }
    e->next = x->first;
    x->first = e;
    return e;
}

static void on_values(void *ctx, const struct kv_reply *reply) {
    struct exchange *e = ctx;
    int status = reply->status ? status_prefix(reply->status, "the workers' store") : 0;
    e->is_idle = status == 0;
    e->done(e->ctx, status, reply->values, reply->value_count);
}

/* The keys of `nodes`, as kv_client_multi_get() wants them: one allocation. NULL: no memory. */
static const char **keys_of(const struct mpi_exchange *x, const char *name, const uint32_t *nodes, size_t count) {
    const char **keys = malloc(count * (sizeof *keys + KEY_MAX));
    char *room = (char *)(keys + count);
    for (size_t i = 0; keys && i < count; i++) {
        keys[i] = room + i * KEY_MAX;
        key_of(x, name, nodes ? nodes[i] : (uint32_t)i, room + i * KEY_MAX);
    }
    return keys;
}

int mpi_exchange_start(struct mpi_exchange *x, const char *name, const uint32_t *nodes, size_t count,
                       struct kv_slice value, mpi_exchange_cb *done, void *ctx) {
    char own[KEY_MAX];
    const char **keys = keys_of(x, name, nodes, count);
    struct exchange *e = keys ? exchange_take(x) : NULL;
    int code = !keys ? status_fail(MUSTER_ENOMEM, "no memory for an exchange") : e ? 0 : MUSTER_ENOMEM;
    key_of(x, name, x->node, own);
    code = code ? code : kv_client_set(x->client, own, value, NULL, NULL);
    if (code == 0) {
        e->done = done;
        e->ctx = ctx;
        e->is_idle = false;
        code = kv_client_multi_get(e->client, keys, count, 0, on_values, e);
        e->is_idle = code != 0;
    }
    free(keys);
    return code;
}

static void on_deleted(void *ctx, const struct kv_reply *reply) {
    (void)ctx;
    (void)reply;
}

void mpi_exchange_forget(struct mpi_exchange *x, const char *name) {
    char own[KEY_MAX];
    key_of(x, name, x->node, own);
    (void)kv_client_delete(x->client, own, on_deleted, x);
}

/* ---- questions: each has a number, which the store counts, and is set under it; its answer goes back likewise ---- */

static void numbered_key(const struct mpi_exchange *x, const char *word, uint64_t number, uint32_t node,
                         char out[KEY_MAX]) {
    char name[MPI_EXCHANGE_NAME_MAX];
    (void)str_format(name, sizeof name, "%s%" PRIu64, word, number);
    key_of(x, name, node, out);
}

static void question_end(struct question *q, int status, const struct kv_slice *values, size_t count) {
    q->done(q->ctx, status, values, count);
    free(q);
}

static void on_answer(void *ctx, const struct kv_reply *reply) {
    struct exchange *e = ctx;
    struct question *q = e->ctx;
    char key[KEY_MAX];
    e->is_idle = reply->status == 0;
    numbered_key(q->x, "answer", q->serial, q->x->node, key);
    (void)kv_client_delete(q->x->client, key, on_deleted, q->x);
    question_end(q, reply->status, reply->values, reply->value_count);
}

static int question_send(struct question *q, uint64_t number) {
    struct mpi_exchange *x = q->x;
    char key[KEY_MAX], head[64];
    struct buf value;
    struct exchange *e = exchange_take(x);
    if (!e) {
        return MUSTER_ENOMEM;
    }
    buf_init(&value, sizeof head + q->length);
    (void)str_format(head, sizeof head, "%u %" PRIu64 " ", x->node, q->serial);
    numbered_key(x, "ask", number, q->node, key);
    int code = buf_append(&value, head, strlen(head));
    code = code ? code : buf_append(&value, q->text, q->length);
    code = code ? code : kv_client_set(x->client, key, kv_slice_of(buf_bytes(&value), value.len), NULL, NULL);
    buf_done(&value);
    e->ctx = q;
    e->is_idle = code != 0;
    numbered_key(x, "answer", q->serial, x->node, key);
    return code ? code : kv_client_get(e->client, key, true, 0, on_answer, e);
}

static void on_numbered(void *ctx, const struct kv_reply *reply) {
    struct question *q = ctx;
    int code = reply->status ? reply->status : question_send(q, (uint64_t)reply->number);
    if (code) {
        question_end(q, code, NULL, 0);
    }
}

int mpi_exchange_ask(struct mpi_exchange *x, uint32_t node, struct kv_slice text, mpi_exchange_cb *done, void *ctx) {
    char key[KEY_MAX];
    struct question *q = malloc(sizeof *q + text.len);
    if (!q) {
        return status_fail(MUSTER_ENOMEM, "no memory for a question to another node");
    }
    *q = (struct question){.x = x, .done = done, .ctx = ctx, .node = node, .serial = x->asked++, .length = text.len};
    memcpy(q->text, text.data, text.len);
    key_of(x, "asks", node, key);
    int code = kv_client_add(x->client, key, 1, on_numbered, q);
    if (code) {
        free(q);
    }
    return code;
}

static void listen_on(struct mpi_exchange *x);

/* "NODE SERIAL TEXT" */
static void question_read(struct mpi_exchange *x, struct kv_slice value) {
    char head[64];
    unsigned from = 0;
    uint64_t serial = 0;
    int used = 0;
    struct mpi_question *q = malloc(sizeof *q);
    (void)str_format(head, sizeof head, "%.*s", (int)(value.len < sizeof head ? value.len : sizeof head - 1),
                     (const char *)value.data);
    bool is_right = q && sscanf(head, "%u %" SCNu64 " %n", &from, &serial, &used) == 2 && used > 0 &&
                    from < x->node_count && (size_t)used <= value.len;
    if (!is_right) { /* its asker waits; no server of ours asks like that */
        free(q);
        return;
    }
    *q = (struct mpi_question){.x = x, .from = from, .serial = serial};
    x->on_asked(x->asked_ctx, q, kv_slice_of(value.data + used, value.len - (size_t)used));
}

static void on_question(void *ctx, const struct kv_reply *reply) {
    struct mpi_exchange *x = ctx;
    char key[KEY_MAX];
    if (reply->status) {
        return; /* the store is gone, and the rendezvous knows */
    }
    numbered_key(x, "ask", x->heard, x->node, key);
    (void)kv_client_delete(x->client, key, on_deleted, x);
    question_read(x, reply->values[0]);
    listen_on(x);
}

static void listen_on(struct mpi_exchange *x) {
    char key[KEY_MAX];
    numbered_key(x, "ask", ++x->heard, x->node, key);
    (void)kv_client_get(x->listener->client, key, true, 0, on_question, x);
}

int mpi_exchange_serve(struct mpi_exchange *x, mpi_exchange_asked_cb *asked, void *ctx) {
    x->on_asked = asked;
    x->asked_ctx = ctx;
    x->listener = exchange_take(x);
    if (!x->listener) {
        return MUSTER_ENOMEM;
    }
    x->listener->is_idle = false;
    listen_on(x);
    return 0;
}

void *mpi_question_owner(const struct mpi_question *question) {
    return question->x->asked_ctx;
}

void mpi_question_answer(struct mpi_question *question, struct kv_slice value) {
    char key[KEY_MAX];
    numbered_key(question->x, "answer", question->serial, question->from, key);
    (void)kv_client_set(question->x->client, key, value, NULL, NULL);
    free(question);
}
