/* An endpoint's addresses and store; see native_place.h. */
#include "rendezvous/member/native_place.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/member/native_search.h"

enum { UNKNOWN_ASK_AGAIN_MS = 500, ASK_AGAIN_MS = 2000 };

static bool has_address(const struct net_addresses *all, const struct net_address *one) {
    for (size_t i = 0; i < all->count; i++) {
        if (net_address_equal((const struct sockaddr *)&all->list[i].sockaddr,
                              (const struct sockaddr *)&one->sockaddr)) {
            return true;
        }
    }
    return false;
}

/* Name servers change the order from answer to answer. */
static bool has_others(const struct net_addresses *before, const struct net_addresses *now) {
    bool has = before->count != now->count;
    for (size_t i = 0; i < now->count && !has; i++) {
        has = !has_address(before, &now->list[i]);
    }
    return has;
}

static void on_resolver(void *ctx, int status, const struct net_addresses *addresses) {
    struct native_place *place = ctx;
    bool is_first = place->addresses.count == 0;
    resolver_close(place->resolver);
    place->resolver = NULL;
    if (status != MUSTER_OK) {
        if (is_first) { /* else the name server is away, and the addresses are as good as they were */
            native_place_note(place);
        }
        return;
    }
    if (is_first || has_others(&place->addresses, addresses)) {
        place->has_moved = !is_first;
        place->addresses = *addresses;
        place->at = 0;
        place->on_resolved(place->ctx, place);
    }
}

static int ask_for_name(struct native_place *place) {
    place->asked_ms = uv_now(place->loop);
    return resolver_start(place->loop, place->endpoint.host, (uint16_t)place->endpoint.port, on_resolver, place,
                          &place->resolver);
}

int native_place_open(struct native_place *place, uv_loop_t *loop, const struct net_endpoint *endpoint,
                      void (*on_resolved)(void *ctx, struct native_place *place), void *ctx) {
    *place = (struct native_place){.loop = loop, .endpoint = *endpoint, .on_resolved = on_resolved, .ctx = ctx};
    place->is_numeric = net_resolve_numeric(endpoint->host, (uint16_t)endpoint->port, &place->addresses) == MUSTER_OK;
    if (place->is_numeric) {
        return MUSTER_OK;
    }
    place->addresses.count = 0;
    return ask_for_name(place);
}

void native_place_retry(struct native_place *place) {
    uint64_t pause_ms = place->addresses.count == 0 ? UNKNOWN_ASK_AGAIN_MS : ASK_AGAIN_MS;
    bool is_due = uv_now(place->loop) >= place->asked_ms + pause_ms;
    if (!place->is_numeric && !place->server && !place->resolver && is_due) {
        (void)ask_for_name(place);
    }
}

void native_place_close(struct native_place *place) {
    resolver_close(place->resolver);
    kv_server_close(place->server);
    place->resolver = NULL;
    place->server = NULL;
}

bool native_place_is_loopback(const struct native_place *place) {
    return !place->others_come && store_host_is_loopback(place->endpoint.host);
}

int native_place_host(struct native_place *place, const struct kv_server_options *options, bool must) {
    if (!must && !net_addresses_first_local(&place->addresses)) {
        return status_fail(MUSTER_ENOENT, "%s is not this machine", place->endpoint.host);
    }
    int rc = store_host_open(place->loop, native_place_is_loopback(place) ? &place->addresses : NULL,
                             (uint16_t)place->endpoint.port, *options, &place->server);
    return rc == MUSTER_OK ? rc
                           : status_prefix(rc, "the rendezvous store cannot be hosted at %s:%d", place->endpoint.host,
                                           (int)place->endpoint.port);
}

/* A store of this agent's own: at an address that is this machine's, whatever else the name means. */
static const struct sockaddr *own_address(const struct native_place *place, struct net_address *room) {
    store_host_own_address(place->server, &place->addresses, room);
    return (const struct sockaddr *)&room->sockaddr;
}

const struct sockaddr *native_place_address(const struct native_place *place, struct net_address *room) {
    if (place->server) {
        return own_address(place, room);
    }
    if (place->addresses.count == 0 || place->endpoint.port == 0) {
        return NULL;
    }
    *room = place->addresses.list[place->at];
    return (const struct sockaddr *)&room->sockaddr;
}

bool native_place_next(struct native_place *place) {
    place->at = place->addresses.count > 0 ? (place->at + 1) % place->addresses.count : 0;
    return place->at == 0 || place->server;
}

const char *native_place_describe_hint(const struct native_place *place, char out[STORE_HOST_HINT_SIZE]) {
    out[0] = '\0';
    if (!place->others_come || !store_host_are_loopback(&place->addresses)) {
        return out;
    }
    uint16_t port = place->server ? kv_server_port(place->server) : (uint16_t)place->endpoint.port;
    return store_host_hint(place->is_default ? NULL : place->endpoint.host, port, place->server != NULL, out);
}

void native_place_hint(struct native_place *place) {
    char text[STORE_HOST_HINT_SIZE];
    /* Of a name others may know another meaning. */
    bool is_wanted = !place->server || store_host_is_loopback(place->endpoint.host);
    if (is_wanted && !place->has_hinted && native_place_describe_hint(place, text)[0] != '\0') {
        log_warning("%s", text);
    }
    place->has_hinted = true;
}

void native_place_note(struct native_place *place) {
    (void)str_format(place->answer, sizeof place->answer, "%s", muster_detail());
}

const char *native_place_describe_mute(uint64_t for_ms, char out[NATIVE_PLACE_ANSWER_MAX]) {
    if (for_ms < NATIVE_SEARCH_PATIENCE_MS) {
        (void)str_copy(out, NATIVE_PLACE_ANSWER_MAX, "connected, no answer yet");
    } else {
        (void)str_format(out, NATIVE_PLACE_ANSWER_MAX,
                         "something accepts connections there, but has not answered for %llu s: is it a coordinator of "
                         "--rdzv-backend=muster?",
                         (unsigned long long)(for_ms / 1000));
    }
    return out;
}
