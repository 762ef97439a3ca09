/* What goes wrong in a group: who is gone and still needed, what neighbours and other hosts have found out; and the
 * sentences that say so. See group_impl.h.
 *
 * A failure is found by a thread that waits (its alarm was raised, its bell rung), or by the next call. The monitor
 * only raises alarms: whether a death matters depends on the call. */
#include "comm/group/group_impl.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/engine/message.h"
#include "comm/group/debug.h"

/* ---- alarms ---- */

static bool has_root_rank(const struct muster_group *group, uint32_t root_rank) {
    for (uint32_t rank = 0; rank < group->size; rank++) {
        if (group->root_ranks[rank] == root_rank) {
            return true;
        }
    }
    return false;
}

/* Two threads may do so one after the other. Whoever lowers the alarm then sees what both had to say, which is not C's
 * promise (the second store ends the first one's release sequence) but that of all our processors. */
void group_alarm(struct muster_group *group) {
    atomic_store_explicit(&group->waiter.alarm, 1, memory_order_release);
    atomic_store_explicit(&group->message_waiter.alarm, 1, memory_order_release);
    comm_bell_ring(context_bell(group->context));
}

static void ring_neighbours(struct muster_group *group) {
    for (uint32_t i = 0; i < group->local_count; i++) {
        uint32_t local = context_local_of(group->context, group->root_ranks[group->locals[i]]);
        comm_bell_ring(&group->context->lines[local].bell);
    }
}

/* Have messages been posted, here or by a neighbour for this process? Then whoever waits brings them forward. A program
 * of collectives alone need not look at links. */
static bool uses_links(struct context *context) {
    if (atomic_load_explicit(&context->uses_links, memory_order_relaxed)) {
        return true;
    }
    bool is_called = p2p_is_called(context->p2p);
    if (is_called) {
        atomic_store_explicit(&context->uses_links, true, memory_order_relaxed);
    }
    return is_called;
}

bool group_idle(void *argument) {
    struct muster_group *group = argument;
    if (atomic_load_explicit(&group->shared->news, memory_order_acquire) !=
        atomic_load_explicit(&group->news_seen, memory_order_relaxed)) {
        bool was_raised = atomic_exchange_explicit(&group->waiter.alarm, 1, memory_order_acq_rel) != 0;
        was_raised &= atomic_exchange_explicit(&group->message_waiter.alarm, 1, memory_order_acq_rel) != 0;
        return !was_raised;
    }
    return uses_links(group->context) && p2p_idle(group->context->p2p);
}

/* ---- sentences ---- */

/* "rank 3", and its number in the root group where that differs. */
int group_name_rank(const struct muster_group *group, uint32_t rank, char *out, size_t max) {
    uint32_t root = group->root_ranks[rank];
    return root == rank ? snprintf(out, max, "rank %u", rank)
                        : snprintf(out, max, "rank %u (root rank %u)", rank, root);
}

/* "all_reduce of 4 float32, sum (call 17 of group 'world', begun 0.250 s ago)", or "group 'world' (between calls)". */
void group_describe_own_call(const struct muster_group *group, char *out, size_t max) {
    uint64_t begun = call_line_begun(&group->line->calls);
    char call[128];
    if (begun == call_line_finished(&group->line->calls)) {
        (void)snprintf(out, max, "group '%s', after call %llu", group->name, (unsigned long long)begun);
        return;
    }
    double seconds =
        (double)(clock_monotonic_ns() - atomic_load_explicit(&group->line->calls.begun_ns, memory_order_relaxed)) / 1e9;
    (void)comm_fingerprint_format(call_line_fingerprint(&group->line->calls, begun), call, sizeof call);
    (void)snprintf(out, max, "%s (call %llu of group '%s', begun %.3f s ago)", call, (unsigned long long)begun,
                   group->name, seconds > 0 ? seconds : 0.0);
}

