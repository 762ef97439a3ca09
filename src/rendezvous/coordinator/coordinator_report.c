/* Writing the report; see coordinator_report.h. It looks at the coordinator's members, and changes nothing. */
#include "rendezvous/coordinator/coordinator_report.h"

#include <inttypes.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"
#include "rendezvous/coordinator/coordinator_impl.h"

/* What is behind the members: where the list has to stop so that it still fits. */
enum { TAIL_BYTES = 256, MEMBER_BYTES_MAX = 6 * 3 * (int)COORDINATOR_NAME_BYTES_MAX + 512 };

/* ---- JSON ---- */

/* How many bytes from `at` on stand for themselves. */
static size_t plain_run(struct kv_slice text, size_t at) {
    size_t end = at;
    while (end < text.len && text.data[end] >= 0x20 && text.data[end] < 0x7f && text.data[end] != '"' &&
           text.data[end] != '\\') {
        end++;
    }
    return end - at;
}

/* A string with its quotes. What is no UTF-8 becomes question marks. */
static int put_string(struct buf *out, struct kv_slice text) {
    int rc = buf_append(out, "\"", 1);
    for (size_t at = 0; at < text.len && rc == 0;) {
        size_t n = plain_run(text, at);
        if (n > 0) {
            rc = buf_append(out, text.data + at, n);
            at += n;
            continue;
        }
        n = utf8_length(text.data + at, text.len - at);
        uint8_t byte = text.data[at];
        if (n == 0) {
            rc = buf_append(out, "?", 1);
        } else if (byte == '"' || byte == '\\') {
            rc = buf_printf(out, "\\%c", byte);
        } else if (byte < 0x20) {
            rc = buf_printf(out, "\\u%04x", byte);
        } else {
            rc = buf_append(out, text.data + at, n);
        }
        at += n > 0 ? n : 1;
    }
    return rc ? rc : buf_append(out, "\"", 1);
}

static int put_named(struct buf *out, const char *name, struct kv_slice text) {
    int rc = buf_printf(out, "\"%s\":", name);
    rc = rc ? rc : put_string(out, text);
    return rc ? rc : buf_append(out, ",", 1);
}

/* ---- the job ---- */

static const char *phase_name(enum coordinator_phase phase) {
    return phase == COORDINATOR_FORMING ? "forming" : phase == COORDINATOR_RUNNING ? "running" : "over";
}

static int put_limit(struct buf *out, const struct coordinator_limits *limits, enum coordinator_charge charge,
                     const char *name, const char *end) {
    return limits->is_limited[charge] ? buf_printf(out, "\"%s\":%" PRIu32 "%s", name, limits->allowed[charge], end)
                                      : buf_printf(out, "\"%s\":null%s", name, end);
}

static int put_budget(struct buf *out, const struct coordinator *c, const struct coordinator_view *view) {
    const struct coordinator_limits *limits = &c->settings.limits;
    int rc = buf_printf(
        out, "\"charges\":{\"failures\":%" PRIu32 ",\"changes\":%" PRIu32 ",\"preemptions\":%" PRIu32 "},\"limits\":{",
        view->charges.failures, view->charges.changes, view->charges.preemptions);
    rc = rc ? rc : put_limit(out, limits, COORDINATOR_CHARGE_FAILURE, "failures", ",");
    rc = rc ? rc : put_limit(out, limits, COORDINATOR_CHARGE_CHANGE, "changes", ",");
    rc = rc ? rc : put_limit(out, limits, COORDINATOR_CHARGE_PREEMPTION, "preemptions", ",");
    return rc ? rc : buf_printf(out, "\"window_ms\":%" PRId64 "},", limits->window_ms);
}

static int put_job(struct buf *out, const struct coordinator *c, const struct coordinator_view *view,
                   const struct coordinator_history *history, int64_t now_ms) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    int rc = buf_printf(out, "{\"backend\":\"muster\",");
    rc = rc ? rc : put_named(out, "run_id", kv_slice_text(c->run_id));
    rc = rc ? rc
            : buf_printf(out, "\"phase\":\"%s\",\"phase_ms\":%" PRId64 ",\"stopping\":%s,\"round\":%" PRIu64 ",",
                         phase_name(view->phase), history->is_begun ? now_ms - history->phase_ms : 0,
                         view->is_stopping ? "true" : "false", view->round);
    rc = rc ? rc : put_named(out, "news", coordinator_why(c, text));
    rc = rc ? rc : put_named(out, "waits_for", coordinator_waits_for(c, now_ms, text));
    rc = rc ? rc : put_named(out, "engine", kv_slice_of(c->engine, c->engine_len));
    rc = rc ? rc
            : buf_printf(out,
                         "\"nodes\":{\"min\":%" PRIu32 ",\"max\":%" PRIu32
                         ",\"active\":%zu,\"joined\":%zu,\"spare\":%zu,\"done\":%zu,\"world\":%zu},\"workers\":%zu,",
                         c->settings.min_nodes, c->settings.max_nodes, view->active_count, view->joined_count,
                         view->spare_count, view->done_count, view->world_node_count, view->world_worker_count);
    return rc ? rc : put_budget(out, c, view);
}

