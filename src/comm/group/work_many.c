/* Waiting for several handles at a time; see muster/work.h. They may be collectives, which the progress threads run,
 * and messages, which move while somebody waits: so whoever waits here brings messages forward, and sleeps on this
 * process's bell, which the progress threads ring, too. */
#include <muster/work.h>

#include <sched.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/group/work_impl.h"

struct many {
    struct muster_work *const *works;
    size_t count;
    size_t first_open; /* those before it are over */
    int64_t now_ns;    /* as of the last look at the clock */
    uint32_t looks;    /* without sleep */
    bool asks_when_woken;
};

/* Will muster_work_wait() not block? A message whose time is up has failed; its handle finds that out itself. */
static bool is_over(const struct many *many, const struct muster_work *work) {
    return work->kind == WORK_MESSAGE ? message_work_is_over(work) || many->now_ns >= work->message.deadline_ns
                                      : atomic_load_explicit(&work->is_done, memory_order_acquire);
}

static size_t find_over(const struct many *many) {
    size_t i = 0;
    while (i < many->count && !(many->works[i] && is_over(many, many->works[i]))) {
        i++;
    }
    return i;
}

static bool any_is_over(void *argument) {
    const struct many *many = argument;
    return find_over(many) < many->count;
}

static bool all_are_over(void *argument) {
    struct many *many = argument;
    while (many->first_open < many->count &&
           (!many->works[many->first_open] || is_over(many, many->works[many->first_open]))) {
        many->first_open++;
    }
    return many->first_open == many->count;
}

static void wake_groups(void *argument) {
    const struct many *many = argument;
    for (size_t i = many->first_open; i < many->count; i++) {
        if (many->works[i] && !is_over(many, many->works[i])) {
            group_woken(many->works[i]->group);
        }
    }
}

/* In place of sleep: asks now and then what is asked after one. */
static void stay_awake(struct many *many) {
    enum { LOOKS_PER_QUESTION = 1024 };
    if (many->asks_when_woken && ++many->looks % LOOKS_PER_QUESTION == 0) {
        wake_groups(many);
    }
    (void)sched_yield();
}

/* Before sleeping: has the group of a message failed, or a peer left it, without a word on any link? A message that
 * moves only while it is looked after keeps this thread awake. */
static bool look_at_groups(void *argument) {
    struct many *many = argument;
    bool must_look_on = false, is_kept_awake = false;
    for (size_t i = many->first_open; i < many->count; i++) {
        const struct muster_work *work = many->works[i];
        if (!work || work->kind != WORK_MESSAGE) {
            continue;
        }
        if (group_is_uneasy(work->group)) {
            must_look_on = group_message_stopped(work->group) != 0 || must_look_on;
        }
        if (work->group->engine->table->messages->needs_progress) {
            message_work_progress(work);
            is_kept_awake = true;
        }
    }
    if (is_kept_awake) {
        stay_awake(many);
    }
    return must_look_on || is_kept_awake;
}

/* The earliest of `deadline_ns` and those of messages that are not over. */
static int64_t next_deadline(const struct many *many, int64_t deadline_ns) {
    for (size_t i = many->first_open; i < many->count; i++) {
        const struct muster_work *work = many->works[i];
        if (work && work->kind == WORK_MESSAGE && !is_over(many, work) && work->message.deadline_ns < deadline_ns) {
            deadline_ns = work->message.deadline_ns;
        }
    }
    return deadline_ns;
}

/* 0 as soon as ready() says so, or MUSTER_ETIMEOUT, without a detail. */
static int wait_many(struct many *many, const struct muster_group *group, bool (*ready)(void *many),
                     int64_t deadline_ns) {
    many->asks_when_woken = group->message_waiter.woken != NULL;
    struct comm_waiter waiter = {.bell = group->message_waiter.bell,
                                 .spin_count = group->message_waiter.spin_count,
                                 .yield_count = group->message_waiter.yield_count,
                                 .idle = look_at_groups,
                                 .woken = many->asks_when_woken ? wake_groups : NULL,
                                 .context = many};
    for (;;) {
        int code = p2p_wait_until(group->context->p2p, &waiter, ready, many, next_deadline(many, deadline_ns));
        many->now_ns = clock_monotonic_ns();
        if (code == 0 || ready(many)) {
            return 0;
        }
        if (many->now_ns >= deadline_ns) {
            return code;
        }
    }
}

