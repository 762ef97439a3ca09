/* A copy of a source, as a snapshot (`muster ckpt import`) or as a checkpoint of some parts (`muster ckpt reshard`);
 * see ckpt.h. Tensors are copied a few MiB at a time. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "train/checkpoint/checkpoint_parts.h"
#include "train/state/snapshot_parts.h"

enum { NAMED_MAX = 10 }; /* of what is left out */

struct copy {
    const struct ckpt_grammar *grammar;
    struct ckpt_copy to;
    const char *source;
    const struct ckpt_choice *choice;
    struct archive *archive;
    struct muster_tensor *tensors;
    size_t *numbers; /* of each tensor, in the archive */
    size_t tensor_count;
    struct muster_value *values;
    size_t value_count;
    uint64_t bytes;
    struct ckpt_progress progress;
};

/* ---- what is copied ---- */

static void take_tensor(struct copy *copy, size_t number) {
    const struct archive_tensor *from = archive_tensor(copy->archive, number);
    struct muster_tensor *to = &copy->tensors[copy->tensor_count];
    *to = (struct muster_tensor){
        .name = from->name, .type = from->type, .dim_count = from->dim_count, .data = snapshot_from_source};
    memcpy(to->shape, from->shape, sizeof to->shape);
    copy->numbers[copy->tensor_count++] = number;
    copy->bytes += from->bytes;
}

/* All of them, so that one more try is enough. */
static int refuse_types(const struct copy *copy, size_t count) {
    struct buf text;
    size_t named = 0;
    buf_init(&text, MUSTER_DETAIL_MAX);
    for (size_t i = 0; i < archive_tensor_count(copy->archive) && named < NAMED_MAX; i++) {
        const struct archive_tensor *tensor = archive_tensor(copy->archive, i);
        if (tensor->type == MUSTER_TYPE_COUNT && ckpt_choice_takes(copy->choice, tensor->name)) {
            (void)buf_printf(&text, "%s%s (%s)", named++ > 0 ? ", " : "", tensor->name, tensor->type_name);
        }
    }
    (void)buf_append(&text, "", 1);
    int code =
        status_fail(MUSTER_EUNSUPPORTED,
                    "snapshots and checkpoints have no such types; leave these tensors out with --skip NAME: %s%s",
                    text.len > 0 ? (const char *)buf_bytes(&text) : "", count > named ? " and more" : "");
    buf_done(&text);
    return code;
}

static void take_value(struct copy *copy, const struct archive_value *from) {
    /* Saving only reads; the struct is that of loading, too. */
    union {
        const void *from;
        void *to;
    } data = {from->kind == MUSTER_VALUE_INTEGER ? (const void *)&from->integer : &from->real};
    copy->values[copy->value_count++] =
        from->kind == MUSTER_VALUE_TEXT
            ? muster_value_text(from->name, from->text, strlen(from->text) + 1)
            : (struct muster_value){.name = from->name, .kind = from->kind, .data = data.to};
}

static int take_all(struct copy *copy) {
    const struct ckpt_choice *choice = copy->choice;
    size_t tensors = archive_tensor_count(copy->archive), values = archive_value_count(copy->archive);
    copy->tensors = calloc(tensors + 1, sizeof *copy->tensors);
    copy->numbers = calloc(tensors + 1, sizeof *copy->numbers);
    copy->values = calloc(values + 1, sizeof *copy->values);
    if (!copy->tensors || !copy->numbers || !copy->values) {
        return status_fail(MUSTER_ENOMEM, "no memory for lists of %zu tensors and %zu values", tensors, values);
    }
    size_t refused = 0;
    for (size_t i = 0; i < tensors; i++) {
        bool is_wanted = ckpt_choice_takes(choice, archive_tensor(copy->archive, i)->name);
        if (is_wanted && archive_tensor(copy->archive, i)->type == MUSTER_TYPE_COUNT) {
            refused++;
        } else if (is_wanted) {
            take_tensor(copy, i);
        }
    }
    int code = refused > 0 ? refuse_types(copy, refused) : 0;
    for (size_t i = 0; i < values && code == 0; i++) {
        const struct archive_value *value = archive_value(copy->archive, i);
        if (!value->is_left_out && ckpt_choice_takes(choice, value->name)) {
            take_value(copy, value);
        }
    }
    if (code == 0 && copy->tensor_count == 0 && copy->value_count == 0) {
        code = status_fail(MUSTER_EINVAL, "%s has nothing to take%s", copy->source,
                           choice->only_count + choice->skip_count > 0 ? " that --only and --skip leave" : "");
    }
    return code;
}

/* ---- saving it ---- */

