/* The static backend: ranks are given on the command line, node rank 0 hosts the one store at the endpoint, and the
 * workers meet in that same store. There is no membership, but where all agents are ours they begin each attempt of the
 * workers together (static_round.h): this file has one node's part in that, static_host.c what node rank 0 does for
 * all, static_end.c how the job ends, static_node.c what these share. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/printable.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/torch/static_impl.h"

/* ---- worlds ---- */

static void tell_world(struct static_rdzv *s, const struct exchange_result *result) {
    const struct rdzv_options *o = &s->rdzv->options;
    struct exchange_result world = *result;
    (void)str_copy(world.master_addr, sizeof world.master_addr, s->endpoint.host);
    world.master_port = (uint16_t)s->endpoint.port;
    s->settled = true;
    s->has_told_change = false;
    s->stage = STATIC_WORKING;
    (void)uv_timer_stop(rdzv_timer(s->rdzv, RDZV_TIMER_REPORT));
    rdzv_tell_world(s->rdzv, s->round, o->node_rank, o->max_nodes, &world);
    static_end_begin_round(s);
    static_end_watch_failures(s);
}

static void follow(struct static_rdzv *s);

static void on_exchanged(void *ctx, int status, const struct exchange_result *result) {
    struct static_rdzv *s = ctx;
    struct exchange_result copy = *result;
    static_drop(s);
    if (status == MUSTER_OK) {
        tell_world(s, &copy);
        follow(s);
    } else {
        static_fail(s, status_prefix(status, "the nodes of the static rendezvous could not agree on ranks"));
    }
}

static void begin_exchange(struct static_rdzv *s) {
    const struct rdzv_options *o = &s->rdzv->options;
    int rc = static_need_waiter(s);
    struct exchange_options options = {
        .client = s->client,
        .waiter = s->waiter,
        .prefix = s->prefix,
        .role = o->role ? o->role : "default",
        .rank = o->node_rank,
        .node_count = o->max_nodes,
        .local_world_size = o->local_world_size,
        .identical = o->identical_workers,
        .address_known = true,
        .master_addr = s->endpoint.host,
        .master_port = (uint16_t)s->endpoint.port,
        .timeout_ms = o->conf.static_timeout_ms,
    };
    (void)uv_timer_stop(rdzv_timer(s->rdzv, RDZV_TIMER_SEARCH));
    s->stage = STATIC_AGREES;
    rc = rc == MUSTER_OK ? exchange_start(&options, on_exchanged, s, &s->exchange) : rc;
    if (rc != MUSTER_OK) {
        static_fail(s, rc);
    }
}

/* The only node meets nobody: each attempt gets an empty store on the same port. */
static void begin_alone(struct static_rdzv *s) {
    uint32_t workers = s->rdzv->options.local_world_size;
    kv_server_reset(store_link_server(s->link));
    s->round += s->settled;
    tell_world(s, &(struct exchange_result){.global_world_size = workers, .role_world_size = workers});
}

/* ---- waiting for the others ---- */

static int fail_late(const struct static_rdzv *s, const char *missing) {
    return status_fail(MUSTER_ETIMEOUT,
                       "%s did not come to %s:%d within timeout (%llu s): are all %u nodes started, with this address, "
                       "and each with a --node-rank of its own?",
                       missing, s->endpoint.host, s->endpoint.port,
                       (unsigned long long)(s->rdzv->options.conf.static_timeout_ms / 1000),
                       s->rdzv->options.max_nodes);
}

static void on_late(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct static_rdzv *s = r->state;
    char missing[STATIC_MISSING_SIZE];
    if (!static_is_host(s) || static_round_missing(&s->host.round, missing) == 0) {
        (void)str_copy(missing, sizeof missing, "a node");
    }
    if (static_is_host(s)) {
        static_host_tell_late(&s->host, missing);
    }
    static_fail(s, fail_late(s, missing));
}

/* The host knows who is missing: it says so before the others give up. */
static uint64_t patience_ms(const struct static_rdzv *s) {
    enum { HOST_SAYS_MS = 10000 };
    return s->rdzv->options.conf.static_timeout_ms + (static_is_host(s) ? 0 : HOST_SAYS_MS);
}

/* Its time begins anew. */
static void wait_for_others(struct static_rdzv *s) {
    s->stage = STATIC_WAITS;
    rdzv_wait(s->rdzv, RDZV_TIMER_SEARCH, on_late, patience_ms(s));
}

