/* `muster ckpt verify`: is all of it as it was written? */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

static const struct ckpt_grammar grammar = {
    .program = "muster ckpt verify",
    .help = "usage: muster ckpt verify SOURCE\n"
            "\n"
            "Reads all of SOURCE, compares all checksums, and prints a line for each file or tensor\n"
            "that is damaged. Of a folder the newest checkpoint or snapshot is read whose record can\n"
            "be; each newer one has a line, too. safetensors files of others have no checksums: they\n"
            "can be read, or not.\n"
            "\n" CKPT_SOURCE_HELP "\n"
            "  -h, --help      show this text\n"
            "\n"
            "The exit code is 1 if something is damaged, or a newer save was cut off.\n",
    .usage = "a source is needed: muster ckpt verify checkpoints",
    .path_count = 1,
};

enum { TOLD_MAX = 1000 };

struct verifying {
    struct buf *out;
    struct ckpt_progress progress;
    uint64_t damages;
};

static int hear(void *context, const char *sentence, uint64_t done) {
    struct verifying *v = context;
    int code = ckpt_progress_add(&v->progress, done);
    if (sentence && v->damages++ < TOLD_MAX && code == 0) {
        size_t begin = v->out->len;
        code = ckpt_end_line(v->out, begin, buf_printf(v->out, "%s", sentence));
    }
    return code;
}

/* What is newer than the archive, and cannot be read, is damage as well. */
static int tell_passed_over(struct verifying *v, const struct archive *archive) {
    const char *line = archive_passed_over(archive);
    int code = 0;
    while (*line && code == 0) {
        size_t length = strcspn(line, "\n");
        char *sentence = strndup(line, length);
        code = sentence ? hear(v, sentence, 0) : status_fail(MUSTER_ENOMEM, "no memory for a sentence");
        free(sentence);
        line += length + (line[length] == '\n');
    }
    return code;
}

static uint64_t bytes_of(const struct archive *archive) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < archive_tensor_count(archive); i++) {
        bytes += archive_tensor(archive, i)->bytes;
    }
    return bytes;
}

static int conclude(struct verifying *v, const struct archive *archive) {
    char size[CKPT_SIZE_MAX];
    ckpt_size_text(v->progress.done, size);
    int code = archive_step(archive) < 0
                   ? buf_printf(v->out, "%s: ", archive_kind(archive))
                   : buf_printf(v->out, "%s of step %" PRId64 ": ", archive_kind(archive), archive_step(archive));
    if (code == 0) {
        code = v->damages == 0
                   ? buf_printf(v->out, "whole, %s were read\n", size)
                   : buf_printf(v->out, "damaged, in %" PRIu64 " place%s\n", v->damages, str_plural(v->damages));
    }
    return code;
}

int ckpt_verify(int argc, char **argv) {
    struct ckpt_words words;
    struct archive *archive = NULL;
    struct buf out;
    struct verifying v = {.out = &out};
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    buf_init(&out, CKPT_OUTPUT_BYTES_MAX);
    int code = archive_open(words.paths[0], &archive);
    if (code == 0) {
        ckpt_progress_begin(&v.progress, bytes_of(archive));
        code = tell_passed_over(&v, archive);
        code = code ? code : archive_verify(archive, hear, &v);
        ckpt_progress_end(&v.progress, code == 0);
        code = code ? code : conclude(&v, archive);
    }
    archive_close(archive);
    end = ckpt_finish(&grammar, code, &out);
    return end == CLI_EXIT_OK && v.damages > 0 ? CLI_EXIT_FAILURE : end;
}
