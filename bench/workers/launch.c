/* Starts a command and says exactly when.
 *
 *     launch CHANNEL COMMAND...     stamps `exec` and becomes the command, so that the stamp is one execve() before it
 *     launch --elapsed N COMMAND... runs it N times, output thrown away, and prints exec-to-reaped nanoseconds, one a
 * line
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stamp.h"

static int exec_failed(const char *program) {
    fprintf(stderr, "launch: %s: %s\n", program, strerror(errno));
    return 127;
}

static int elapsed(long count, char **command) {
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    for (long i = 0; i < count; i++) {
        int64_t start_ns = stamp_now_ns();
        pid_t child;
        int status = 0;
        int failed = posix_spawnp(&child, command[0], &quiet, NULL, command, environ);
        if (failed || waitpid(child, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "launch: %s failed (wait status %d)\n", command[0], status);
            return 1;
        }
        printf("%" PRId64 "\n", stamp_now_ns() - start_ns);
    }
    posix_spawn_file_actions_destroy(&quiet);
    return 0;
}

int main(int argc, char **argv) {
    if (argc >= 4 && strcmp(argv[1], "--elapsed") == 0) {
        return elapsed(strtol(argv[2], NULL, 10), argv + 3);
    }
    if (argc < 3) {
        fputs("usage: launch CHANNEL COMMAND... | launch --elapsed N COMMAND...\n", stderr);
        return 2;
    }
    int channel = stamp_open(argv[1]);
    if (channel < 0) {
        perror(argv[1]);
        return 2;
    }
    stamp_write(channel, "exec", stamp_now_ns(), "");
    execvp(argv[2], argv + 2);
    return exec_failed(argv[2]);
}
