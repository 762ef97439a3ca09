/* See killing.h. */
#include "killing.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"

enum { GONE_LIMIT_MS = 20000, PROMISED_MS = 200 };

static unsigned rounds = 10;
static uint64_t seed;
static double *times_ms; /* all, in the order in which they were noted */
static size_t time_count, reported_count;

void killing_start(int argc, char **argv) {
    if (argc > 1) {
        rounds = (unsigned)strtoul(argv[1], NULL, 10);
    }
    seed = (argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)clock_monotonic_ns()) | 1U;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
        perror("subreaper");
        exit(2);
    }
    print_message("%u rounds, seed %llu\n", rounds, (unsigned long long)seed);
}

unsigned killing_rounds(void) {
    return rounds;
}

uint64_t killing_draw(uint64_t below) { /* xorshift64 */
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % below;
}

void killing_pause(long max_us) {
    struct timespec delay = {0, (long)killing_draw((uint64_t)max_us) * 1000};
    (void)nanosleep(&delay, NULL);
}

bool killing_reap_orphans(void) {
    int64_t end_ns = clock_monotonic_ns() + GONE_LIMIT_MS * CLOCK_NS_PER_MS;
    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno == ECHILD) {
            return true;
        }
        if (pid == 0 && clock_monotonic_ns() > end_ns) {
            return false;
        }
        if (pid == 0) {
            (void)poll(NULL, 0, 1);
        }
    }
}

void killing_note(double took_ms) {
    double *more = realloc(times_ms, (time_count + 1) * sizeof *times_ms);
    assert_non_null(more);
    times_ms = more;
    times_ms[time_count++] = took_ms;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *name, const double *from, size_t count) {
    double *sorted = malloc((count ? count : 1) * sizeof *sorted);
    assert_non_null(sorted);
    if (count > 0) {
        memcpy(sorted, from, count * sizeof *sorted);
        qsort(sorted, count, sizeof *sorted, compare);
        size_t late = 0;
        for (size_t i = 0; i < count; i++) {
            late += sorted[i] > PROMISED_MS;
        }
        print_message(
            "%s: %zu kills, no survivor; gone after %.1f ms (median), %.1f (99 %%), %.1f (slowest); %zu took longer "
            "than %d ms\n",
            name, count, sorted[count / 2], sorted[count * 99 / 100], sorted[count - 1], late, PROMISED_MS);
    }
    free(sorted);
}

void killing_report(const char *name) {
    print_times(name, times_ms + reported_count, time_count - reported_count);
    reported_count = time_count;
}

void killing_end(void) {
    print_times("all together", times_ms, time_count);
    free(times_ms);
    times_ms = NULL;
    time_count = reported_count = 0;
}
