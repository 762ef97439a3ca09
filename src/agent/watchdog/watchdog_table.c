/* Messages and timers of the watchdog; see watchdog_table.h. */
#include "agent/watchdog/watchdog_table.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/status.h"
#include "base/str.h"

static int fields_read(const json_t *root, struct watchdog_message *out) {
    const json_t *pid = json_object_get(root, "pid");
    const json_t *scope = json_object_get(root, "scope_id");
    const json_t *expires = json_object_get(root, "expiration_time");
    const json_t *signal_number = json_object_get(root, "signal");
    if (!json_is_integer(pid) || json_integer_value(pid) <= 0 || json_integer_value(pid) > INT32_MAX) {
        return status_fail(MUSTER_EPROTOCOL, "'pid' is not a process number");
    }
    if (!json_is_string(scope) || !str_copy(out->scope, sizeof out->scope, json_string_value(scope))) {
        return status_fail(MUSTER_EPROTOCOL, "'scope_id' is not a text of at most %d bytes",
                           WATCHDOG_SCOPE_BYTES_MAX - 1);
    }
    if (!json_is_number(expires) || !isfinite(json_number_value(expires))) {
        return status_fail(MUSTER_EPROTOCOL, "'expiration_time' is not a time");
    }
    if (!json_is_integer(signal_number) || json_integer_value(signal_number) >= NSIG) {
        return status_fail(MUSTER_EPROTOCOL, "'signal' is not a signal number");
    }
    out->pid = json_integer_value(pid);
    out->expires_s = json_number_value(expires);
    out->signal_number = json_integer_value(signal_number) > 0 ? (int)json_integer_value(signal_number) : 0;
    return MUSTER_OK;
}

int watchdog_message_parse(const char *line, size_t length, struct watchdog_message *out) {
    json_error_t error;
    json_t *root = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        return status_fail(MUSTER_EPROTOCOL, "not a line of JSON: %s", error.text);
    }
    int status = fields_read(root, out);
    json_decref(root);
    return status;
}

void watchdog_table_init(struct watchdog_table *t) {
    *t = (struct watchdog_table){0};
}

void watchdog_table_clear(struct watchdog_table *t) {
    for (size_t i = 0; i < t->count; i++) {
        free(t->timers[i].scope);
    }
    t->count = 0;
}

void watchdog_table_done(struct watchdog_table *t) {
    watchdog_table_clear(t);
    free(t->timers);
    *t = (struct watchdog_table){0};
}

static void timer_drop(struct watchdog_table *t, size_t index) {
    free(t->timers[index].scope);
    t->timers[index] = t->timers[--t->count];
}

static size_t timer_find(const struct watchdog_table *t, pid_t pid, const char *scope) {
    size_t i = 0;
    while (i < t->count && (t->timers[i].pid != pid || strcmp(t->timers[i].scope, scope) != 0)) {
        i++;
    }
    return i;
}

static int table_grow(struct watchdog_table *t) {
    if (t->count < t->capacity) {
        return MUSTER_OK;
    }
    if (t->count == WATCHDOG_TIMERS_MAX) {
        return status_fail(MUSTER_ELIMIT, "more than %d watchdog timers at once", WATCHDOG_TIMERS_MAX);
    }
    size_t capacity = t->capacity ? t->capacity * 2 : 16;
    struct watchdog_timer *grown = realloc(t->timers, capacity * sizeof *grown);
    if (!grown) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu watchdog timers", capacity);
    }
    t->timers = grown;
    t->capacity = capacity;
    return MUSTER_OK;
}

static int timer_add(struct watchdog_table *t, const struct watchdog_message *m) {
    int status = table_grow(t);
    if (status != MUSTER_OK) {
        return status;
    }
    char *scope = strdup(m->scope);
    if (!scope) {
        return status_fail(MUSTER_ENOMEM, "no memory for a watchdog timer");
    }
    t->timers[t->count++] = (struct watchdog_timer){(pid_t)m->pid, scope, m->expires_s, m->signal_number};
    return MUSTER_OK;
}

int watchdog_table_apply(struct watchdog_table *t, const struct watchdog_message *m) {
    size_t index = timer_find(t, (pid_t)m->pid, m->scope);
    bool known = index < t->count;
    if (m->expires_s < 0) {
        if (known) {
            timer_drop(t, index);
        }
        return MUSTER_OK;
    }
    if (!known) {
        return timer_add(t, m);
    }
    t->timers[index].expires_s = m->expires_s;
    t->timers[index].signal_number = m->signal_number;
    return MUSTER_OK;
}

/* Drops the timers of `pid` that expire at `until_s` or before. */
static void timers_drop(struct watchdog_table *t, pid_t pid, double until_s) {
    for (size_t i = t->count; i-- > 0;) {
        if (t->timers[i].pid == pid && t->timers[i].expires_s <= until_s) {
            timer_drop(t, i);
        }
    }
}

void watchdog_table_forget(struct watchdog_table *t, pid_t pid) {
    timers_drop(t, pid, INFINITY);
}

bool watchdog_table_next(const struct watchdog_table *t, double *out_s) {
    for (size_t i = 0; i < t->count; i++) {
        if (i == 0 || t->timers[i].expires_s < *out_s) {
            *out_s = t->timers[i].expires_s;
        }
    }
    return t->count > 0;
}

/* Does `a` go before `b`, of the same process? */
static bool timer_precedes(const struct watchdog_timer *a, const struct watchdog_timer *b) {
    if ((a->signal_number > 0) != (b->signal_number > 0)) {
        return a->signal_number > 0;
    }
    return a->expires_s < b->expires_s;
}

bool watchdog_table_expire(struct watchdog_table *t, double now_s, struct watchdog_timer *out) {
    struct watchdog_timer *best = NULL;
    for (size_t i = 0; i < t->count; i++) {
        struct watchdog_timer *at = &t->timers[i];
        if (at->expires_s <= now_s && (!best || (at->pid == best->pid && timer_precedes(at, best)))) {
            best = at;
        }
    }
    if (!best) {
        return false;
    }
    *out = *best;
    size_t index = (size_t)(best - t->timers);
    t->timers[index] = t->timers[--t->count]; /* its scope is the caller's now */
    timers_drop(t, out->pid, out->signal_number > 0 ? INFINITY : now_s);
    return true;
}
