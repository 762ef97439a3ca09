/* Watches: streams of events, resumed at another endpoint when they break; see etcd3_client.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd/etcd3_client_impl.h"

struct etcd3_watch {
    struct etcd3_requester requester;
    struct etcd3_watch_callbacks callbacks;
    void *ctx;
    struct etcd3_range ranges[ETCD3_RANGES_MAX]; /* owned: in `keys` */
    int64_t revisions[ETCD3_RANGES_MAX];         /* the first that has not been seen, of each */
    size_t range_count;
    uint8_t *keys;
    struct buf in;
    struct etcd3_splitter splitter;
};

void etcd3_watch_close(struct etcd3_watch *watch) {
    if (watch && !watch->requester.is_closed) {
        buf_done(&watch->in);
        free(watch->keys);
        watch->keys = NULL;
        etcd3_requester_close(&watch->requester);
    }
}

static void fail_watch(struct etcd3_requester *requester, int status) {
    struct etcd3_watch *watch = (struct etcd3_watch *)requester;
    etcd3_watch_close(watch);
    watch->callbacks.on_failed(watch->ctx, status);
}

/* The stream is of no use any more; the detail says why. */
static void restart(struct etcd3_watch *watch, enum etcd3_verdict verdict, int status) {
    http_cancel(watch->requester.request);
    watch->requester.request = NULL;
    etcd3_requester_retry(&watch->requester, verdict, status);
}

/* ---- events ---- */

static void note_revisions(struct etcd3_watch *watch, const struct etcd3_reply *reply) {
    for (size_t i = 0; i < reply->pair_count && reply->watch_index < watch->range_count; i++) {
        int64_t *next = &watch->revisions[reply->watch_index];
        if (reply->pairs[i].mod_revision >= *next) {
            *next = reply->pairs[i].mod_revision + 1;
        }
    }
}

/* False when the stream has ended with it. */
static bool take_cancel(struct etcd3_watch *watch, struct etcd3_reply *reply) {
    int status = MUSTER_OK;
    if (reply->is_canceled && (reply->compact_revision > 0 || strstr(reply->error_text, "compacted"))) {
        etcd3_watch_close(watch);
        watch->callbacks.on_gap(watch->ctx);
        return false;
    }
    if (reply->is_canceled && reply->error == 0) {
        reply->error = ETCD3_UNAVAILABLE; /* unless its words say more */
        if (reply->error_text[0] == '\0') {
            (void)str_copy(reply->error_text, sizeof reply->error_text, "the watch was canceled");
        }
    }
    enum etcd3_verdict verdict = etcd3_judge_reply(etcd3_requester_url(&watch->requester),
                                                   watch->requester.client->user != NULL, reply, &status);
    if (verdict != ETCD3_FINE) {
        restart(watch, verdict, status);
    }
    return verdict == ETCD3_FINE;
}

static bool take_object(struct etcd3_watch *watch, const uint8_t *text, size_t len) {
    struct etcd3_reply reply;
    if (etcd3_wire_get(text, len, &reply) != MUSTER_OK) {
        restart(watch, ETCD3_STRANGE,
                status_prefix(MUSTER_EPROTOCOL, "%s: a watch", etcd3_requester_url(&watch->requester)));
        return false;
    }
    bool goes_on = take_cancel(watch, &reply);
    if (goes_on) {
        etcd3_requester_answered(&watch->requester);
        note_revisions(watch, &reply);
        if (reply.pair_count > 0) {
            watch->callbacks.on_events(watch->ctx, &reply);
        }
        goes_on = !watch->requester.is_closed && watch->requester.request;
    }
    etcd3_reply_done(&reply);
    return goes_on;
}

