/* The order of failures; see report_order.h.
 *
 * Two facts say when a worker failed. The order of deaths is exact, and late: a worker may take seconds to end after
 * its error. Its error file tells of the error, by a clock whose ticks are coarse. So the file counts where it is older
 * than another's death by more than such a tick and the way to a victim; otherwise the order of deaths does.
 *
 * A rank of libmuster that fails because another one is gone leaves word of it: it is not the first. */
#include "agent/report/report_order.h"

#include <assert.h>
#include <stdlib.h>

enum {
    TICK_US = 10000,  /* a file's time may be so much too early */
    CLEAR_US = 20000, /* so much before a death the file speaks for itself */
};

static bool died_before(const struct report_entry *a, const struct report_entry *b) {
    return a->order != b->order ? a->order < b->order : a->rank < b->rank;
}

/* A worker that is killed may be gone for its peers before it can be waited for. */
static bool was_first_for_peers(const struct report_entry *a, const struct report_entry *b) {
    return a->early_us > b->early_us && a->ended_us - b->ended_us <= a->early_us;
}

static bool failed_before(const struct report_entry *a, const struct report_entry *b) {
    if (!a->host != !b->host) {
        return a->host; /* of what all nodes have heard first */
    }
    if (a->stuck != b->stuck) {
        return a->stuck; /* what all the others were stopped for */
    }
    if (a->stopped_by_us != b->stopped_by_us) {
        return b->stopped_by_us;
    }
    if (a->is_victim != b->is_victim) {
        return b->is_victim;
    }
    if (a->error_us != 0 && b->error_us != 0) {
        int64_t apart_us = b->error_us - a->error_us;
        return apart_us > TICK_US || (apart_us >= -TICK_US && died_before(a, b));
    }
    if (a->error_us != 0 && a->error_us + CLEAR_US <= b->ended_us) {
        return true;
    }
    if (b->error_us != 0 && b->error_us + CLEAR_US <= a->ended_us) {
        return false;
    }
    return was_first_for_peers(a, b) || (!was_first_for_peers(b, a) && died_before(a, b));
}

size_t report_root(const struct report *report) {
    assert(report->count > 0);
    size_t root = 0;
    for (size_t i = 1; i < report->count; i++) {
        root = failed_before(&report->entries[i], &report->entries[root]) ? i : root;
    }
    return root;
}

/* Which victim ended first says nothing. */
static int compare_entries(const void *a, const void *b) {
    const struct report_entry *left = *(const struct report_entry *const *)a;
    const struct report_entry *right = *(const struct report_entry *const *)b;
    if (left->stopped_by_us != right->stopped_by_us) {
        return left->stopped_by_us ? 1 : -1;
    }
    bool first = left->stopped_by_us ? left->rank < right->rank : died_before(left, right);
    return first ? -1 : 1;
}

void report_sort(const struct report_entry **entries, size_t count) {
    qsort(entries, count, sizeof *entries, compare_entries);
}
