/* The backend etcd, PyTorch's first, which it calls legacy: life, watching, what the machine decides; see etcd_impl.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd_legacy/etcd_impl.h"

/* What nobody renews for two hours has been forgotten by its job. */
enum { ROOT_TTL_S = 7200, ROOT_RENEW_MS = ROOT_TTL_S / 2 * 1000 };

static void feed(struct etcd_rdzv *e, enum etcd_event event);
static void watch(struct etcd_rdzv *e);

/* ---- failing ---- */

static void drop_requests(struct etcd_rdzv *e) {
    etcd_v2_cancel(e->call);
    etcd_v2_cancel(e->watch);
    etcd_v2_cancel(e->tenure);
    etcd_end_stop(e);
    e->call = e->watch = e->tenure = NULL;
    etcd_call_release(e);
    (void)uv_timer_stop(rdzv_timer(e->rdzv, RDZV_TIMER_WAKE));
    (void)uv_timer_stop(rdzv_timer(e->rdzv, RDZV_TIMER_LINGER));
    (void)uv_timer_stop(rdzv_timer(e->rdzv, RDZV_TIMER_REPORT));
}

static void fail(struct etcd_rdzv *e, int status) {
    rdzv_tell_failed(e->rdzv, status);
    etcd_round_abort(e); /* the round's store is read on: more may be told of what has failed */
    drop_requests(e);
    rdzv_tell_barrier_done(e->rdzv);
    rdzv_tell_shutdown_done(e->rdzv);
}

/* ---- people ---- */

static const char *describe_world(const struct etcd_rdzv *e, char *out, size_t size) {
    const struct etcd_world *world = &e->machine.world;
    const struct rdzv_options *o = &e->rdzv->options;
    char nodes[RDZV_NODES_TEXT_SIZE];
    switch (world->status) {
    case ETCD_WORLD_ABSENT:
    case ETCD_WORLD_SETUP:
        (void)str_format(out, size, "nobody has opened a round yet");
        break;
    case ETCD_WORLD_JOINABLE:
        (void)str_format(out, size, "%u of %s are here%s", world->participants, rdzv_nodes_text(o, nodes),
                         world->participants < o->min_nodes ? "" : ": enough, waiting for the last call to end");
        break;
    case ETCD_WORLD_FROZEN:
        (void)str_format(out, size, "%u of %u nodes have confirmed that they take part", world->confirmed,
                         world->participants);
        break;
    case ETCD_WORLD_FINAL:
        (void)str_format(out, size, "a round of %u node%s is running and must end before this node can take part",
                         world->participants, str_plural(world->participants));
        break;
    case ETCD_WORLD_CLOSED:
        (void)str_format(out, size, "the rendezvous is closed");
        break;
    }
    return out;
}

static void on_report(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct etcd_rdzv *e = r->state;
    char text[MUSTER_DETAIL_MAX / 2], note[RDZV_WAIT_NOTE_SIZE];
    if (!e->ready) {
        log_warning(
            "still waiting for the etcd of rendezvous '%s' (%s)%s", r->options.run_id, etcd_v2_describe(e->etcd),
            rdzv_wait_note(r, r->waits_from_ms + (int64_t)r->options.conf.read_timeout_ms, "read_timeout", note));
        return;
    }
    log_warning("still waiting for a world in rendezvous '%s' (etcd %s): %s%s", r->options.run_id,
                etcd_v2_describe(e->etcd),
                e->forming ? "its nodes are telling each other their ranks" : describe_world(e, text, sizeof text),
                rdzv_wait_note(r, e->machine.deadline_ms, "timeout", note));
}

static void start_reports(struct etcd_rdzv *e) {
    rdzv_report_start(e->rdzv, on_report);
}

static void on_spare_report(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct etcd_rdzv *e = r->state;
    char text[MUSTER_DETAIL_MAX / 2];
    rdzv_report_spare(r, describe_world(e, text, sizeof text));
}

