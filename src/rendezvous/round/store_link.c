/* Reaching or hosting the rendezvous store; see store_link.h. */
#include "rendezvous/round/store_link.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "net/loop_clock.h"
#include "net/socket.h"
#include "rendezvous/round/resolver.h"

enum { TICK_MS = 500, ANSWER_TEXT_MAX = 256, ASK_AGAIN_MS = 2000 };
/* The store that this process hosts shares the loop with its client: silence has no excuse. */
enum { OWN_SILENCE_MS = 2000 };
/* What this machine refuses (descriptors, memory, permission) that often in a row will not change by waiting. */
enum { REFUSALS_MAX = 4 };

struct candidate {
    struct store_link *link;
    struct sockaddr_storage address;
    struct kv_client *client; /* NULL: ended */
    unsigned silent_ticks;
    unsigned refusals;            /* attempts in a row that ended in this machine */
    bool hopeless;                /* `answer` will not change */
    bool is_stranger;             /* what is there is no store */
    char answer[ANSWER_TEXT_MAX]; /* of the last attempt that ended */
};

struct store_link {
    uv_timer_t timer;
    uv_loop_t *loop;
    struct store_link_options options;
    char host[NET_HOST_MAX];
    uint64_t deadline_ms;
    struct resolver *resolver; /* NULL: the name is not being asked for */
    bool is_named;             /* the host is given by a name that is no address */
    uint64_t asked_ms;         /* for the name, last */
    char resolver_answer[ANSWER_TEXT_MAX];
    struct kv_server *server;
    bool leads_to_itself; /* all that the endpoint means is loopback, and nodes of other hosts may come */
    bool has_hinted;
    bool has_checked_name;
    char elsewhere[NET_ADDRESS_TEXT_MAX]; /* where the name leads, if this machine serves and is not there */
    struct kv_client *visit;              /* to the store there, if there is one */
    struct net_addresses to_host; /* this machine's, whose port was taken when this node could have hosted the store */
    struct candidate candidates[NET_ADDRESSES_MAX];
    size_t candidate_count;
    struct candidate *winner;
    bool over;
};

static void on_tick(uv_timer_t *timer);

static uint64_t now_ms(const struct store_link *link) {
    return (uint64_t)loop_clock_now_ms(link->options.clock, link->loop);
}

/* Until nobody is hoped for any more. */
static int64_t left_ms(const struct store_link *link) {
    return loop_clock_left_ms(link->options.clock, link->loop, (int64_t)link->deadline_ms, TICK_MS);
}

/* ---- the end ---- */

static void fail(struct store_link *link, int status) {
    if (!link->over) {
        link->over = true;
        (void)uv_timer_stop(&link->timer);
        link->options.on_failed(link->options.ctx, status);
    }
}

static void on_timer_closed(uv_handle_t *handle) {
    free(handle->data);
}

void store_link_close(struct store_link *link) {
    if (!link) {
        return;
    }
    link->over = true;
    resolver_close(link->resolver);
    for (size_t i = 0; i < link->candidate_count; i++) {
        kv_client_close(link->candidates[i].client);
    }
    kv_client_close(link->visit);
    kv_server_close(link->server);
    uv_close((uv_handle_t *)&link->timer, on_timer_closed);
}

/* ---- hosting ---- */

bool store_link_is_loopback(const struct store_link *link) {
    return !link->options.others_come && store_host_is_loopback(link->host);
}

/* Loopback endpoints are served on loopback alone where no other node can come. */
static int host_store(struct store_link *link, const struct net_addresses *loopback) {
    struct kv_server_options options = {.on_change = link->options.on_change,
                                        .on_disconnect = link->options.on_disconnect,
                                        .on_return = link->options.on_return,
                                        .guest = link->options.guest,
                                        .ctx = link->options.ctx};
    int rc = store_host_open(link->loop, loopback, link->options.port, options, &link->server);
    if (rc == MUSTER_OK && link->options.visitors) {
        char card[VISITORS_CARD_SIZE];
        (void)kv_server_set(link->server, kv_slice_text("/" VISITORS_KEY_HOST),
                            kv_slice_text(visitors_card(link->options.visitors, card)));
    }
    return rc;
}

