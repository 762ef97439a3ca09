/* From an endpoint to a connected store: who hosts it, which addresses are tried, what they answered.
 *
 * The store is hosted by whoever can bind the endpoint's address; everybody, the host included, talks to it through
 * a client. All on the loop's thread, nothing blocks; callbacks come from the loop. */
#ifndef RENDEZVOUS_STORE_LINK_H
#define RENDEZVOUS_STORE_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "net/endpoint.h"
#include "rendezvous/round/store_host.h"
#include "rendezvous/round/visitors.h"
#include "store/client/kv_client.h"
#include "store/server/kv_server.h"

struct store_link;
struct loop_clock; /* net/loop_clock.h */

struct store_link_options {
    struct loop_clock *clock; /* borrowed; NULL: uv_now() */
    const char *host;         /* copied */
    uint16_t port;            /* 0: the kernel chooses; only when is_host is 1 */
    int is_host;              /* 1: host it or fail. 0: connect. -1: host it if the address is ours and free */
    bool any_address;         /* host it without asking whose address it is (static rank 0) */
    bool is_default;          /* the user has given no endpoint */
    bool others_come;         /* nodes of other hosts, maybe: a loopback endpoint is served on all addresses then */
    uint64_t timeout_ms;      /* for each request */
    uint64_t connect_ms;      /* to resolve the name and to connect; 0: the same */
    uint64_t silence_ms;      /* who takes connections and says nothing, or resets them, for so long is no store */
    kv_server_change_cb *on_change; /* of a store hosted here; may be NULL */
    kv_server_disconnect_cb *on_disconnect;
    kv_server_return_cb *on_return;
    struct visitors *visitors;    /* borrowed: cards are left, and read; NULL: none */
    const struct kv_guest *guest; /* on the port of a store hosted here; may be NULL */
    /* The store is connected: store_link_client() may be used. */
    void (*on_ready)(void *ctx);
    /* It could not be reached, or is lost; muster_detail() has the sentence. Once, and nothing afterwards. */
    void (*on_failed)(void *ctx, int status);
    void *ctx;
};

/* MUSTER_ENOMEM, MUSTER_ESYSTEM (it must be hosted here and cannot). */
int store_link_create(uv_loop_t *loop, const struct store_link_options *options, struct store_link **out);
/* Ends everything, the hosted store included. NULL accepted. */
void store_link_close(struct store_link *link);

struct kv_client *store_link_client(const struct store_link *link); /* NULL before on_ready */
struct kv_server *store_link_server(const struct store_link *link); /* NULL when hosted elsewhere */
/* The endpoint is this machine's loopback, and nobody comes from another host. */
bool store_link_is_loopback(const struct store_link *link);
const struct sockaddr *store_link_address(const struct store_link *link); /* of the store; after on_ready */
uint16_t store_link_port(const struct store_link *link);

/* One more connection to the same store, for waits. */
int store_link_connect(struct store_link *link, kv_client_state_cb *on_state, void *ctx, struct kv_client **out);

/* Who serves whatever its name means looks up what it means, for people: other nodes go there. Warns if no address of
 * it is this machine's, and so does store_link_hint() from then on. Does not block. */
void store_link_check_name(struct store_link *link);
/* "; " and what people should know of the endpoint: it is loopback, and may be one of several hosts
 * (store_host_hint()), or no address of this machine, which serves it. Else "". Returns `out`. */
enum { STORE_LINK_HINT_SIZE = STORE_HOST_HINT_SIZE + 2 };
const char *store_link_hint(const struct store_link *link, char out[STORE_LINK_HINT_SIZE]);
/* What was tried and what came of it: "10.0.0.1:29400: Connection refused; ...", and store_link_hint(). Returns
 * `out`. */
const char *store_link_describe(const struct store_link *link, char *out, size_t size);

#endif