static void report_spare(struct etcd_rdzv *e) {
    bool is_spare = etcd_machine_is_spare(&e->machine) && !e->ending, was_spare = e->rdzv->spare_since_us != 0;
    uv_timer_t *timer = rdzv_timer(e->rdzv, RDZV_TIMER_REPORT);
    if (is_spare && !was_spare) {
        on_spare_report(timer);
        (void)uv_timer_start(timer, on_spare_report, RDZV_SPARE_REPORT_MS, RDZV_SPARE_REPORT_MS);
    } else if (!is_spare && was_spare && e->machine.phase == ETCD_PHASE_JOINING &&
               e->machine.world.status != ETCD_WORLD_CLOSED) {
        rdzv_report_spare_no_more(e->rdzv);
        start_reports(e);
    }
}

/* ---- deciding ---- */

static bool stands_in_round(const struct etcd_rdzv *e) {
    return strcmp(e->machine.world.version, e->version) == 0;
}

static void tell_left(struct etcd_rdzv *e) {
    if (!stands_in_round(e)) {
        rdzv_tell_change(e->rdzv, RDZV_NODE_LEFT,
                         "version %s of the rendezvous is over: a node has left it to join again", e->version);
    } else {
        rdzv_tell_change(e->rdzv, RDZV_NODE_LEFT, "%s has left or died", e->machine.members.lost);
    }
}

static void on_member_change(struct etcd_rdzv *e, bool left) {
    if (e->ending) {
        return;
    }
    if (e->barrier.is_active) {
        e->end.is_doomed = left && stands_in_round(e) && !etcd_machine_can_reform(&e->machine);
        etcd_round_barrier_look(e, left);
    } else if (e->forming && left) {
        /* The world is void before it began: no need to trouble the agent. */
        etcd_round_abort(e);
        etcd_call_release(e);
        feed(e, ETCD_EVENT_JOIN);
    } else if (e->forming) {
        e->change_seen = true;
    } else if (left) {
        tell_left(e);
    } else {
        rdzv_tell_change(e->rdzv, RDZV_NODE_ARRIVED, "a node waits to be let in");
    }
}

static void on_joined(struct etcd_rdzv *e) {
    memcpy(e->version, e->machine.version, sizeof e->version);
    e->rank = e->machine.rank;
    e->count = e->machine.world.participants;
    int rc = etcd_round_begin(e);
    if (rc != MUSTER_OK) {
        fail(e, rc);
    }
}

static int timed_out(const struct etcd_rdzv *e) {
    char text[MUSTER_DETAIL_MAX / 2];
    return status_fail(MUSTER_ETIMEOUT, "no world was formed within timeout (%llu s): %s",
                       (unsigned long long)(e->rdzv->options.conf.static_timeout_ms / 1000),
                       describe_world(e, text, sizeof text));
}

static void obey(struct etcd_rdzv *e, enum etcd_verdict verdict) {
    switch (verdict) {
    case ETCD_VERDICT_NONE:
        break;
    case ETCD_VERDICT_JOINED:
        on_joined(e);
        break;
    case ETCD_VERDICT_CLOSED:
        etcd_end_closed(e);
        break;
    case ETCD_VERDICT_SPARE_RELEASED:
        (void)uv_timer_stop(rdzv_timer(e->rdzv, RDZV_TIMER_REPORT));
        rdzv_tell_spare_released(e->rdzv);
        break;
    case ETCD_VERDICT_TAKEN:
        fail(e, rdzv_refuse_second(e->rdzv, etcd_v2_describe(e->etcd), e->machine.members.first));
        break;
    case ETCD_VERDICT_TIMEOUT:
        fail(e, timed_out(e));
        break;
    case ETCD_VERDICT_NODE_ARRIVED:
    case ETCD_VERDICT_NODE_LEFT:
        on_member_change(e, verdict == ETCD_VERDICT_NODE_LEFT);
        break;
    case ETCD_VERDICT_NODE_STAYS_OUT:
        log_info("a node waits to be let in; it stays outside, since a node of version %s is done already", e->version);
        break;
    case ETCD_VERDICT_DONE_NODE_LEFT:
        etcd_end_excuse(e);
        break;
    case ETCD_VERDICT_FAILED:
        etcd_end_fail(e);
        break;
    case ETCD_VERDICT_TOO_FEW:
        etcd_end_too_few(e);
        break;
    case ETCD_VERDICT_GIVEN_UP:
        log_warning("could not report this node's end to the rendezvous within close_timeout");
        etcd_end_finish(e);
        break;
    case ETCD_VERDICT_DONE:
        etcd_end_finish(e);
        break;
    }
}

