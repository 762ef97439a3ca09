/* See guardian_inherit.h. */
#include "agent/guardian/guardian_inherit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A standard stream that was closed, or whose number serves the agent for something else, becomes /dev/null. */
void guardian_fill_streams(void) {
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = STDIN_FILENO; null_fd >= 0 && fd <= STDERR_FILENO; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (fd == null_fd) {
            (void)fcntl(fd, F_SETFD, 0);
        } else if (flags < 0 || (flags & FD_CLOEXEC)) {
            (void)dup2(null_fd, fd);
        }
    }
    if (null_fd > STDERR_FILENO) {
        (void)close(null_fd);
    }
}

void guardian_shut_descriptors(int first) {
    if (syscall(SYS_close_range, (unsigned)first, ~0U, 0U) == 0) {
        return;
    }
    long limit = sysconf(_SC_OPEN_MAX); /* Linux before 5.9 */
    for (int fd = first; fd < limit; fd++) {
        (void)close(fd);
    }
}

/* Never ignored in workers, whoever did it: the agent ignores two for itself, and without SIGCHLD nobody can be reaped.
 */
static bool is_ours(int number) {
    return number == SIGPIPE || number == SIGXFSZ || number == SIGCHLD;
}

void guardian_shut_signals(void) {
    uint64_t all = UINT64_MAX; /* the C library's sigfillset() leaves out the two it uses for threads, which kill too */
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
    for (int number = 1; number < NSIG; number++) {
        struct sigaction now;
        bool inherited = sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN && !is_ours(number);
        if (!inherited) {
            (void)signal(number, SIG_DFL); /* the agent's handlers must not run here */
        }
    }
}
