/* Who has started this agent? A scheduler's variables are inherited, by shells and by all that is started there: they
 * do not say it. What does is in /proc: the processes that this one descends from. The rules are told to users in
 * docs/schedulers.md. */
#ifndef CLI_STARTER_H
#define CLI_STARTER_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/run/scheduler.h"

enum starter {
    STARTER_SCHEDULER, /* this is one of the agents that the variables speak of */
    STARTER_ELSE,      /* it is not: a job of this node alone, unless the user says more */
    STARTER_UNKNOWN
};

/* What can be seen of a process's descent. A task: what the scheduler has started on this node. */
struct starter_sight {
    bool is_task;    /* this process is one */
    bool has_daemon; /* an ancestor is a daemon of Slurm's or MPI's, which starts tasks, or the task that is named */
    bool is_whole;   /* all ancestors are seen */
    bool is_shell;   /* a terminal on stdin, and not in the process group of its task: started by somebody who types */
};

enum starter starter_judge(enum scheduler_kind kind, const struct starter_sight *seen);

struct starter_query {
    const char *root;         /* "" or a folder that stands for / */
    bool has_terminal;        /* on stdin */
    bool first_is_task;       /* the first process of a container is what the scheduler has started */
    const char *variable;     /* which the scheduler sets; NULL: none */
    const char *task_process; /* the task's process id as its variable says (SLURM_TASK_PID), or NULL */
};

/* Reads /proc. What cannot be read is not seen. */
void starter_look(const struct starter_query *query, struct starter_sight *out);

#endif