static void on_wake(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    feed(r->state, ETCD_EVENT_TIMER);
}

static void arm_wake(struct etcd_rdzv *e, int64_t wake_ms) {
    uv_timer_t *timer = rdzv_timer(e->rdzv, RDZV_TIMER_WAKE);
    int64_t delay = wake_ms - rdzv_now_ms(e->rdzv);
    uv_update_time(e->rdzv->loop);
    if (wake_ms == INT64_MAX) {
        (void)uv_timer_stop(timer);
    } else {
        (void)uv_timer_start(timer, on_wake, delay > 0 ? (uint64_t)delay : 0, 0);
    }
}

static void feed(struct etcd_rdzv *e, enum etcd_event event) {
    struct etcd_actions actions;
    if (e->rdzv->failed) {
        return;
    }
    uint64_t silent_ms = etcd_v2_silent_ms(e->etcd);
    if (silent_ms > e->silent_ms) {
        e->silent_ms = silent_ms;
        etcd_machine_excuse(&e->machine, rdzv_now_ms(e->rdzv));
    }
    int rc = etcd_machine_step(&e->machine, event, rdzv_now_ms(e->rdzv), &actions);
    if (rc != MUSTER_OK) {
        fail(e, rc);
        return;
    }
    arm_wake(e, actions.wake_ms);
    etcd_call_perform(e, &actions);
    free(actions.value);
    if (!e->rdzv->failed) {
        obey(e, actions.verdict);
    }
    if (!e->rdzv->failed) {
        report_spare(e);
    }
    etcd_round_barrier_look(e, false);
    etcd_end_look(e);
}

/* ---- watching ---- */

/* The world has changed: taken as it is, unless a call is out, whose answer may be older or newer. */
static void on_world_event(struct etcd_rdzv *e, const struct etcd_v2_node *node) {
    if (node->modified_index <= e->seen_index) {
        return;
    }
    if (e->machine.busy != ETCD_CALL_NONE) {
        e->missed_index = node->modified_index;
        return;
    }
    if (!e->machine.known) {
        return; /* it is read when it is needed */
    }
    e->seen_index = node->modified_index;
    e->world_index = node->value ? node->modified_index : 0;
    int rc = etcd_machine_adopt(&e->machine, node->value);
    if (rc == MUSTER_OK) {
        feed(e, ETCD_EVENT_SEEN);
    } else {
        fail(e, status_prefix(rc, "the rendezvous '%s' in etcd", e->rdzv->options.run_id));
    }
}

/* Something in the folder of a version: a keep-alive, a mark, a key of the nodes' store. */
static void on_version_event(struct etcd_rdzv *e, const struct etcd_v2_answer *event) {
    char keys[ETCD_FOLDER_MAX + ETCD_WORLD_VERSION_MAX + 8];
    (void)str_format(keys, sizeof keys, "%s%s/rank_", e->versions, e->machine.world.version);
    bool gone = !event->node.value && !event->node.is_folder;
    if (gone && str_has_prefix(event->node.key, keys)) {
        bool own = e->holds_key && strcmp(event->node.key, e->key) == 0; /* put there again when it is renewed */
        bool deleted = strcmp(event->action, "expire") != 0;
        if (!own) {
            feed(e, deleted ? ETCD_EVENT_DELETED : ETCD_EVENT_EXPIRED);
        }
    }
}

