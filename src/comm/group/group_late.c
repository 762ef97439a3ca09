/* A call of the group that failed by itself: who did not come, came with another call, or came and got stuck. See
 * group_impl.h.
 *
 * On this host the members' lines tell, their steps in shared memory, and the kernel, which knows who is stopped. Ranks
 * elsewhere are asked through the store: whose deadline has passed tells the other hosts; everybody who is in the call
 * then puts a key for itself, which says what call it is in, waits a little, and looks who did not. So calls that
 * differ are found out then, if nothing has told of them before. */
#include "comm/group/group_impl.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/host/monitor.h"

enum {
    ANSWER_MS = 500,        /* how long others have for their key */
    LOOK_MS = 100,          /* for so long this thread keeps the store from this process's other threads */
    ASKED_RANKS_MAX = 1024, /* larger groups say whom they waited for, and ask nobody */
    KEY_BYTES = 64,
    HELD_LOOKS = 5, /* in which a process must be in the kernel, to count as held there */
    HELD_PAUSE_MS = 5,
    TOLD_RANKS_MAX = 4, /* ranks that a sentence says more of than their number */
};

/* ---- who is late ---- */

struct attendance {
    const struct muster_group *group;
    bool *came;        /* per rank; NULL: not asked */
    uint32_t stranger; /* the first rank that came with another call; UINT32_MAX: none */
    uint64_t strange;  /* its fingerprint */
    struct muster_failure *record;
};

static bool is_late(const void *argument, uint32_t rank) {
    const struct attendance *attendance = argument;
    const struct muster_group *group = attendance->group;
    const struct group_line *line = group_line_of(group, rank);
    if (rank == group->rank) {
        return false;
    }
    if (line) {
        return call_line_begun(&line->calls) < call_line_begun(&group->line->calls);
    }
    return attendance->came ? !attendance->came[rank] : engine_awaits(group->engine, rank);
}

static const char *make_key(const struct muster_group *group, uint32_t rank, char out[KEY_BYTES]) {
    (void)str_format(out, KEY_BYTES, "late/%u/%llu/%u", group->id,
                     (unsigned long long)call_line_begun(&group->line->calls), rank);
    return out;
}

static void note_call(struct attendance *attendance, uint32_t rank, uint64_t own,
                      const struct muster_store_value *value) {
    uint64_t theirs = own;
    if (attendance->came[rank] && value->len == sizeof theirs) {
        memcpy(&theirs, value->data, sizeof theirs);
    }
    if (theirs != own && attendance->stranger == UINT32_MAX) {
        attendance->stranger = rank;
        attendance->strange = theirs;
    }
}

/* Waits for all keys. Other threads have the store in between: two calls of one process that are late together would
 * else wait for each other. */
static bool await_keys(const struct comm_kv *kv, const char *const *keys, size_t count,
                       struct muster_store_value *out) {
    int64_t until_ns = clock_monotonic_ns() + ANSWER_MS * CLOCK_NS_PER_MS;
    int code = MUSTER_ETIMEOUT;
    for (int64_t left_ms = ANSWER_MS; code == MUSTER_ETIMEOUT && left_ms > 0; left_ms = clock_remaining_ms(until_ns)) {
        code = kv->multi_get(kv->context, keys, count, left_ms < LOOK_MS ? left_ms : LOOK_MS, out);
        (void)poll(NULL, 0, code == MUSTER_ETIMEOUT); /* 1 ms, in which they take their turn */
    }
    return code == 0;
}

/* Everybody's keys, as far as they are there after a while. Whatever the store cannot tell counts as not there. */
static void ask(struct attendance *attendance) {
    const struct muster_group *group = attendance->group;
    uint64_t own = call_line_fingerprint(&group->line->calls, group->sequence);
    const struct comm_kv *kv = &group->context->kv;
    char(*names)[KEY_BYTES] = calloc(group->size, sizeof *names);
    const char **keys = calloc(group->size, sizeof *keys);
    struct muster_store_value *values = calloc(group->size, sizeof *values);
    if (names && keys && values) {
        for (uint32_t rank = 0; rank < group->size; rank++) {
            keys[rank] = make_key(group, rank, names[rank]);
        }
        (void)kv->set(kv->context, keys[group->rank], &own, sizeof own);
        bool all = await_keys(kv, keys, group->size, values);
        for (uint32_t rank = 0; rank < group->size; rank++) {
            attendance->came[rank] = all || kv->get(kv->context, keys[rank], 0, &values[rank]) == 0;
            note_call(attendance, rank, own, &values[rank]);
            muster_store_value_free(&values[rank]);
        }
    }
    free(values);
    free(keys);
    free(names);
}

/* "call 17 of group 'world' is barrier on rank 0, but all_reduce of 4 float32, sum on rank 1". */
static void describe_pair(const struct muster_group *group, uint64_t sequence, uint32_t rank, uint64_t theirs,
                          char *out, size_t max) {
    char own[128], other[128], self[64], who[64];
    uint64_t ours = call_line_fingerprint(&group->line->calls, sequence);
    (void)group_name_rank(group, group->rank, self, sizeof self);
    (void)group_name_rank(group, rank, who, sizeof who);
    (void)snprintf(out, max, "call %llu of group '%s' is %s on %s, but %s on %s%s", (unsigned long long)sequence,
                   group->name, comm_fingerprint_format(ours, own, sizeof own), self,
                   comm_fingerprint_format(theirs, other, sizeof other), who, comm_fingerprints_remark(ours, theirs));
}

