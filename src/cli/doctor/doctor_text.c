/* Writing findings down; see doctor_text.h. */
#include "cli/doctor/doctor_text.h"
#include <muster/version.h>

#include <jansson.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/help.h"

enum { LEVEL_COLUMNS = 9, CHECK_COLUMNS = 13, INDENT = 2 + LEVEL_COLUMNS + CHECK_COLUMNS };

static const char *colour_of(enum doctor_level level) {
    static const char *const colours[DOCTOR_LEVEL_COUNT] = {"\x1b[32m", "\x1b[36m", "\x1b[33m", "\x1b[1;31m"};
    return colours[level];
}

static int append_finding(struct buf *out, const struct doctor_finding *finding, unsigned width, bool has_colours) {
    int rc = buf_printf(out, "  %s%-*s%s%-*s", has_colours ? colour_of(finding->level) : "", LEVEL_COLUMNS,
                        doctor_level_names[finding->level], has_colours ? "\x1b[0m" : "", CHECK_COLUMNS,
                        doctor_check_names[finding->check]);
    rc = rc ? rc : help_append_wrapped(out, finding->what, INDENT, INDENT, width);
    if (rc == 0 && finding->advice[0] != '\0') {
        char text[DOCTOR_ADVICE_MAX + 4];
        (void)str_format(text, sizeof text, "-> %s", finding->advice);
        rc = help_append_wrapped(out, text, INDENT, 0, width);
    }
    return rc;
}

static int append_count(struct buf *out, const struct doctor_findings *findings, enum doctor_level level,
                        const char *end) {
    size_t count = doctor_count(findings, level);
    bool has_plural = level != DOCTOR_OK && count != 1;
    return buf_printf(out, "%zu %s%s%s", count, doctor_level_names[level], has_plural ? "s" : "", end);
}

int doctor_text(struct buf *out, const struct doctor_findings *findings, unsigned width, bool has_colours) {
    int rc = 0;
    for (size_t i = 0; i < findings->count && rc == 0; i++) {
        rc = append_finding(out, &findings->list[i], width, has_colours);
    }
    if (rc == 0 && findings->omitted_count > 0) {
        rc = buf_printf(out, "  and %zu more, for which there is no room here\n", findings->omitted_count);
    }
    rc = rc ? rc : append_count(out, findings, DOCTOR_OK, ", ");
    rc = rc ? rc : append_count(out, findings, DOCTOR_NOTE, ", ");
    rc = rc ? rc : append_count(out, findings, DOCTOR_WARNING, ", ");
    return rc ? rc : append_count(out, findings, DOCTOR_ERROR, "\n");
}

/* ---- pairs ---- */

static const struct doctor_pair *find_pair(const struct meeting *meeting, uint32_t a, uint32_t b) {
    for (size_t i = 0; i < meeting->pair_count; i++) {
        const struct doctor_pair *pair = &meeting->pairs[i];
        if ((pair->from == a && pair->to == b) || (pair->from == b && pair->to == a)) {
            return pair;
        }
    }
    return NULL;
}

static int append_cell(struct buf *out, const struct meeting *meeting, uint32_t row, uint32_t column, bool is_latency) {
    const struct doctor_pair *pair = row == column ? NULL : find_pair(meeting, row, column);
    if (!pair) {
        return buf_printf(out, "%8s", row == column ? "." : "?");
    }
    if (!pair->is_measured) {
        return buf_printf(out, "%8s", "failed");
    }
    double value = is_latency ? pair->latency_us : pair->from == row ? pair->forward_mbps : pair->backward_mbps;
    return buf_printf(out, "%8.0f", value);
}

static int append_table(struct buf *out, const struct meeting *meeting, bool is_latency) {
    int rc = buf_printf(out, "  %-32s", is_latency ? "us, there and back" : "MB/s, from row to column");
    for (uint32_t column = 0; column < meeting->node_count && rc == 0; column++) {
        rc = buf_printf(out, "%8u", column);
    }
    for (uint32_t row = 0; row < meeting->node_count && rc == 0; row++) {
        char name[NET_HOST_MAX + NET_ADDRESS_TEXT_MAX];
        (void)str_format(name, sizeof name, "%u %.100s (%s)", row, meeting->nodes[row].host, meeting->nodes[row].addr);
        rc = buf_printf(out, "\n  %-32.32s", name);
        for (uint32_t column = 0; column < meeting->node_count && rc == 0; column++) {
            rc = append_cell(out, meeting, row, column, is_latency);
        }
    }
    return rc ? rc : buf_append(out, "\n", 1);
}