/* ---- the host's word ---- */

static void begin_attempt(struct static_rdzv *s, uint64_t round) {
    s->round = round;
    begin_exchange(s);
}

static void be_ready(struct static_rdzv *s, uint64_t round) {
    if (s->ready_for != (int64_t)round) {
        s->ready_for = (int64_t)round;
        static_say(s, STATIC_SAYS_READY, round);
    }
}

/* An agent of PyTorch's takes part, or a node is done: as torchrun does it. */
static void follow_alone(struct static_rdzv *s) {
    if (s->stage == STATIC_WAITS && (!static_is_host(s) || static_host_is_counted(&s->host))) {
        begin_attempt(s, s->round + s->settled);
    }
}

static void on_forming(struct static_rdzv *s) {
    if (s->stage == STATIC_AGREES && s->round < s->word.round) { /* with somebody who is gone */
        static_drop(s);
        wait_for_others(s);
    }
    if (s->stage == STATIC_WAITS) {
        be_ready(s, s->word.round);
    } else if (s->stage == STATIC_WORKING && s->round < s->word.round && !s->has_told_change &&
               s->word.broken_by != s->rdzv->options.node_rank) {
        s->has_told_change = true;
        rdzv_tell_change(s->rdzv, RDZV_NODE_LEFT, "node rank %u starts its workers again, and so do all others",
                         s->word.broken_by);
    }
}

static void on_running(struct static_rdzv *s) {
    if (s->stage == STATIC_WAITS && s->ready_for == (int64_t)s->word.round) {
        begin_attempt(s, s->word.round);
    } else if (s->stage == STATIC_WAITS) { /* the one that this node has left, or into which it comes as a newcomer */
        be_ready(s, s->word.round + 1);
    }
}

/* Does what the host's latest word asks for. */
static void follow(struct static_rdzv *s) {
    if (!s->client || !s->has_word || s->rdzv->failed) {
        return;
    }
    if (s->word.phase == STATIC_ALONE) {
        follow_alone(s);
    } else if (s->word.phase == STATIC_FORMING) {
        on_forming(s);
    } else {
        on_running(s);
    }
}

static bool begins_with(struct kv_slice text, const char *word) {
    return text.len >= strlen(word) && memcmp(text.data, word, strlen(word)) == 0;
}

/* All must have been started with the same --nnodes. The first that comes says how many there are to be; one that
 * differs says so where the host looks, and fails. The host tells the others. */
static void fail_by_nnodes(struct static_rdzv *s, int64_t others) {
    static_fail(s,
                status_fail(MUSTER_EINVAL,
                            "this node was started with --nnodes=%u, another one with --nnodes=%lld: start all nodes "
                            "with the same",
                            s->rdzv->options.max_nodes, (long long)others));
}

static void be_different(struct static_rdzv *s, struct kv_slice word) {
    size_t skipped = strlen(STATIC_WORD_DIFFER);
    struct kv_slice both = {.data = word.data + skipped, .len = word.len - skipped};
    int64_t others = static_other_nnodes(both, s->rdzv->options.max_nodes);
    if (others > 0 && !s->settled) {
        fail_by_nnodes(s, others);
    }
}

static void be_late(struct static_rdzv *s, struct kv_slice word) {
    char missing[STATIC_MISSING_SIZE] = "";
    size_t skipped = strlen(STATIC_WORD_LATE), len = word.len - skipped;
    if (s->stage == STATIC_WAITS && len < sizeof missing) {
        memcpy(missing, word.data + skipped, len);
        printable_clean(missing, len, false);
        static_fail(s, fail_late(s, missing));
    }
}

/* Where survivors go on, "failed" stands in the place of "alone", which who comes afterwards has not read. */
static void go_on_alone(struct static_rdzv *s) {
    if (s->rdzv->options.survivors_continue) {
        s->word = (struct static_word){.phase = STATIC_ALONE};
        s->has_word = true;
        follow(s);
    }
}

static int listen_for(struct static_rdzv *s, struct kv_slice known);