static void on_watched(void *ctx, int status, const struct etcd_v2_answer *event) {
    struct etcd_rdzv *e = ctx;
    e->watch = NULL;
    if (status != MUSTER_OK) {
        fail(e, status);
        return;
    }
    if (event
            ->error) { /* etcd was away, or has forgotten what came after watch_index: all is read again, and watched */
        e->seen_index = e->missed_index = 0;
        e->machine.known = false;
        feed(e, ETCD_EVENT_EXPIRED);
        return;
    }
    e->watch_index = event->node.modified_index + 1;
    watch(e);
    if (strcmp(event->node.key, e->active) == 0) {
        on_world_event(e, &event->node);
    } else if (str_has_prefix(event->node.key, e->versions)) {
        on_version_event(e, event);
    }
}

static void watch(struct etcd_rdzv *e) {
    char folder[ETCD_FOLDER_MAX];
    (void)str_format(folder, sizeof folder, "%s/rdzv", e->root);
    struct etcd_v2_call call = {
        .method = "GET", .path = folder, .recursive = true, .wait = true, .wait_index = e->watch_index};
    int rc = etcd_v2_send(e->etcd, &call, on_watched, e, &e->watch);
    if (rc != MUSTER_OK) {
        fail(e, rc);
    }
}

/* ---- beginning ---- */

static void on_tenure_renewed(void *ctx, int status, const struct etcd_v2_answer *answer) {
    struct etcd_rdzv *e = ctx;
    e->tenure = NULL;
    if (status != MUSTER_OK) {
        fail(e, status);
    } else if (answer->error) {
        log_warning("%s in etcd cannot be kept: %s", e->root, answer->message);
    }
}

static void on_tenure_timer(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct etcd_rdzv *e = r->state;
    struct etcd_v2_call call = {
        .method = "PUT", .path = e->root, .ttl_s = ROOT_TTL_S, .refresh = true, .exist = ETCD_V2_IF_PRESENT};
    if (!e->tenure && etcd_v2_send(e->etcd, &call, on_tenure_renewed, e, &e->tenure) != MUSTER_OK) {
        e->tenure = NULL;
    }
}

static void begin(struct etcd_rdzv *e, uint64_t index) {
    e->ready = true;
    e->watch_index = index + 1;
    watch(e);
    (void)uv_timer_start(rdzv_timer(e->rdzv, RDZV_TIMER_LINGER), on_tenure_timer, 0, ROOT_RENEW_MS);
    if (e->join_wanted) {
        feed(e, ETCD_EVENT_JOIN);
    }
}

static void make_folder(struct etcd_rdzv *e);

static void on_folder_made(void *ctx, int status, const struct etcd_v2_answer *answer) {
    struct etcd_rdzv *e = ctx;
    e->call = NULL;
    if (status == MUSTER_OK && answer->error && answer->error != ETCD_V2_NODE_EXIST) {
        status = etcd_v2_fail(answer, e->root);
    }
    if (status != MUSTER_OK) {
        fail(e, status);
        return;
    }
    e->folders_made++;
    if (e->folders_made < 4) {
        make_folder(e);
    } else {
        begin(e, answer->error ? answer->index : answer->node.modified_index);
    }
}

/* What every node makes if it is not there: the prefix, the job's root, the folder of its rounds, their counter. */
static void make_folder(struct etcd_rdzv *e) {
    char rounds[ETCD_FOLDER_MAX];
    (void)str_format(rounds, sizeof rounds, "%s/rdzv", e->root);
    const struct etcd_v2_call calls[] = {
        {.path = e->prefix, .is_folder = true},
        {.path = e->root, .is_folder = true, .ttl_s = ROOT_TTL_S},
        {.path = rounds, .is_folder = true},
        {.path = e->counter, .value = "0"},
    };
    struct etcd_v2_call call = calls[e->folders_made];
    call.method = "PUT";
    call.exist = ETCD_V2_IF_ABSENT;
    int rc = etcd_v2_send(e->etcd, &call, on_folder_made, e, &e->call);
    if (rc != MUSTER_OK) {
        fail(e, rc);
    }
}

