/* Output shared by the subcommands; see cli.h. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool cli_write(int fd, const struct buf *b) {
    size_t done = 0;
    while (done < b->len) {
        ssize_t n = write(fd, buf_bytes(b) + done, b->len - done);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

void cli_error(const char *program, bool usage, const char *text) {
    if (strcmp(program, "torchrun") == 0) {
        if (usage) {
            (void)fprintf(stderr, "usage: torchrun [options] training_script [training_script_args ...]\n");
        }
        (void)fprintf(stderr, "torchrun: error: %s\n", text);
    } else {
        (void)fprintf(stderr, "%s: %s\n", program, text);
    }
    if (usage) {
        (void)fprintf(stderr, "try '%s --help'\n", program);
    }
}
