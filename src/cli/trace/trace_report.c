/* `muster trace report`: where the ranks' time went, and who kept the others waiting. One more pass over the files adds
 * up what each rank did; the sample of synchronizing calls, on one clock, says who came last. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/trace/trace_merge.h"
#include "cli/trace/trace_merge_impl.h"

enum {
    EVEN_SHARE_PERCENT = 10, /* a rank that was last this much more often than its share is called the slowest, */
    WAIT_PERCENT_MIN = 5,    /* if the others waited for it this share of their time */
};

struct tally {
    int64_t begin_ns, end_ns; /* by the rank's own clock */
    int64_t collective_ns, wait_ns;
    uint64_t last_count;    /* calls of the sample to which it came last */
    int64_t kept_ns;        /* how long all others together waited for it in these */
    uint64_t sampled_count; /* calls of the sample that it took part in */
    int64_t sampled_ns;     /* its time in these, for the scale of the sample */
};

static struct tally *tallies; /* of the sources; for the line taker, whose arguments are the merge's */

/* ---- adding up ---- */

static int add_event(struct merge *merge, struct source *source, const char *line, size_t length) {
    json_t *event;
    struct tally *tally = &tallies[source - merge->sources];
    if (trace_line_read(line, length, &event) == TRACE_LINE_EVENT && json_object_get(event, "ts") != NULL) {
        const char *name = json_string_value(json_object_get(event, "name"));
        const char *category = json_string_value(json_object_get(event, "cat"));
        int64_t begin_ns = trace_merge_ns(event);
        int64_t duration_ns = (int64_t)(json_number_value(json_object_get(event, "dur")) * 1000 + 0.5);
        tally->begin_ns = begin_ns < tally->begin_ns ? begin_ns : tally->begin_ns;
        tally->end_ns = begin_ns + duration_ns > tally->end_ns ? begin_ns + duration_ns : tally->end_ns;
        if (category != NULL && strcmp(category, "collective") == 0) {
            bool is_wait = name != NULL && strcmp(name, "wait") == 0;
            bool is_part = is_wait || (name != NULL && strcmp(name, "transfer") == 0);
            tally->wait_ns += is_wait ? duration_ns : 0;
            tally->collective_ns += is_part ? 0 : duration_ns;
        }
    }
    json_decref(event);
    return MUSTER_OK;
}

/* ---- who came last ---- */

static struct tally *tally_of(const struct merge *merge, uint32_t rank) {
    for (size_t i = 0; i < merge->source_count; i++) { /* sources are sorted by rank: mostly number `rank` */
        size_t at = (rank + i) % merge->source_count;
        if (merge->sources[at].rank == (int64_t)rank) {
            return &tallies[at];
        }
    }
    return NULL;
}

static int64_t begin_of(const struct merge *merge, const struct trace_part *part) {
    return part->begin_ns + merge->offsets[part->clock].offset_ns;
}

/* The parts of one call. */
static void judge_call(const struct merge *merge, const struct trace_part *parts, size_t count) {
    size_t last = 0;
    int64_t kept_ns = 0;
    for (size_t i = 1; i < count; i++) {
        last = begin_of(merge, &parts[i]) > begin_of(merge, &parts[last]) ? i : last;
    }
    for (size_t i = 0; i < count; i++) {
        struct tally *tally = tally_of(merge, parts[i].rank);
        kept_ns += begin_of(merge, &parts[last]) - begin_of(merge, &parts[i]);
        if (tally != NULL) {
            tally->sampled_count++;
            tally->sampled_ns += parts[i].end_ns - parts[i].begin_ns;
        }
    }
    struct tally *tally = tally_of(merge, parts[last].rank);
    if (tally != NULL) {
        tally->last_count++;
        tally->kept_ns += kept_ns;
    }
}

/* trace_clock_align() has sorted the parts by call. */
static void judge_calls(const struct merge *merge) {
    for (size_t first = 0, end; first < merge->part_count; first = end) {
        end = first + 1;
        while (end < merge->part_count && merge->parts[end].call == merge->parts[first].call) {
            end++;
        }
        if (end - first > 1) {
            judge_call(merge, &merge->parts[first], end - first);
        }
    }
}

