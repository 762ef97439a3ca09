/* What a model needs, and what would make it fit; see fsdp_report.h. fsdp_text.c writes it down. */
#include "cli/fsdp/fsdp_report.h"

#include "base/status.h"
#include "base/str.h"

/* a * b * c; false when that is more than 64 bits hold. */
static bool multiply(uint64_t a, uint64_t b, uint64_t c, uint64_t *out) {
    uint64_t first;
    return !__builtin_mul_overflow(a, b, &first) && !__builtin_mul_overflow(first, c, out);
}

static int check(const struct fsdp_model *model, const struct fsdp_question *question) {
    uint64_t parts;
    if (question->hosts == 0 || question->ranks_per_host == 0 ||
        question->hosts > MUSTER_GROUP_SIZE_MAX / question->ranks_per_host) {
        return status_fail(MUSTER_EINVAL, "%u hosts of %u ranks: 1 to %u ranks are possible in all", question->hosts,
                           question->ranks_per_host, MUSTER_GROUP_SIZE_MAX);
    }
    if (!multiply(model->unit_count, question->hosts, question->ranks_per_host, &parts) ||
        parts > FSDP_REPORT_PARTS_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu units on %u hosts of %u ranks are more than %d parts", model->unit_count,
                           question->hosts, question->ranks_per_host, FSDP_REPORT_PARTS_MAX);
    }
    return 0;
}

/* Bytes of a host with all its ranks. */
static int plan(const struct fsdp_model *model, const struct fsdp_question *question, struct muster_fsdp_memory *out,
                uint64_t *out_bytes) {
    int code = check(model, question);
    code = code ? code
                : muster_fsdp_plan(model->units, model->unit_count, &question->options, question->hosts,
                                   question->ranks_per_host, question->states, out);
    if (code == 0 && (!multiply(out->rank_bytes, question->ranks_per_host, 1, out_bytes) ||
                      __builtin_add_overflow(*out_bytes, out->host_bytes, out_bytes))) {
        code = status_fail(MUSTER_ELIMIT, "a host would need more bytes than can be counted");
    }
    return code;
}

/* Every rank has everything. */
static int count_ddp(const struct fsdp_question *question, struct fsdp_report *report) {
    report->ddp_parameter_bytes = report->count * sizeof(float);
    report->ddp_gradient_bytes = report->learning_count * sizeof(float);
    report->ddp_state_bytes = report->learning_count * question->states * sizeof(float);
    uint64_t rank = report->ddp_parameter_bytes + report->ddp_gradient_bytes + report->ddp_state_bytes;
    return multiply(rank, question->ranks_per_host, 1, &report->ddp_bytes)
               ? 0
               : status_fail(MUSTER_ELIMIT, "a host would need more bytes than can be counted");
}

static void find_largest(const struct fsdp_model *model, struct fsdp_report *report) {
    for (size_t i = 0; i < model->unit_count; i++) {
        size_t count = 0;
        for (size_t j = 0; j < model->units[i].parameter_count; j++) {
            count += model->units[i].parameters[j].count;
        }
        if (count > report->largest_count) {
            report->largest_count = count;
            report->largest = i;
        }
    }
}

/* ---- what would make it fit ---- */

/* true: the change makes it fit, and is noted. */
static bool try_change(const struct fsdp_model *model, const struct fsdp_question *changed, const char *change,
                       struct fsdp_report *report) {
    struct muster_fsdp_memory memory;
    uint64_t bytes;
    if (report->advice_count == FSDP_REPORT_ADVICE_MAX || plan(model, changed, &memory, &bytes) != 0 ||
        bytes > changed->memory_bytes) {
        return false;
    }
    struct fsdp_advice *advice = &report->advice[report->advice_count++];
    (void)str_copy(advice->change, sizeof advice->change, change);
    advice->bytes = bytes;
    return true;
}

static void try_options(const struct fsdp_model *model, const struct fsdp_question *question,
                        struct fsdp_report *report) {
    bool gathers = question->hosts > 1 && question->options.sharding == MUSTER_FSDP_FULL;
    struct fsdp_question changed = *question;
    if (gathers && !question->options.reshard_after_forward) {
        changed.options.reshard_after_forward = true;
        (void)try_change(model, &changed, "without --keep-gathered", report);
        changed = *question;
    }
    if (gathers && question->options.reshard_after_forward && question->options.prefetch > 0) {
        changed.options.prefetch = 0;
        (void)try_change(model, &changed, "--prefetch 0", report);
        changed = *question;
    }
    if (question->options.sharding == MUSTER_FSDP_HYBRID && question->hosts > 1) {
        changed.options.sharding = MUSTER_FSDP_FULL;
        (void)try_change(model, &changed, "without --hybrid", report);
        changed = *question;
    }
    if (question->options.gradient_type == MUSTER_FLOAT32) {
        changed.options.compute_type = changed.options.gradient_type = changed.options.reduce_type = MUSTER_BFLOAT16;
        (void)try_change(model, &changed, "--bf16", report);
        changed = *question;
    }
    if (question->states > 1) {
        changed.states = 1;
        (void)try_change(model, &changed, "--states 1 (SGD with momentum)", report);
    }
}

/* The fewest hosts, and the most ranks a host. */
static void try_sizes(const struct fsdp_model *model, const struct fsdp_question *question,
                      struct fsdp_report *report) {
    struct fsdp_question changed = *question;
    char change[96];
    bool fits = false;
    changed.options.sharding = MUSTER_FSDP_FULL;
    while (!fits && changed.hosts < question->hosts + FSDP_REPORT_HOSTS_TRIED && check(model, &changed) == 0) {
        changed.hosts++;
        (void)str_format(change, sizeof change, "--hosts %u%s", changed.hosts,
                         question->options.sharding == MUSTER_FSDP_HYBRID ? " without --hybrid" : "");
        fits = try_change(model, &changed, change, report);
    }
    changed = *question;
    fits = false;
    while (!fits && changed.ranks_per_host > 1) {
        changed.ranks_per_host /= 2;
        (void)str_format(change, sizeof change, "--ranks-per-host %u", changed.ranks_per_host);
        fits = try_change(model, &changed, change, report);
    }
}

int fsdp_report_make(const struct fsdp_model *model, const struct fsdp_question *question, struct fsdp_report *out) {
    *out = (struct fsdp_report){0};
    int code = plan(model, question, &out->fsdp, &out->fsdp_bytes);
    code = code ? code : fsdp_model_count(model, &out->count, &out->learning_count);
    code = code ? code : count_ddp(question, out);
    if (code != 0) {
        return code;
    }
    find_largest(model, out);
    if (question->memory_bytes > 0 && out->fsdp_bytes > question->memory_bytes) {
        try_options(model, question, out);
        try_sizes(model, question, out);
    }
    return 0;
}
