/* What the c10d backend tells people: who is here and who is missing, and why a round ends. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "rendezvous/torch/c10d_impl.h"

enum { NAMES_MAX = 8 };

static void append(char *out, size_t size, const char *text) {
    size_t used = strlen(out);
    (void)snprintf(out + used, size - used, "%s", text);
}

/* Up to NAMES_MAX members of a list. */
static void append_names(const struct rdzv_state *state, unsigned list, const char *title, char *out, size_t size) {
    size_t count = rdzv_state_count(state, list);
    size_t named = 0;
    char text[RDZV_NODE_TEXT_MAX];
    if (count == 0) {
        return;
    }
    append(out, size, title);
    for (size_t i = 0; i < state->member_count && named < NAMES_MAX; i++) {
        if (state->members[i].lists & list) {
            append(out, size, named++ > 0 ? ", " : " ");
            append(out, size, rdzv_node_format(&state->members[i].node, text));
        }
    }
    if (count > named) {
        (void)str_format(text, sizeof text, " and %zu more", count - named);
        append(out, size, text);
    }
    append(out, size, "; ");
}

/* The deadline is of the clock of the node that wrote it. */
static int64_t last_call_left_s(const struct c10d *c) {
    const struct rdzv_state *state = &c->machine.state;
    int64_t most_s = c->machine.settings.last_call_timeout_ms / 1000;
    int64_t left_us = state->has_deadline ? state->deadline_us - c10d_now(c).wall_us : 0;
    int64_t left_s = left_us > 0 ? (left_us + 999999) / 1000000 : 0;
    return left_s < most_s ? left_s : most_s;
}

/* The first member of the world that is not in the round any longer. */
static const struct rdzv_node *first_missing(const struct c10d *c) {
    for (size_t i = 0; i < c->world.member_count; i++) {
        const struct rdzv_member *was = &c->world.members[i];
        if ((was->lists & RDZV_PARTICIPANT) && !rdzv_state_is(&c->machine.state, &was->node, RDZV_PARTICIPANT)) {
            return &was->node;
        }
    }
    return NULL;
}

const char *c10d_report_who(const struct c10d *c, char *out, size_t size) {
    const struct rdzv_options *o = &c->rdzv->options;
    const struct rdzv_state *state = &c->machine.state;
    char counts[160], nodes[RDZV_NODES_TEXT_SIZE], name[RDZV_NODE_TEXT_MAX];
    out[0] = '\0';
    append_names(state, RDZV_PARTICIPANT, state->complete ? "members of the running round:" : "here:", out, size);
    append_names(state, RDZV_WAITING, "waiting:", out, size);
    append_names(state, RDZV_SPARE, "spare:", out, size);
    /* Who is out of time has taken itself off the list, and is here all the same. */
    size_t here = rdzv_state_count(state, RDZV_PARTICIPANT) + !rdzv_state_is(state, &c->machine.self, RDZV_LISTED);
    size_t missing = here < o->min_nodes ? o->min_nodes - here : 0;
    if (state->complete) {
        (void)str_format(counts, sizeof counts, "round %lld is complete and must end before this node can take part",
                         (long long)state->round);
    } else if (missing > 0) {
        (void)str_format(counts, sizeof counts, "%zu of %u nodes are here, %zu missing (at most %u can take part)",
                         here, o->min_nodes, missing, o->max_nodes);
    } else {
        (void)str_format(counts, sizeof counts, "%zu of %s are here: enough, the last call ends in %lld s", here,
                         rdzv_nodes_text(o, nodes), (long long)last_call_left_s(c));
    }
    append(out, size, counts);
    const struct rdzv_node *lost = missing > 0 && !state->complete ? first_missing(c) : NULL;
    if (lost) {
        (void)str_format(counts, sizeof counts, "; of round %lld, which has ended, it lacks node ",
                         (long long)c->world.round);
        append(out, size, counts);
        append(out, size, rdzv_node_format(lost, name));
    }
    return out;
}

static void on_report(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct c10d *c = r->state;
    char text[MUSTER_DETAIL_MAX];
    char tried[MUSTER_DETAIL_MAX / 2], note[RDZV_WAIT_NOTE_SIZE];
    (void)c10d_store_describe(c, tried, sizeof tried);
    if (!c->has_machine) {
        log_warning(
            "still waiting for the rendezvous store of '%s' at %s (%s)%s", r->options.run_id,
            r->options.endpoint && r->options.endpoint[0] ? r->options.endpoint : "localhost", tried,
            rdzv_wait_note(r, r->waits_from_ms + (int64_t)r->options.conf.read_timeout_ms, "read_timeout", note));
        return;
    }
    log_warning("still waiting for a world in rendezvous '%s' (store %s): %s%s", r->options.run_id, tried,
                c->forming ? "its nodes are telling each other their ranks" : c10d_report_who(c, text, sizeof text),
                rdzv_wait_note(r, c->machine.deadline_ms, "join_timeout", note));
}

void c10d_report_start(struct c10d *c) {
    rdzv_report_start(c->rdzv, on_report);
}

void c10d_report_stop(struct c10d *c) {
    (void)uv_timer_stop(rdzv_timer(c->rdzv, RDZV_TIMER_REPORT));
}

/* ---- a spare ---- */

