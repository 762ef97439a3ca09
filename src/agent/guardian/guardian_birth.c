/* See guardian_birth.h. */
#include "agent/guardian/guardian_birth.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/guardian/guardian.h"
#include "agent/guardian/guardian_process.h"
#include "base/str.h"

#define PROGRAM "/proc/self/exe" /* also when its file has been replaced or removed */
#define NAME "muster-guardian"

enum { STACK_BYTES = 64 * 1024, DECIMAL = 10 };

/* Functions that the child may leave by exec: a sanitizer would wait for their end. */
#define LEFT_BY_EXEC __attribute__((no_sanitize("address"), no_sanitize("thread")))

void guardian_birth_note(struct guardian_birth *out) {
    *out = (struct guardian_birth){0};
    if (getrlimit(RLIMIT_NOFILE, &out->files) != 0) {
        out->files = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
    }
    for (int number = 1; number < NSIG; number++) {
        struct sigaction now;
        out->is_ignored[number] = sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
    }
}

/* With every signal blocked, so that no handler of the agent's runs in the child. */
pid_t guardian_birth_fork(int agent_fd, int guardian_fd) {
    sigset_t all, before;
    pid_t agent = getpid();
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(agent_fd);
        guardian_process_run(guardian_fd, agent);
    }
    int error_number = errno;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    errno = error_number;
    return pid;
}

struct child {
    const struct guardian_birth *birth;
    int fd;
    char *argv[3];
    int error_number; /* why the program could not be replaced */
};

/* In the child, in the caller's memory (guardian/spawn.c says why): system calls only. */
LEFT_BY_EXEC static int child_main(void *argument) {
    struct child *child = argument;
    for (int number = 1; number < NSIG; number++) {
        const struct sigaction action = {.sa_handler = child->birth->is_ignored[number] ? SIG_IGN : SIG_DFL};
        (void)sigaction(number, &action, NULL);
    }
    (void)setrlimit(RLIMIT_NOFILE, &child->birth->files);
    bool is_placed = child->fd == GUARDIAN_CHANNEL_FD ? fcntl(child->fd, F_SETFD, 0) == 0
                                                      : dup2(child->fd, GUARDIAN_CHANNEL_FD) == GUARDIAN_CHANNEL_FD;
    /* Everything else of the agent's is close-on-exec; a kernel without the call (before 5.9) loses nothing by it. */
    (void)syscall(SYS_close_range, GUARDIAN_CHANNEL_FD + 1U, ~0U, 0U);
    if (is_placed) {
        (void)execve(PROGRAM, child->argv, environ);
    }
    child->error_number = errno;
    _exit(EXIT_FAILURE);
}

pid_t guardian_birth_exec(const struct guardian_birth *birth, int guardian_fd) {
    _Alignas(16) char stack[STACK_BYTES];
    char name[] = NAME, agent[16];
    struct child child = {.birth = birth, .fd = guardian_fd, .argv = {name, agent, NULL}};
    sigset_t all, before;
    (void)str_format(agent, sizeof agent, "%d", (int)getpid());
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
    pid_t pid = clone(child_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &child);
    int error_number = pid < 0 ? errno : child.error_number;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid >= 0 && error_number != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        pid = -1;
    }
    errno = error_number;
    return pid;
}

void guardian_main(int argc, char **argv) {
    struct stat seen;
    char *end;
    if (argc != 2 || strcmp(argv[0], NAME) != 0) {
        return;
    }
    long agent = strtol(argv[1], &end, DECIMAL);
    if (*end != '\0' || fstat(GUARDIAN_CHANNEL_FD, &seen) != 0 || !S_ISSOCK(seen.st_mode) ||
        fcntl(GUARDIAN_CHANNEL_FD, F_SETFD, FD_CLOEXEC) != 0) {
        _exit(EXIT_FAILURE);
    }
    guardian_process_run(GUARDIAN_CHANNEL_FD, (pid_t)agent);
}
