/* The native backend's coordinator is at one endpoint: connects, and connects again. */
#include "base/status.h"
#include "rendezvous/member/native_impl.h"

enum {
    RETRY_MS = 100,       /* to connect anew */
    CONNECTING_MS = 2000, /* until it is asked whether the name has moved */
};

static void seek(struct native *n) {
    native_finder_wake(n, native_now_ms(n));
}

static void seek_later(struct native *n) {
    native_finder_wake(n, native_now_ms(n) + RETRY_MS);
}

/* A name that was given to another host meanwhile is noticed while there is no connection yet: packets to the address
 * that it had may vanish. */
static void connect_or_ask(struct native *n) {
    struct native_reach *r = &n->reach;
    struct native_place *place = &r->places[0];
    struct net_address room;
    if (!native_wants_coordinator(n) || (r->session && native_session_is_connected(r->session))) {
        return;
    }
    if (!native_place_address(place, &room)) {
        native_place_retry(place);
        native_lost(n, status_fail(MUSTER_ERESOLVE, "%s: no address", place->endpoint.host));
        return;
    }
    if (r->session) {
        native_place_retry(place);
    } else {
        native_reach_host_later(n);
        native_reach_connect(n, 0);
    }
    native_finder_wake(n, native_now_ms(n) + CONNECTING_MS);
}

static void resolved(struct native *n, size_t place) {
    struct native_reach *r = &n->reach;
    if (r->session && native_session_is_connected(r->session)) {
        return;
    }
    if (r->session) { /* to where the name has moved from */
        native_session_close(r->session);
        native_reach_connect(n, place);
    }
    seek(n);
}

const struct native_finder native_endpoint_finder = {
    .has_rivals = false, .seek = seek, .seek_later = seek_later, .resolved = resolved, .due = connect_or_ask};
