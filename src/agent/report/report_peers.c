/* Workers that others may have waited for; see report_peers.h. */
#include "agent/report/report_peers.h"

#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/status.h"

enum { RANKS_NAMED_MAX = 16, WAITED_US = 2000000 /* less is no time-out of anybody's */ };
enum { SHORTEST_TOLD_US = 50000 /* in tenths of a second that is none */ };

static size_t count_of(const struct report *report, enum report_peer_state state) {
    size_t count = 0;
    for (size_t i = 0; i < report->peer_count; i++) {
        count += report->peers[i].state == state;
    }
    return count;
}

/* "rank 3", "ranks 3, 5", "ranks 3, 5 and 9 more" */
static int append_ranks(const struct report *report, enum report_peer_state state, struct buf *out) {
    size_t count = count_of(report, state), named = 0;
    int code = buf_printf(out, "  others    : rank%s ", count == 1 ? "" : "s");
    for (size_t i = 0; code == 0 && i < report->peer_count && named < RANKS_NAMED_MAX; i++) {
        if (report->peers[i].state == state) {
            code = buf_printf(out, "%s%u", named++ > 0 ? ", " : "", report->peers[i].rank);
        }
    }
    return code == 0 && count > named ? buf_printf(out, " and %zu more", count - named) : code;
}

static int append_state(const struct report *report, enum report_peer_state state, const char *one, const char *several,
                        struct buf *out) {
    size_t count = count_of(report, state);
    if (count == 0) {
        return MUSTER_OK;
    }
    int code = append_ranks(report, state, out);
    return code == 0 ? buf_printf(out, "%s\n", count == 1 ? one : several) : code;
}

/* Those that ended well while others went on: the others may have waited for them. */
static int append_early(const struct report *report, int64_t failed_us, struct buf *out) {
    int64_t last_us = 0;
    for (size_t i = 0; i < report->peer_count; i++) {
        const struct report_peer *peer = &report->peers[i];
        if (peer->state == REPORT_PEER_ENDED_WELL && peer->ended_us > last_us) {
            last_us = peer->ended_us;
        }
    }
    if (last_us == 0) {
        return MUSTER_OK;
    }
    int code = append_ranks(report, REPORT_PEER_ENDED_WELL, out);
    if (code != 0 || failed_us == 0) { /* it failed on another node, by whose clock nothing is measured */
        return code == 0 ? buf_printf(out, " had ended before, with exit code 0\n") : code;
    }
    size_t count = count_of(report, REPORT_PEER_ENDED_WELL);
    int64_t before_us = failed_us > last_us ? failed_us - last_us : 0;
    return before_us < SHORTEST_TOLD_US ? buf_printf(out, " had ended just before, with exit code 0\n")
                                        : buf_printf(out, " had ended %s%.1f s before, with exit code 0\n",
                                                     count == 1 ? "" : "at least ", (double)before_us / CLOCK_US_PER_S);
}

static bool says(const char *text, size_t bytes, const char *words) {
    return text && memmem(text, bytes, words, strlen(words)) != NULL;
}

/* It lost a rank in a process group's call, of Muster's, or of gloo's. */
static bool lost_a_rank(const struct report_entry *entry) {
    static const char *const words[] = {"has left the group", "Connection closed by peer", "Connection reset by peer"};
    bool has = entry->last_call != NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words && !has; i++) {
        has = says(entry->message, entry->message ? strlen(entry->message) : 0, words[i]) ||
              says(entry->stderr_tail, entry->stderr_tail_bytes, words[i]);
    }
    return has;
}

/* A rank that ends well, while another one fails in a call of their group, has had fewer batches, as a rule. */
static int append_early_hint(const struct report *report, const struct report_entry *root, struct buf *out) {
    if (count_of(report, REPORT_PEER_ENDED_WELL) == 0 || WIFSIGNALED(root->wait_status) || !lost_a_rank(root)) {
        return MUSTER_OK;
    }
    return buf_printf(
        out, report->native ? "  hint      : do ranks have different numbers of batches? With uneven_inputs "
                              "(muster/ddp.h, muster/fsdp.h) those without data go along\n"
                            : "  hint      : do ranks have different numbers of batches? In \"with model.join():\" of "
                              "DDP those without data go along\n");
}

/* One rank runs on while all others fail: as a rule they have waited for it in vain, for some time. A root cause that a
 * signal has killed needs no other explanation. */
static int append_last_one(const struct report *report, const struct report_entry *root, struct buf *out) {
    size_t by_themselves = 0;
    const struct report_entry *stopped = NULL;
    for (size_t i = 0; i < report->count; i++) {
        const struct report_entry *entry = &report->entries[i];
        by_themselves += !entry->stopped_by_us;
        stopped = entry->stopped_by_us ? entry : stopped;
    }
    int64_t failed_us = root->error_us != 0 ? root->error_us : root->ended_us;
    if (report->started_us == 0 || failed_us - report->started_us < WAITED_US) {
        return MUSTER_OK;
    }
    if (!stopped || by_themselves < 2 || report->count - by_themselves != 1 || WIFSIGNALED(root->wait_status) ||
        count_of(report, REPORT_PEER_STOPPED) + count_of(report, REPORT_PEER_TRACED) +
                count_of(report, REPORT_PEER_UNINTERRUPTIBLE) >
            0) {
        return MUSTER_OK;
    }
    return buf_printf(out, "  others    : rank %u was the only one still running when the others had failed\n",
                      stopped->rank);
}

int report_append_peers(const struct report *report, const struct report_entry *root, struct buf *out) {
    int64_t failed_us = root->error_us != 0 ? root->error_us : root->ended_us;
    int code = append_early(report, failed_us, out);
    code = code == 0 ? append_early_hint(report, root, out) : code;
    code = code == 0 ? append_state(report, REPORT_PEER_STOPPED, " is stopped (SIGSTOP)", " are stopped (SIGSTOP)", out)
                     : code;
    code = code == 0 ? append_state(report, REPORT_PEER_TRACED, " is stopped by a debugger",
                                    " are stopped by a debugger", out)
                     : code;
    code = code == 0 ? append_state(report, REPORT_PEER_UNINTERRUPTIBLE, " hangs in the kernel (D state)",
                                    " hang in the kernel (D state)", out)
                     : code;
    code = code == 0 ? append_last_one(report, root, out) : code;
    return code;
}
