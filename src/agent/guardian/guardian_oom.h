/* Was a process killed by the out-of-memory killer? The memory cgroup counts its victims; this compares. The kernel's
 * log, where it may be read, names them, in whichever cgroup they were. */
#ifndef AGENT_GUARDIAN_OOM_H
#define AGENT_GUARDIAN_OOM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { GUARDIAN_OOM_VICTIMS = 64 };

struct guardian_oom {
    int fd;        /* memory.events (cgroup v2) or memory.oom_control (v1); -1 = unknown */
    char *below;   /* v1: the cgroup's folder, owned, since there each counts for itself alone; NULL: none */
    uint64_t seen; /* victims accounted for */
    pid_t victims[GUARDIAN_OOM_VICTIMS]; /* the last ones that the log has named, a ring; 0: none, or claimed */
    size_t victim_count;
    int log_fd; /* the kernel's log, read up to here; -1: not to be read */
};

/* Finds and opens the counter of the calling process's memory cgroup. Never fails: without one, the answer is "no". */
void guardian_oom_init(struct guardian_oom *oom);
void guardian_oom_done(struct guardian_oom *oom);

/* To be asked after a death by SIGKILL: does the log name this process, or has the count risen by a victim that no
 * earlier call claimed? */
bool guardian_oom_claim(struct guardian_oom *oom, pid_t pid);
/* Whom the out-of-memory killer chose, as this record of the kernel's log says; 0: it is about something else. Pure. */
pid_t guardian_oom_victim(const char *record);

/* The victims of all cgroups below `folder` (version 1), a few hundred of them at most. */
uint64_t guardian_oom_count_below(const char *folder);

/* The number after "oom_kill " at the start of a line of `text`. Pure. */
bool guardian_oom_parse(const char *text, uint64_t *out);

#endif