int doctor_text_matrix(struct buf *out, const struct meeting *meeting) {
    if (meeting->node_count > DOCTOR_MATRIX_NODES_MAX) {
        return 0;
    }
    int rc = append_table(out, meeting, true);
    return rc ? rc : append_table(out, meeting, false);
}

/* ---- JSON ---- */

/* What the system has given need not be UTF-8. */
static json_t *text_value(const char *text) {
    json_t *value = json_string(text);
    return value ? value : json_string("?");
}

static json_t *finding_value(const struct doctor_finding *finding) {
    return json_pack("{s:s, s:s, s:o, s:o}", "check", doctor_check_names[finding->check], "level",
                     doctor_level_names[finding->level], "what", text_value(finding->what), "advice",
                     text_value(finding->advice));
}

static json_t *nodes_value(const struct meeting *meeting) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < meeting->node_count && list; i++) {
        const struct doctor_node *node = &meeting->nodes[i];
        (void)json_array_append_new(list, json_pack("{s:o, s:s, s:s, s:o}", "host", text_value(node->host), "addr",
                                                    node->addr, "version", node->version, "kernel",
                                                    text_value(node->kernel)));
    }
    return list;
}

static json_t *pairs_value(const struct meeting *meeting) {
    json_t *list = json_array();
    for (size_t i = 0; i < meeting->pair_count && list; i++) {
        const struct doctor_pair *pair = &meeting->pairs[i];
        (void)json_array_append_new(
            list, json_pack("{s:I, s:I, s:b, s:o, s:f, s:f, s:f, s:f, s:f}", "from", (json_int_t)pair->from, "to",
                            (json_int_t)pair->to, "measured", pair->is_measured, "reason", text_value(pair->reason),
                            "latency_us", pair->latency_us, "forward_mbps", pair->forward_mbps, "backward_mbps",
                            pair->backward_mbps, "both_mbps", pair->both_mbps, "ahead_us", pair->ahead_us));
    }
    return list;
}

int doctor_json(struct buf *out, const char *node, const struct doctor_findings *findings,
                const struct meeting *meeting) {
    json_t *list = json_array();
    int rc = list ? 0 : -1;
    for (size_t i = 0; i < findings->count && rc == 0; i++) {
        rc = json_array_append_new(list, finding_value(&findings->list[i]));
    }
    json_t *tree = json_pack("{s:s, s:o, s:o, s:I, s:{s:I, s:I, s:I, s:I}}", "version", MUSTER_VERSION_TEXT, "node",
                             text_value(node), "findings", list, "omitted", (json_int_t)findings->omitted_count,
                             "counts", "ok", (json_int_t)doctor_count(findings, DOCTOR_OK), "note",
                             (json_int_t)doctor_count(findings, DOCTOR_NOTE), "warning",
                             (json_int_t)doctor_count(findings, DOCTOR_WARNING), "error",
                             (json_int_t)doctor_count(findings, DOCTOR_ERROR));
    if (rc == 0 && tree && meeting) {
        rc = json_object_set_new(tree, "rank", json_integer(meeting->rank));
        rc = rc ? rc : json_object_set_new(tree, "nodes", nodes_value(meeting));
        rc = rc ? rc : json_object_set_new(tree, "pairs", pairs_value(meeting));
    }
    if (rc != 0 || !tree) {
        json_decref(tree);
        return status_fail(MUSTER_ENOMEM, "no memory for the findings");
    }
    rc = cli_append_json(out, tree, JSON_INDENT(1));
    json_decref(tree);
    return rc;
}

int doctor_text_list(struct buf *out) {
    int rc = 0;
    for (unsigned i = 0; i < DOCTOR_CHECK_COUNT && rc == 0; i++) {
        rc = buf_printf(out, "%-*s%s\n", CHECK_COLUMNS, doctor_check_names[i], doctor_check_abouts[i]);
    }
    return rc;
}
