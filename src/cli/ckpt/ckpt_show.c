/* `muster ckpt show`: what is in a saved state. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

static const struct ckpt_grammar grammar = {
    .program = "muster ckpt show",
    .help = "usage: muster ckpt show [--only NAME] [--skip NAME] [--json] SOURCE\n"
            "\n"
            "Lists the tensors and values of SOURCE, without reading the tensors.\n"
            "\n" CKPT_SOURCE_HELP "\n"
            "  --only NAME     only what is called so, and what is below it: model takes\n"
            "                  model.0.weight; can be given several times\n"
            "  --skip NAME     nothing that is called so or is below it; can be given several times\n"
            "  --json          one JSON object instead of text\n"
            "  -h, --help      show this text\n",
    .usage = "a source is needed: muster ckpt show model.pt",
    .path_count = 1,
    .has_choice = true,
    .has_json = true,
};

/* ---- text ---- */

static int add_value(struct buf *out, const struct archive_value *value) {
    if (value->is_left_out) {
        return buf_printf(out, "%s: %s (cannot be imported)", value->name, value->text);
    }
    switch (value->kind) {
    case MUSTER_VALUE_INTEGER:
        return buf_printf(out, "%s: %" PRId64, value->name, value->integer);
    case MUSTER_VALUE_REAL:
        return buf_printf(out, "%s: %.17g", value->name, value->real);
    default:
        return buf_printf(out, "%s: \"%s\"", value->name, value->text);
    }
}

static int add_tensor(struct buf *out, const struct archive_tensor *tensor) {
    char shape[CKPT_SHAPE_MAX], size[CKPT_SIZE_MAX];
    ckpt_shape_text(tensor, shape);
    ckpt_size_text(tensor->bytes, size);
    return buf_printf(out, "%s: %s %s, %s%s", tensor->name, tensor->type_name, shape, size,
                      tensor->type == MUSTER_TYPE_COUNT ? " (cannot be imported)" : "");
}

static int write_text(struct buf *out, const struct archive *archive, const struct ckpt_choice *choice) {
    uint64_t bytes = 0;
    size_t count = 0;
    int code = 0;
    char size[CKPT_SIZE_MAX];
    for (size_t i = 0; i < archive_tensor_count(archive) && code == 0; i++) {
        const struct archive_tensor *tensor = archive_tensor(archive, i);
        if (ckpt_choice_takes(choice, tensor->name)) {
            size_t begin = out->len;
            code = ckpt_end_line(out, begin, add_tensor(out, tensor));
            bytes += tensor->bytes;
            count++;
        }
    }
    for (size_t i = 0; i < archive_value_count(archive) && code == 0; i++) {
        if (ckpt_choice_takes(choice, archive_value(archive, i)->name)) {
            size_t begin = out->len;
            code = ckpt_end_line(out, begin, add_value(out, archive_value(archive, i)));
        }
    }
    ckpt_size_text(bytes, size);
    code = code || archive_step(archive) < 0 ? code : buf_printf(out, "step %" PRId64 " of a ", archive_step(archive));
    code =
        code ? code : buf_printf(out, "%s: %zu tensor%s, %s\n", archive_kind(archive), count, str_plural(count), size);
    return code;
}

/* ---- JSON ---- */

static json_t *shape_json(const struct archive_tensor *tensor) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return shape;
}

static json_t *value_json(const struct archive_value *value) {
    switch (value->kind) {
    case MUSTER_VALUE_INTEGER:
        return json_integer(value->integer);
    case MUSTER_VALUE_REAL: /* JSON has no other numbers; the manifests of snapshots do the same */
        return isnan(value->real)   ? json_string("nan")
               : isinf(value->real) ? json_string(value->real > 0 ? "inf" : "-inf")
                                    : json_real(value->real);
    default:
        return json_string(value->text);
    }
}

static json_t *tensors_json(const struct archive *archive, const struct ckpt_choice *choice) {
    json_t *tensors = json_object();
    int failed = tensors ? 0 : -1;
    for (size_t i = 0; i < archive_tensor_count(archive) && failed == 0; i++) {
        const struct archive_tensor *tensor = archive_tensor(archive, i);
        if (ckpt_choice_takes(choice, tensor->name)) {
            failed = json_object_set_new(tensors, tensor->name,
                                         json_pack("{s:s, s:o, s:I, s:b}", "type", tensor->type_name, "shape",
                                                   shape_json(tensor), "bytes", (json_int_t)tensor->bytes, "importable",
                                                   tensor->type != MUSTER_TYPE_COUNT));
        }
    }
    if (failed) {
        json_decref(tensors);
        return NULL;
    }
    return tensors;
}

/* Those that can be imported, or those that are left out. */
static json_t *values_json(const struct archive *archive, const struct ckpt_choice *choice, bool left_out) {
    json_t *values = json_object();
    int failed = values ? 0 : -1;
    for (size_t i = 0; i < archive_value_count(archive) && failed == 0; i++) {
        const struct archive_value *value = archive_value(archive, i);
        if (value->is_left_out == left_out && ckpt_choice_takes(choice, value->name)) {
            failed = json_object_set_new(values, value->name, left_out ? json_string(value->text) : value_json(value));
        }
    }
    if (failed) {
        json_decref(values);
        return NULL;
    }
    return values;
}

static int write_json(struct buf *out, const struct archive *archive, const struct ckpt_choice *choice) {
    json_t *tree =
        json_pack("{s:s, s:I, s:o, s:o, s:o}", "kind", archive_kind(archive), "step", (json_int_t)archive_step(archive),
                  "tensors", tensors_json(archive, choice), "values", values_json(archive, choice, false), "left_out",
                  values_json(archive, choice, true)); /* fails, and frees the others, where one is NULL */
    int code = tree ? cli_append_json(out, tree, JSON_INDENT(2)) : status_fail(MUSTER_ENOMEM, "no memory for JSON");
    json_decref(tree);
    return code;
}

int ckpt_show(int argc, char **argv) {
    struct ckpt_words words;
    struct archive *archive = NULL;
    struct buf out;
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    buf_init(&out, CKPT_OUTPUT_BYTES_MAX);
    int code = ckpt_open(&grammar, words.paths[0], &archive);
    if (code == 0) {
        code = words.wants_json ? write_json(&out, archive, &words.choice) : write_text(&out, archive, &words.choice);
    }
    archive_close(archive);
    return ckpt_finish(&grammar, code, &out);
}
