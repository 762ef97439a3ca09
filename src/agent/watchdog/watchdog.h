/* The file timer: workers arm and release timers through a FIFO, and one that expires costs the worker a signal.
 *
 * The messages are torchelastic's (FileTimerClient writes them). Two things differ from torchrun on purpose. Only the
 * agent's own workers may be named, because whoever can write the FIFO could otherwise have the agent signal any
 * process. And the agent does not die of the signal itself: the worker's death is a worker failure like others, with
 * a report and a restart when there are any left.
 *
 * Event-driven: the FIFO is readable or a timer on the wall clock, which follows when the clock is set, has come due.
 * One thread, that of the loop; no call blocks. */
#ifndef AGENT_WATCHDOG_H
#define AGENT_WATCHDOG_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

struct watchdog;

struct watchdog_expiry { /* borrowed during the call */
    pid_t pid;
    const char *scope;
    double expired_s;  /* epoch seconds the worker had set */
    int signal_number; /* 0: the worker asked for none, only to be told */
};

struct watchdog_callbacks {
    /* Is `pid` a worker of this agent that is still running? */
    bool (*is_worker)(void *ctx, pid_t pid);
    /* A timer ran out: send the signal (guardian_signal_worker()). All timers of the process are gone by now when
     * there is a signal. May call anything here but watchdog_close(). */
    void (*on_expired)(void *ctx, const struct watchdog_expiry *expiry);
};

/* Makes the FIFO at `path` (copied), or under a fresh name in the folder for temporary files when `path` is NULL. A
 * FIFO that is already there is replaced, anything else is an error. `callbacks` is copied.
 * MUSTER_ESYSTEM, MUSTER_EINVAL, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int watchdog_create(uv_loop_t *loop, const char *path, const struct watchdog_callbacks *callbacks, void *ctx,
                    struct watchdog **out);

/* Path of the FIFO, for TORCHELASTIC_TIMER_FILE. Lives as long as the watchdog. */
const char *watchdog_path(const struct watchdog *w);

/* A worker has ended: its timers are dropped. */
void watchdog_forget(struct watchdog *w, pid_t pid);

/* The group is gone, a new one is about to start: drops all timers and what is still in the FIFO. */
void watchdog_reset(struct watchdog *w);

/* Removes the FIFO. NULL is fine; the memory goes when the loop has run its close callbacks. */
void watchdog_close(struct watchdog *w);

#endif
