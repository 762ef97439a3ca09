/* Telling failures and judging them; see failures.h. */
#include "rendezvous/failures.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/backend.h"

#define NOTHING_FAILED "none"

enum { NS_PER_US = 1000, US_PER_MS = 1000 };

static int64_t now_us(void) {
    return clock_monotonic_ns() / NS_PER_US;
}

static int64_t now_ms(void) {
    return now_us() / US_PER_MS;
}

static char *said_key(const struct failures *f, int64_t number) {
    return number > 0 ? str_format_new("%s/said/%lld", f->key, (long long)number) : str_format_new("%s/said", f->key);
}

/* ---- rounds ---- */

static void forget(struct failures *f) {
    kv_client_close(f->waiter);
    free(f->key);
    free(f->text);
    free(f->found);
    *f = (struct failures){.rdzv = f->rdzv};
}

int failures_begin(struct failures *f, struct rdzv *r, const struct failures_options *options) {
    unsigned stale = f->options.client == options->client ? f->unanswered + f->stale : 0;
    failures_stop(f);
    f->rdzv = r;
    f->stale = stale;
    f->options = *options;
    f->key = strdup(options->key);
    return f->key ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a key");
}

void failures_stop(struct failures *f) {
    if (f->rdzv) {
        (void)uv_timer_stop(rdzv_timer(f->rdzv, RDZV_TIMER_ANSWER));
        (void)uv_timer_stop(rdzv_timer(f->rdzv, RDZV_TIMER_HEARING));
    }
    forget(f);
}

/* An answer has come: is it one of an earlier round? */
static bool is_stale(struct failures *f) {
    unsigned *left = f->stale > 0 ? &f->stale : &f->unanswered;
    bool is_of_earlier_round = f->stale > 0;
    *left -= *left > 0;
    return is_of_earlier_round || !f->key;
}

bool failures_is_writing(const struct failures *f) {
    return f->is_writing;
}

static struct rdzv_cause own_now(const struct failures *f) {
    struct rdzv_cause own = f->own;
    own.age_us = own.age_us >= 0 ? now_us() - f->own_died_us : -1;
    return own;
}

bool failures_own(const struct failures *f, struct rdzv_cause *out) {
    if (f->has_own) {
        *out = own_now(f);
    }
    return f->has_own;
}

/* ---- statements ---- */

/* It will take about as long as the write before it until the judge hears it: tens of milliseconds in an etcd on a busy
 * machine. No more is added than what makes no difference, so no younger death can become the older one. */
static int64_t way_us(const struct failures *f) {
    enum { MOST_US = RDZV_DEATH_UNSURE_MS * US_PER_MS };
    return f->trip_us < MOST_US ? f->trip_us : MOST_US;
}

/* With one that comes after this node has said all, it answers no second time. */
static char *write_statement(struct failures *f) {
    struct rdzv_cause own = own_now(f);
    own.age_us += own.age_us >= 0 ? way_us(f) : 0;
    own.is_told = own.is_told && !f->has_answered;
    f->has_answered = f->has_answered || own.is_told || !f->has_own;
    return f->has_own ? rdzv_cause_write(&own) : strdup(NOTHING_FAILED);
}

static void put_statement(struct failures *f, int64_t number) {
    char *key = said_key(f, number), *text = write_statement(f);
    if (key && text) {
        (void)kv_client_set(f->options.client, key, kv_slice_text(text), NULL, NULL);
    }
    free(key);
    free(text);
}

static void on_numbered(void *ctx, const struct kv_reply *reply) {
    struct failures *f = ctx;
    if (is_stale(f)) {
        return;
    }
    f->is_counting = false;
    f->trip_us = now_us() - f->sent_us;
    if (reply->status == MUSTER_OK) {
        put_statement(f, reply->number);
    }
}

