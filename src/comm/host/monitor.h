/* The monitor: a thread that sleeps until a watched process dies, or a descriptor has news (that of the links to other
 * hosts). One a context. It decides nothing: it calls the handlers, which mark and ring.
 *
 * Threads: all calls may be made from any thread, monitor_free() excepted. Handlers run on the monitor's thread and
 * must not block; they may call everything here but monitor_free(). */
#ifndef COMM_MONITOR_H
#define COMM_MONITOR_H

#include <stdbool.h>
#include <stdint.h>

struct monitor;

struct monitor_handlers {
    void *context;
    /* The process of peer `peer` (a root rank) has ended. wait_status: as waitpid() gives it, -1 if it cannot be known.
     */
    void (*died)(void *context, uint32_t peer, int32_t pid, int wait_status);
    /* The watched descriptor is readable. NULL if none will be watched. */
    void (*attend)(void *context);
    /* The watched alarm has been raised. NULL if none will be watched. */
    void (*alarmed)(void *context);
};

/* Handlers are copied. MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int monitor_create(const struct monitor_handlers *handlers, struct monitor **out);
/* Ends the thread and waits for that. NULL is accepted. In a process forked from the maker's it only frees memory. */
void monitor_free(struct monitor *monitor);

/* Watches a process of this host. start_time: field 22 of its /proc/<pid>/stat, by which a reused pid is noticed.
 * MUSTER_EPEER: it is gone already (died() is not called). Where the kernel has no pidfd_open(), or the process may not
 * be opened so, it is looked at every MONITOR_LOOK_MS. */
enum { MONITOR_LOOK_MS = 5 };
int monitor_watch_process(struct monitor *monitor, uint32_t peer, int32_t pid, uint64_t start_time);

/* From now on attend() is called whenever the descriptor is readable (level-triggered). It must stay open. */
int monitor_watch_descriptor(struct monitor *monitor, int fd);

/* From now on alarmed() is called whenever the descriptor has become readable anew (edge-triggered), and once if it is
 * already. It must stay open. */
int monitor_watch_alarm(struct monitor *monitor, int fd);

/* How a process has ended, as waitpid() gives it, as far as that can be known without a pidfd; -1: it cannot. */
int monitor_exit_status(int32_t pid, uint64_t start_time);

/* Does the process run (as no zombie), and is it still the one with this start time? Asks the kernel. */
bool monitor_is_alive(int32_t pid, uint64_t start_time);

/* Has it ended, or begun to? Its memory is gone a moment before it is a zombie, and its exit code is not known yet. */
bool monitor_is_ending(int32_t pid, uint64_t start_time);

/* What it is at, as proc(5) has it: 'T' stopped by a signal, 't' by a debugger, 'D' in the kernel, not to be
 * interrupted. 0: there is no such process (any more). */
char monitor_process_state(int32_t pid, uint64_t start_time);

/* Field 22 of /proc/<pid>/stat; 0 if there is no such process. */
uint64_t monitor_start_time(int32_t pid);

#endif
