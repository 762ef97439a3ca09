/* Reading the process tree from /proc: numbers only. Whether a number still names the same process is the caller's
 * concern (reaper.h). */
#ifndef AGENT_REAPER_PROC_H
#define AGENT_REAPER_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Returns false to end the listing. */
typedef bool reaper_proc_visit(void *ctx, pid_t pid, pid_t parent);

/* Visits every process of /proc with its parent's number. False when /proc cannot be read. */
bool reaper_proc_scan(reaper_proc_visit *visit, void *ctx);

/* Visits the children of the calling process, which must have one thread only. */
bool reaper_proc_children(reaper_proc_visit *visit, void *ctx);

/* The parent of `pid` now, or -1. */
pid_t reaper_proc_parent(pid_t pid);

/* The state of `pid` now as /proc has it ('R', 'S', 'D', 'Z' ...), or '\0'. */
char reaper_proc_state(pid_t pid);

/* The command line of `pid` with blanks between the words, cut to fit, or the name in brackets of what has none. Bytes
 * as its owner wrote them. */
void reaper_proc_command(pid_t pid, char *out, size_t size);

/* RANK in the environment with which `pid` was started: that of the worker from which it descends. -1: not known. */
int reaper_proc_rank(pid_t pid);

#endif
