/* `muster ckpt import`: a snapshot of what another program has saved. Tensors are copied a few MiB at a time. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"
#include "train/state/snapshot_parts.h"

enum { TO, STEP };

static const struct ckpt_grammar grammar = {
    .program = "muster ckpt import",
    .help = "usage: muster ckpt import SOURCE --to FOLDER [options]\n"
            "\n"
            "Makes a snapshot (muster/snapshot.h) in FOLDER of what another program has saved.\n"
            "SOURCE is one of\n"
            "\n"
            "  a file of torch.save(), with tensors in dicts and lists\n"
            "  a folder of torch.distributed.checkpoint, from any number of ranks\n"
            "  a safetensors file, or an index of some (model.safetensors.index.json)\n"
            "  a folder with such an index\n"
            "\n"
            "It is read as data: nothing in it is executed. Names are keys joined by dots, such as\n"
            "model.0.weight. Numbers and texts become values; other objects are left out.\n"
            "\n"
            "  --to FOLDER     where the snapshot goes; it is made if it is missing\n"
            "  --step N        the step that the snapshot is of (default: 0)\n"
            "  --only NAME     only what is called so, and what is below it: model takes\n"
            "                  model.0.weight; can be given several times\n"
            "  --skip NAME     nothing that is called so or is below it; can be given several times\n"
            "  -h, --help      show this text\n",
    .usage = "a source and a folder are needed: muster ckpt import model.pt --to snapshots",
    .path_count = 1,
    .values = {"--to", "--step"},
    .has_choice = true,
};

enum { NAMED_MAX = 10 }; /* of what is left out */