/* ---- cards ---- */

static void leave_card(struct store_link *link, struct kv_client *client) {
    char card[VISITORS_CARD_SIZE];
    (void)kv_client_set(client, VISITORS_KEY_VISIT, kv_slice_text(visitors_card(link->options.visitors, card)), NULL,
                        NULL);
}

static void on_host_card(void *ctx, const struct kv_reply *reply) {
    struct store_link *link = ctx;
    struct visitors *visitors = link->options.visitors;
    char sentence[PROTOCOL_SENTENCE_SIZE];
    if (reply->status != MUSTER_OK || !link->winner) {
        return;
    }
    if (visitors_read_host(visitors, reply->values[0])) {
        leave_card(link, link->winner->client);
    } else if (reply->values[0].len == 0 && kv_client_offers_watch(link->winner->client)) {
        visitors_host_is_old(visitors);
    }
    if (visitors_protocol(visitors, &visitors->host, "the host of the rendezvous store", sentence)) {
        log_warning("%s", sentence);
    }
}

/* The store's host may be an agent that takes part otherwise. */
static void read_host_card(struct store_link *link) {
    if (link->options.visitors && !link->server) {
        (void)kv_client_find(link->winner->client, VISITORS_KEY_HOST, on_host_card, link);
    }
}

static void on_card_elsewhere(void *ctx, const struct kv_reply *reply) {
    struct store_link *link = ctx;
    char text[VISITORS_TEXT_SIZE];
    if (reply->status == MUSTER_OK && visitors_read_host(link->options.visitors, reply->values[0])) {
        leave_card(link, link->visit);
        log_warning("%s (%s) has a store: %s", link->host, link->elsewhere,
                    visitors_text(link->options.visitors, text) + strlen("; "));
    }
}

static void on_visit_state(void *ctx, int status) {
    struct store_link *link = ctx;
    if (status != MUSTER_OK || kv_client_find(link->visit, VISITORS_KEY_HOST, on_card_elsewhere, link) != MUSTER_OK) {
        kv_client_close(link->visit);
        link->visit = NULL;
    }
}

/* Where the endpoint's name leads, and this node serves another store: is that the one that the others use? */
static void visit(struct store_link *link, const struct sockaddr *address) {
    if (link->options.visitors && !link->visit) {
        (void)kv_client_create(link->loop, address, link->options.timeout_ms, on_visit_state, link, &link->visit);
    }
}

/* ---- connecting ---- */

static void on_candidate_state(void *ctx, int status);

static void note_refusal(struct candidate *c, const char *answer) {
    (void)str_copy(c->answer, sizeof c->answer, answer);
    c->hopeless = ++c->refusals >= REFUSALS_MAX;
}

static void attempt(struct candidate *c) {
    /* The time-out outlives the attempt: it bounds every request of the connection. judge() ends the attempt. */
    int rc = kv_client_create(c->link->loop, (const struct sockaddr *)&c->address, c->link->options.timeout_ms,
                              on_candidate_state, c, &c->client);
    if (rc != MUSTER_OK) {
        note_refusal(c, muster_strerror(rc));
        return;
    }
    kv_client_set_clock(c->client, c->link->options.clock);
}

static void add_candidate(struct store_link *link, const struct sockaddr *address, uint16_t port) {
    struct candidate *c = &link->candidates[link->candidate_count++];
    *c = (struct candidate){.link = link};
    memcpy(&c->address, address, net_sockaddr_len(address));
    net_address_set_port((struct sockaddr *)&c->address, port);
}

/* `local`: one of `named` that is known to be this machine's; NULL: nobody has asked. */
static void add_own_candidate(struct store_link *link, const struct net_addresses *named,
                              const struct sockaddr *local) {
    struct net_address self;
    if (!local) {
        store_host_own_address(link->server, named, &self);
        local = (const struct sockaddr *)&self.sockaddr;
    }
    add_candidate(link, local, kv_server_port(link->server));
}

