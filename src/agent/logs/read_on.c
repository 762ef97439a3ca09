/* A fork of the launcher that has nothing of it but the relay; see read_on.h. */
#include "agent/logs/read_on.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/guardian/guardian_inherit.h"
#include "base/log.h"

static int compare(const void *a, const void *b) {
    int left = *(const int *)a, right = *(const int *)b;
    return (left > right) - (left < right);
}

/* Others may wait for the end of what the launcher had: a lock, a port, the pipe of a console that nobody uses. A
 * kernel without the call (before 5.9) keeps them open until the last process has ended. */
static void close_others(const struct relay *relay) {
    size_t count = 0;
    int *kept = relay_descriptors(relay, &count);
    if (!kept) {
        return;
    }
    qsort(kept, count, sizeof *kept, compare);
    unsigned first = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned fd = (unsigned)kept[i];
        if (fd > first) {
            (void)syscall(SYS_close_range, first, fd - 1, 0U);
        }
        first = fd + 1;
    }
    (void)syscall(SYS_close_range, first, ~0U, 0U);
    free(kept);
}

/* Like those whose output it reads: nothing that ends the launcher's session or job ends it. */
_Noreturn static void read_on(struct relay *relay) {
    uv_loop_t loop;
    guardian_shut_signals();
    (void)setsid();
    (void)prctl(PR_SET_NAME, "muster-output");
    close_others(relay);
    guardian_fill_streams();
    _exit(uv_loop_init(&loop) == 0 && relay_read_on(relay, &loop) == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

void read_on_begin(struct relay *relay) {
    sigset_t all, before;
    if (!relay_has_writers(relay)) {
        return;
    }
    relay_flush(relay);
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before); /* no handler of the launcher's runs in the other process */
    pid_t pid = fork();
    if (pid == 0) {
        read_on(relay);
    }
    int error_number = errno;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid > 0) {
        relay_hand_over(relay);
    } else {
        log_error("nobody reads what processes of the workers print from now on, so writing may end them: %s",
                  strerror(error_number));
    }
}
