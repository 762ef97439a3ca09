/* The child's steps up to exec, and errors explained; see spawn.h.
 *
 * As in posix_spawn(), the child borrows the caller's memory. So it writes its failure straight into the caller's
 * variables, and the cost does not grow with the caller's memory. The call returns after exec: session, group and
 * parent-death signal are in place then. It uses clone() with a stack for the child, not vfork(): sanitizers and
 * preloaded libraries turn vfork() into fork(), and the failure would be lost. */
#include "agent/guardian/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/guardian/guardian.h"
#include "base/str.h"

/* What execvp uses when there is no PATH. */
#define PATH_DEFAULT "/bin:/usr/bin"

/* The child's: a path to try, and what the C library needs below it. */
enum { STACK_BYTES = 64 * 1024 };

/* Functions that the child may leave by exec: a sanitizer would wait for their end. */
#define LEFT_BY_EXEC __attribute__((no_sanitize("address"), no_sanitize("thread")))

static const char *path_of(char *const *envp) {
    for (; *envp; envp++) {
        if (str_has_prefix(*envp, "PATH=")) {
            return *envp + strlen("PATH=");
        }
    }
    return PATH_DEFAULT;
}

/* Puts the next candidate of a PATH search into `out`; false at the end. An empty entry is the current folder. */
static bool path_next(const char **path, const char *name, char *out, size_t size) {
    while (*path) {
        size_t length = strcspn(*path, ":");
        const char *folder = *path;
        *path = folder[length] == ':' ? folder + length + 1 : NULL;
        if (str_format(out, size, "%.*s%s%s", (int)length, folder, length > 0 ? "/" : "", name)) {
            return true;
        }
    }
    return false;
}

/* Tries every candidate; returns the errno that says most: a file that may not be run beats one that is missing. */
LEFT_BY_EXEC static int exec_search(char *const *argv, char *const *envp) {
    if (strchr(argv[0], '/')) {
        (void)execve(argv[0], argv, envp);
        return errno;
    }
    int best = ENOENT;
    char candidate[PATH_MAX];
    for (const char *path = path_of(envp); path_next(&path, argv[0], candidate, sizeof candidate);) {
        (void)execve(candidate, argv, envp);
        if (errno != ENOENT && errno != ENOTDIR) {
            best = errno;
        }
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) {
            break; /* found, but it cannot run */
        }
    }
    return best;
}

static int streams_set(const struct spawn_request *request) {
    if (request->stdout_fd >= 0 && dup2(request->stdout_fd, STDOUT_FILENO) < 0) {
        return errno;
    }
    if (request->stderr_fd >= 0 && dup2(request->stderr_fd, STDERR_FILENO) < 0) {
        return errno;
    }
    int given = request->given_fd;
    if (given > 0 && (given == GUARDIAN_GIVEN_FD ? fcntl(given, F_SETFD, 0) : dup2(given, GUARDIAN_GIVEN_FD)) < 0) {
        return errno;
    }
    /* Everything of the caller's is close-on-exec; a kernel without the call (before 5.9) loses nothing by it. */
    (void)syscall(SYS_close_range, given > 0 ? GUARDIAN_GIVEN_FD + 1U : STDERR_FILENO + 1U, ~0U, 0U);
    return 0;
}

/* Runs in the child, in the caller's memory: system calls only. Returns only when it failed. */
LEFT_BY_EXEC static struct spawn_failure child_run(const struct spawn_request *request, pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
        return (struct spawn_failure){SPAWN_STEP_PARENT, errno};
    }
    if (getppid() != parent) {
        return (struct spawn_failure){SPAWN_STEP_PARENT, ESRCH}; /* it died before the line above took effect */
    }
    if (setsid() < 0) {
        return (struct spawn_failure){SPAWN_STEP_SESSION, errno};
    }
    if (request->cpus && sched_setaffinity(0, request->cpus_bytes, request->cpus) != 0) {
        return (struct spawn_failure){SPAWN_STEP_CPUS, errno};
    }
    int error_number = streams_set(request);
    if (error_number != 0) {
        return (struct spawn_failure){SPAWN_STEP_STREAMS, error_number};
    }
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    return (struct spawn_failure){SPAWN_STEP_EXEC, exec_search(request->argv, request->envp)};
}