static void on_spare_report(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    const struct c10d *c = r->state;
    char members[MUSTER_DETAIL_MAX] = "";
    append_names(&c->machine.state, RDZV_PARTICIPANT, "members:", members, sizeof members);
    size_t len = strlen(members);
    members[len > 2 ? len - 2 : 0] = '\0'; /* "; " */
    rdzv_report_spare(r, members);
}

void c10d_report_spare(struct c10d *c) {
    bool is_spare = rdzv_machine_is_spare(&c->machine) &&
                    (c->rdzv->options.max_nodes > 1 || c->machine.settings.serves_others); /* else it asks who lives */
    if (is_spare && !c->is_spare_told) {
        uv_timer_t *timer = rdzv_timer(c->rdzv, RDZV_TIMER_REPORT);
        on_spare_report(timer);
        (void)uv_timer_start(timer, on_spare_report, RDZV_SPARE_REPORT_MS, RDZV_SPARE_REPORT_MS);
    } else if (!is_spare && c->is_spare_told && c->machine.phase == RDZV_PHASE_JOINING) {
        rdzv_report_spare_no_more(c->rdzv);
        c10d_report_start(c);
    }
    c->is_spare_told = is_spare;
}

int c10d_report_taken(const struct c10d *c) {
    const struct rdzv_options *o = &c->rdzv->options;
    const struct rdzv_node *holder = rdzv_machine_holder(&c->machine);
    char store[MUSTER_DETAIL_MAX / 4], name[RDZV_NODE_TEXT_MAX];
    bool has_endpoint = o->endpoint && o->endpoint[0] != '\0';
    assert(holder);
    (void)str_format(name, sizeof name, "node %s (pid %lld)", holder->addr, (long long)holder->pid);
    return rdzv_refuse_second(c->rdzv, has_endpoint ? o->endpoint : c10d_store_describe(c, store, sizeof store), name);
}

void c10d_report_silent(struct c10d *c) {
    const struct rdzv_machine *m = &c->machine;
    char name[RDZV_NODE_TEXT_MAX];
    const int64_t now_ms = rdzv_now_ms(c->rdzv);
    if (m->has_silent && (c->silence_told_ms == 0 || now_ms >= c->silence_told_ms + RDZV_SILENCE_REPORT_MS)) {
        c->silence_told_ms = now_ms;
        log_warning(
            "no sign of life from node %s for %lld s; it keeps its place, and its workers may run, for %lld s more",
            rdzv_node_format(&m->silent, name), (long long)((now_ms - m->silent_since_ms) / 1000),
            (long long)((m->kept_until_ms - now_ms) / 1000));
    } else if (!m->has_silent && c->silence_told_ms > 0) {
        c->silence_told_ms = 0;
        if (m->phase == RDZV_PHASE_MEMBER && m->told != RDZV_VERDICT_NODE_LEFT) {
            log_warning("all nodes of the world answer again");
        }
    }
}

void c10d_report_store(struct c10d *c) {
    char tried[MUSTER_DETAIL_MAX / 2];
    const struct rdzv_machine *m = &c->machine;
    const int64_t end_ms = c->has_machine ? rdzv_machine_lease_end_ms(m) : INT64_MAX;
    const int64_t now_ms = (int64_t)uv_now(c->rdzv->loop);
    const bool is_silent = c->writing && end_ms != INT64_MAX && rdzv_machine_is_held(m) && now_ms < end_ms &&
                           now_ms - m->answered_ms >= m->settings.expiry_ms;
    if (is_silent && (c->store_told_ms == 0 || now_ms >= c->store_told_ms + RDZV_SILENCE_REPORT_MS)) {
        c->store_told_ms = now_ms;
        log_warning(
            "the store of the rendezvous (%s) has not answered for %lld s; this node's workers run on, and are ended "
            "in %lld s unless it answers",
            c10d_store_describe(c, tried, sizeof tried), (long long)((now_ms - m->answered_ms) / 1000),
            (long long)((end_ms - now_ms + 999) / 1000));
    } else if (c->store_told_ms > 0 && !c->writing) {
        c->store_told_ms = 0;
        log_warning("the store of the rendezvous answers again; the same workers run on");
    }
}

const char *c10d_report_change(const struct c10d *c, bool left, char *out, size_t size) {
    char name[RDZV_NODE_TEXT_MAX] = "";
    const struct rdzv_state *state = &c->machine.state;
    if (!left) {
        out[0] = '\0';
        append_names(state, RDZV_WAITING, "a node waits to be let in:", out, size);
        if (out[0] != '\0') {
            out[strlen(out) - 2] = '\0'; /* "; " */
        } else {
            (void)str_copy(out, size, "a node has waited to be let in"); /* and is gone by now */
        }
        return out;
    }
    const struct rdzv_node *missing = first_missing(c);
    if (!rdzv_state_is(state, &c->machine.self, RDZV_PARTICIPANT)) {
        (void)str_format(out, size, "this node was taken out of round %lld by others, who thought it dead",
                         (long long)c->world.round);
    } else if (!missing) {
        (void)str_format(out, size, "round %lld is over", (long long)c->world.round);
    } else if (rdzv_state_is(state, missing, RDZV_LISTED)) {
        (void)str_format(out, size, "node %s has left round %lld to join again", rdzv_node_format(missing, name),
                         (long long)c->world.round);
    } else {
        (void)str_format(out, size, "node %s has left or died", rdzv_node_format(missing, name));
    }
    return out;
}