struct import {
    const char *source, *folder;
    int64_t step;
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

/* ---- what is imported ---- */

static void take_tensor(struct import *import, size_t number) {
    const struct archive_tensor *from = archive_tensor(import->archive, number);
    struct muster_tensor *to = &import->tensors[import->tensor_count];
    *to = (struct muster_tensor){
        .name = from->name, .type = from->type, .dim_count = from->dim_count, .data = snapshot_from_source};
    memcpy(to->shape, from->shape, sizeof to->shape);
    import->numbers[import->tensor_count++] = number;
    import->bytes += from->bytes;
}

/* All of them, so that one more try is enough. */
static int refuse_types(const struct import *import, size_t count) {
    struct buf text;
    size_t named = 0;
    buf_init(&text, MUSTER_DETAIL_MAX);
    for (size_t i = 0; i < archive_tensor_count(import->archive) && named < NAMED_MAX; i++) {
        const struct archive_tensor *tensor = archive_tensor(import->archive, i);
        if (tensor->type == MUSTER_TYPE_COUNT && ckpt_choice_takes(import->choice, tensor->name)) {
            (void)buf_printf(&text, "%s%s (%s)", named++ > 0 ? ", " : "", tensor->name, tensor->type_name);
        }
    }
    (void)buf_append(&text, "", 1);
    int code =
        status_fail(MUSTER_EUNSUPPORTED, "snapshots have no such types; leave these tensors out with --skip NAME: %s%s",
                    text.len > 0 ? (const char *)buf_bytes(&text) : "", count > named ? " and more" : "");
    buf_done(&text);
    return code;
}

static void take_value(struct import *import, const struct archive_value *from) {
    /* Saving only reads; the struct is that of loading, too. */
    union {
        const void *from;
        void *to;
    } data = {from->kind == MUSTER_VALUE_INTEGER ? (const void *)&from->integer : &from->real};
    import->values[import->value_count++] =
        from->kind == MUSTER_VALUE_TEXT
            ? muster_value_text(from->name, from->text, strlen(from->text) + 1)
            : (struct muster_value){.name = from->name, .kind = from->kind, .data = data.to};
}

static int take_all(struct import *import) {
    const struct ckpt_choice *choice = import->choice;
    size_t tensors = archive_tensor_count(import->archive), values = archive_value_count(import->archive);
    import->tensors = calloc(tensors + 1, sizeof *import->tensors);
    import->numbers = calloc(tensors + 1, sizeof *import->numbers);
    import->values = calloc(values + 1, sizeof *import->values);
    if (!import->tensors || !import->numbers || !import->values) {
        return status_fail(MUSTER_ENOMEM, "no memory for lists of %zu tensors and %zu values", tensors, values);
    }
    size_t refused = 0;
    for (size_t i = 0; i < tensors; i++) {
        bool is_wanted = ckpt_choice_takes(choice, archive_tensor(import->archive, i)->name);
        if (is_wanted && archive_tensor(import->archive, i)->type == MUSTER_TYPE_COUNT) {
            refused++;
        } else if (is_wanted) {
            take_tensor(import, i);
        }
    }
    int code = refused > 0 ? refuse_types(import, refused) : 0;
    for (size_t i = 0; i < values && code == 0; i++) {
        const struct archive_value *value = archive_value(import->archive, i);
        if (!value->is_left_out && ckpt_choice_takes(choice, value->name)) {
            take_value(import, value);
        }
    }
    if (code == 0 && import->tensor_count == 0 && import->value_count == 0) {
        code = status_fail(MUSTER_EINVAL, "%s has nothing to import%s", import->source,
                           choice->only_count + choice->skip_count > 0 ? " that --only and --skip leave" : "");
    }
    return code;
}

/* ---- saving it ---- */

static int next_bytes(void *context, size_t tensor, uint64_t most, const void **out, uint64_t *out_bytes) {
    struct import *import = context;
    int code = archive_next(import->archive, import->numbers[tensor], most, out, out_bytes);
    return code ? code : ckpt_progress_add(&import->progress, *out_bytes);
}

static int save(struct import *import) {
    const struct snapshot_source source = {.context = import, .next = next_bytes};
    const struct muster_snapshot_state state =
        MUSTER_SNAPSHOT_STATE(import->tensors, import->tensor_count, import->values, import->value_count);
    struct muster_snapshot_options options = MUSTER_SNAPSHOT_OPTIONS_INIT;
    options.keep = UINT32_MAX; /* an import is no reason to remove anything */
    ckpt_progress_begin(&import->progress, import->bytes);
    int code = snapshot_save_parts(import->folder, import->step, &state, &options, &source);
    ckpt_progress_end(&import->progress);
    return code;
}

/* ---- what is said ---- */

static int add_left_out(struct buf *out, const struct import *import) {
    size_t count = 0;
    int code = 0;
    for (size_t i = 0; i < archive_value_count(import->archive) && code == 0; i++) {
        const struct archive_value *value = archive_value(import->archive, i);
        if (!value->is_left_out || !ckpt_choice_takes(import->choice, value->name)) {
            continue;
        }
        count++;
        code = count <= NAMED_MAX ? buf_printf(out, "left out: %s (%s)\n", value->name, value->text) : 0;
    }
    return code || count <= NAMED_MAX
               ? code
               : buf_printf(out, "left out: %zu more, which muster ckpt show lists\n", count - NAMED_MAX);
}

static int report(const struct import *import, struct buf *out) {
    char size[CKPT_SIZE_MAX], rate[CKPT_SIZE_MAX];
    double seconds = (double)(clock_monotonic_ns() - import->progress.started_ns) / (double)CLOCK_NS_PER_S;
    ckpt_size_text(import->bytes, size);
    ckpt_size_text((uint64_t)((double)import->bytes / (seconds > 0 ? seconds : 1)), rate);
    int code = add_left_out(out, import);
    return code ? code
                : buf_printf(out, "step %" PRId64 " of %s: %zu tensor%s and %zu value%s of a %s, %s in %.1f s, %s/s\n",
                             import->step, import->folder, import->tensor_count, str_plural(import->tensor_count),
                             import->value_count, str_plural(import->value_count), archive_kind(import->archive), size,
                             seconds, rate);
}

static int run(struct import *import) {
    int code = archive_open(import->source, &import->archive);
    code = code ? code : take_all(import);
    return code ? code : save(import);
}

int ckpt_import(int argc, char **argv) {
    struct ckpt_words words;
    struct import import = {.step = 0};
    struct buf out;
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    if (ckpt_words_number(&grammar, &words, STEP, 0, &import.step) != 0 || !words.values[TO]) {
        cli_error(grammar.program, true, words.values[TO] ? muster_detail() : grammar.usage);
        return CLI_EXIT_USAGE;
    }
    import.source = words.paths[0];
    import.folder = words.values[TO];
    import.choice = &words.choice;
    buf_init(&out, CKPT_OUTPUT_BYTES_MAX);
    int code = run(&import);
    code = code ? code : report(&import, &out);
    archive_close(import.archive);
    free(import.tensors);
    free(import.numbers);
    free(import.values);
    return ckpt_finish(&grammar, code, &out);
}