static void start_attempts(struct store_link *link) {
    uv_update_time(link->loop);
    link->deadline_ms = now_ms(link) + link->options.connect_ms;
    for (size_t i = 0; i < link->candidate_count; i++) {
        attempt(&link->candidates[i]);
    }
    (void)uv_timer_start(&link->timer, on_tick, TICK_MS, TICK_MS);
}

static void on_won(struct candidate *c) {
    struct store_link *link = c->link;
    link->winner = c;
    (void)uv_timer_stop(&link->timer);
    for (size_t i = 0; i < link->candidate_count; i++) {
        struct candidate *other = &link->candidates[i];
        if (other != c) {
            kv_client_close(other->client);
            other->client = NULL;
        }
    }
    read_host_card(link);
    link->options.on_ready(link->options.ctx);
}

static bool all_hopeless(const struct store_link *link, size_t *strangers) {
    size_t hopeless = 0;
    *strangers = 0;
    for (size_t i = 0; i < link->candidate_count; i++) {
        hopeless += link->candidates[i].hopeless;
        *strangers += link->candidates[i].is_stranger;
    }
    return link->candidate_count > 0 && hopeless == link->candidate_count;
}

static int explain_hopeless(const struct store_link *link, bool stranger, const char *tried) {
    if (link->server) {
        return status_fail(MUSTER_ECONNECT, "the rendezvous store that this process hosts at %s:%u cannot be used (%s)",
                           link->host, (unsigned)link->options.port, tried);
    }
    if (stranger) {
        return status_fail(MUSTER_EPROTOCOL,
                           "the rendezvous endpoint %s:%u is held by something that is not a TCPStore (%s): choose "
                           "another port",
                           link->host, (unsigned)link->options.port, tried);
    }
    return status_fail(MUSTER_ECONNECT, "this machine does not get through to the rendezvous endpoint %s:%u (%s)",
                       link->host, (unsigned)link->options.port, tried);
}

/* Fails when nothing is left to hope for. */
static void judge(struct store_link *link) {
    char tried[MUSTER_DETAIL_MAX / 2];
    size_t strangers;
    bool hopeless = all_hopeless(link, &strangers), late = left_ms(link) == 0;
    if (link->over || link->winner || (!late && !hopeless)) {
        return;
    }
    (void)store_link_describe(link, tried, sizeof tried);
    if (hopeless) {
        fail(link, explain_hopeless(link, strangers > 0, tried));
    } else {
        fail(link, status_fail(MUSTER_ECONNECT,
                               "no rendezvous store at %s:%u within %llu s (%s): is the node that hosts it running?",
                               link->host, (unsigned)link->options.port,
                               (unsigned long long)(link->options.connect_ms / 1000), tried));
    }
}

static void on_candidate_state(void *ctx, int status) {
    struct candidate *c = ctx;
    struct store_link *link = c->link;
    char answer[ANSWER_TEXT_MAX];
    if (status == 0) {
        on_won(c);
        return;
    }
    (void)str_format(answer, sizeof answer, "%s", muster_detail());
    if (c == link->winner) {
        char text[NET_ADDRESS_TEXT_MAX];
        (void)net_address_format((struct sockaddr *)&c->address, text);
        fail(link, status_fail(MUSTER_ECONNECT,
                               "the rendezvous store at %s is lost, the node that hosts it has probably ended (%.200s)",
                               text, answer));
        return;
    }
    kv_client_close(c->client);
    c->client = NULL;
    if (status == MUSTER_ECONNECT || status == MUSTER_ENOMEM) { /* what may pass, the client goes on trying */
        note_refusal(c, answer);
    } else {
        (void)str_copy(c->answer, sizeof c->answer, answer);
        c->hopeless = c->is_stranger = status == MUSTER_EPROTOCOL;
    }
    judge(link);
}

