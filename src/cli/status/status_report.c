/* Reports as trees and as text; see status_report.h. What the fields are is in docs/status.md. */
#include "cli/status/status_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "base/status.h"
#include "base/str.h"

enum { DURATION_TEXT_MAX = 32, WHO_TEXT_MAX = 320 };

/* ---- a c10d rendezvous ---- */

static const char *place_of(const struct rdzv_member *member) {
    return member->lists & RDZV_PARTICIPANT ? "active"
           : member->lists & RDZV_WAITING   ? "waiting"
           : member->lists & RDZV_SPARE     ? "spare"
                                            : "gone";
}

static json_t *member_of(const struct rdzv_member *member, bool is_complete, int64_t now_us) {
    json_t *tree = json_pack("{s:s, s:s, s:I, s:I}", "place", place_of(member), "addr", member->node.addr, "pid",
                             (json_int_t)member->node.pid, "local_id", (json_int_t)member->node.local_id);
    if (tree && is_complete && (member->lists & RDZV_PARTICIPANT)) {
        (void)json_object_set_new(tree, "rank", json_integer(member->rank));
    }
    if (tree && (member->lists & RDZV_HEARTBEAT) && member->heartbeat_us != RDZV_GRAVE_US) {
        (void)json_object_set_new(tree, "heard_ms", json_integer((now_us - member->heartbeat_us) / 1000));
    }
    return tree;
}

int status_report_c10d(const struct rdzv_state *state, const char *run_id, int64_t now_us, json_t **out) {
    json_t *members = json_array();
    bool fine = members != NULL;
    for (size_t i = 0; i < state->member_count && fine; i++) {
        fine = json_array_append_new(members, member_of(&state->members[i], state->complete, now_us)) == 0;
    }
    const char *phase = state->closed ? "over" : state->complete ? "running" : "forming";
    size_t world = rdzv_state_count(state, RDZV_PARTICIPANT);
    json_t *tree = json_pack("{s:s, s:s, s:s, s:I, s:b, s:b, s:{s:I, s:I, s:I}, s:o}", "backend", "c10d", "run_id",
                             run_id, "phase", phase, "round", (json_int_t)state->round, "complete", state->complete,
                             "closed", state->closed, "nodes", state->complete ? "active" : "joined", (json_int_t)world,
                             "waiting", (json_int_t)rdzv_state_count(state, RDZV_WAITING), "spare",
                             (json_int_t)rdzv_state_count(state, RDZV_SPARE), "members", members);
    if (!fine || !tree) {
        json_decref(tree);
        return status_fail(MUSTER_ENOMEM, "no memory for the state of the rendezvous");
    }
    *out = tree;
    return 0;
}

static int clean_text(json_t *value) {
    size_t length = json_string_length(value);
    char *copy = malloc(length + 1);
    if (!copy) {
        return status_fail(MUSTER_ENOMEM, "no memory for the report");
    }
    memcpy(copy, json_string_value(value), length);
    printable_clean(copy, length, false);
    int rc = json_string_setn(value, copy, length) == 0 ? 0 : status_fail(MUSTER_ENOMEM, "no memory for the report");
    free(copy);
    return rc;
}

int status_report_clean(json_t *report) {
    const char *name;
    json_t *value;
    size_t index;
    int rc = json_is_string(report) ? clean_text(report) : 0;
    json_object_foreach(report, name, value) {
        rc = rc ? rc : status_report_clean(value);
    }
    json_array_foreach(report, index, value) {
        rc = rc ? rc : status_report_clean(value);
    }
    return rc;
}

/* ---- fields ---- */

static int64_t number_of(const json_t *tree, const char *name) {
    return json_integer_value(json_object_get(tree, name));
}

static const char *text_of(const json_t *tree, const char *name) {
    const char *text = json_string_value(json_object_get(tree, name));
    return text ? text : "";
}

static bool truth_of(const json_t *tree, const char *name) {
    return json_is_true(json_object_get(tree, name));
}

/* "12 ms", "3.4 s", "2 min 5 s", "3 h 20 min" */
static const char *duration(int64_t ms, char out[DURATION_TEXT_MAX]) {
    if (ms < 1000) {
        (void)str_format(out, DURATION_TEXT_MAX, "%" PRId64 " ms", ms);
    } else if (ms < 60000) {
        (void)str_format(out, DURATION_TEXT_MAX, "%.1f s", (double)ms / 1000);
    } else if (ms < 3600000) {
        (void)str_format(out, DURATION_TEXT_MAX, "%" PRId64 " min %" PRId64 " s", ms / 60000, ms / 1000 % 60);
    } else {
        (void)str_format(out, DURATION_TEXT_MAX, "%" PRId64 " h %" PRId64 " min", ms / 3600000, ms / 60000 % 60);
    }
    return out;
}

