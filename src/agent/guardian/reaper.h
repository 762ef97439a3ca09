/* Ends the calling process's descendants and collects its dead children.
 *
 * The caller must be a child subreaper, so that orphans below it become its children. Whom a number names can change
 * under one's hands; two things cannot: an unreaped child of the caller keeps its number, and a pidfd keeps its
 * process. Everything here rests on these two, so that no stranger is ever signalled. */
#ifndef AGENT_REAPER_H
#define AGENT_REAPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef void reaper_death(void *ctx, pid_t pid, int wait_status);

/* Reaps every child that is dead, calling `on_death` for each. Returns true when no child is left, dead or alive. */
bool reaper_collect(reaper_death *on_death, void *ctx);

/* SIGKILL for every direct child. Returns how many children there are. Orphans of those killed become children and
 * are found by the next call: collect, kill, and wait for SIGCHLD until reaper_collect() says that none is left. Every
 * living descendant hangs below a direct child, so a SIGCHLD always follows. */
size_t reaper_kill_children(void);

/* Stops, then kills, descendants at any depth, including those below a child that takes its time to die, but neither
 * the children `spared` and `also_spared` (0: none) nor anything below them. Reads all of /proc, so it is for when
 * reaper_kill_children() alone is not enough. Returns how many were signalled. Needs pidfds (Linux 5.3); 0 without. */
size_t reaper_kill_descendants(pid_t spared, pid_t also_spared);

/* Is this an unreaped child of the caller? Asks the kernel, not /proc. */
bool reaper_is_child(pid_t pid);

/* Every descendant at any depth that /proc shows now; `pidfd` is open during the call. Where there are no pidfds (Linux
 * before 5.3) only direct children, with -1. At most 256. */
typedef void reaper_visit(void *ctx, pid_t pid, int pidfd);
void reaper_visit_descendants(reaper_visit *visit, void *ctx);

/* Sends a signal to one of these, from its visit. */
void reaper_signal(pid_t pid, int pidfd, int signal_number);

/* SIGKILL for every direct child that `spares` does not spare. Returns how many those are. */
typedef bool reaper_spares(void *ctx, pid_t pid);
size_t reaper_kill_children_but(reaper_spares *spares, void *ctx);

/* One living child, or 0: for messages. */
pid_t reaper_any_child(void);

/* True when the calling process has children, dead or alive, now. */
bool reaper_has_children(void);

#endif