static void on_word(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    if (reply->status != MUSTER_OK) {
        return; /* the store is lost: the other connection says so */
    }
    struct kv_slice word = reply->values[0];
    struct static_word read;
    int rc = listen_for(s, word);
    static_place_answer(s, static_round_read_asked((const char *)word.data, word.len));
    if (rc != MUSTER_OK) { /* no memory: a node that is deaf would wait in vain */
        static_fail(s, rc);
    } else if (static_round_read_word((const char *)word.data, word.len, &read)) {
        s->word = read;
        s->has_word = true;
        follow(s);
    } else if (begins_with(word, STATIC_WORD_FAILED)) {
        static_end_ask_cause(s->rdzv);
        go_on_alone(s);
    } else if (begins_with(word, STATIC_WORD_LATE)) {
        be_late(s, word);
    } else if (begins_with(word, STATIC_WORD_DIFFER)) {
        be_different(s, word);
    }
}

static int listen_for(struct static_rdzv *s, struct kv_slice known) {
    char key[STATIC_KEY_MAX];
    static_key(s, key, STATIC_KEY_ROUND);
    return kv_client_watch(s->watcher, key, known, on_word, s);
}

/* ---- coming ---- */

static void on_own_count(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    if (reply->status != MUSTER_OK) {
        static_fail(s, reply->status);
        return;
    }
    follow(s);
}

static void on_difference_told(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    (void)reply;
    fail_by_nnodes(s, s->others_nnodes);
}

static void on_nnodes(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    char key[STATIC_KEY_MAX], both[STATIC_DIFFER_SIZE];
    uint32_t own = s->rdzv->options.max_nodes;
    s->others_nnodes = reply->status == MUSTER_OK ? static_number_of(reply->values[0]) : 0;
    if (s->others_nnodes <= 0 || s->others_nnodes == (int64_t)own) {
        return;
    }
    static_key(s, key, STATIC_KEY_DIFFER);
    (void)str_format(both, sizeof both, "%lld %u", (long long)s->others_nnodes, own);
    if (kv_client_compare_set(s->client, key, kv_slice_text(""), kv_slice_text(both), on_difference_told, s) !=
        MUSTER_OK) {
        fail_by_nnodes(s, s->others_nnodes); /* the others find out by themselves */
    }
}

static int compare_nnodes(struct static_rdzv *s) {
    char key[STATIC_KEY_MAX], own[16];
    static_key(s, key, STATIC_KEY_NNODES);
    (void)str_format(own, sizeof own, "%u", s->rdzv->options.max_nodes);
    return kv_client_compare_set(s->client, key, kv_slice_text(""), kv_slice_text(own), on_nnodes, s);
}

/* This node has its rank for itself: it hears what the host says, and counts itself in, as PyTorch's agents do. */
static void take_part(struct static_rdzv *s) {
    int rc = listen_for(s, kv_slice_text(""));
    rc = rc == MUSTER_OK && s->client ? kv_client_add_init(s->client, on_own_count, s) : rc;
    if (rc != MUSTER_OK) {
        static_fail(s, rc);
    }
}

/* The host knows whose connection this is, and keeps it when it empties the store: now this node may say who it is. */
static void on_watcher_known(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    if (reply->status != MUSTER_OK) {
        return; /* the other connection says so */
    }
    s->number = (uint64_t)reply->number;
    static_introduce(s);
    static_say(s, STATIC_SAYS_HERE, s->number);
    if (s->number <= 1) {
        take_part(s);
        return;
    }
    int rc = static_place_wait(s, take_part);
    if (rc != MUSTER_OK) {
        static_fail(s, rc);
    }
}

static void on_watcher_state(void *ctx, int status) {
    struct static_rdzv *s = ctx;
    s->is_deaf = status != MUSTER_OK;
    if (s->is_deaf && s->client && (!s->has_word || s->stage == STATIC_WAITS)) {
        static_fail(s, status);
    }
}

static int open_watcher(struct static_rdzv *s) {
    char key[STATIC_KEY_MAX];
    static_numbered_key(s, key, STATIC_KEY_WATCHER);
    int rc = store_link_connect(s->link, on_watcher_state, s, &s->watcher);
    return rc == MUSTER_OK ? kv_client_add(s->watcher, key, 1, on_watcher_known, s) : rc;
}