/* As things are when it has got its number. Of two nodes only one makes statements: it knows how many there are. */
static void make_statement(struct failures *f) {
    if (f->options.other_count == 1) {
        put_statement(f, ++f->stated_count);
    } else if (!f->is_counting) {
        char *key = said_key(f, 0);
        f->sent_us = now_us();
        f->is_counting = key && kv_client_add(f->options.client, key, 1, on_numbered, f) == MUSTER_OK;
        f->unanswered += f->is_counting;
        free(key);
    }
}

static void on_answer_due(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct failures *f = &r->failures;
    if (f->key && !f->has_answered) {
        make_statement(f);
    }
}

/* In any case not before the deaths of this node's workers have been read that came in this turn of the loop: one of
 * them may be older than the one by which the job has failed. */
static void leave_to_others(struct failures *f) {
    if (!f->is_others_final) {
        uint64_t wait_ms = f->has_own ? 0 : RDZV_NOTHING_FAILED_MS;
        f->is_others_final = true;
        (void)uv_timer_start(rdzv_timer(f->rdzv, RDZV_TIMER_ANSWER), on_answer_due, wait_ms, 0);
    }
}

/* ---- judging ---- */

static void write_record(struct failures *f, const struct rdzv_cause *cause);

static void note_verdict(struct failures *f) {
    const struct rdzv_cause verdict = hearing_verdict(&f->hearing, now_ms());
    rdzv_note_cause(f->rdzv, &verdict);
}

static void settle(struct failures *f) {
    if (f->is_judging && hearing_is_over(&f->hearing)) {
        struct rdzv_cause verdict = hearing_verdict(&f->hearing, now_ms());
        f->is_judging = false;
        f->has_judged = true;
        (void)uv_timer_stop(rdzv_timer(f->rdzv, RDZV_TIMER_HEARING));
        kv_client_close(f->waiter);
        f->waiter = NULL;
        log_debug("the cause is rank %u, after %u statements", verdict.rank, f->heard_count);
        write_record(f, &verdict);
        if (!f->is_writing) {
            note_verdict(f);
        }
    }
}

static void on_silence(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct failures *f = &r->failures;
    if (f->hearing.has_others && f->hearing.death.is_victim && !f->awaits_culprit) {
        f->awaits_culprit = true;
        rdzv_wait(r, RDZV_TIMER_HEARING, on_silence, RDZV_CULPRIT_MS);
        return;
    }
    f->hearing.is_silent_now = true;
    settle(f);
}

static void hear_next(struct failures *f);

static void on_statement(void *ctx, const struct kv_reply *reply) {
    struct failures *f = ctx;
    struct rdzv_cause cause;
    if (!f->is_judging || reply->status != MUSTER_OK) {
        return; /* or the others' time passes */
    }
    struct kv_slice text = reply->values[0];
    bool is_record = rdzv_cause_read((const char *)text.data, text.len, &cause) == MUSTER_OK;
    f->heard_count++;
    if (is_record) {
        hearing_take(&f->hearing, &cause, now_ms());
    }
    hearing_excuse(&f->hearing, !is_record || cause.is_told);
    hear_next(f);
    settle(f);
}

static void hear_next(struct failures *f) {
    char *key = said_key(f, (int64_t)f->heard_count + 1);
    if (key) {
        (void)kv_client_get(f->waiter, key, true, 0, on_statement, f);
    }
    free(key);
}

static void begin_hearing(struct failures *f) {
    const struct failures_options *o = &f->options;
    assert(!f->is_judging && !f->has_judged && !f->waiter && f->has_own);
    const struct rdzv_cause own = own_now(f);
    hearing_begin(&f->hearing, &own, o->other_count, now_ms());
    f->is_judging = true;
    if (o->connect(o->ctx, &f->waiter) == MUSTER_OK) {
        hear_next(f);
    } else {
        f->hearing.is_silent_now = true;
    }
    rdzv_wait(f->rdzv, RDZV_TIMER_HEARING, on_silence, RDZV_OTHERS_MS);
    if (o->on_judging) {
        o->on_judging(o->ctx);
    }
    settle(f);
}

