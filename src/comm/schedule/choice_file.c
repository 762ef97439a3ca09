/* Reading the file with a table of algorithms. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <muster/status.h>

#include "base/status.h"
#include "comm/schedule/choice.h"

/* One byte more than allowed, so that a file that is too long is noticed. */
static int read_text(const char *path, char *out, size_t *out_bytes) {
    FILE *file = fopen(path, "re");
    if (!file) {
        return status_fail_errno(errno, "open");
    }
    *out_bytes = fread(out, 1, CHOICE_FILE_BYTES_MAX + 1, file);
    int error = ferror(file) ? errno : 0;
    (void)fclose(file);
    return error ? status_fail_errno(error, "read") : 0;
}

int choice_load(const char *path, struct choice **out) {
    size_t bytes = 0;
    char *text = malloc(CHOICE_FILE_BYTES_MAX + 1);
    struct choice *choice = malloc(sizeof *choice);
    int status = text && choice ? read_text(path, text, &bytes) : status_fail(MUSTER_ENOMEM, "no memory");
    if (status == 0) {
        status = choice_parse(text, bytes, choice);
    }
    free(text);
    if (status != 0) {
        free(choice);
        return status_prefix(status, "MUSTER_CHOICE_FILE %s", path);
    }
    *out = choice;
    return 0;
}