/* Counts how long this attempt has been fed silence or resets. */
static void watch_candidate(struct candidate *c) {
    int error_number;
    if (!c->client) {
        if (!c->hopeless) {
            attempt(c);
        }
        return;
    }
    enum kv_client_stage stage = kv_client_stage(c->client, &error_number);
    bool silent = stage == KV_CLIENT_HANDSHAKE || (stage == KV_CLIENT_CONNECTING && error_number == ECONNRESET);
    c->silent_ticks = silent ? c->silent_ticks + 1 : 0;
    c->refusals = 0; /* the attempt lasts */
    uint64_t silence_ms = c->link->server ? OWN_SILENCE_MS : c->link->options.silence_ms;
    if ((uint64_t)c->silent_ticks * TICK_MS < silence_ms) {
        return;
    }
    (void)str_format(c->answer, sizeof c->answer, "%s",
                     stage == KV_CLIENT_HANDSHAKE ? "accepts connections but does not answer" : "resets connections");
    kv_client_close(c->client);
    c->client = NULL;
    c->hopeless = c->is_stranger = true;
}

static void on_resolved(void *ctx, int status, const struct net_addresses *addresses);

static int ask_for_name(struct store_link *link) {
    link->asked_ms = now_ms(link);
    return resolver_start(link->loop, link->host, link->options.port, on_resolved, link, &link->resolver);
}

/* The name may be given to the host only when that starts, or to another one since. */
static bool is_name_due(const struct store_link *link) {
    uint64_t now = now_ms(link);
    return link->is_named && !link->resolver && !link->server && now < link->deadline_ms &&
           (link->candidate_count == 0 || now >= link->asked_ms + ASK_AGAIN_MS);
}

/* Said at once, since it may be in vain that all wait. Of a name others may know another meaning. */
static void hint(struct store_link *link) {
    char text[STORE_LINK_HINT_SIZE];
    bool is_wanted = !link->server || store_host_is_loopback(link->host);
    if (is_wanted && !link->has_hinted && store_link_hint(link, text)[0] != '\0') {
        log_warning("%s", text + strlen("; "));
    }
    link->has_hinted = true;
}

/* The port may have been a connection's own end for a moment, or two agents that began at the same time have kept each
 * other from it: then nobody hosts the store, and all would wait. Where a store listens, this changes nothing. */
static void host_later(struct store_link *link) {
    const struct sockaddr *local = net_addresses_first_local(&link->to_host);
    if (!local || link->server || host_store(link, store_link_is_loopback(link) ? &link->to_host : NULL) != MUSTER_OK) {
        return;
    }
    for (size_t i = 0; i < link->candidate_count; i++) {
        kv_client_close(link->candidates[i].client);
    }
    link->candidate_count = 0;
    add_own_candidate(link, &link->to_host, local);
    attempt(&link->candidates[0]);
    hint(link);
}

static void on_tick(uv_timer_t *timer) {
    struct store_link *link = timer->data;
    host_later(link);
    if (!link->winner && link->candidate_count > 0) { /* by now who is on this machine has answered */
        hint(link);
    }
    for (size_t i = 0; i < link->candidate_count; i++) {
        watch_candidate(&link->candidates[i]);
    }
    if (is_name_due(link)) {
        (void)ask_for_name(link);
    }
    judge(link);
}

/* ---- choosing ---- */

