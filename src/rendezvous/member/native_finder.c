/* What the three finders of the native backend share: the timer, and what each call of native_impl.h is for them. */
#include "rendezvous/member/native_impl.h"

static void on_due(uv_timer_t *timer) {
    struct rdzv *rdzv = timer->data;
    struct native *n = rdzv->state;
    n->finder->due(n);
}

void native_finder_wake(struct native *n, uint64_t ms) {
    uint64_t now = native_now_ms(n);
    (void)uv_timer_start(rdzv_timer(n->part.rdzv, RDZV_TIMER_SEARCH), on_due, ms > now ? ms - now : 0, 0);
}

void native_seek(struct native *n) {
    n->finder->seek(n);
}

void native_seek_later(struct native *n) {
    n->finder->seek_later(n);
}

void native_seek_better(struct native *n) {
    if (n->finder->seek_better) {
        n->finder->seek_better(n);
    }
}

void native_seek_resolved(struct native *n, size_t place) {
    n->finder->resolved(n, place);
}

void native_seek_arrived(struct native *n) {
    struct native_search *search = &n->reach.search;
    if (n->finder->arrived) {
        n->finder->arrived(n);
    }
    native_search_served(search, n->part.membership.last_round);
    native_search_hurry(search);
    search->is_asking = search->is_decided = false;
    native_seek_end(n);
}

/* Probes are the list's; the others have none. */
void native_seek_end(struct native *n) {
    for (size_t i = 0; i < n->reach.count; i++) {
        native_connection_close(n->reach.probes[i].connection);
        n->reach.probes[i].connection = NULL;
    }
    (void)uv_timer_stop(rdzv_timer(n->part.rdzv, RDZV_TIMER_SEARCH));
}