/* ---- what neighbours are at ---- */

/* Appends "; rank 2 (pid 7 on host a) WORDS". The caller says of each rank what it is to the record. */
static size_t tell_of(const struct muster_group *group, uint32_t rank, const char *words, char *out, size_t used,
                      size_t max) {
    const struct context *context = group->context;
    uint32_t root = group->root_ranks[rank];
    char who[64];
    (void)group_name_rank(group, rank, who, sizeof who);
    int n = snprintf(out + used, max - used, "; %s (pid %d on host %s) %s", who,
                     (int)context->bootstrap.locals[context_local_of(context, root)].pid,
                     context_host_name(context, root), words);
    used += n > 0 ? (size_t)n : 0;
    return used < max ? used : max - 1;
}

static char state_of(const struct muster_group *group, uint32_t local) {
    const struct context *context = group->context;
    uint32_t root = group->root_ranks[group->locals[local]];
    const struct bootstrap_local *process = &context->bootstrap.locals[context_local_of(context, root)];
    return local == group->local ? 'R' : monitor_process_state(process->pid, process->start_time);
}

/* What keeps the process of a local member from running; NULL: nothing. */
static const char *what_holds(const struct muster_group *group, uint32_t local) {
    char state = state_of(group, local);
    for (int looks = 1; state == 'D' && looks < HELD_LOOKS;
         looks++) { /* everybody is there for a moment now and then */
        (void)poll(NULL, 0, HELD_PAUSE_MS);
        state = state_of(group, local);
    }
    switch (state) {
    case 'T':
        return "is stopped by a signal";
    case 't':
        return "is stopped by a debugger";
    case 'D':
        return "is held in the kernel";
    default:
        return NULL;
    }
}

size_t group_tell_held(const struct muster_group *group, char *out, size_t used, size_t max,
                       struct muster_failure *record) {
    uint32_t told = 0;
    for (uint32_t local = 0; local < group->local_count && told < TOLD_RANKS_MAX; local++) {
        const char *words = what_holds(group, local);
        if (words) {
            used = tell_of(group, group->locals[local], words, out, used, max);
            if (record) {
                status_add_missing(record, group->locals[local]);
            }
            told++;
        }
    }
    return used;
}

/* Who is late on this host, and what it did last. */
static size_t tell_late(const struct attendance *attendance, char *out, size_t used, size_t max) {
    const struct muster_group *group = attendance->group;
    uint32_t told = 0;
    for (uint32_t local = 0; local < group->local_count && told < TOLD_RANKS_MAX; local++) {
        uint32_t rank = group->locals[local];
        if (is_late(attendance, rank)) {
            char last[160];
            const char *words = what_holds(group, local);
            used = tell_of(group, rank, words ? words : "is alive", out, used, max);
            group_describe_last_call(group, rank, last, sizeof last);
            used += (size_t)snprintf(out + used, max - used, "%s", last);
            used = used < max ? used : max - 1;
            told++;
        }
    }
    return used;
}

/* All have begun the call, and nobody is held: those whose steps in it are the fewest, if some have taken more. The
 * others wait for what they have to give next. */
static size_t tell_behind(const struct muster_group *group, char *out, size_t used, size_t max,
                          struct muster_failure *record) {
    uint64_t own = call_line_begun(&group->line->calls);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t local = 0; local < group->local_count; local++) {
        if (call_line_finished(&group->lines[local].calls) < own) {
            uint64_t steps = engine_steps(group->engine, local);
            least = steps < least ? steps : least;
            most = steps > most ? steps : most;
        }
    }
    uint32_t told = 0;
    for (uint32_t local = 0; least < most && local < group->local_count && told < TOLD_RANKS_MAX; local++) {
        if (call_line_finished(&group->lines[local].calls) < own && engine_steps(group->engine, local) == least &&
            local != group->local) {
            char words[64];
            (void)snprintf(words, sizeof words, "is behind, by %llu step%s", (unsigned long long)(most - least),
                           most - least == 1 ? "" : "s");
            used = tell_of(group, group->locals[local], words, out, used, max);
            status_add_missing(record, group->locals[local]);
            told++;
        }
    }
    return used;
}

/* ---- whose host is silent ---- */

/* Appends "; rank 2 on host a has acknowledged nothing for 36.1 s": of other hosts, as far as this one should have
 * heard. */