void failures_excuse(struct failures *f, uint32_t count) {
    hearing_excuse(&f->hearing, count);
    settle(f);
}

void failures_lost(struct failures *f) {
    if (f->is_judging) {
        note_verdict(f);
    }
    failures_stop(f);
}

/* ---- the record under the key ---- */

static void write_own(struct failures *f) {
    struct rdzv_cause own = own_now(f);
    own.is_told = own.is_told && !own.is_final;
    f->writes_final = own.is_final;
    write_record(f, &own);
}

/* Whoever was first stays. But one with restarts left makes way for a failure for good. */
static bool may_write(const struct failures *f) {
    return !f->is_others_final && (!f->found || f->is_ours || f->own.is_final);
}

static void on_stood(struct failures *f) {
    struct rdzv_cause cause;
    bool is_final = f->found && rdzv_cause_read(f->found, strlen(f->found), &cause) == MUSTER_OK && cause.is_final;
    if (f->has_judged) {
        return;
    }
    if (f->is_ours && f->writes_final) {
        begin_hearing(f);
    } else if (!f->is_ours && is_final) {
        leave_to_others(f);
    } else if ((f->is_changed || !f->is_ours) && may_write(f)) {
        write_own(f);
    }
}

static void on_written(void *ctx, const struct kv_reply *reply) {
    struct failures *f = ctx;
    if (is_stale(f)) {
        return;
    }
    f->is_writing = false;
    f->trip_us = now_us() - f->sent_us;
    if (reply->status != MUSTER_OK && f->has_judged) { /* the store is gone: nobody else will say it */
        note_verdict(f);
    }
    rdzv_cause_answered(f->rdzv, reply);
    if (reply->status == MUSTER_OK) {
        struct kv_slice value = reply->values[0];
        free(f->found);
        f->found = value.len > 0 ? strndup((const char *)value.data, value.len) : NULL;
        f->is_ours = f->found && strcmp(f->found, f->text) == 0;
        on_stood(f);
    }
    if (f->options.on_written) {
        f->options.on_written(f->options.ctx);
    }
}

static void write_record(struct failures *f, const struct rdzv_cause *cause) {
    char *text = rdzv_cause_write(cause);
    struct kv_slice expected = kv_slice_text(f->found ? f->found : "");
    assert(!f->is_writing); /* whose record stands is known by the answer to the last one */
    f->is_changed = false;
    f->sent_us = now_us();
    f->is_writing = text && kv_client_compare_set(f->options.client, f->key, expected, kv_slice_text(text), on_written,
                                                  f) == MUSTER_OK;
    if (f->is_writing) {
        f->unanswered++;
        free(f->text);
        f->text = text;
        rdzv_cause_sent(f->rdzv);
    } else {
        free(text);
    }
}

void failures_tell(struct failures *f, const struct rdzv_cause *cause) {
    if (!f->key) {
        return;
    }
    f->own = *cause;
    f->own_died_us = now_us() - cause->age_us;
    f->has_own = true;
    if (f->is_judging) {
        hearing_own(&f->hearing, cause, now_ms());
        settle(f);
    } else if (f->is_others_final) {
        make_statement(f);
    } else if (f->is_writing) {
        f->is_changed = true;
    } else if (!f->has_judged && may_write(f) && (cause->is_final || !f->options.only_final)) {
        write_own(f);
    }
}

void failures_read(struct failures *f, struct kv_slice text) {
    struct rdzv_cause cause;
    bool is_ours = f->is_writing || f->is_judging || f->has_judged; /* or the answer will say whose it is */
    if (f->key && !is_ours && rdzv_cause_read((const char *)text.data, text.len, &cause) == MUSTER_OK &&
        cause.is_final && !cause.is_told) {
        leave_to_others(f);
    }
}
