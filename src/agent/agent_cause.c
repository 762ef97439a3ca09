/* Which failure the job ends by: what this node tells the others of the worker that failed first here, and what the
 * report says of one that failed on another node. */
#include <stdlib.h>
#include <string.h>

#include "agent/agent_impl.h"
#include "agent/report/report_text.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

/* What the worker has written is in its pipe, and is read meanwhile. */
enum { LAST_WORDS_MS = 50 };

/* The last lines of a text that fit, each fit to print. */
static void take_words(char *out, size_t size, const char *text, size_t bytes) {
    struct buf clean;
    buf_init(&clean, 4 * size);
    size_t from = bytes > size / 2 ? bytes - size / 2 : 0; /* what replaces a byte may be longer */
    while (from > 0 && from < bytes && text[from - 1] != '\n') {
        from++;
    }
    int rc = MUSTER_OK;
    while (rc == MUSTER_OK && from < bytes) {
        const char *newline = memchr(text + from, '\n', bytes - from);
        size_t length = newline ? (size_t)(newline - text) - from : bytes - from;
        rc = report_text_clean(&clean, text + from, length, size / 2);
        rc = rc == MUSTER_OK ? buf_append(&clean, "\n", 1) : rc;
        from += length + 1;
    }
    size_t length = clean.len < size ? clean.len : 0;
    if (length > 0) {
        memcpy(out, buf_bytes(&clean), length);
    }
    out[length] = '\0';
    buf_done(&clean);
}

static void describe(const struct agent *a, const struct report_entry *entry, struct rdzv_cause *out) {
    struct buf how;
    *out = (struct rdzv_cause){.rank = entry->rank,
                               .local_rank = entry->local_rank,
                               .pid = entry->pid,
                               .wait_status = entry->wait_status,
                               .time_s = entry->time_s,
                               .is_victim = entry->is_victim,
                               .is_final = a->machine.outcome == AGENT_OUTCOME_FAILED};
    report_host(out->host);
    buf_init(&how, sizeof out->how);
    if (report_describe_status(entry, &how) == MUSTER_OK && how.len < sizeof out->how) {
        memcpy(out->how, buf_bytes(&how), how.len);
        out->how[how.len] = '\0';
    }
    buf_done(&how);
    if (entry->stderr_tail_bytes > 0) {
        take_words(out->words, sizeof out->words, entry->stderr_tail, entry->stderr_tail_bytes);
    } else if (entry->message) {
        take_words(out->words, sizeof out->words, entry->message, strlen(entry->message));
    }
}

/* Of the workers that have failed so far, the root cause. */
static void tell(struct agent *a, bool is_told) {
    struct agent_failures failures;
    struct rdzv_cause cause;
    agent_failures_collect(a, &failures);
    if (failures.count > 0) {
        const struct report report = {.entries = failures.entries, .count = failures.count};
        describe(a, &failures.entries[report_root(&report)], &cause);
        cause.is_told = is_told;
        cause.age_us = (clock_monotonic_ns() - a->workers[cause.local_rank].ended_at_ns) / 1000;
        rdzv_worker_failed(a->rdzv, &cause);
    }
    agent_failures_done(&failures);
}

static void on_last_words(uv_timer_t *timer) {
    tell(timer->data, true);
}

void agent_cause_tell(struct agent *a) {
    if (!a->has_told_cause) {
        a->has_told_cause = true;
        tell(a, false);
        (void)uv_timer_start(&a->cause_timer, on_last_words, LAST_WORDS_MS, 0);
    }
}

void agent_cause_finish(struct agent *a) {
    if (uv_is_active((const uv_handle_t *)&a->cause_timer)) {
        (void)uv_timer_stop(&a->cause_timer);
        tell(a, true);
    }
}

void agent_cause_tell_not_started(struct agent *a, uint32_t local_rank, const char *why) {
    enum { NOT_STARTED = 127 };
    struct rdzv_cause cause = {.rank = a->world.base_global_rank + local_rank,
                               .local_rank = local_rank,
                               .wait_status = NOT_STARTED << 8,
                               .time_s = clock_realtime_us() / CLOCK_US_PER_S,
                               .is_final = true,
                               .is_told = true};
    if (a->has_told_cause) {
        return;
    }
    a->has_told_cause = true;
    report_host(cause.host);
    (void)str_format(cause.how, sizeof cause.how, "could not be started: %.200s", why);
    rdzv_worker_failed(a->rdzv, &cause);
}

const struct rdzv_cause *agent_cause_remote(const struct agent *a) {
    return a->rdzv && rdzv_cause_is_remote(a->rdzv) ? rdzv_cause(a->rdzv) : NULL;
}

struct report_entry agent_cause_entry(const struct rdzv_cause *cause) {
    return (struct report_entry){.rank = cause->rank,
                                 .local_rank = cause->local_rank,
                                 .pid = cause->pid,
                                 .wait_status = cause->wait_status,
                                 .time_s = cause->time_s,
                                 .host = cause->host,
                                 .status = cause->how,
                                 .stderr_tail = cause->words,
                                 .stderr_tail_bytes = strlen(cause->words)};
}

void agent_cause_await(struct agent *a, void (*done)(void *ctx)) {
    bool reports = a->machine.outcome == AGENT_OUTCOME_FAILED || a->machine.outcome == AGENT_OUTCOME_RDZV_LOST;
    bool is_judge = a->machine.outcome == AGENT_OUTCOME_NOT_STARTED; /* perhaps: the reports of others wait for it */
    /* A worker that took long to die may turn out to be the first that failed. */
    if (a->machine.outcome == AGENT_OUTCOME_FAILED && a->has_told_cause && agent_cause_remote(a) == NULL) {
        (void)uv_timer_stop(&a->cause_timer);
        tell(a, true);
    } else if (reports) {
        agent_cause_finish(a); /* it may turn out to count */
    }
    if (reports || is_judge) {
        rdzv_await_cause(a->rdzv, done);
    } else {
        done(a);
    }
}