static int next_bytes(void *context, size_t tensor, uint64_t most, const void **out, uint64_t *out_bytes) {
    struct copy *copy = context;
    int code = archive_next(copy->archive, copy->numbers[tensor], most, out, out_bytes);
    return code ? code : ckpt_progress_add(&copy->progress, *out_bytes);
}

static int go_on(void *context) {
    return ckpt_progress_add(&((struct copy *)context)->progress, 0);
}

static int save(struct copy *copy) {
    const struct snapshot_source source = {.context = copy, .next = next_bytes, .go_on = go_on};
    const struct muster_snapshot_state state =
        MUSTER_SNAPSHOT_STATE(copy->tensors, copy->tensor_count, copy->values, copy->value_count);
    struct muster_snapshot_options options = MUSTER_SNAPSHOT_OPTIONS_INIT;
    options.keep = copy->to.keep;
    return copy->to.parts > 0
               ? checkpoint_save_parts(copy->to.folder, copy->to.step, &state, copy->to.parts, copy->to.keep, &source)
               : snapshot_save_parts(copy->to.folder, copy->to.step, &state, &options, NULL, &source);
}

/* A folder that this has made goes, too, where nothing came into it. */
static int save_or_leave_nothing(struct copy *copy) {
    struct stat info;
    bool is_new = stat(copy->to.folder, &info) != 0 && errno == ENOENT;
    ckpt_progress_begin(&copy->progress, copy->bytes);
    int code = save(copy);
    if (code && is_new) {
        (void)rmdir(copy->to.folder);
    }
    ckpt_progress_end(&copy->progress, code == 0);
    return code;
}

/* ---- what is said ---- */

static int add_left_out(struct buf *out, const struct copy *copy) {
    size_t count = 0;
    int code = 0;
    for (size_t i = 0; i < archive_value_count(copy->archive) && code == 0; i++) {
        const struct archive_value *value = archive_value(copy->archive, i);
        if (!value->is_left_out || !ckpt_choice_takes(copy->choice, value->name)) {
            continue;
        }
        count++;
        size_t begin = out->len;
        code = count > NAMED_MAX
                   ? 0
                   : ckpt_end_line(out, begin, buf_printf(out, "left out: %s (%s)", value->name, value->text));
    }
    return code || count <= NAMED_MAX
               ? code
               : buf_printf(out, "left out: %zu more, which muster ckpt show lists\n", count - NAMED_MAX);
}

/* "step 10 of checkpoints, 4 parts" */
static int add_place(struct buf *out, const struct ckpt_copy *to) {
    int code = buf_printf(out, "step %" PRId64 " of %s", to->step, to->folder);
    return code || to->parts == 0 ? code : buf_printf(out, ", %" PRIu32 " part%s", to->parts, str_plural(to->parts));
}

static int report(const struct copy *copy, struct buf *out) {
    char size[CKPT_SIZE_MAX], rate[CKPT_SIZE_MAX];
    double seconds = (double)(clock_monotonic_ns() - copy->progress.started_ns) / (double)CLOCK_NS_PER_S;
    ckpt_size_text(copy->bytes, size);
    ckpt_size_text((uint64_t)((double)copy->bytes / (seconds > 0 ? seconds : 1)), rate);
    int code = add_left_out(out, copy);
    code = code ? code : add_place(out, &copy->to);
    return code ? code
                : buf_printf(out, ": %zu tensor%s and %zu value%s of a %s, %s in %.1f s, %s/s\n", copy->tensor_count,
                             str_plural(copy->tensor_count), copy->value_count, str_plural(copy->value_count),
                             archive_kind(copy->archive), size, seconds, rate);
}

static int run(struct copy *copy) {
    int code = ckpt_open(copy->grammar, copy->source, &copy->archive);
    if (code) {
        return code;
    }
    if (copy->to.step < 0) {
        copy->to.step = archive_step(copy->archive) < 0 ? 0 : archive_step(copy->archive);
    }
    code = take_all(copy);
    return code ? code : save_or_leave_nothing(copy);
}

int ckpt_copy(const struct ckpt_grammar *grammar, const struct ckpt_words *words, const struct ckpt_copy *to) {
    struct copy copy = {.to = *to, .grammar = grammar, .source = words->paths[0], .choice = &words->choice};
    struct buf out;
    buf_init(&out, CKPT_OUTPUT_BYTES_MAX);
    int code = run(&copy);
    code = code ? code : report(&copy, &out);
    archive_close(copy.archive);
    free(copy.tensors);
    free(copy.numbers);
    free(copy.values);
    return ckpt_finish(grammar, code, &out);
}
