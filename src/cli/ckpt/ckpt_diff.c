/* `muster ckpt diff`: what differs between two saved states. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

static const struct ckpt_grammar grammar = {
    .program = "muster ckpt diff",
    .help = "usage: muster ckpt diff SOURCE SOURCE [--only NAME] [--skip NAME]\n"
            "\n"
            "Prints a line for each tensor and value that two sources do not have alike. Elements\n"
            "are compared bit by bit; of float32 and float64 tensors the largest difference is told.\n"
            "\n" CKPT_SOURCE_HELP "\n"
            "  --only NAME     only what is called so, and what is below it\n"
            "  --skip NAME     nothing that is called so or is below it\n"
            "  -h, --help      show this text\n"
            "\n"
            "The exit code is 0 if they are alike, 1 if they differ, 2 for other reasons.\n",
    .usage = "two sources are needed: muster ckpt diff one other",
    .path_count = 2,
    .has_choice = true,
};

struct comparison {
    struct archive *sides[2];
    size_t *orders[2]; /* numbers of the tensors, by name */
    const struct ckpt_choice *choice;
    struct ckpt_progress progress;
    struct buf *out;
    uint64_t lines;
};

static int add_line(struct comparison *c, const char *name, const char *what) {
    c->lines++;
    size_t begin = c->out->len;
    return ckpt_end_line(c->out, begin, buf_printf(c->out, "%s: %s", name, what));
}

/* ---- elements ---- */

struct difference {
    uint64_t count;
    double largest;
};

static double at(enum muster_type type, const uint8_t *bytes) {
    float single = 0;
    double value = 0;
    if (type == MUSTER_FLOAT32) {
        memcpy(&single, bytes, sizeof single);
        return (double)single;
    }
    memcpy(&value, bytes, sizeof value);
    return value;
}

static void compare_bytes(const struct archive_tensor *tensor, const uint8_t *one, const uint8_t *other, uint64_t bytes,
                          struct difference *out) {
    bool is_real = tensor->type == MUSTER_FLOAT32 || tensor->type == MUSTER_FLOAT64;
    if (memcmp(one, other, (size_t)bytes) == 0) {
        return;
    }
    for (uint64_t i = 0; i < bytes; i += tensor->element_bytes) {
        if (memcmp(one + i, other + i, tensor->element_bytes) == 0) {
            continue;
        }
        out->count++;
        double off = is_real ? fabs(at(tensor->type, one + i) - at(tensor->type, other + i)) : 0;
        out->largest = off > out->largest || isnan(off) ? off : out->largest;
    }
}

/* Blocks of both are of the same sizes, since the tensors are of one shape. */
static int compare_elements(struct comparison *c, const size_t *numbers, struct difference *out) {
    const struct archive_tensor *tensor = archive_tensor(c->sides[0], numbers[0]);
    int code = 0;
    for (uint64_t done = 0, count = 0; done < tensor->bytes && code == 0; done += count) {
        const void *blocks[2];
        uint64_t counts[2];
        for (size_t side = 0; side < 2 && code == 0; side++) {
            code = archive_next(c->sides[side], numbers[side], UINT64_MAX, &blocks[side], &counts[side]);
        }
        if (code == 0) {
            count = counts[0];
            compare_bytes(tensor, blocks[0], blocks[1], count, out);
            code = ckpt_progress_add(&c->progress, count);
        }
    }
    return code;
}

/* ---- tensors ---- */

static int compare_tensor(struct comparison *c, const size_t *numbers) {
    const struct archive_tensor *one = archive_tensor(c->sides[0], numbers[0]);
    const struct archive_tensor *other = archive_tensor(c->sides[1], numbers[1]);
    struct difference difference = {.count = 0};
    char shapes[2][CKPT_SHAPE_MAX], text[2 * CKPT_SHAPE_MAX + 128];
    if (strcmp(one->type_name, other->type_name) != 0 || one->dim_count != other->dim_count ||
        memcmp(one->shape, other->shape, one->dim_count * sizeof *one->shape) != 0) {
        ckpt_shape_text(one, shapes[0]);
        ckpt_shape_text(other, shapes[1]);
        (void)str_format(text, sizeof text, "%s %s and %s %s", one->type_name, shapes[0], other->type_name, shapes[1]);
        return add_line(c, one->name, text);
    }
    int code = compare_elements(c, numbers, &difference);
    if (code || difference.count == 0) {
        return code;
    }
    int used = snprintf(text, sizeof text, "%" PRIu64 " of %" PRIu64 " elements differ", difference.count,
                        one->bytes / one->element_bytes);
    if (one->type == MUSTER_FLOAT32 || one->type == MUSTER_FLOAT64) {
        (void)snprintf(text + used, sizeof text - (size_t)used, ", by %.6g at most", difference.largest);
    }
    return add_line(c, one->name, text);
}