/* ---- the job ---- */

/* ", 2 spare" where there are any. */
static int put_count(struct buf *out, const json_t *nodes, const char *name, const char *word) {
    int64_t count = number_of(nodes, name);
    return count > 0 ? buf_printf(out, ", %" PRId64 " %s", count, word) : 0;
}

static int put_nodes(struct buf *out, const json_t *report) {
    const json_t *nodes = json_object_get(report, "nodes");
    bool is_forming = strcmp(text_of(report, "phase"), "forming") == 0;
    int64_t count = number_of(nodes, is_forming ? "joined" : "active");
    int rc = buf_printf(out, "%" PRId64 " node%s", count, str_plural((uint64_t)count));
    if (rc == 0 && is_forming && json_object_get(nodes, "min")) {
        rc = buf_printf(out, " of %" PRId64 " to %" PRId64, number_of(nodes, "min"), number_of(nodes, "max"));
    }
    rc = rc ? rc : is_forming ? put_count(out, nodes, "active", "still to come") : 0;
    rc = rc ? rc : put_count(out, nodes, "done", "done");
    rc = rc ? rc : put_count(out, nodes, "waiting", "waiting");
    return rc ? rc : put_count(out, nodes, "spare", "spare");
}

/* Without its end. */
static int put_line(struct buf *out, const json_t *report) {
    char since[DURATION_TEXT_MAX];
    const char *phase = text_of(report, "phase");
    bool is_running = strcmp(phase, "running") == 0;
    int rc = buf_printf(out, "job \"%s\": %s", text_of(report, "run_id"), phase);
    rc = rc ? rc : truth_of(report, "stopping") ? buf_printf(out, ", to be stopped") : 0;
    rc = rc           ? rc
         : is_running ? buf_printf(out, ", round %" PRId64, number_of(report, "round"))
                      : buf_printf(out, ", after round %" PRId64, number_of(report, "round"));
    if (rc == 0 && json_object_get(report, "phase_ms")) {
        rc = buf_printf(out, ", for %s", duration(number_of(report, "phase_ms"), since));
    }
    if (rc == 0 && !status_is_over(report)) {
        rc = buf_printf(out, "; ");
        rc = rc ? rc : put_nodes(out, report);
    }
    int64_t workers = number_of(report, "workers");
    if (rc == 0 && is_running && workers > 0) {
        rc = buf_printf(out, ", %" PRId64 " worker%s", workers, str_plural((uint64_t)workers));
    }
    const char *waits = text_of(report, "waits_for"), *news = text_of(report, "news");
    rc = rc ? rc : *waits ? buf_printf(out, "; %s", waits) : 0;
    return rc ? rc : *news ? buf_printf(out, "; %s", news) : 0;
}

int status_text_line(struct buf *out, const json_t *report) {
    const char *engine = text_of(report, "engine");
    int rc = put_line(out, report);
    rc = rc ? rc : *engine ? buf_printf(out, "; engine %s", engine) : 0;
    return rc ? rc : buf_append(out, "\n", 1);
}

static int put_charge(struct buf *out, const json_t *report, const char *name, const char *one, const char *many) {
    const json_t *limit = json_object_get(json_object_get(report, "limits"), name);
    int64_t count = number_of(json_object_get(report, "charges"), name);
    int rc = buf_printf(out, "%" PRId64 " %s", count, count == 1 ? one : many);
    return rc || !json_is_integer(limit) ? rc : buf_printf(out, " of %" PRId64, (int64_t)json_integer_value(limit));
}

static int put_charges(struct buf *out, const json_t *report) {
    if (!json_object_get(report, "charges")) {
        return 0;
    }
    int rc = buf_printf(out, "charged: ");
    rc = rc ? rc : put_charge(out, report, "failures", "failure", "failures");
    rc = rc ? rc : buf_printf(out, ", ");
    rc = rc ? rc : put_charge(out, report, "changes", "change of nodes", "changes of nodes");
    rc = rc ? rc : buf_printf(out, ", ");
    rc = rc ? rc : put_charge(out, report, "preemptions", "pre-emption", "pre-emptions");
    return rc ? rc : buf_append(out, "\n", 1);
}

/* After the first line, which it ends. */
static int put_engine(struct buf *out, const json_t *report) {
    const char *engine = text_of(report, "engine");
    return *engine ? buf_printf(out, "\nengine: %s, of rank 0's process group\n", engine) : buf_append(out, "\n", 1);
}

/* ---- rounds ---- */