/* ---- words ---- */

static double percent(int64_t part, int64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static int64_t traced_ns(const struct tally *tally) {
    return tally->end_ns > tally->begin_ns ? tally->end_ns - tally->begin_ns : 0;
}

/* What others waited for it in the sample, brought to all calls. */
static double kept_s(const struct merge *merge, const struct tally *tally) {
    return (double)tally->kept_ns * (double)(merge->sample_mask + 1) / 1e9;
}

static int write_rows(const struct merge *merge, struct buf *out) {
    int code = buf_printf(out, "%6s  %-20s %10s %14s %9s %13s %16s\n", "rank", "host", "traced", "in collectives",
                          "waiting", "last to come", "others waited");
    for (size_t i = 0; i < merge->source_count && code == MUSTER_OK; i++) {
        const struct source *source = &merge->sources[i];
        const struct tally *tally = &tallies[i];
        char rank[24] = "-", last[24] = "-";
        if (source->rank >= 0) {
            (void)str_format(rank, sizeof rank, "%" PRId64, source->rank);
        }
        if (tally->sampled_count > 0) {
            (void)str_format(last, sizeof last, "%.1f %%",
                             percent((int64_t)tally->last_count, (int64_t)tally->sampled_count));
        }
        code = buf_printf(out, "%6s  %-20.20s %8.3f s %12.1f %% %7.1f %% %13s %14.3f s\n", rank, source->host,
                          (double)traced_ns(tally) / 1e9, percent(tally->collective_ns, traced_ns(tally)),
                          percent(tally->wait_ns, traced_ns(tally)), last, kept_s(merge, tally));
    }
    return code;
}

/* The rank for which the others waited longest; NULL: nobody stands out. */
static const struct source *slowest(const struct merge *merge) {
    size_t at = 0;
    int64_t all_ns = 0;
    for (size_t i = 0; i < merge->source_count; i++) {
        at = tallies[i].kept_ns > tallies[at].kept_ns ? i : at;
        all_ns += traced_ns(&tallies[i]);
    }
    const struct tally *tally = &tallies[at];
    double even = 100.0 / (double)merge->source_count;
    double last = percent((int64_t)tally->last_count, (int64_t)tally->sampled_count);
    double kept = all_ns > 0 ? 100.0 * kept_s(merge, tally) * 1e9 / (double)all_ns : 0;
    return merge->source_count > 1 && last >= even + EVEN_SHARE_PERCENT && kept >= WAIT_PERCENT_MIN
               ? &merge->sources[at]
               : NULL;
}

static int write_verdict(const struct merge *merge, struct buf *out) {
    const struct source *source = slowest(merge);
    if (source == NULL) {
        return buf_printf(out,
                          "no rank stands out: the ranks kept each other waiting about equally, or hardly at all\n");
    }
    const struct tally *tally = &tallies[source - merge->sources];
    return buf_printf(out,
                      "slowest: rank %" PRId64
                      " on %s: it was the last to come to %.0f %% of the calls, and the others "
                      "waited %.3f s for it; look at what it does between them\n",
                      source->rank, source->host, percent((int64_t)tally->last_count, (int64_t)tally->sampled_count),
                      kept_s(merge, tally));
}

int trace_report(const char *folder, struct buf *out, struct buf *notes) {
    static struct merge merge; /* large */
    int code = trace_merge_open(&merge, folder, notes);
    tallies = code ? NULL : calloc(merge.source_count, sizeof *tallies);
    if (code == MUSTER_OK && tallies == NULL) {
        code = status_fail(MUSTER_ENOMEM, "out of memory while reading traces");
    }
    for (size_t i = 0; code == MUSTER_OK && i < merge.source_count; i++) {
        tallies[i].begin_ns = INT64_MAX;
        code = trace_merge_read_lines(&merge, &merge.sources[i], add_event);
    }
    if (code == MUSTER_OK) {
        judge_calls(&merge);
        code = write_rows(&merge, out);
    }
    code = code ? code : write_verdict(&merge, out);
    free(tallies);
    tallies = NULL;
    trace_merge_close(&merge);
    return code;
}