/* The line of a rank of this host; NULL: it runs elsewhere. */
const struct group_line *group_line_of(const struct muster_group *group, uint32_t rank) {
    uint32_t low = 0, high = group->local_count;
    while (low < high) { /* the list rises */
        uint32_t middle = (low + high) / 2;
        if (group->locals[middle] < rank) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < group->local_count && group->locals[low] == rank ? &group->lines[low] : NULL;
}

/* "; its last call was 16, barrier, which it had finished". "" where it is not known. */
void group_describe_last_call(const struct muster_group *group, uint32_t rank, char *out, size_t max) {
    const struct group_line *line = group_line_of(group, rank);
    char call[128];
    out[0] = '\0';
    if (!line) {
        return;
    }
    uint64_t finished = call_line_finished(&line->calls);
    uint64_t begun = call_line_begun(&line->calls);
    if (begun == 0) {
        (void)snprintf(out, max, "; it had made no call");
        return;
    }
    (void)comm_fingerprint_format(call_line_fingerprint(&line->calls, begun), call, sizeof call);
    (void)snprintf(out, max, "; its last call was %llu, %s, which it had %s", (unsigned long long)begun, call,
                   finished == begun ? "finished" : "not finished");
}

/* ---- failing ---- */

/* For the neighbours: into this rank's own line, once. Before this process's own threads can see the failure: one of
 * them may then free the group, and neighbours would find that this rank has left without a reason. */
static void publish(void *argument, int code) {
    struct muster_group *group = argument;
    struct group_line *line = group->line;
    if (atomic_load_explicit(&line->failed, memory_order_relaxed) == 0) {
        (void)str_format(line->sentence, sizeof line->sentence, "%s", group->failure.sentence);
        line->record = group->failure.record;
        atomic_store_explicit(&line->failed, code, memory_order_release);
    }
    atomic_fetch_add_explicit(&group->shared->news, 1, memory_order_release);
    ring_neighbours(group);
}

/* For the other hosts, and for messages of the group that are under way. */
void group_spread(struct muster_group *group, int code, const char *sentence, const struct muster_failure *record) {
    struct p2p_notice notice = {
        .kind = P2P_NOTICE_GROUP_FAILED, .subject = group->id, .origin = group->context->rank, .code = code};
    if (record->rank != MUSTER_NO_RANK) {
        notice.blamed = (struct p2p_blamed){record->root_rank + 1, record->pid};
    }
    notice.spared = code == MUSTER_EPEER ? call_line_finished(&group->line->calls) : 0;
    (void)str_format(notice.sentence, sizeof notice.sentence, "%s", sentence);
    p2p_spread(group->context->p2p, &notice);
}

/* What this process has found by a link stands as it is; of another it says which rank tells it. */
static void quote_notice(const struct muster_group *group, const struct p2p_notice *notice, char *out, size_t max) {
    char who[64];
    uint32_t rank = 0;
    while (rank < group->size && group->root_ranks[rank] != notice->origin) {
        rank++;
    }
    if (notice->origin == group->context->rank) {
        (void)str_format(out, max, "%s", notice->sentence);
        return;
    }
    if (rank < group->size) {
        (void)group_name_rank(group, rank, who, sizeof who);
    } else {
        (void)str_format(who, sizeof who, "root rank %u", notice->origin);
    }
    (void)str_format(out, max, "%s: %s", who, notice->sentence);
}

static struct muster_failure record_of(const struct muster_group *group, const struct p2p_notice *notice) {
    struct muster_failure record = status_no_failure();
    if (notice->blamed.number > 0) {
        group_blame_root(group, notice->blamed.number - 1, &record);
        record.pid = record.pid ? record.pid : notice->blamed.pid;
    }
    if (notice->code == MUSTER_ETIMEOUT) { /* and it was not in a call: who else is late, only the sentence says */
        status_add_missing(&record, group->rank);
    }
    return record;
}

static void take_notice(struct muster_group *group, const struct p2p_notice *notice) {
    char sentence[MUSTER_DETAIL_MAX];
    uint64_t begun = call_line_begun(&group->line->calls);
    if (notice->code == MUSTER_ETIMEOUT && begun != call_line_finished(&group->line->calls)) {
        /* This rank has come: it is to say so, and to find out by itself who has not. */
        atomic_store_explicit(&group->deadline_told, true, memory_order_release);
        group_alarm(group);
        return;
    }
    quote_notice(group, notice, sentence, sizeof sentence);
    const struct muster_failure record = record_of(group, notice);
    if (begun > notice->spared || notice->spared == 0) {
        (void)group_fail(group, notice->code, sentence, &record);
        return;
    }
    atomic_store_explicit(&group->told_spared, notice->spared, memory_order_relaxed);
    (void)failure_set(&group->told, notice->code, sentence, &record, NULL, NULL);
    group_alarm(group);
}

int group_fail(struct muster_group *group, int code, const char *sentence, const struct muster_failure *record) {
    struct muster_failure own = record ? *record : status_no_failure();
    group_record_place(group, code, &own);
    if (failure_set(&group->failure, code, sentence, &own, publish, group)) {
        if (group->engine && group->engine->table->group_failed) {
            group->engine->table->group_failed(group->engine, code);
        }
        group_spread(group, code, group->failure.sentence, &own);
        debug_failure(group);
    }
    group_alarm(group);
    return failure_get(&group->failure);
}

void group_abort(struct muster_group *group, const char *reason) {
    char sentence[GROUP_ABORT_REASON_MAX + MUSTER_GROUP_NAME_MAX + 64];
    (void)snprintf(sentence, sizeof sentence, "rank %u aborted group '%s': %.*s", group->rank, group->name,
                   GROUP_ABORT_REASON_MAX, reason ? reason : "no reason given");
    struct muster_failure record = status_no_failure();
    group_blame(group, group->rank, &record);
    (void)group_fail(group, MUSTER_EABORTED, sentence, &record);
}

void group_woken(void *argument) {
    struct muster_group *group = argument;
    const struct context *context = group->context;
    if (context->interrupted && context->interrupted(context->interrupted_context) != 0) {
        group_abort(group, "interrupted");
    }
}

static void tell_engine(const struct muster_group *group, const struct context_peer *peer) {
    if (peer->sentence && group->engine && group->engine->table->member_died) {
        group->engine->table->member_died(group->engine, peer->sentence);
    }
}

static void on_peer_gone(struct context *context, uint32_t root_rank) {
    for (struct muster_group *group = context->groups; group; group = group->next) {
        if (has_root_rank(group, root_rank)) {
            tell_engine(group, &context->peers[root_rank]);
            group_alarm(group);
        }
    }
}

static void on_group_notice(struct context *context, const struct p2p_notice *notice) {
    for (struct muster_group *group = context->groups; group; group = group->next) {
        if (group->id == notice->subject) {
            take_notice(group, notice);
        }
    }
}

const struct context_hooks group_context_hooks = {.peer_gone = on_peer_gone, .group_notice = on_group_notice};

/* ---- examining ---- */

/* Does a member's absence keep this rank from what it is about to do? */
static bool is_needed(const struct muster_group *group, uint32_t rank, bool has_died, enum group_need need) {
    const struct group_line *line = group_line_of(group, rank);
    uint64_t own_begun = call_line_begun(&group->line->calls);
    bool in_call = own_begun != call_line_finished(&group->line->calls);
    if (need == GROUP_NEED_CALL || need == GROUP_NEED_REASON || (need == GROUP_NEED_STATUS && in_call)) {
        /* Of a rank elsewhere the links know: it may have sent all that this call needs, and whoever waits for more
         * finds its link at the end. */
        bool is_for_us_to_tell = need == GROUP_NEED_REASON || (has_died && group->engine->table->needs_news_of_hosts);
        return line ? call_line_finished(&line->calls) < own_begun : is_for_us_to_tell;
    }
    /* Who left in good order is no failure until a call needs it: it may have sent a message before, or, as the root of
     * broadcasts, have finished calls that this rank has yet to begin. */
    return has_died || (need == GROUP_NEED_BEGIN && (!line || call_line_finished(&line->calls) <= own_begun));
}

static bool has_died(const struct muster_group *group, uint32_t rank) {
    const struct group_line *line = group_line_of(group, rank);
    const struct context_peer *peer = &group->context->peers[group->root_ranks[rank]];
    return atomic_load_explicit(&peer->state, memory_order_acquire) == CONTEXT_PEER_DEAD &&
           !(line && atomic_load_explicit(&line->has_left, memory_order_acquire));
}

/* Is the rank gone, and does that fail the group? *out_pending: it is gone, but not needed now. */
static bool is_missing(const struct muster_group *group, uint32_t rank, enum group_need need, bool *out_pending) {
    const struct group_line *line = group_line_of(group, rank);
    const struct context_peer *peer = &group->context->peers[group->root_ranks[rank]];
    bool is_here = atomic_load_explicit(&peer->state, memory_order_acquire) == CONTEXT_PEER_HERE &&
                   !(line && atomic_load_explicit(&line->has_left, memory_order_acquire));
    if (rank == group->rank || is_here) {
        return false;
    }
    if (line && atomic_load_explicit(&line->failed, memory_order_acquire)) {
        return false; /* it is gone because of that: examine_line() has the cause */
    }
    bool needed = is_needed(group, rank, has_died(group, rank), need);
    *out_pending |= !needed;
    return needed;
}

/* The missing rank that was gone first: later ones may have ended because of it. Those of this host come before others:
 * of them the kernel tells, while a rank elsewhere may only be out of reach. group->size: nobody. */
static uint32_t find_first_missing(const struct muster_group *group, enum group_need need, bool *out_pending) {
    uint32_t first = group->size;
    uint64_t first_order = UINT64_MAX;
    for (uint32_t rank = 0; rank < group->size; rank++) {
        if (is_missing(group, rank, need, out_pending)) {
            uint64_t order = has_died(group, rank) ? group->context->peers[group->root_ranks[rank]].order : UINT32_MAX;
            order |= group_line_of(group, rank) ? 0 : UINT64_C(1) << 32;
            if (first == group->size || order < first_order) {
                first = rank;
                first_order = order;
            }
        }
    }
    return first;
}

/* Has a neighbour ended, or is about to, and the monitor's thread has not said so yet? */
static bool death_is_pending(const struct muster_group *group) {
    const struct context *context = group->context;
    for (uint32_t i = 0; i < group->local_count; i++) {
        uint32_t root = group->root_ranks[group->locals[i]];
        const struct bootstrap_local *local = &context->bootstrap.locals[context_local_of(context, root)];
        bool has_left = atomic_load_explicit(&context->lines[local - context->bootstrap.locals].has_left,
                                             memory_order_acquire); /* then nobody will say so */
        if (!has_left && atomic_load_explicit(&context->peers[root].state, memory_order_acquire) == CONTEXT_PEER_HERE &&
            monitor_is_ending(local->pid, local->start_time)) {
            return true;
        }
    }
    return false;
}

/* Before a rank elsewhere, or a link, is blamed: lets the monitor say which neighbours have ended; that may be the
 * reason. Takes as long as that thread needs to run. */
static void await_deaths(const struct muster_group *group) {
    enum { LOOKS_MAX = 1000, PAUSE_MS = 1 }; /* what the kernel says, the monitor says soon */
    for (int look = 0; look < LOOKS_MAX && death_is_pending(group); look++) {
        (void)poll(NULL, 0, PAUSE_MS);
    }
}

static void describe_missing(const struct muster_group *group, uint32_t rank, char *out, size_t max,
                             struct muster_failure *record) {
    char own[256], who[64], last[192];
    group_blame(group, rank, record);
    uint32_t root = group->root_ranks[rank];
    group_describe_own_call(group, own, sizeof own);
    (void)group_name_rank(group, rank, who, sizeof who);
    group_describe_last_call(group, rank, last, sizeof last);
    if (has_died(group, rank)) {
        const char *sentence = group->context->peers[root].sentence;
        (void)snprintf(out, max, "%s: %s%s%s%s", own, sentence ? sentence : "a rank is gone",
                       root == rank ? "" : ", here ", root == rank ? "" : who, last);
    } else {
        (void)snprintf(out, max, "%s: %s on host %s has left the group%s", own, who,
                       context_host_name(group->context, root), last);
    }
}

/* May this rank go on in spite of a death after which the calls up to number `spared` can end? */
static bool is_spared(const struct muster_group *group, enum group_need need, uint64_t spared) {
    uint64_t begun = call_line_begun(&group->line->calls);
    bool in_call = begun != call_line_finished(&group->line->calls);
    return need == GROUP_NEED_BEGIN                                            ? begun < spared
           : need == GROUP_NEED_CALL || (need == GROUP_NEED_STATUS && in_call) ? begun <= spared
                                                                               : false;
}

/* A neighbour has failed the group, with a sentence. */
static int examine_line(struct muster_group *group, uint32_t local, enum group_need need, bool *out_pending, char *out,
                        size_t max, struct muster_failure *record) {
    const struct group_line *line = &group->lines[local];
    int code = local == group->local ? 0 : atomic_load_explicit(&line->failed, memory_order_acquire);
    if (code == MUSTER_EPEER && is_spared(group, need, call_line_finished(&line->calls))) {
        *out_pending = true;
        return 0;
    }
    if (code < 0) {
        char who[64];
        (void)group_name_rank(group, group->locals[local], who, sizeof who);
        (void)snprintf(out, max, "%s: %.*s", who, (int)sizeof line->sentence, line->sentence);
        *record = line->record;
    }
    return code;
}

int group_examine(struct muster_group *group, enum group_need need) {
    char sentence[MUSTER_DETAIL_MAX];
    struct muster_failure record = status_no_failure();
    int code = failure_get(&group->failure);
    if (code) {
        return code;
    }
    pthread_mutex_lock(&group->examine_mutex);
    uint32_t news = atomic_load_explicit(&group->shared->news, memory_order_acquire);
    bool pending = false;
    if (need == GROUP_NEED_CALL && atomic_load_explicit(&group->deadline_told, memory_order_acquire)) {
        code = status_fail(MUSTER_ETIMEOUT, "the deadline has passed on another host");
        pthread_mutex_unlock(&group->examine_mutex);
        return code; /* group_call_failed() finds out who is late */
    }
    /* Before looking: what happens from now on raises them again. What had raised them is seen by now (a release store
     * there, an exchange here): also a failure that another thread has found since this one looked for it above. */
    (void)atomic_exchange_explicit(&group->waiter.alarm, 0, memory_order_seq_cst);
    (void)atomic_exchange_explicit(&group->message_waiter.alarm, 0, memory_order_seq_cst);
    code = failure_get(&group->failure);
    if (code) {
        group_alarm(group);
        pthread_mutex_unlock(&group->examine_mutex);
        return code;
    }
    /* That is for the call to find: whoever asks now may be another thread, and has lowered the call's alarm. */
    pending |= atomic_load_explicit(&group->deadline_told, memory_order_acquire);
    uint32_t missing = find_first_missing(group, need, &pending);
    if (missing < group->size && !group_line_of(group, missing)) {
        await_deaths(group);
        missing = find_first_missing(group, need, &pending);
    }
    if (missing < group->size) {
        describe_missing(group, missing, sentence, sizeof sentence, &record);
        code = MUSTER_EPEER;
    }
    for (uint32_t local = 0; code == 0 && local < group->local_count; local++) {
        code = examine_line(group, local, need, &pending, sentence, sizeof sentence, &record);
    }
    if (failure_is_set(&group->told)) {
        pending = true;
        if (code == 0 && !is_spared(group, need, atomic_load_explicit(&group->told_spared, memory_order_relaxed))) {
            (void)str_format(sentence, sizeof sentence, "%s", group->told.sentence);
            record = group->told.record;
            code = failure_get(&group->told);
        }
    }
    atomic_store_explicit(&group->news_seen, news, memory_order_relaxed);
    if (pending) { /* the next call may need it */
        atomic_store_explicit(&group->waiter.alarm, 1, memory_order_release);
        atomic_store_explicit(&group->message_waiter.alarm, 1, memory_order_release);
    }
    pthread_mutex_unlock(&group->examine_mutex);
    return code ? group_fail(group, code, sentence, &record) : 0;
}

int group_seek_reason(struct muster_group *group, int code, enum group_need need) {
    enum { LOOKS_MAX = 1000, PAUSE_MS = 1 };
    bool is_of_library = code == MUSTER_ESYSTEM;
    if (failure_is_set(&group->failure) || !(is_of_library || code == MUSTER_EPEER || code == MUSTER_ECONNECT)) {
        return code;
    }
    await_deaths(group);
    p2p_await_notices(group->context->p2p);
    for (int looks = is_of_library ? LOOKS_MAX : 1; group_examine(group, need) == 0 && --looks > 0;) {
        (void)poll(NULL, 0, PAUSE_MS);
    }
    return is_of_library ? code : MUSTER_EPEER;
}

void group_tell_left(struct muster_group *group) {
    const struct engine_messages *messages = group->engine->table->messages;
    uint32_t left = 0;
    if (!messages || !messages->peer_left) {
        return;
    }
    for (uint32_t i = 0; i < group->local_count; i++) {
        left += i != group->local && atomic_load_explicit(&group->lines[i].has_left, memory_order_acquire) ? 1 : 0;
    }
    if (left == atomic_load_explicit(&group->left_told, memory_order_relaxed)) {
        return;
    }
    for (uint32_t i = 0; i < group->local_count; i++) {
        if (i != group->local && atomic_load_explicit(&group->lines[i].has_left, memory_order_acquire)) {
            messages->peer_left(group->engine, group->locals[i]);
        }
    }
    atomic_store_explicit(&group->left_told, left, memory_order_relaxed);
}

int group_check_message(struct muster_group *group) {
    if (!group_is_uneasy(group)) {
        return 0;
    }
    if (group_examine(group, GROUP_NEED_MESSAGE)) {
        return failure_refuse(&group->failure);
    }
    group_tell_left(group);
    return 0;
}

/* Before the first call it is asked while the engine connects, which takes all members, though they have not begun one.
 */
int group_call_stopped(void *argument) {
    struct muster_group *group = argument;
    bool is_connecting = call_line_begun(&group->line->calls) == 0;
    return group_examine(group, is_connecting ? GROUP_NEED_STATUS : GROUP_NEED_CALL);
}

int group_message_stopped(void *group) {
    int code = group_examine(group, GROUP_NEED_MESSAGE);
    if (code == 0) {
        group_tell_left(group);
    }
    return code;
}