static void on_link_ready(void *ctx) {
    struct static_rdzv *s = ctx;
    s->client = store_link_client(s->link);
    if (static_is_single(s)) {
        return;
    }
    int rc = compare_nnodes(s);
    if (rc == MUSTER_OK && kv_client_offers_watch(s->client)) {
        rc = open_watcher(s);
    } else if (rc == MUSTER_OK) {
        s->word.phase = STATIC_ALONE;
        s->has_word = true;
        rc = kv_client_add_init(s->client, on_own_count, s);
    }
    if (rc != MUSTER_OK) {
        static_fail(s, rc);
    }
}

static void on_link_failed(void *ctx, int status) {
    struct static_rdzv *s = ctx;
    s->client = NULL;
    failures_lost(&s->rdzv->failures);
    if (static_is_single(s)) {
        return; /* its own connection, dropped when the store was emptied */
    }
    if (!s->settled || s->stage == STATIC_WAITS || s->stage == STATIC_AGREES) {
        static_fail(s, status);
    } else if (s->stage == STATIC_BARRIER) {
        static_end_barrier_over(s);
    } else if (s->stage == STATIC_WORKING) {
        char why[MUSTER_DETAIL_MAX / 2];
        (void)str_format(
            why, sizeof why,
            "node rank 0, which hosts the store at %s:%d, has gone before this node was done: its agent or "
            "its host has ended",
            s->endpoint.host, s->endpoint.port);
        log_warning("%s", why);
        rdzv_note_lost(s->rdzv, why);
    }
    /* Otherwise workers are running: they notice themselves, and need the store no more than they do. */
}

/* ---- the store, on node rank 0 ---- */

/* It may be why workers here fail now. After a failure for good all nodes go. */
static void note_lost_node(struct static_rdzv *s) {
    char name[STATIC_NODE_NAME_SIZE], why[STATIC_NODE_NAME_SIZE + 96];
    if (s->host.lost >= 0 && !s->host.has_failed && !s->rdzv->failed) {
        (void)static_host_name(&s->host, (uint32_t)s->host.lost, name);
        (void)str_format(why, sizeof why, "%s, has gone before it was done: its agent or its host has ended", name);
        log_warning("%s", why);
        rdzv_note_lost(s->rdzv, why);
    }
    s->host.lost = -1;
}

static void note_old_node(struct static_rdzv *s) {
    char name[STATIC_NODE_NAME_SIZE];
    if (s->host.old >= 0) {
        rdzv_agent_speaks(s->rdzv, static_host_name(&s->host, (uint32_t)s->host.old, name), kv_slice_text("0"));
        s->host.old = -1;
    }
}

static void on_wake(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct static_rdzv *s = r->state;
    int64_t others_nnodes = static_other_nnodes(kv_slice_text(s->host.differ), r->options.max_nodes);
    if (others_nnodes > 0 && !s->settled && !r->failed) {
        static_host_tell_difference(&s->host);
        fail_by_nnodes(s, others_nnodes);
    }
    note_lost_node(s);
    note_old_node(s);
    static_host_act(&s->host);
    static_place_bound(s);
    static_end_look(s);
    follow(s); /* all may be counted now */
}

/* Not from inside the server. */
static void wake(struct static_rdzv *s) {
    (void)uv_timer_start(rdzv_timer(s->rdzv, RDZV_TIMER_WAKE), on_wake, 0, 0);
}

static void on_store_disconnect(void *ctx, uint64_t connection, enum kv_end end) {
    struct static_rdzv *s = ctx;
    (void)end;
    if (static_is_host(s) && static_host_lost(&s->host, connection)) {
        wake(s);
    }
}

static void on_store_change(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                            struct kv_slice new_value) {
    struct static_rdzv *s = ctx;
    (void)old_value;
    rdzv_store_heard(s->rdzv, connection, key, new_value);
    if (static_is_host(s) && static_host_heard(&s->host, connection, key, new_value)) {
        wake(s);
    }
}

static int open_link(struct static_rdzv *s) {
    const struct rdzv_options *o = &s->rdzv->options;
    struct store_link_options link = {
        .visitors = static_is_single(s) ? NULL : &s->rdzv->visitors,
        .guest = &s->rdzv->guest,
        .clock = &s->rdzv->clock,
        .host = s->endpoint.host,
        .port = (uint16_t)s->endpoint.port,
        .is_host = o->node_rank == 0,
        .any_address = o->node_rank == 0,
        .others_come = o->max_nodes > 1,
        .timeout_ms = o->conf.static_timeout_ms,
        .silence_ms = o->conf.silence_timeout_ms,
        .on_change = on_store_change,
        .on_disconnect = on_store_disconnect,
        .on_ready = on_link_ready,
        .on_failed = on_link_failed,
        .ctx = s,
    };
    int rc = store_link_create(s->rdzv->loop, &link, &s->link);
    if (rc == MUSTER_OK && store_link_server(s->link)) {
        s->endpoint.port = kv_server_port(store_link_server(s->link)); /* if the kernel was to choose */
    }
    return rc;
}