static int put_round(struct buf *out, const json_t *round) {
    char forming[DURATION_TEXT_MAX], running[DURATION_TEXT_MAX];
    const char *cause = text_of(round, "cause"), *why = text_of(round, "why");
    int64_t nodes = number_of(round, "nodes"), workers = number_of(round, "workers");
    int rc = buf_printf(out, "  %-4" PRId64 " %" PRId64 " node%s, %" PRId64 " worker%s; formed in %s, ",
                        number_of(round, "round"), nodes, str_plural((uint64_t)nodes), workers,
                        str_plural((uint64_t)workers), duration(number_of(round, "forming_ms"), forming));
    (void)duration(number_of(round, "running_ms"), running);
    if (rc == 0 && !truth_of(round, "ended")) {
        return buf_printf(out, "has run for %s\n", running);
    }
    rc = rc ? rc : buf_printf(out, "ran for %s", running);
    rc = rc || !*cause ? rc : buf_printf(out, "; %s", cause);
    rc = rc || !*why ? rc : buf_printf(out, "%s %s", *cause ? ":" : ";", why);
    return rc ? rc : buf_append(out, "\n", 1);
}

static int put_rounds(struct buf *out, const json_t *report) {
    const json_t *rounds = json_object_get(report, "rounds");
    int rc = json_array_size(rounds) > 0 ? buf_printf(out, "rounds\n") : 0;
    for (size_t i = 0; i < json_array_size(rounds) && rc == 0; i++) {
        rc = put_round(out, json_array_get(rounds, i));
    }
    return rc;
}

/* ---- nodes ---- */

/* "0-7", "8", "-" */
static void format_workers(const json_t *member, char out[48]) {
    int64_t count = number_of(member, "workers");
    int64_t first = number_of(member, "first_worker");
    if (!json_object_get(member, "first_worker")) {
        (void)str_format(out, 48, count > 0 ? "(%" PRId64 ")" : "-", count);
    } else if (count == 1) {
        (void)str_format(out, 48, "%" PRId64, first);
    } else {
        (void)str_format(out, 48, "%" PRId64 "-%" PRId64, first, first + count - 1);
    }
}

static int put_member(struct buf *out, const json_t *member) {
    char rank[24] = "-", workers[48], who[WHO_TEXT_MAX], since[DURATION_TEXT_MAX];
    const char *role = text_of(member, "role"), *topology = text_of(member, "topology");
    if (json_object_get(member, "rank")) {
        (void)str_format(rank, sizeof rank, "%" PRId64, number_of(member, "rank"));
    }
    format_workers(member, workers);
    (void)str_format(who, sizeof who, "%s (pid %" PRId64 ")", text_of(member, "addr"), number_of(member, "pid"));
    int rc = buf_printf(out, "  %-6s%-10s%-9s%-30s", rank, workers, text_of(member, "place"), who);
    rc = rc || !*role || strcmp(role, "default") == 0 ? rc : buf_printf(out, " role %s", role);
    rc = rc || !*topology ? rc : buf_printf(out, " at %s", topology);
    rc = rc || !truth_of(member, "host") ? rc : buf_printf(out, " serves the rendezvous");
    if (rc == 0 && json_object_get(member, "heard_ms")) {
        int64_t heard_ms = number_of(member, "heard_ms");
        rc = buf_printf(out, " heard %s ago", duration(heard_ms > 0 ? heard_ms : 0, since));
    }
    while (out->len > 0 && buf_bytes(out)[out->len - 1] == ' ') {
        out->len--;
    }
    return rc ? rc : buf_append(out, "\n", 1);
}

static int put_members(struct buf *out, const json_t *report, size_t members_max) {
    const json_t *members = json_object_get(report, "members");
    size_t count = json_array_size(members), shown = count < members_max ? count : members_max;
    int rc = count > 0 ? buf_printf(out, "nodes\n  rank  workers   place    node\n") : 0;
    for (size_t i = 0; i < shown && rc == 0; i++) {
        rc = put_member(out, json_array_get(members, i));
    }
    size_t omitted = count - shown + (size_t)number_of(report, "omitted");
    return rc || omitted == 0 ? rc : buf_printf(out, "  and %zu more\n", omitted);
}

int status_text(struct buf *out, const json_t *report, size_t members_max) {
    int rc = put_line(out, report);
    rc = rc ? rc : put_engine(out, report);
    rc = rc ? rc : put_charges(out, report);
    rc = rc ? rc : put_rounds(out, report);
    return rc ? rc : put_members(out, report, members_max);
}

/* ---- changes ---- */

bool status_is_over(const json_t *report) {
    return strcmp(text_of(report, "phase"), "over") == 0;
}

bool status_differs(const json_t *before, const json_t *after) {
    static const char *const names[] = {"phase", "round", "stopping", "nodes", "charges", "news", "engine"};
    bool differs = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !differs; i++) {
        const json_t *a = json_object_get(before, names[i]), *b = json_object_get(after, names[i]);
        differs = (a || b) && !json_equal(a, b);
    }
    return differs;
}
