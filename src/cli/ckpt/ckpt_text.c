/* What all verbs say; see ckpt.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

void ckpt_size_text(uint64_t bytes, char out[CKPT_SIZE_MAX]) {
    static const char units[] = "KMGTPE";
    double value = (double)bytes;
    int unit = -1;
    while (value >= 1024 && unit + 2 < (int)sizeof units) {
        value /= 1024;
        unit++;
    }
    if (unit < 0) {
        (void)snprintf(out, CKPT_SIZE_MAX, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
    } else {
        (void)snprintf(out, CKPT_SIZE_MAX, "%.1f %ciB", value, units[unit]);
    }
}

void ckpt_shape_text(const struct archive_tensor *tensor, char out[CKPT_SHAPE_MAX]) {
    int used = snprintf(out, CKPT_SHAPE_MAX, "[");
    for (uint32_t i = 0; i < tensor->dim_count; i++) { /* 8 numbers of 20 digits fit */
        used +=
            snprintf(out + used, (size_t)(CKPT_SHAPE_MAX - used), "%s%" PRIu64, i > 0 ? ", " : "", tensor->shape[i]);
    }
    (void)snprintf(out + used, (size_t)(CKPT_SHAPE_MAX - used), "]");
}

int ckpt_open(const struct ckpt_grammar *grammar, const char *path, struct archive **out) {
    char note[MUSTER_DETAIL_MAX];
    int code = archive_open(path, out);
    const char *lines = code ? "" : archive_passed_over(*out);
    for (const char *line = lines; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        (void)str_format(note, sizeof note, "passed over %.*s", (int)strcspn(line, "\n"), line);
        cli_error(grammar->program, false, note);
    }
    if (lines[0] != '\0') {
        (void)str_format(note, sizeof note, "step %" PRId64 " is taken", archive_step(*out));
        cli_error(grammar->program, false, note);
    }
    return code;
}

int ckpt_end_line(struct buf *out, size_t begin, int code) {
    if (code) {
        return code;
    }
    printable_clean((char *)buf_bytes(out) + begin, out->len - begin, false);
    return buf_append(out, "\n", 1);
}

int ckpt_finish(const struct ckpt_grammar *grammar, int code, struct buf *out) {
    printable_clean((char *)buf_bytes(out), out->len, true); /* names and values are the files' */
    if (code == 0 && !cli_write(STDOUT_FILENO, out)) {
        code = status_fail(MUSTER_ESYSTEM, "the result could not be written to stdout");
    }
    if (code) {
        cli_error(grammar->program, false, muster_detail());
    }
    buf_done(out);
    return code == 0 ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