struct child {
    const struct spawn_request *request;
    pid_t parent;
    struct spawn_failure failure;
};

LEFT_BY_EXEC static int child_main(void *argument) {
    struct child *child = argument;
    child->failure = child_run(child->request, child->parent);
    _exit(127);
}

pid_t spawn_process(const struct spawn_request *request, struct spawn_failure *out) {
    _Alignas(16) char stack[STACK_BYTES]; /* grows downwards wherever Linux runs nowadays */
    struct child child = {.request = request, .parent = getpid()};
    pid_t pid = clone(child_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &child);
    if (pid < 0) {
        *out = (struct spawn_failure){SPAWN_STEP_FORK, errno};
        return -1;
    }
    if (child.failure.error_number != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        *out = child.failure;
        return -1;
    }
    return pid;
}

static void explain_fork(int error_number, char *out, size_t size) {
    struct rlimit limit;
    if (error_number != EAGAIN) {
        (void)str_format(out, size, "cannot start a worker: %s", strerror(error_number));
    } else if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        (void)snprintf(out, size,
                       "cannot start a worker: more workers than processes allowed: this user may have %llu "
                       "(ulimit -u), other limits may come from the cgroup (pids.max); start fewer with "
                       "--nproc-per-node or raise the limit",
                       (unsigned long long)limit.rlim_cur);
    } else {
        (void)snprintf(out, size,
                       "cannot start a worker: more workers than processes allowed by the cgroup (pids.max) or the "
                       "kernel; start fewer with --nproc-per-node or raise the limit");
    }
}

/* ENOENT from exec has three causes that look alike to a user. */
static void explain_missing(const struct spawn_request *request, char *out, size_t size) {
    const char *program = request->argv[0];
    struct stat seen;
    if (!strchr(program, '/')) {
        (void)snprintf(out, size, "cannot start '%.200s': %s in PATH", program, strerror(ENOENT));
    } else if (stat(program, &seen) == 0) {
        (void)snprintf(out, size, "cannot start '%.200s': the interpreter that it names is missing: %s", program,
                       strerror(ENOENT));
    } else {
        (void)snprintf(out, size, "cannot start '%.200s': %s", program, strerror(ENOENT));
    }
}

static void explain_exec(const struct spawn_request *request, int error_number, char *out, size_t size) {
    const char *hint = error_number == ENOEXEC  ? " (a script needs a first line such as #!/bin/sh)"
                       : error_number == EACCES ? " (is it executable? chmod +x)"
                       : error_number == E2BIG  ? " (its arguments and environment are too large)"
                                                : "";
    if (error_number == ENOENT) {
        explain_missing(request, out, size);
        return;
    }
    (void)snprintf(out, size, "cannot start '%.200s': %s%s", request->argv[0], strerror(error_number), hint);
}

void spawn_explain(const struct spawn_request *request, const struct spawn_failure *failure, char *out, size_t size) {
    switch (failure->step) {
    case SPAWN_STEP_FORK:
        explain_fork(failure->error_number, out, size);
        return;
    case SPAWN_STEP_EXEC:
        explain_exec(request, failure->error_number, out, size);
        return;
    case SPAWN_STEP_CPUS:
        (void)snprintf(out, size, "cannot bind '%.200s' to its CPUs: %s", request->argv[0],
                       strerror(failure->error_number));
        return;
    case SPAWN_STEP_PARENT:
    case SPAWN_STEP_SESSION:
    case SPAWN_STEP_STREAMS:
        break;
    }
    (void)snprintf(out, size, "cannot prepare '%.200s': %s", request->argv[0], strerror(failure->error_number));
}