static void on_data(void *ctx, const uint8_t *bytes, size_t len) {
    struct etcd3_watch *watch = ctx;
    size_t used = 0;
    if (buf_append(&watch->in, bytes, len) != MUSTER_OK) {
        restart(watch, ETCD3_FINAL, status_prefix(MUSTER_ELIMIT, "a watch of etcd"));
        return;
    }
    enum etcd3_split split = ETCD3_MORE;
    while ((split = etcd3_wire_split(&watch->splitter, buf_bytes(&watch->in), watch->in.len, &used)) ==
           ETCD3_COMPLETE) {
        watch->splitter = (struct etcd3_splitter){.seen = 0};
        if (!take_object(watch, buf_bytes(&watch->in), used)) {
            return;
        }
        buf_consume(&watch->in, used);
    }
    if (split == ETCD3_MALFORMED) {
        restart(watch, ETCD3_STRANGE,
                status_fail(MUSTER_EPROTOCOL, "%s is no etcd of version 3.4 or later: its watch is no stream of JSON",
                            etcd3_requester_url(&watch->requester)));
    }
}

static void on_done(void *ctx, const struct http_answer *answer) {
    struct etcd3_watch *watch = ctx;
    const char *url = etcd3_requester_url(&watch->requester);
    watch->requester.request = NULL;
    int status = answer->status;
    bool is_final = status == MUSTER_EINVAL || status == MUSTER_ENOMEM || status == MUSTER_EUNSUPPORTED;
    if (status == MUSTER_OK) {
        status = status_fail(MUSTER_ECONNECT, "etcd at %s has ended a watch (HTTP %ld)", url, answer->code);
    }
    restart(watch, is_final ? ETCD3_FINAL : ETCD3_ELSEWHERE, status);
}

/* ---- life ---- */

static int send_watch(struct etcd3_requester *requester) {
    static const struct http_callbacks callbacks = {.on_data = on_data, .on_done = on_done};
    struct etcd3_watch *watch = (struct etcd3_watch *)requester;
    struct buf body;
    buf_clear(&watch->in);
    watch->splitter = (struct etcd3_splitter){.seen = 0};
    buf_init(&body, ETCD3_REQUEST_BYTES_MAX);
    int rc = etcd3_wire_put_watch(&body, watch->ranges, watch->revisions, watch->range_count);
    rc = rc ? rc : etcd3_requester_post(requester, "watch", &body, true, &callbacks);
    buf_done(&body);
    return rc;
}

static const struct etcd3_requester_table watch_table = {.send = send_watch, .fail = fail_watch};

static struct kv_slice copy_key(uint8_t **to, struct kv_slice from) {
    struct kv_slice copy = kv_slice_of(*to, from.len);
    if (from.len > 0) {
        memcpy(*to, from.data, from.len);
        *to += from.len;
    }
    return copy;
}

int etcd3_watch_open(struct etcd3_client *client, const struct etcd3_range *ranges, size_t count, int64_t revision,
                     const struct etcd3_watch_callbacks *callbacks, void *ctx, struct etcd3_watch **out) {
    size_t bytes = 1;
    assert(count > 0 && count <= ETCD3_RANGES_MAX);
    for (size_t i = 0; i < count; i++) {
        bytes += ranges[i].key.len + ranges[i].end.len;
    }
    struct etcd3_watch *watch = calloc(1, sizeof *watch);
    uint8_t *at = watch ? malloc(bytes) : NULL;
    if (!at) {
        free(watch);
        return status_fail(MUSTER_ENOMEM, "no memory for a watch of etcd");
    }
    watch->keys = at;
    for (size_t i = 0; i < count; i++) {
        watch->ranges[i].key = copy_key(&at, ranges[i].key);
        watch->ranges[i].end = copy_key(&at, ranges[i].end);
        watch->revisions[i] = revision;
    }
    watch->range_count = count;
    watch->callbacks = *callbacks;
    watch->ctx = ctx;
    buf_init(&watch->in, ETCD3_ANSWER_BYTES_MAX);
    etcd3_requester_open(client, &watch->requester, &watch_table, ETCD3_PATIENT);
    *out = watch;
    etcd3_requester_start(&watch->requester);
    return MUSTER_OK;
}
