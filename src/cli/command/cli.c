/* Output shared by the subcommands; see cli.h. */
#include "cli/command/cli.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/printable.h"
#include "base/status.h"
#include "base/str.h"

enum { ERROR_TEXT_MAX = 8192 };

bool cli_write_all(int fd, const void *bytes, size_t count) {
    int error_number = file_write_all(fd, bytes, count, -1); /* who started us may have left the stream non-blocking */
    if (error_number != 0) {
        errno = error_number;
    }
    return error_number == 0;
}

bool cli_write(int fd, const struct buf *b) {
    return cli_write_all(fd, buf_bytes(b), b->len);
}

int cli_append_json(struct buf *out, const struct json_t *tree, size_t flags) {
    char *text = json_dumps(tree, flags);
    int code = text ? buf_printf(out, "%s\n", text) : status_fail(MUSTER_ENOMEM, "no memory to write JSON");
    free(text);
    return code;
}

int cli_print(const char *text) {
    if (cli_write_all(STDOUT_FILENO, text, strlen(text))) {
        return CLI_EXIT_OK;
    }
    (void)fprintf(stderr, "muster: stdout could not be written to: %s\n", strerror(errno));
    return CLI_EXIT_FAILURE;
}

/* Sentences quote arguments, variables, and what others have said. */
void cli_error(const char *program, bool usage, const char *message) {
    char text[ERROR_TEXT_MAX];
    (void)str_format(text, sizeof text, "%s", message); /* cut, if it is longer */
    printable_clean(text, strlen(text), true);
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

const char *cli_option_value(int argc, char **argv, int *at, const char *name, bool *missing) {
    size_t len = strlen(name);
    const char *word = argv[*at];
    if (strncmp(word, name, len) != 0 || (word[len] != '\0' && word[len] != '=')) {
        return NULL;
    }
    if (word[len] == '=') {
        return word + len + 1;
    }
    *missing = *at + 1 >= argc;
    if (*missing) {
        return word;
    }
    assert(argv[*at + 1] != NULL);
    return argv[++*at];
}
