/* A node of a static job whose rank another one has, too: what the newcomer waits for, what the other one answers, and
 * how long node rank 0 waits for that. static_newcomers.c has the host's part. */
#include "base/log.h"
#include "base/status.h"
#include "rendezvous/torch/static_impl.h"

#include <stdio.h>

enum { NAME_SIZE = 160 };

static const char *own_name(const struct static_rdzv *s) {
    return s->rdzv->visitors.self.name;
}

void static_introduce(struct static_rdzv *s) {
    char key[STATIC_KEY_MAX];
    if (s->client) {
        static_numbered_key(s, key, STATIC_KEY_NAME);
        (void)kv_client_set(s->client, key, kv_slice_text(own_name(s)), NULL, NULL);
        static_numbered_key(s, key, STATIC_KEY_PROTOCOL);
        (void)kv_client_set(s->client, key, kv_slice_text(s->rdzv->visitors.self.protocol), NULL, NULL);
    }
}

/* ---- the newcomer ---- */

static int fail_refused(const struct static_rdzv *s, const char *other) {
    return status_fail(
        MUSTER_EINVAL,
        "node rank %u of this job is %s, which is at work; this node, %s, has the same --node-rank: give "
        "each node a rank of its own, and each job a --master-port of its own",
        s->rdzv->options.node_rank, other[0] ? other : "another agent that came later", own_name(s));
}

static int listen_for_verdict(struct static_rdzv *s, struct kv_slice known);

static void on_verdict(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    char other[NAME_SIZE];
    if (reply->status != MUSTER_OK) {
        return; /* the store is lost: the other connection says so */
    }
    int64_t number = static_number_and_rest(reply->values[0], other, sizeof other);
    if (number < (int64_t)s->number) { /* of an earlier newcomer */
        int rc = listen_for_verdict(s, reply->values[0]);
        if (rc != MUSTER_OK) {
            static_fail(s, rc);
        }
    } else if (number > (int64_t)s->number || other[0] != '\0') {
        static_fail(s, fail_refused(s, other));
    } else {
        s->is_waiting = false;
        s->let_in(s);
    }
}

static int listen_for_verdict(struct static_rdzv *s, struct kv_slice known) {
    char key[STATIC_KEY_MAX];
    static_numbered_key(s, key, STATIC_KEY_PLACE);
    return kv_client_watch(s->watcher, key, known, on_verdict, s);
}

int static_place_wait(struct static_rdzv *s, void (*let_in)(struct static_rdzv *s)) {
    s->is_waiting = true;
    s->let_in = let_in;
    return listen_for_verdict(s, kv_slice_text(""));
}

/* ---- the one that is asked ---- */

/* It was silent for so long that another one has its place by now. */
static void on_place(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    char name[NAME_SIZE];
    bool is_known = reply->status == MUSTER_OK;
    int64_t number = is_known ? static_number_and_rest(reply->values[0], name, sizeof name) : 0;
    if (number > (int64_t)s->number && name[0] == '\0' && !s->rdzv->failed) {
        static_fail(s, status_fail(MUSTER_ECLOSED,
                                   "node rank %u was silent for too long: another agent has taken its place",
                                   s->rdzv->options.node_rank));
    }
}

static void on_asked(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    char key[STATIC_KEY_MAX], answer[NAME_SIZE + 32];
    int64_t number = reply->status == MUSTER_OK ? static_number_of(reply->values[0]) : 0;
    if (number <= (int64_t)s->number || !s->client) {
        return; /* others are asked */
    }
    log_info("another agent has come with node rank %u", s->rdzv->options.node_rank);
    (void)str_format(answer, sizeof answer, "%lld %s", (long long)number, own_name(s));
    static_numbered_key(s, key, STATIC_KEY_STAYS);
    (void)kv_client_set(s->client, key, kv_slice_text(answer), NULL, NULL);
    static_numbered_key(s, key, STATIC_KEY_PLACE);
    (void)kv_client_find(s->client, key, on_place, s);
}

void static_place_answer(struct static_rdzv *s, uint64_t asked) {
    char key[STATIC_KEY_MAX];
    if (s->client && asked > s->asked) {
        s->asked = asked;
        static_numbered_key(s, key, STATIC_KEY_ASKED);
        (void)kv_client_find(s->client, key, on_asked, s);
    }
}

/* ---- the host ---- */

static void on_silence(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct static_rdzv *s = r->state;
    static_host_give_up_silent(&s->host);
    (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_WAKE), s->on_wake, 0, 0);
}

void static_place_bound(struct static_rdzv *s) {
    const struct rdzv_conf *conf = &s->rdzv->options.conf;
    uv_timer_t *timer = rdzv_timer(s->rdzv, RDZV_TIMER_PLACE);
    bool runs = uv_is_active((uv_handle_t *)timer), awaits = static_host_awaits_answers(&s->host);
    if (awaits && (!runs || s->bounded != s->host.asked)) {
        s->bounded = s->host.asked;
        rdzv_wait(s->rdzv, RDZV_TIMER_PLACE, on_silence, conf->keep_alive_interval_ms * conf->keep_alive_max_attempt);
    } else if (!awaits) {
        (void)uv_timer_stop(timer);
    }
}
