/* One endpoint of the job, as an agent sees it: its name's addresses, and the store that this agent serves there if the
 * address is its machine's. On the loop's thread; nothing blocks. */
#ifndef RENDEZVOUS_NATIVE_PLACE_H
#define RENDEZVOUS_NATIVE_PLACE_H

#include "rendezvous/round/resolver.h"
#include "rendezvous/round/store_host.h"
#include "store/server/kv_server.h"

enum { NATIVE_PLACE_ANSWER_MAX = 256 };

struct native_place {
    uv_loop_t *loop;
    struct net_endpoint endpoint;
    struct resolver *resolver;
    struct net_addresses addresses; /* none: not resolved yet */
    size_t at;                      /* of these, the one that is tried */
    bool is_numeric;                /* the name is an address */
    bool others_come;               /* from other hosts, maybe: a loopback endpoint is served on all addresses then */
    bool is_default;                /* the user has given no endpoint */
    bool has_hinted;                /* native_place_hint() */
    bool has_moved;                 /* the name has been given to other addresses since it was resolved first */
    uint64_t asked_ms;              /* for the name, last */
    struct kv_server *server;       /* NULL: not served by this agent */
    void (*on_resolved)(void *ctx, struct native_place *place);
    void *ctx;
    char answer[NATIVE_PLACE_ANSWER_MAX]; /* what came of it last, for people */
};

/* Fills `place`, and resolves the name: at once if it is numeric, else on a thread; on_resolved comes from the loop
 * then, not at all while the name means nothing, and again when it has moved. MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int native_place_open(struct native_place *place, uv_loop_t *loop, const struct net_endpoint *endpoint,
                      void (*on_resolved)(void *ctx, struct native_place *place), void *ctx);
/* Nobody answers there: asks for the name again, at most twice a second while it means nothing, else every two. It may
 * be given to the host only when that starts, or to another one since (a pod that is started anew has its name from
 * before, and another address). */
void native_place_retry(struct native_place *place);
/* Ends the store, too. Of an object of zeros: nothing. */
void native_place_close(struct native_place *place);

/* Serves a store there, with these options but its addresses. `must`: also if none of the addresses is known to be this
 * machine's. MUSTER_ENOENT: none is; MUSTER_ESYSTEM: it cannot listen, EADDRINUSE in errno if somebody else does. */
int native_place_host(struct native_place *place, const struct kv_server_options *options, bool must);

/* Where to connect; NULL: not known yet, or a port that only the host can know. */
const struct sockaddr *native_place_address(const struct native_place *place, struct net_address *room);
/* The next address of the name, after a failure. True when all have been tried. */
bool native_place_next(struct native_place *place);
/* The endpoint is this machine's loopback, and nobody comes from another host. */
bool native_place_is_loopback(const struct native_place *place);
/* What people should know of a loopback endpoint where nodes of other hosts may come (store_host_hint()); else "".
 * Returns `out`. */
const char *native_place_describe_hint(const struct native_place *place, char out[STORE_HOST_HINT_SIZE]);
/* Logs it, once: the endpoint is served here, or nobody answers there. */
void native_place_hint(struct native_place *place);
/* Keeps the thread's status detail as what came of it. */
void native_place_note(struct native_place *place);
/* What is connected there has not said a word for so long. Returns `out`. */
const char *native_place_describe_mute(uint64_t for_ms, char out[NATIVE_PLACE_ANSWER_MAX]);

#endif
