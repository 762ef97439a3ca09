/* See ckpt.h. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

/* Work that is done sooner shows nothing; then the line changes so often. */
#define FIRST_NS CLOCK_NS_PER_S
#define EACH_NS (CLOCK_NS_PER_S / 5)

static volatile sig_atomic_t caught; /* the signal's number */

static void take_note(int number) {
    caught = number;
}

static void set_handler(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct sigaction before;
    /* A signal that is ignored, as under nohup, stays so. */
    if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        (void)sigemptyset(&action.sa_mask);
        (void)sigaction(number, &action, NULL);
    }
}

void ckpt_progress_begin(struct ckpt_progress *progress, uint64_t total) {
    int64_t now = clock_monotonic_ns();
    *progress = (struct ckpt_progress){.total = total,
                                       .started_ns = now,
                                       .shown_ns = now + FIRST_NS - EACH_NS,
                                       .is_shown = isatty(STDERR_FILENO) == 1};
    caught = 0;
    set_handler(SIGINT, take_note);
    set_handler(SIGTERM, take_note);
}

/* \r and "erase to the end of the line". */
static void write_line(const char *text) {
    char line[160];
    int bytes = snprintf(line, sizeof line, "\r%s\x1b[K", text);
    (void)cli_write_all(STDERR_FILENO, line, (size_t)bytes);
}

int ckpt_progress_add(struct ckpt_progress *progress, uint64_t bytes) {
    int64_t now = clock_monotonic_ns();
    progress->done += bytes;
    if (progress->is_shown && now - progress->shown_ns >= EACH_NS) {
        char done[CKPT_SIZE_MAX], total[CKPT_SIZE_MAX], rate[CKPT_SIZE_MAX], text[3 * CKPT_SIZE_MAX + 16];
        double seconds = (double)(now - progress->started_ns) / (double)CLOCK_NS_PER_S;
        ckpt_size_text(progress->done, done);
        ckpt_size_text(progress->total, total);
        ckpt_size_text((uint64_t)((double)progress->done / seconds), rate);
        (void)snprintf(text, sizeof text, "%s of %s, %s/s", done, total, rate);
        write_line(text);
        progress->shown_ns = now;
    }
    return caught ? status_fail(MUSTER_ECANCELED, "interrupted") : 0;
}

void ckpt_progress_end(struct ckpt_progress *progress, bool is_done) {
    if (progress->is_shown && progress->shown_ns > progress->started_ns + FIRST_NS - EACH_NS) {
        write_line("");
    }
    set_handler(SIGINT, SIG_DFL);
    set_handler(SIGTERM, SIG_DFL);
    if (caught && !is_done) {
        (void)raise(caught);
    }
}