/* One slash before each name, none at the end. */
static bool clean_prefix(const char *text, char out[RDZV_TEXT_MAX + 1]) {
    size_t used = 0;
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, "/");
        if (len > 0) {
            if (used + len + 1 > RDZV_TEXT_MAX) {
                return false;
            }
            out[used++] = '/';
            memcpy(out + used, at, len);
            used += len;
        }
        at += len + (at[len] == '/');
    }
    out[used] = '\0';
    return true;
}

static const struct etcd_driver driver = {.feed = feed, .fail = fail, .watch = watch};

static int start(struct rdzv *r) {
    const struct rdzv_options *o = &r->options;
    struct etcd_rdzv *e = calloc(1, sizeof *e);
    if (!e) {
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    r->state = e;
    e->rdzv = r;
    e->driver = &driver;
    r->options.share_store = false;
    if (!clean_prefix(o->conf.etcd.prefix, e->prefix) || strchr(o->run_id, '/')) {
        return status_fail(MUSTER_EINVAL, "etcd_prefix is too long, or the run id '%s' has a slash", o->run_id);
    }
    (void)str_format(e->root, sizeof e->root, "%s/run_%s", e->prefix, o->run_id);
    (void)str_format(e->versions, sizeof e->versions, "%s/rdzv/v_", e->root);
    (void)str_format(e->active, sizeof e->active, "%s/rdzv/active_version", e->root);
    (void)str_format(e->counter, sizeof e->counter, "%s/rdzv/version_counter", e->root);
    struct etcd_machine_settings settings = {
        .min_nodes = o->min_nodes,
        .max_nodes = o->max_nodes,
        .join_timeout_ms = (int64_t)o->conf.static_timeout_ms,
        .last_call_timeout_ms = (int64_t)o->conf.last_call_timeout_ms,
        .close_timeout_ms = (int64_t)o->conf.close_timeout_ms,
        .versions = e->versions,
    };
    etcd_machine_init(&e->machine, &settings);
    e->folders_made = e->prefix[0] == '\0'; /* the root is there */
    int rc = etcd_link_open(r, &e->etcd);
    if (rc == MUSTER_OK) {
        make_folder(e);
    }
    return rc;
}

/* ---- the agent's calls ---- */

static void join(struct rdzv *r) {
    struct etcd_rdzv *e = r->state;
    etcd_round_abort(e);
    etcd_call_release(e);
    start_reports(e);
    e->join_wanted = true;
    if (e->ready) {
        feed(e, ETCD_EVENT_JOIN);
    }
}

static void barrier(struct rdzv *r) {
    etcd_round_barrier(r->state);
}

static void shutdown_node(struct rdzv *r, bool close_job) {
    struct etcd_rdzv *e = r->state;
    e->ending = true;
    e->join_wanted = false;
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_REPORT));
    if (e->ready) {
        etcd_end_begin(e, close_job);
    } else {
        etcd_round_abort(e);
        rdzv_tell_shutdown_done(r);
    }
}

static void stop(struct rdzv *r) {
    struct etcd_rdzv *e = r->state;
    if (e) {
        etcd_round_stop(e);
        drop_requests(e);
        etcd_v2_close(e->etcd);
        etcd_machine_done(&e->machine);
        free(e);
    }
}

const struct rdzv_backend_table rdzv_etcd = {.nodes_max = RDZV_NODES_MAX,
                                             .start = start,
                                             .join = join,
                                             .worker_failed = etcd_end_worker_failed,
                                             .ask_cause = etcd_end_ask_cause,
                                             .settles_cause = true,
                                             .barrier = barrier,
                                             .shutdown = shutdown_node,
                                             .stop = stop};
