/* The report of `muster fsdp plan` written down: a table for people, JSON for programs. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/printable.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/fsdp/fsdp_report.h"

enum { SIZE_TEXT_MAX = 32 };

/* "1.4 GiB" */
static const char *size_text(uint64_t bytes, char out[SIZE_TEXT_MAX]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    (void)str_format(out, SIZE_TEXT_MAX, unit > 0 ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

/* "124.4 million" */
static const char *count_text(size_t count, char out[SIZE_TEXT_MAX]) {
    if (count < 1000000) {
        (void)str_format(out, SIZE_TEXT_MAX, "%zu", count);
    } else if (count < 10000000000) {
        (void)str_format(out, SIZE_TEXT_MAX, "%.1f million", (double)count / 1e6);
    } else {
        (void)str_format(out, SIZE_TEXT_MAX, "%.1f thousand million", (double)count / 1e9);
    }
    return out;
}

static const uint64_t none = UINT64_MAX;

static int append_row(struct buf *out, const char *what, uint64_t fsdp, uint64_t ddp) {
    char left[SIZE_TEXT_MAX], right[SIZE_TEXT_MAX];
    return buf_printf(out, "  %-34s %12s %12s\n", what, fsdp == none ? "-" : size_text(fsdp, left),
                      ddp == none ? "-" : size_text(ddp, right));
}

static int append_head(struct buf *out, const struct fsdp_model *model, const struct fsdp_question *question,
                       const struct fsdp_report *report) {
    char all[SIZE_TEXT_MAX], learning[SIZE_TEXT_MAX], largest[SIZE_TEXT_MAX], name[64];
    (void)str_format(name, sizeof name, "%.60s", model->units[report->largest].name);
    printable_clean(name, strlen(name), false);
    int code = buf_printf(out, "%s parameters", count_text(report->count, all));
    if (code == 0 && report->learning_count < report->count) {
        code = buf_printf(out, ", of which %s learn,", count_text(report->learning_count, learning));
    }
    code = code ? code
                : buf_printf(out, " in %zu unit%s; the largest, %s, has %s\n", model->unit_count,
                             str_plural(model->unit_count), name, count_text(report->largest_count, largest));
    return code ? code
                : buf_printf(out, "%u host%s of %u rank%s, %u value%s of the optimizer for each parameter\n\n",
                             question->hosts, str_plural(question->hosts), question->ranks_per_host,
                             str_plural(question->ranks_per_host), question->states, str_plural(question->states));
}

static int append_table(struct buf *out, const struct fsdp_question *question, const struct fsdp_report *report) {
    const struct muster_fsdp_memory *fsdp = &report->fsdp;
    uint64_t ranks = question->ranks_per_host;
    int code = buf_printf(out, "%-36s %12s %12s\nshared by the ranks of a host\n", "", "FSDP", "DDP");
    code = code ? code : append_row(out, "parameters", fsdp->parameter_bytes, none);
    code = code ? code : append_row(out, "their bfloat16 copy", fsdp->copy_bytes > 0 ? fsdp->copy_bytes : none, none);
    code = code ? code : append_row(out, "optimizer", fsdp->state_bytes, none);
    code = code ? code
                : append_row(out, "units gathered from other hosts",
                             fsdp->gathered_bytes > 0 ? fsdp->gathered_bytes : none, none);
    code = code ? code : buf_printf(out, "of each rank\n");
    code = code ? code : append_row(out, "parameters", none, report->ddp_parameter_bytes);
    code = code ? code : append_row(out, "optimizer", none, report->ddp_state_bytes);
    code = code ? code : append_row(out, "gradients", fsdp->shard_bytes, report->ddp_gradient_bytes);
    code = code ? code : append_row(out, "gradients of units under way", fsdp->gradient_bytes, none);
    code = code ? code : buf_printf(out, "in all\n");
    code = code ? code : append_row(out, "a host", report->fsdp_bytes, report->ddp_bytes);
    return code ? code
                : append_row(out, "a rank, with its share of the host", report->fsdp_bytes / ranks,
                             report->ddp_bytes / ranks);
}

/* What comes on top for programs that ask for it. */
static int append_requests(struct buf *out, const struct fsdp_report *report) {
    const struct muster_fsdp_memory *fsdp = &report->fsdp;
    int code = buf_printf(out, "on request, besides\n");
    code = code ? code : append_row(out, "a host: state kept in memory", fsdp->kept_bytes, none);
    code = code ? code : append_row(out, "a rank: saves in the background", fsdp->background_bytes, none);
    return code || fsdp->peer_bytes == 0 ? code
                                         : append_row(out, "a rank: copies on peer hosts", fsdp->peer_bytes, none);
}

static int append_verdict(struct buf *out, const struct fsdp_question *question, const struct fsdp_report *report) {
    char memory[SIZE_TEXT_MAX], needed[SIZE_TEXT_MAX];
    bool fits = report->fsdp_bytes <= question->memory_bytes;
    (void)size_text(question->memory_bytes, memory);
    int code = buf_printf(out, "\n%s: FSDP needs %s of the %s of a host.\n", fits ? "It fits" : "It does not fit",
                          size_text(report->fsdp_bytes, needed), memory);
    if (code == 0 && report->ddp_bytes <= question->memory_bytes) {
        code = buf_printf(out, "DDP fits as well, and sends less between hosts.\n");
    }
    if (code == 0 && !fits) {
        code = buf_printf(out, report->advice_count > 0 ? "It would fit with one of these:\n"
                                                        : "No option alone, and no number of hosts that was tried, "
                                                          "makes it fit. Smaller units need less for gradients.\n");
    }
    for (size_t i = 0; i < report->advice_count && code == 0; i++) {
        code = buf_printf(out, "  %-36s %s a host\n", report->advice[i].change,
                          size_text(report->advice[i].bytes, needed));
    }
    return code;
}

int fsdp_report_text(struct buf *out, const struct fsdp_model *model, const struct fsdp_question *question,
                     const struct fsdp_report *report) {
    int code = append_head(out, model, question, report);
    code = code ? code : append_table(out, question, report);
    code = code ? code : append_requests(out, report);
    code = code || question->memory_bytes == 0 ? code : append_verdict(out, question, report);
    return code ? code : buf_printf(out, "\nActivations, inputs and the program itself come on top.\n");
}

/* ---- JSON ---- */

static json_t *fsdp_tree(const struct fsdp_report *report) {
    const struct muster_fsdp_memory *m = &report->fsdp;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "parameter_bytes",
                     (json_int_t)m->parameter_bytes, "copy_bytes", (json_int_t)m->copy_bytes, "state_bytes",
                     (json_int_t)m->state_bytes, "gathered_bytes", (json_int_t)m->gathered_bytes, "shard_bytes",
                     (json_int_t)m->shard_bytes, "gradient_bytes", (json_int_t)m->gradient_bytes, "host_bytes",
                     (json_int_t)m->host_bytes, "rank_bytes", (json_int_t)m->rank_bytes, "total_bytes",
                     (json_int_t)report->fsdp_bytes, "kept_bytes", (json_int_t)m->kept_bytes, "background_bytes",
                     (json_int_t)m->background_bytes, "peer_bytes", (json_int_t)m->peer_bytes);
}

static json_t *fit_tree(const struct fsdp_question *question, const struct fsdp_report *report) {
    json_t *advice = json_array();
    for (size_t i = 0; i < report->advice_count; i++) {
        (void)json_array_append_new(advice, json_pack("{s:s, s:I}", "change", report->advice[i].change, "total_bytes",
                                                      (json_int_t)report->advice[i].bytes));
    }
    return json_pack("{s:I, s:b, s:b, s:o}", "memory_bytes", (json_int_t)question->memory_bytes, "fsdp_fits",
                     report->fsdp_bytes <= question->memory_bytes, "ddp_fits",
                     report->ddp_bytes <= question->memory_bytes, "would_fit", advice);
}

int fsdp_report_json(struct buf *out, const struct fsdp_model *model, const struct fsdp_question *question,
                     const struct fsdp_report *report) {
    json_t *tree =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:{s:I, s:I, s:I, s:I}}", "units", (json_int_t)model->unit_count,
                  "parameters", (json_int_t)report->count, "learning", (json_int_t)report->learning_count, "hosts",
                  (json_int_t)question->hosts, "ranks_per_host", (json_int_t)question->ranks_per_host, "states",
                  (json_int_t)question->states, "fsdp", fsdp_tree(report), "ddp", "parameter_bytes",
                  (json_int_t)report->ddp_parameter_bytes, "gradient_bytes", (json_int_t)report->ddp_gradient_bytes,
                  "state_bytes", (json_int_t)report->ddp_state_bytes, "total_bytes", (json_int_t)report->ddp_bytes);
    int code = tree ? 0 : status_fail(MUSTER_ENOMEM, "no memory for the report");
    if (code == 0 && question->memory_bytes > 0 && json_object_set_new(tree, "fit", fit_tree(question, report)) != 0) {
        code = status_fail(MUSTER_ENOMEM, "no memory for the report");
    }
    code = code ? code : cli_append_json(out, tree, JSON_INDENT(1));
    json_decref(tree);
    return code;
}