/* Hosts the store if that is wanted and possible, and connects. A code only when it has to be hosted and cannot. */
static int choose(struct store_link *link, const struct net_addresses *addresses) {
    const struct sockaddr *local = link->options.is_host == -1 ? net_addresses_first_local(addresses) : NULL;
    bool loopback = store_link_is_loopback(link);
    if (link->options.is_host == 1 || local) {
        int rc = host_store(link, loopback ? addresses : NULL);
        bool taken = rc == MUSTER_ESYSTEM && errno == EADDRINUSE;
        if (taken && link->options.is_host != 1) {
            link->to_host = *addresses;
        }
        if (taken && link->options.is_host == 1) {
            return status_fail(
                rc,
                "the rendezvous store cannot be hosted at %s:%u: the port is taken (%s), perhaps by another job. "
                "Give this one another port, or --standalone",
                link->host, (unsigned)link->options.port, strerror(EADDRINUSE));
        }
        if (rc != MUSTER_OK && (link->options.is_host == 1 || !taken)) {
            return status_prefix(rc, "the rendezvous store cannot be hosted at %s:%u", link->host,
                                 (unsigned)link->options.port);
        }
    }
    link->leads_to_itself = link->options.others_come && store_host_are_loopback(addresses);
    if (link->server) {
        add_own_candidate(link, addresses, local);
        hint(link);
    } else if (link->options.port == 0) {
        return status_fail(MUSTER_EINVAL,
                           "the rendezvous endpoint %s needs a port: only the node that hosts the "
                           "store can let the kernel choose one",
                           link->host);
    } else {
        for (size_t i = 0; i < addresses->count; i++) {
            add_candidate(link, (const struct sockaddr *)&addresses->list[i].sockaddr, link->options.port);
        }
    }
    start_attempts(link);
    return MUSTER_OK;
}

static bool is_candidate(const struct store_link *link, const struct sockaddr *address) {
    for (size_t i = 0; i < link->candidate_count; i++) {
        if (net_address_equal((const struct sockaddr *)&link->candidates[i].address, address)) {
            return true;
        }
    }
    return false;
}

/* Of a name that was known before: whatever else it means now is tried as well. */
static void try_new_addresses(struct store_link *link, const struct net_addresses *addresses) {
    for (size_t i = 0; i < addresses->count && link->candidate_count < NET_ADDRESSES_MAX; i++) {
        const struct sockaddr *address = (const struct sockaddr *)&addresses->list[i].sockaddr;
        if (!is_candidate(link, address)) {
            add_candidate(link, address, link->options.port);
            attempt(&link->candidates[link->candidate_count - 1]);
        }
    }
}

static void on_resolved(void *ctx, int status, const struct net_addresses *addresses) {
    struct store_link *link = ctx;
    resolver_close(link->resolver);
    link->resolver = NULL;
    if (link->over || link->winner) {
        return;
    }
    if (link->candidate_count > 0) { /* the name server may be away: they are as good as they were */
        if (status == MUSTER_OK) {
            try_new_addresses(link, addresses);
        }
        return;
    }
    if (status != MUSTER_OK) {
        (void)str_copy(link->resolver_answer, sizeof link->resolver_answer, muster_detail());
        judge(link);
        return;
    }
    int rc = choose(link, addresses);
    if (rc != MUSTER_OK) {
        fail(link, rc);
    }
}

int store_link_create(uv_loop_t *loop, const struct store_link_options *options, struct store_link **out) {
    struct store_link *link = calloc(1, sizeof *link);
    if (!link) {
        return status_fail(MUSTER_ENOMEM, "no memory for the rendezvous store");
    }
    (void)uv_timer_init(loop, &link->timer);
    link->timer.data = link;
    link->loop = loop;
    link->options = *options;
    link->options.connect_ms = options->connect_ms ? options->connect_ms : options->timeout_ms;
    int rc = str_copy(link->host, sizeof link->host, options->host)
                 ? MUSTER_OK
                 : status_fail(MUSTER_EINVAL, "a host name is too long");
    struct net_addresses addresses;
    if (rc == MUSTER_OK && net_resolve_numeric(link->host, options->port, &addresses) == MUSTER_OK) {
        rc = choose(link, &addresses);
    } else if (rc == MUSTER_OK && options->any_address) {
        /* Who must host the store anyway need not know what its name means. */
        addresses.count = 0;
        rc = choose(link, &addresses);
    } else if (rc == MUSTER_OK) {
        uv_update_time(loop);
        link->is_named = true;
        link->deadline_ms = uv_now(loop) + link->options.connect_ms;
        rc = ask_for_name(link);
        (void)uv_timer_start(&link->timer, on_tick, TICK_MS, TICK_MS);
    }
    if (rc != MUSTER_OK) {
        store_link_close(link);
        return rc;
    }
    *out = link;
    return MUSTER_OK;
}

/* ---- for the users ---- */

