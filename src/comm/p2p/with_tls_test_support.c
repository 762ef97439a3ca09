/* Runs a test with TLS between its ranks: makes an authority and a certificate, names them in the environment, and
 * takes them away when the test has ended.
 *
 *   with_tls PROGRAM [ARGUMENT...] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/tls_test_support.h"

enum { EXIT_USAGE = 2, EXIT_CANNOT_RUN = 127, SIGNAL_BASE = 128 };

int main(int argc, char **argv) {
    struct tls_test_folder folder;
    int status = 0;
    if (argc < 2) {
        (void)fprintf(stderr, "usage: %s PROGRAM [ARGUMENT...]\n", argv[0]);
        return EXIT_USAGE;
    }
    tls_test_folder_make(&folder);
    if (setenv("MUSTER_TLS_CERT", folder.member, 1) != 0 || setenv("MUSTER_TLS_KEY", folder.member_key, 1) != 0 ||
        setenv("MUSTER_TLS_CA", folder.authority, 1) != 0) {
        perror("setenv");
        return EXIT_CANNOT_RUN;
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)execv(argv[1], argv + 1);
        perror(argv[1]);
        _exit(EXIT_CANNOT_RUN);
    }
    pid_t ended = pid > 0 ? waitpid(pid, &status, 0) : -1;
    tls_test_folder_remove(&folder);
    if (ended != pid) {
        perror("with_tls");
        return EXIT_CANNOT_RUN;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : SIGNAL_BASE + WTERMSIG(status);
}
