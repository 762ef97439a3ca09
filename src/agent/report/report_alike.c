/* Groups of failures that say the same; see report_alike.h. */
#include "agent/report/report_alike.h"

#include <stdbool.h>
#include <string.h>

#include "base/status.h"

enum { RANGES_MAX = 16 };

static bool same_text(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* Times, pids, files and last words differ in any case. */
static bool are_alike(const struct report_entry *a, const struct report_entry *b) {
    return a->wait_status == b->wait_status && a->stopped_by_us == b->stopped_by_us &&
           a->failed_first == b->failed_first && a->oom_killed == b->oom_killed && a->cpu_limit_s == b->cpu_limit_s &&
           a->stuck == b->stuck && a->timer_expired == b->timer_expired && a->guardian_lost == b->guardian_lost &&
           same_text(a->message, b->message) && same_text(a->error_file_problem, b->error_file_problem);
}

void report_find_alike(const struct report_entry *const *sorted, size_t count, size_t *as) {
    for (size_t i = 1; i < count; i++) {
        as[i] = 0;
        for (size_t shown = 1; shown < i && shown <= REPORT_SHOWN_MAX && i > REPORT_SHOWN_MAX && as[i] == 0; shown++) {
            as[i] = are_alike(sorted[i], sorted[shown]) ? shown : 0;
        }
    }
}

/* Ranks of those that are as `shown`, "9 to 63, 70": they stand by rank, as a rule. */
static int append_ranks(const struct report_entry *const *sorted, size_t count, const size_t *as, size_t shown,
                        struct buf *out) {
    size_t ranges = 0;
    int code = MUSTER_OK;
    for (size_t i = 1; code == 0 && i < count; i++) {
        if (as[i] != shown) {
            continue;
        }
        size_t last = i;
        while (last + 1 < count && as[last + 1] == shown && sorted[last + 1]->rank == sorted[last]->rank + 1) {
            last++;
        }
        if (ranges++ == RANGES_MAX) {
            return buf_printf(out, " and more");
        }
        code = buf_printf(out, "%s%u", ranges > 1 ? ", " : "", sorted[i]->rank);
        code = code == 0 && last > i ? buf_printf(out, " to %u", sorted[last]->rank) : code;
        i = last;
    }
    return code;
}

int report_append_alike(const struct report_entry *const *sorted, size_t count, const size_t *as, struct buf *out) {
    int code = MUSTER_OK;
    for (size_t shown = 1; code == 0 && shown < count && shown <= REPORT_SHOWN_MAX; shown++) {
        size_t others = 0;
        for (size_t i = 1; i < count; i++) {
            others += as[i] == shown;
        }
        if (others == 0) {
            continue;
        }
        code = buf_printf(out, "(%zu more ended as [%zu] did: rank%s ", others, shown, others == 1 ? "" : "s");
        code = code == 0 ? append_ranks(sorted, count, as, shown, out) : code;
        code = code == 0 ? buf_printf(out, ")\n") : code;
    }
    return code;
}