struct kv_client *store_link_client(const struct store_link *link) {
    return link->winner ? link->winner->client : NULL;
}

struct kv_server *store_link_server(const struct store_link *link) {
    return link->server;
}

const struct sockaddr *store_link_address(const struct store_link *link) {
    assert(link->winner);
    return (const struct sockaddr *)&link->winner->address;
}

uint16_t store_link_port(const struct store_link *link) {
    return net_address_port(store_link_address(link));
}

int store_link_connect(struct store_link *link, kv_client_state_cb *on_state, void *ctx, struct kv_client **out) {
    int rc = kv_client_create(link->loop, store_link_address(link), link->options.timeout_ms, on_state, ctx, out);
    if (rc == MUSTER_OK) {
        kv_client_set_clock(*out, link->options.clock);
    }
    return rc;
}

static void describe_candidate(const struct candidate *c, char *out, size_t size) {
    char address[NET_ADDRESS_TEXT_MAX];
    int error_number = 0;
    const char *answer = c->answer[0] != '\0' ? c->answer : "no answer yet";
    (void)net_address_format((const struct sockaddr *)&c->address, address);
    if (c->client) {
        enum kv_client_stage stage = kv_client_stage(c->client, &error_number);
        if (stage == KV_CLIENT_HANDSHAKE) {
            answer = "connected, no TCPStore answer yet";
        } else if (stage == KV_CLIENT_READY) {
            answer = "connected";
        } else if (error_number != 0) {
            answer = strerror(error_number);
        }
    }
    (void)str_format(out, size, "%s: %s", address, answer);
}

static void on_name_checked(void *ctx, int status, const struct net_addresses *addresses) {
    struct store_link *link = ctx;
    char text[STORE_LINK_HINT_SIZE];
    resolver_close(link->resolver);
    link->resolver = NULL;
    if (status == MUSTER_OK && !net_addresses_first_local(addresses)) {
        (void)net_address_host((const struct sockaddr *)&addresses->list[0].sockaddr, link->elsewhere);
        log_warning("%s", store_link_hint(link, text) + strlen("; "));
        visit(link, (const struct sockaddr *)&addresses->list[0].sockaddr);
    }
}

void store_link_check_name(struct store_link *link) {
    if (link->server && !link->has_checked_name && !link->resolver) {
        link->has_checked_name = true;
        (void)resolver_start(link->loop, link->host, link->options.port, on_name_checked, link, &link->resolver);
    }
}

const char *store_link_hint(const struct store_link *link, char out[STORE_LINK_HINT_SIZE]) {
    char text[STORE_HOST_HINT_SIZE] = "";
    if (link->elsewhere[0] != '\0') {
        (void)str_format(text, sizeof text,
                         "%.100s (%s) is no address of this machine, which serves: is --node-rank=0 right here, or has "
                         "another node it as well?",
                         link->host, link->elsewhere);
    } else if (link->leads_to_itself) {
        uint16_t port = link->server ? kv_server_port(link->server) : link->options.port;
        (void)store_host_hint(link->options.is_default ? NULL : link->host, port, link->server != NULL, text);
    }
    (void)str_format(out, STORE_LINK_HINT_SIZE, "%s%s", text[0] != '\0' ? "; " : "", text);
    return out;
}

const char *store_link_describe(const struct store_link *link, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    if (link->candidate_count == 0) {
        (void)str_format(out, size, "%s",
                         link->resolver_answer[0] != '\0' ? link->resolver_answer : "its name is still being resolved");
    }
    for (size_t i = 0; i < link->candidate_count && used + 2 < size; i++) {
        char one[ANSWER_TEXT_MAX + NET_ADDRESS_TEXT_MAX];
        describe_candidate(&link->candidates[i], one, sizeof one);
        (void)snprintf(out + used, size - used, "%s%s", i > 0 ? "; " : "", one);
        used = strlen(out);
    }
    char hint_text[STORE_LINK_HINT_SIZE];
    (void)snprintf(out + used, size - used, "%s", store_link_hint(link, hint_text));
    return out;
}