/* Names of one side alone, of both, in order. */
static int compare_tensors(struct comparison *c) {
    size_t counts[2] = {archive_tensor_count(c->sides[0]), archive_tensor_count(c->sides[1])}, next[2] = {0, 0};
    int code = 0;
    while (code == 0 && (next[0] < counts[0] || next[1] < counts[1])) {
        const char *names[2];
        for (size_t side = 0; side < 2; side++) {
            names[side] =
                next[side] < counts[side] ? archive_tensor(c->sides[side], c->orders[side][next[side]])->name : NULL;
        }
        int order = !names[0] ? 1 : !names[1] ? -1 : strcmp(names[0], names[1]);
        const char *name = order <= 0 ? names[0] : names[1];
        if (!ckpt_choice_takes(c->choice, name)) {
            code = 0;
        } else if (order != 0) {
            code = add_line(c, name, order < 0 ? "only the first has this tensor" : "only the second has this tensor");
        } else {
            const size_t numbers[2] = {c->orders[0][next[0]], c->orders[1][next[1]]};
            code = compare_tensor(c, numbers);
        }
        next[0] += order <= 0;
        next[1] += order >= 0;
    }
    return code;
}

/* ---- values ---- */

static const struct archive_value *find_value(const struct archive *archive, const char *name) {
    for (size_t i = 0; i < archive_value_count(archive); i++) {
        if (strcmp(archive_value(archive, i)->name, name) == 0) {
            return archive_value(archive, i);
        }
    }
    return NULL;
}

static bool is_same_value(const struct archive_value *one, const struct archive_value *other) {
    if (one->is_left_out != other->is_left_out || one->kind != other->kind) {
        return false;
    }
    return one->text                           ? other->text && strcmp(one->text, other->text) == 0
           : one->kind == MUSTER_VALUE_INTEGER ? one->integer == other->integer
                                               : one->real == other->real || (isnan(one->real) && isnan(other->real));
}

static int compare_values(struct comparison *c) {
    int code = 0;
    for (size_t side = 0; side < 2; side++) {
        for (size_t i = 0; i < archive_value_count(c->sides[side]) && code == 0; i++) {
            const struct archive_value *value = archive_value(c->sides[side], i);
            const struct archive_value *other = find_value(c->sides[1 - side], value->name);
            if (!ckpt_choice_takes(c->choice, value->name)) {
                continue;
            }
            if (!other) {
                code = add_line(c, value->name,
                                side == 0 ? "only the first has this value" : "only the second has this value");
            } else if (side == 0 && !is_same_value(value, other)) {
                code = add_line(c, value->name, "the values differ");
            }
        }
    }
    return code;
}

/* ---- both ---- */

static const struct archive *sorted; /* for by_name */

static int by_name(const void *left, const void *right) {
    return strcmp(archive_tensor(sorted, *(const size_t *)left)->name,
                  archive_tensor(sorted, *(const size_t *)right)->name);
}

static int open_side(struct comparison *c, size_t side, const char *path) {
    int code = ckpt_open(&grammar, path, &c->sides[side]);
    if (code) {
        return code;
    }
    size_t count = archive_tensor_count(c->sides[side]);
    c->orders[side] = calloc(count + 1, sizeof *c->orders[side]);
    if (!c->orders[side]) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        c->orders[side][i] = i;
        c->progress.total += side == 0 ? archive_tensor(c->sides[0], i)->bytes : 0;
    }
    sorted = c->sides[side];
    qsort(c->orders[side], count, sizeof *c->orders[side], by_name);
    return 0;
}

static int compare(struct comparison *c, const struct ckpt_words *words) {
    int code = open_side(c, 0, words->paths[0]);
    code = code ? code : open_side(c, 1, words->paths[1]);
    if (code) {
        return code;
    }
    ckpt_progress_begin(&c->progress, c->progress.total);
    code = compare_tensors(c);
    code = code ? code : compare_values(c);
    ckpt_progress_end(&c->progress, code == 0);
    return code;
}

int ckpt_diff(int argc, char **argv) {
    struct ckpt_words words;
    struct buf out;
    struct comparison c = {.out = &out};
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    buf_init(&out, CKPT_OUTPUT_BYTES_MAX);
    c.choice = &words.choice;
    int code = compare(&c, &words);
    for (size_t side = 0; side < 2; side++) {
        archive_close(c.sides[side]);
        free(c.orders[side]);
    }
    end = ckpt_finish(&grammar, code, &out);
    return end != CLI_EXIT_OK ? CLI_EXIT_USAGE : c.lines > 0 ? CLI_EXIT_FAILURE : CLI_EXIT_OK;
}