static int start(struct rdzv *r) {
    const struct rdzv_options *o = &r->options;
    struct static_rdzv *s = calloc(1, sizeof *s);
    if (!s) {
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    r->state = s;
    s->rdzv = r;
    s->on_wake = on_wake;
    s->ready_for = -1;
    (void)str_format(s->prefix, sizeof s->prefix, "%s/", o->run_id);
    int rc = net_endpoint_parse(o->endpoint ? o->endpoint : "", &s->endpoint);
    if (rc == MUSTER_OK && s->endpoint.port < 0) {
        rc = status_fail(MUSTER_EINVAL, "port is missing in endpoint: %s. Try to specify --master-port",
                         s->endpoint.host);
    }
    if (rc == MUSTER_OK && static_is_host(s)) {
        rc = static_host_init(&s->host, s->prefix, o->max_nodes, o->survivors_continue);
    }
    rc = rc == MUSTER_OK ? open_link(s) : rc;
    if (rc == MUSTER_OK && static_is_host(s)) {
        static_host_open(&s->host, store_link_server(s->link));
    }
    return rc;
}

/* ---- people ---- */

static void on_report(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct static_rdzv *s = r->state;
    char tried[MUSTER_DETAIL_MAX / 2], missing[STATIC_NODE_NAME_SIZE], hint[STORE_LINK_HINT_SIZE];
    char note[RDZV_WAIT_NOTE_SIZE];
    store_link_check_name(s->link);
    (void)rdzv_wait_note(r, r->waits[RDZV_TIMER_SEARCH].deadline_ms, "timeout", note);
    if (!s->client) {
        log_warning("node rank %u is still waiting for node rank 0 at %s:%d (%s)%s", r->options.node_rank,
                    s->endpoint.host, s->endpoint.port, store_link_describe(s->link, tried, sizeof tried), note);
    } else if (s->is_waiting) {
        log_warning("another agent may have node rank %u: node rank 0 asks it whether it is still there%s",
                    r->options.node_rank, note);
    } else if (static_is_host(s) && static_host_missing(&s->host, missing) > 0) {
        log_warning("still waiting at %s:%d for %s%s%s", s->endpoint.host, s->endpoint.port, missing,
                    store_link_hint(s->link, hint), note);
    } else {
        log_warning("still waiting for all %u nodes to tell their ranks through %s:%d%s%s", r->options.max_nodes,
                    s->endpoint.host, s->endpoint.port, store_link_hint(s->link, hint), note);
    }
}

/* ---- the agent's calls ---- */

static void join(struct rdzv *r) {
    struct static_rdzv *s = r->state;
    static_drop(s);
    if (static_is_single(s)) {
        begin_alone(s);
        return;
    }
    s->ready_for = -1;
    wait_for_others(s);
    rdzv_report_start(r, on_report);
    if ((!s->client || s->is_deaf) && s->settled) {
        static_fail(s, status_fail(MUSTER_ECONNECT, "the store of node rank 0 at %s:%d is lost", s->endpoint.host,
                                   s->endpoint.port));
        return;
    }
    follow(s);
}

static void stop(struct rdzv *r) {
    struct static_rdzv *s = r->state;
    if (s) {
        static_drop(s);
        kv_client_close(s->watcher);
        store_link_close(s->link);
        static_host_done(&s->host);
        free(s);
    }
}

const struct rdzv_backend_table rdzv_static = {.nodes_max = RDZV_NODES_MAX,
                                               .start = start,
                                               .join = join,
                                               .worker_failed = static_end_worker_failed,
                                               .ask_cause = static_end_ask_cause,
                                               .settles_cause = true,
                                               .is_needed_after_failure = true,
                                               .barrier = static_end_barrier,
                                               .shutdown = static_end_shutdown,
                                               .stop = stop};
