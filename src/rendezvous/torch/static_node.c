/* A node of a static job: its keys, its connections, and how it stops to wait. See static.c. */
#include "base/str.h"
#include "rendezvous/torch/static_impl.h"

#include <muster/status.h>

bool static_is_single(const struct static_rdzv *s) {
    return s->rdzv->options.max_nodes == 1;
}

bool static_is_host(const struct static_rdzv *s) {
    return s->rdzv->options.node_rank == 0 && !static_is_single(s);
}

void static_key(const struct static_rdzv *s, char out[STATIC_KEY_MAX], const char *name) {
    (void)str_format(out, STATIC_KEY_MAX, "%s%s", s->prefix, name);
}

void static_numbered_key(const struct static_rdzv *s, char out[STATIC_KEY_MAX], const char *family) {
    (void)str_format(out, STATIC_KEY_MAX, "%s%s%u", s->prefix, family, s->rdzv->options.node_rank);
}

void static_drop(struct static_rdzv *s) {
    kv_client_close(s->waiter);
    s->waiter = NULL;
    exchange_close(s->exchange);
    s->exchange = NULL;
    exit_barrier_stop(&s->exit_barrier);
    s->stage = STATIC_IDLE;
    (void)uv_timer_stop(rdzv_timer(s->rdzv, RDZV_TIMER_SYNC));
    (void)uv_timer_stop(rdzv_timer(s->rdzv, RDZV_TIMER_SEARCH));
}

void static_fail(struct static_rdzv *s, int status) {
    rdzv_tell_failed(s->rdzv, status);
    static_drop(s);
    (void)uv_timer_stop(rdzv_timer(s->rdzv, RDZV_TIMER_REPORT));
    rdzv_tell_barrier_done(s->rdzv);
    rdzv_tell_shutdown_done(s->rdzv);
}

static void on_waiter_state(void *ctx, int status) {
    (void)ctx;
    (void)status; /* its requests are answered with the loss */
}

int static_connect(struct static_rdzv *s, struct kv_client **out) {
    return store_link_connect(s->link, on_waiter_state, s, out);
}

int static_need_waiter(struct static_rdzv *s) {
    return s->waiter ? MUSTER_OK : static_connect(s, &s->waiter);
}

void static_say(struct static_rdzv *s, enum static_says_what what, uint64_t round) {
    char key[STATIC_KEY_MAX], text[STATIC_SAYS_SIZE];
    if (s->client && s->watcher) {
        static_numbered_key(s, key, STATIC_KEY_NODE);
        (void)static_says_write(&(struct static_says){.what = what, .round = round}, text);
        (void)kv_client_set(s->client, key, kv_slice_text(text), NULL, NULL);
    }
}
