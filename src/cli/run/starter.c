/* Reads from /proc who has started this process, and judges; see starter.h. */
#include "cli/run/starter.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"

enum { ANCESTORS_MAX = 1000, NAME_SIZE = 32, ENVIRONMENT_BYTES_MAX = 1 << 20 };

/* An agent that runs alone by mistake makes many jobs out of one, and nobody notices; one that waits by mistake says
 * so. So only what is known to be started by somebody else runs alone. */
enum starter starter_judge(enum scheduler_kind kind, const struct starter_sight *seen) {
    if (kind == SCHEDULER_NONE) {
        return STARTER_ELSE;
    }
    if (seen->is_task) {
        return STARTER_SCHEDULER;
    }
    if (seen->is_shell) {
        return STARTER_ELSE;
    }
    if (kind == SCHEDULER_KUBERNETES) { /* the entry point of a pod is anything, and sets variables as well */
        return STARTER_UNKNOWN;
    }
    if (seen->has_daemon) {
        return STARTER_SCHEDULER;
    }
    return seen->is_whole ? STARTER_ELSE : STARTER_UNKNOWN;
}

struct process {
    long id, parent, group;
    char name[NAME_SIZE]; /* cut by the kernel to 15 bytes */
};

/* `id`: a number, or "self". The numbers are those of the namespace for which this /proc is, as is all that is compared
 * with them here. */
static bool read_process(const char *root, const char *id, struct process *out) {
    char path[PATH_MAX], line[512];
    FILE *file = str_format(path, sizeof path, "%s/proc/%s/stat", root, id) ? fopen(path, "re") : NULL;
    bool fine = file != NULL && fgets(line, sizeof line, file) != NULL;
    if (file != NULL) {
        (void)fclose(file);
    }
    char *name = fine ? strchr(line, '(') : NULL, *end = fine ? strrchr(line, ')') : NULL;
    if (name == NULL || end == NULL) {
        return false;
    }
    *end = '\0'; /* a name may have brackets and blanks */
    (void)str_copy(out->name, sizeof out->name, name + 1);
    return sscanf(line, "%ld", &out->id) == 1 && sscanf(end + 1, " %*c %ld %ld", &out->parent, &out->group) == 2;
}

static bool read_number(const char *root, long id, struct process *out) {
    char text[32];
    return id > 0 && str_format(text, sizeof text, "%ld", id) && read_process(root, text, out);
}

/* Of MPI's launchers and of Slurm, what the processes are called that start the ranks of a node. A name that is missing
 * here makes jobs of one node out of one of several where all ancestors are seen: add what is met. */
static bool is_daemon(const char *name) {
    static const char *const beginnings[] = {
        "slurmstepd",                                        /* Slurm */
        "mpirun",     "mpiexec",                             /* all, for the node where they run */
        "orte",       "prte",                                /* Open MPI 4 (orted, orterun), 5 (prted, prterun) */
        "hydra_",     "pmi_proxy", "mpispawn",               /* MPICH, Intel MPI, MVAPICH */
        "flux-shell", "palsd",     "apinit",   "apshepherd", /* Flux, HPE */
        "jsmd",                                              /* IBM */
    };
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        if (str_has_prefix(name, beginnings[i])) {
            return true;
        }
    }
    return false;
}

/* The machine's own namespace: its first process descends from nobody. (PROC_PID_INIT_INO of the kernel.) */
static bool is_machines_namespace(const char *root) {
    char path[PATH_MAX];
    struct stat info;
    return str_format(path, sizeof path, "%s/proc/self/ns/pid", root) && stat(path, &info) == 0 &&
           info.st_ino == 0xEFFFFFFCU;
}

static bool holds(const char *text, size_t size, const char *name) {
    size_t n = strlen(name);
    for (size_t at = 0; at < size; at += strnlen(text + at, size - at) + 1) {
        if (size - at > n && strncmp(text + at, name, n) == 0 && text[at + n] == '=') {
            return true;
        }
    }
    return false;
}

/* Did the process begin without the variable? */
static bool began_without(const char *root, long id, const char *name) {
    char path[PATH_MAX];
    char *text = malloc(ENVIRONMENT_BYTES_MAX);
    int fd = str_format(path, sizeof path, "%s/proc/%ld/environ", root, id) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    size_t size = 0;
    ssize_t n = fd >= 0 && text != NULL ? 1 : -1;
    while (n > 0 && size < ENVIRONMENT_BYTES_MAX) {
        n = read(fd, text + size, ENVIRONMENT_BYTES_MAX - size);
        size += n > 0 ? (size_t)n : 0;
    }
    bool without = n == 0 && !holds(text, size, name);
    if (fd >= 0) {
        (void)close(fd);
    }
    free(text);
    return without;
}

/* A container's first process has a parent that is not seen. Its descendants have the variables from somebody who is
 * seen if it has none itself. */
static bool is_first_of_all(const struct starter_query *query, const struct process *first) {
    return first->parent == 0 &&
           (is_machines_namespace(query->root) ||
            (query->variable != NULL && first->id == 1 && began_without(query->root, first->id, query->variable)));
}

/* A task that is named, or the first process of a container; 0: none. */
static long named_task(const struct starter_query *query) {
    int64_t id = 0;
    if (query->task_process != NULL && str_parse_i64(query->task_process, &id) && id > 0 && id <= INT_MAX) {
        return (long)id;
    }
    return query->first_is_task ? 1 : 0;
}

/* The ancestors, up to the first daemon, whose child is the task, or up to a task that is named. */
static void climb(const struct starter_query *query, const struct process *self, long named, struct starter_sight *out,
                  long *task_group) {
    struct process child = *self, parent;
    for (int i = 0; i < ANCESTORS_MAX && read_number(query->root, child.parent, &parent); i++) {
        if (is_daemon(parent.name) || parent.id == named) {
            out->has_daemon = true;
            out->is_task = out->is_task || (child.id == self->id && parent.id != named);
            *task_group = parent.id == named ? parent.group : child.group;
            return;
        }
        child = parent;
    }
    out->is_whole = is_first_of_all(query, &child);
}

void starter_look(const struct starter_query *query, struct starter_sight *out) {
    struct process self;
    long named = named_task(query);
    long task_group; /* 0: not seen, as the group of a process outside of a namespace */
    *out = (struct starter_sight){0};
    if (!read_process(query->root, "self", &self)) {
        return;
    }
    out->is_task = self.id == named;
    task_group = out->is_task ? self.group : 0;
    climb(query, &self, named, out, &task_group);
    out->is_shell = query->has_terminal && self.group != task_group && self.group != 0;
}