static size_t tell_silent(const struct muster_group *group, char *out, size_t used, size_t max) {
    uint32_t told = 0;
    for (uint32_t rank = 0; rank < group->size && told < TOLD_RANKS_MAX; rank++) {
        uint32_t root = group->root_ranks[rank];
        bool is_here = group_line_of(group, rank) || !group->context->p2p;
        int64_t ms = is_here ? 0 : p2p_silence_ms(group->context->p2p, root);
        if (ms > 0) {
            char who[64];
            (void)group_name_rank(group, rank, who, sizeof who);
            int n = snprintf(out + used, max - used, "; %s on host %s has acknowledged nothing for %.1f s", who,
                             context_host_name(group->context, root), (double)ms / 1e3);
            used += n > 0 ? (size_t)n : 0;
            used = used < max ? used : max - 1;
            told++;
        }
    }
    return used;
}

/* ---- the sentence ---- */

/* Who is missing, as far as attendance knows. */
static void tell_missing(const struct attendance *attendance, char *out, size_t used, size_t max) {
    const struct muster_group *group = attendance->group;
    char list[200];
    (void)bootstrap_list_ranks(group->size, is_late, attendance, list, sizeof list);
    *attendance->record = status_no_failure();
    for (uint32_t rank = 0; rank < group->size; rank++) {
        if (is_late(attendance, rank)) {
            status_add_missing(attendance->record, rank);
        }
    }
    if (list[0] != '\0') {
        used += (size_t)snprintf(out + used, max - used, "; these ranks did not come: %s", list);
        size_t before = used;
        used = tell_late(attendance, out, used, max);
        if (used > before) {
            return;
        }
    } else {
        used += (size_t)snprintf(out + used, max - used, "; all ranks have begun it");
    }
    struct muster_failure *holders = list[0] == '\0' ? attendance->record : NULL;
    size_t told = group_tell_held(group, out, used, max, holders);
    if (told == used && holders) {
        (void)tell_behind(group, out, used, max, holders);
    }
}

/* MUSTER_ETIMEOUT, or MUSTER_EMISMATCH if the others made another call. */
static int describe_late(struct muster_group *group, int64_t timeout_ns, char *out, size_t max,
                         struct muster_failure *record) {
    char own[256];
    struct attendance attendance = {.group = group, .stranger = UINT32_MAX, .record = record};
    group_describe_own_call(group, own, sizeof own);
    size_t used = (size_t)snprintf(out, max, "%s: not done within %.3f s", own, (double)timeout_ns / 1e9);
    used = tell_silent(group, out, used, max);
    tell_missing(&attendance, out, used, max);
    if (group->host_count == 1 || group->size > ASKED_RANKS_MAX) {
        return MUSTER_ETIMEOUT;
    }
    group_spread(group, MUSTER_ETIMEOUT, out, record);
    attendance.came = calloc(group->size, sizeof *attendance.came);
    if (attendance.came) {
        ask(&attendance);
    }
    if (attendance.stranger != UINT32_MAX) {
        describe_pair(group, group->sequence, attendance.stranger, attendance.strange, out, max);
        *record = status_no_failure();
        group_blame(group, attendance.stranger, record);
    } else {
        tell_missing(&attendance, out, used, max);
    }
    free(attendance.came);
    return attendance.stranger != UINT32_MAX ? MUSTER_EMISMATCH : MUSTER_ETIMEOUT;
}

/* ---- who made another call ---- */

/* Which call was the first that somebody on this host made otherwise. */
static bool describe_mismatch(const struct muster_group *group, char *out, size_t max, struct muster_failure *record) {
    uint64_t first = 0;
    uint32_t local = 0;
    for (uint32_t i = 0; i < group->local_count; i++) {
        uint64_t number = call_line_difference(&group->line->calls, &group->lines[i].calls);
        if (number != 0 && (first == 0 || number < first)) {
            first = number;
            local = i;
        }
    }
    if (first != 0) {
        uint64_t theirs = call_line_fingerprint(&group->lines[local].calls, first);
        describe_pair(group, first, group->locals[local], theirs, out, max);
        group_blame(group, group->locals[local], record);
    }
    return first != 0;
}

void group_look_back(const struct muster_group *group) {
    char sentence[MUSTER_DETAIL_MAX];
    struct muster_failure record;
    if (!failure_is_set(&group->failure) && describe_mismatch(group, sentence, sizeof sentence, &record)) {
        log_warning("%s; the results are wrong", sentence);
    }
}

int group_call_failed(struct muster_group *group, int code, int64_t timeout_ns) {
    char sentence[MUSTER_DETAIL_MAX];
    char detail[MUSTER_DETAIL_MAX];
    struct muster_failure record = status_failure();
    (void)str_format(detail, sizeof detail, "%s", muster_detail());
    code = group_seek_reason(group, code, GROUP_NEED_REASON);
    if (failure_is_set(&group->failure)) { /* found while waiting, or by another thread */
        group_alarm(group);                /* which may not have come that far */
        return failure_tell(&group->failure);
    }
    if (code == MUSTER_ETIMEOUT) {
        code = describe_late(group, timeout_ns, sentence, sizeof sentence, &record);
    } else if (code != MUSTER_EMISMATCH || !describe_mismatch(group, sentence, sizeof sentence, &record)) {
        char own[256];
        group_describe_own_call(group, own, sizeof own);
        (void)snprintf(sentence, sizeof sentence, "%s: %s", own, detail);
    }
    (void)group_fail(group, code, sentence, &record);
    return failure_tell(&group->failure);
}