/* Whose bell is waited on; *out NULL: there is nothing to wait for. */
static int find_group(const struct many *many, const char *call, struct muster_group **out) {
    *out = NULL;
    if (many->count > 0 && !many->works) {
        return status_fail_null(call, "works");
    }
    for (size_t i = 0; i < many->count; i++) {
        struct muster_work *work = many->works[i];
        if (work && *out && work->group->context != (*out)->context) {
            return status_fail(MUSTER_EINVAL, "%s: the handles are of several root groups", call);
        }
        *out = work && !*out ? work->group : *out;
    }
    return 0;
}

static int64_t deadline_of(int64_t timeout_ms, int64_t now_ns) {
    return timeout_ms < 0 ? INT64_MAX : now_ns + group_timeout_ns(timeout_ms);
}

static void describe(const struct muster_work *work, char *out, size_t max) {
    char call[128] = "calls between coalesce_begin and coalesce_end";
    if (work->kind == WORK_MESSAGE) {
        message_describe(work->group, &work->message, out, max);
        return;
    }
    if (work->kind == WORK_COLLECTIVE) {
        (void)comm_fingerprint_format(work->call.fingerprint, call, sizeof call);
    }
    (void)str_format(out, max, "%s (group '%s')", call, work->group->name);
}

/* "2 of 3 calls are not done within 0.500 s, among them barrier (group 'world')". */
static int tell_open(const struct many *many, int64_t timeout_ms) {
    char first[256] = "";
    size_t open = 0, all = 0;
    for (size_t i = 0; i < many->count; i++) {
        all += many->works[i] ? 1 : 0;
        if (many->works[i] && !is_over(many, many->works[i]) && open++ == 0) {
            describe(many->works[i], first, sizeof first);
        }
    }
    return status_fail(MUSTER_ETIMEOUT, "%zu of %zu calls are not done within %.3f s, among them %s", open, all,
                       (double)timeout_ms / 1e3, first);
}

int muster_work_wait_any(struct muster_work *const *works, size_t count, int64_t timeout_ms, size_t *out_index) {
    struct many many = {.works = works, .count = count, .now_ns = clock_monotonic_ns()};
    struct muster_group *group;
    if (!out_index) {
        return status_fail_null("muster_work_wait_any", "out_index");
    }
    int code = find_group(&many, "muster_work_wait_any", &group);
    if (code == 0 && group &&
        wait_many(&many, group, any_is_over, deadline_of(timeout_ms, many.now_ns)) == MUSTER_ETIMEOUT) {
        code = tell_open(&many, timeout_ms);
    }
    if (code == 0) {
        *out_index = find_over(&many);
    }
    return code;
}

/* Frees all; the first failure, with its detail. The time-out of a call has failed its group: MUSTER_EGROUP keeps it
 * apart from that of the wait, after which nothing is freed. */
static int collect(struct muster_work **works, size_t count) {
    char detail[MUSTER_DETAIL_MAX];
    struct muster_failure failure = status_no_failure();
    int first = 0;
    for (size_t i = 0; i < count; i++) {
        int code = muster_work_wait(&works[i]);
        if (code != 0 && first == 0) {
            first = code;
            (void)str_copy(detail, sizeof detail, muster_detail());
            failure = status_failure();
        }
    }
    return first == 0 ? 0 : status_restore(first == MUSTER_ETIMEOUT ? MUSTER_EGROUP : first, detail, &failure);
}

int muster_work_wait_all(struct muster_work **works, size_t count, int64_t timeout_ms) {
    struct many many = {.works = works, .count = count, .now_ns = clock_monotonic_ns()};
    struct muster_group *group;
    int code = find_group(&many, "muster_work_wait_all", &group);
    if (code == 0 && group &&
        wait_many(&many, group, all_are_over, deadline_of(timeout_ms, many.now_ns)) == MUSTER_ETIMEOUT) {
        code = tell_open(&many, timeout_ms);
    }
    return code ? code : collect(works, count);
}
