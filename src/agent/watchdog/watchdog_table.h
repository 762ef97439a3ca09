/* The watchdog's memory: which timers run and when the next one expires. Pure: messages and the time come in. */
#ifndef AGENT_WATCHDOG_TABLE_H
#define AGENT_WATCHDOG_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define WATCHDOG_SCOPE_BYTES_MAX 1024 /* terminator included */
#define WATCHDOG_TIMERS_MAX 16384

/* One line of the FIFO. */
struct watchdog_message {
    int64_t pid;
    char scope[WATCHDOG_SCOPE_BYTES_MAX];
    double expires_s;  /* since the epoch; negative = the timer is released */
    int signal_number; /* 0 = do not signal */
};

struct watchdog_timer {
    pid_t pid;
    char *scope; /* owned */
    double expires_s;
    int signal_number;
};

struct watchdog_table {
    struct watchdog_timer *timers; /* owned; in no order */
    size_t count;
    size_t capacity;
};

/* Reads one line of JSON (no newline needed). MUSTER_EPROTOCOL, saying what is wrong with it. */
int watchdog_message_parse(const char *line, size_t length, struct watchdog_message *out);

void watchdog_table_init(struct watchdog_table *t);
void watchdog_table_done(struct watchdog_table *t);

/* Sets, replaces or releases the timer of (pid, scope). MUSTER_ELIMIT, MUSTER_ENOMEM. */
int watchdog_table_apply(struct watchdog_table *t, const struct watchdog_message *m);

/* Drops every timer of a process that has ended. */
void watchdog_table_forget(struct watchdog_table *t, pid_t pid);
void watchdog_table_clear(struct watchdog_table *t);

/* When the next timer expires; false when there is none. */
bool watchdog_table_next(const struct watchdog_table *t, double *out_s);

/* Takes out one process with an expired timer. *out is the first of its expired timers that names a signal, or, when
 * none does, the first of all; its scope is the caller's to free. The other expired timers of the process are dropped,
 * or all of its timers when it is to be killed. False when nothing has expired. Call until then. */
bool watchdog_table_expire(struct watchdog_table *t, double now_s, struct watchdog_timer *out);

#endif