/* ---- rounds ---- */

static const char *cause_name(enum coordinator_cause cause) {
    static const char *const names[] = {[COORDINATOR_CAUSE_NONE] = "",
                                        [COORDINATOR_CAUSE_FAILURE] = "failure",
                                        [COORDINATOR_CAUSE_CHANGE] = "change",
                                        [COORDINATOR_CAUSE_PREEMPTION] = "preemption"};
    return names[cause];
}

static int put_round(struct buf *out, const struct coordinator_past_round *round, int64_t now_ms, bool is_first) {
    bool is_running = round->ended_ms < 0;
    int rc = buf_printf(out,
                        "%s{\"round\":%" PRIu64 ",\"nodes\":%zu,\"workers\":%zu,\"forming_ms\":%" PRId64
                        ",\"running_ms\":%" PRId64 ",\"ended\":%s,",
                        is_first ? "" : ",", round->round, round->node_count, round->worker_count,
                        round->formed_ms - round->opened_ms, (is_running ? now_ms : round->ended_ms) - round->formed_ms,
                        is_running ? "false" : "true");
    rc = rc ? rc : buf_printf(out, "\"last\":%s,", round->is_last ? "true" : "false");
    rc = rc ? rc : put_named(out, "cause", kv_slice_text(cause_name(round->cause)));
    rc = rc ? rc : buf_printf(out, "\"why\":");
    rc = rc ? rc : put_string(out, kv_slice_text(round->why));
    return rc ? rc : buf_append(out, "}", 1);
}

static int put_rounds(struct buf *out, const struct coordinator_history *history, int64_t now_ms) {
    int rc = buf_printf(out, "\"rounds\":[");
    for (size_t i = 0; i < coordinator_history_count(history) && rc == 0; i++) {
        rc = put_round(out, coordinator_history_at(history, i), now_ms, i == 0);
    }
    return rc ? rc : buf_printf(out, "],");
}

/* ---- members ---- */

static const char *place_name(enum coordinator_place place) {
    static const char *const names[COORDINATOR_PLACES] = {[COORDINATOR_ACTIVE] = "active",
                                                          [COORDINATOR_DONE_WAITS] = "done",
                                                          [COORDINATOR_JOINED] = "joined",
                                                          [COORDINATOR_SPARED] = "spare",
                                                          [COORDINATOR_OUT] = "leaving"};
    return names[place];
}

static int put_member(struct buf *out, const struct coordinator_member *member, bool is_first) {
    int rc = buf_printf(out, "%s{\"place\":\"%s\",", is_first ? "" : ",", place_name(member->place));
    rc = rc ? rc : put_named(out, "addr", member->addr);
    rc = rc ? rc : put_named(out, "role", kv_slice_of(member->role->name, member->role->node.key_len));
    rc = rc ? rc : put_named(out, "topology", member->topology);
    if (rc == 0 && (member->place == COORDINATOR_ACTIVE || member->place == COORDINATOR_DONE_WAITS)) {
        rc = buf_printf(out, "\"rank\":%" PRIu32 ",\"first_worker\":%" PRIu32 ",", member->group_rank,
                        member->base_global_rank);
    }
    return rc ? rc
              : buf_printf(out, "\"pid\":%" PRId64 ",\"workers\":%" PRIu32 ",\"host\":%s}", member->pid,
                           member->local_world_size, member->is_host ? "true" : "false");
}

static int put_members(struct buf *out, const struct coordinator *c) {
    size_t listed = 0;
    int rc = buf_printf(out, "\"members\":[");
    bool has_room = true;
    for (size_t place = 0; place < COORDINATOR_PLACES && has_room; place++) {
        for (const struct coordinator_member *m = c->places[place].first; m && has_room && rc == 0; m = m->next) {
            rc = put_member(out, m, listed == 0);
            listed++;
            has_room = listed < COORDINATOR_REPORT_MEMBERS_MAX && out->max - out->len > MEMBER_BYTES_MAX + TAIL_BYTES;
        }
    }
    return rc ? rc : buf_printf(out, "],\"omitted\":%zu}\n", c->members.count - listed);
}

int coordinator_report(const struct coordinator *c, const struct coordinator_history *history, int64_t now_ms,
                       struct buf *out) {
    struct coordinator_view view;
    coordinator_look(c, &view);
    int rc = put_job(out, c, &view, history, now_ms);
    rc = rc ? rc : put_rounds(out, history, now_ms);
    rc = rc ? rc : put_members(out, c);
    return rc ? status_prefix(rc, "the report of the job") : 0;
}
