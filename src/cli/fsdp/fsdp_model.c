/* See fsdp_model.h. */
#include "cli/fsdp/fsdp_model.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum { NAME_BYTES = 48 }; /* of a GPT's names */

static int allocate(size_t unit_count, size_t parameter_count, struct fsdp_model *out) {
    out->units = calloc(unit_count, sizeof *out->units);
    out->parameters = calloc(parameter_count, sizeof *out->parameters);
    return out->units && out->parameters ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %zu units", unit_count);
}

/* The next unit, whose parameters are those added from now on. */
static struct muster_fsdp_unit *add_unit(struct fsdp_model *model, const char *name) {
    struct muster_fsdp_unit *unit = &model->units[model->unit_count++];
    *unit = (struct muster_fsdp_unit){.name = name, .parameters = &model->parameters[model->parameter_count]};
    return unit;
}

static void add_parameter(struct fsdp_model *model, struct muster_fsdp_unit *unit,
                          struct muster_fsdp_parameter parameter) {
    model->parameters[model->parameter_count++] = parameter;
    unit->parameter_count++;
}

/* ---- a GPT ---- */

struct gpt {
    size_t layers, heads, width, context, vocabulary;
};

static int parse_gpt(const char *text, struct gpt *out) {
    size_t *const numbers[] = {&out->layers, &out->heads, &out->width, &out->context, &out->vocabulary};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    char words[128], *rest = words;
    bool is_right = str_copy(words, sizeof words, text);
    for (size_t i = 0; i < COUNT && is_right; i++) {
        const char *word = strsep(&rest, ",");
        int64_t value = 0;
        is_right = word && str_parse_i64(word, &value) && value >= 1 && value <= FSDP_MODEL_GPT_NUMBER_MAX;
        *numbers[i] = (size_t)value;
    }
    if (!is_right || rest) {
        return status_fail(MUSTER_EINVAL,
                           "--gpt %.100s: five numbers from 1 to %d are expected, layers,heads,width,context,"
                           "vocabulary, such as 12,12,768,1024,50257",
                           text, FSDP_MODEL_GPT_NUMBER_MAX);
    }
    if (out->layers > MUSTER_FSDP_UNITS_MAX - 2) {
        return status_fail(MUSTER_EINVAL, "--gpt %.100s: %zu layers are the most", text, MUSTER_FSDP_UNITS_MAX - 2);
    }
    return out->width % out->heads == 0
               ? 0
               : status_fail(MUSTER_EINVAL, "--gpt %.100s: a width of %zu is no multiple of %zu heads", text,
                             out->width, out->heads);
}

/* Weights and biases of a block, in multiples of the width: weight = weights * width * width. */
static const struct {
    const char *name;
    size_t weights, biases;
} block_parts[] = {{"ln_1", 0, 1}, {"attn.c_attn", 3, 3}, {"attn.c_proj", 1, 1},
                   {"ln_2", 0, 1}, {"mlp.c_fc", 4, 4},    {"mlp.c_proj", 4, 1}};
enum {
    BLOCK_PARTS = sizeof block_parts / sizeof *block_parts,
    BLOCK_PARAMETERS = 2 * BLOCK_PARTS,
    OTHER_PARAMETERS = 5 /* wte, wpe, ln_f.weight, ln_f.bias, lm_head */
};

static void add_block(struct fsdp_model *model, const struct gpt *gpt, size_t layer, char (**names)[NAME_BYTES]) {
    char *name = **names;
    (void)str_format(*(*names)++, NAME_BYTES, "h.%zu", layer);
    struct muster_fsdp_unit *unit = add_unit(model, name);
    for (size_t i = 0; i < BLOCK_PARTS; i++) {
        size_t width = gpt->width, weights = block_parts[i].weights;
        char *weight = **names;
        (void)str_format(*(*names)++, NAME_BYTES, "h.%zu.%s.weight", layer, block_parts[i].name);
        char *bias = **names;
        (void)str_format(*(*names)++, NAME_BYTES, "h.%zu.%s.bias", layer, block_parts[i].name);
        add_parameter(
            model, unit,
            (struct muster_fsdp_parameter){.name = weight, .count = weights > 0 ? weights * width * width : width});
        add_parameter(model, unit,
                      (struct muster_fsdp_parameter){.name = bias, .count = block_parts[i].biases * width});
    }
}

int fsdp_model_gpt(const char *text, struct fsdp_model *out) {
    struct gpt gpt = {0};
    *out = (struct fsdp_model){0};
    int code = parse_gpt(text, &gpt);
    if (code != 0) {
        return code;
    }
    code = allocate(gpt.layers + 2, gpt.layers * BLOCK_PARAMETERS + OTHER_PARAMETERS, out);
    out->names = code == 0 ? calloc(gpt.layers * (1 + BLOCK_PARAMETERS), NAME_BYTES) : NULL;
    if (!out->names) {
        fsdp_model_free(out);
        return code ? code : status_fail(MUSTER_ENOMEM, "no memory for the names of %zu layers", gpt.layers);
    }
    char(*names)[NAME_BYTES] = (char(*)[NAME_BYTES])out->names;
    struct muster_fsdp_unit *unit = add_unit(out, "embedding");
    add_parameter(out, unit, (struct muster_fsdp_parameter){.name = "wte", .count = gpt.vocabulary * gpt.width});
    add_parameter(out, unit, (struct muster_fsdp_parameter){.name = "wpe", .count = gpt.context * gpt.width});
    for (size_t layer = 0; layer < gpt.layers; layer++) {
        add_block(out, &gpt, layer, &names);
    }
    unit = add_unit(out, "final");
    add_parameter(out, unit, (struct muster_fsdp_parameter){.name = "ln_f.weight", .count = gpt.width});
    add_parameter(out, unit, (struct muster_fsdp_parameter){.name = "ln_f.bias", .count = gpt.width});
    add_parameter(out, unit, (struct muster_fsdp_parameter){.name = "lm_head", .count = gpt.vocabulary * gpt.width});
    return 0;
}

/* ---- a file ---- */

/* A count: a whole number from 0. */
static bool get_count(const json_t *value, size_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return false;
    }
    *out = (size_t)json_integer_value(value);
    return true;
}

static int read_parameter(const json_t *tree, struct muster_fsdp_parameter *out) {
    const char *key;
    const json_t *value;
    *out = (struct muster_fsdp_parameter){0};
    json_object_foreach((json_t *)(uintptr_t)tree, key, value) {
        bool is_right = false;
        if (strcmp(key, "name") == 0) {
            out->name = json_string_value(value);
            is_right = out->name != NULL;
        } else if (strcmp(key, "count") == 0) {
            is_right = get_count(value, &out->count);
        } else if (strcmp(key, "block") == 0) {
            is_right = get_count(value, &out->block);
        } else if (strcmp(key, "frozen") == 0) {
            is_right = json_is_boolean(value);
            out->frozen = json_is_true(value);
        }
        if (!is_right) {
            return status_fail(MUSTER_EINVAL,
                               "\"%.60s\" is unknown or of another kind: name (a text), count and block (whole "
                               "numbers) and frozen (true or false) are expected",
                               key);
        }
    }
    return json_is_object(tree) && out->name
               ? 0
               : status_fail(MUSTER_EINVAL, "an object with a name and a count is expected");
}

static int read_unit(struct fsdp_model *model, const json_t *tree) {
    const json_t *name = json_object_get(tree, "name"), *list = json_object_get(tree, "parameters");
    if (!json_is_string(name) || !json_is_array(list) || json_object_size(tree) != 2) {
        return status_fail(MUSTER_EINVAL, "an object with a name and a list \"parameters\" is expected");
    }
    struct muster_fsdp_unit *unit = add_unit(model, json_string_value(name));
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct muster_fsdp_parameter parameter;
        int code = read_parameter(json_array_get(list, i), &parameter);
        if (code != 0) {
            return status_prefix(code, "parameter %zu", i);
        }
        add_parameter(model, unit, parameter);
    }
    return 0;
}

static int read_tree(struct fsdp_model *model) {
    size_t unit_count = json_array_size(model->tree), parameter_count = 0;
    if (unit_count == 0) {
        return status_fail(MUSTER_EINVAL, "a list of units is expected");
    }
    for (size_t i = 0; i < unit_count; i++) {
        parameter_count += json_array_size(json_object_get(json_array_get(model->tree, i), "parameters"));
    }
    int code = allocate(unit_count, parameter_count + 1, model);
    for (size_t i = 0; i < unit_count && code == 0; i++) {
        code = read_unit(model, json_array_get(model->tree, i));
        code = code ? status_prefix(code, "unit %zu", i) : 0;
    }
    return code;
}

/* What the file has, or a sentence why not. */
static int read_file(const char *path, char **out, size_t *out_size) {
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(FSDP_MODEL_FILE_BYTES_MAX + 1) : NULL;
    int code = 0;
    if (!text) {
        code = file ? status_fail(MUSTER_ENOMEM, "no memory for a file") : status_fail_errno(errno, "cannot be opened");
    } else {
        *out_size = fread(text, 1, FSDP_MODEL_FILE_BYTES_MAX + 1, file);
        code = ferror(file) ? status_fail_errno(errno, "cannot be read") : 0;
        if (code == 0 && *out_size > FSDP_MODEL_FILE_BYTES_MAX) {
            code = status_fail(MUSTER_ELIMIT, "has more than %d bytes", FSDP_MODEL_FILE_BYTES_MAX);
        }
    }
    if (file) {
        (void)fclose(file);
    }
    if (code != 0) {
        free(text);
        return code;
    }
    *out = text;
    return 0;
}

int fsdp_model_read(const char *path, struct fsdp_model *out) {
    char *text = NULL;
    size_t size = 0;
    json_error_t error;
    *out = (struct fsdp_model){0};
    int code = read_file(path, &text, &size);
    if (code == 0) {
        out->tree = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
        code = out->tree ? read_tree(out) : status_fail(MUSTER_EINVAL, "line %d: %s", error.line, error.text);
    }
    free(text);
    if (code != 0) {
        fsdp_model_free(out);
        return status_prefix(code, "--units %.200s", path);
    }
    return 0;
}

/* ---- any model ---- */

int fsdp_model_count(const struct fsdp_model *model, size_t *out_all, size_t *out_learning) {
    size_t all = 0, learning = 0;
    for (size_t i = 0; i < model->parameter_count; i++) {
        const struct muster_fsdp_parameter *parameter = &model->parameters[i];
        if (parameter->count > SIZE_MAX / 1024 - all) {
            return status_fail(MUSTER_ELIMIT, "the parameters have more elements than can be counted");
        }
        all += parameter->count;
        learning += parameter->frozen ? 0 : parameter->count;
    }
    *out_all = all;
    *out_learning = learning;
    return 0;
}

void fsdp_model_free(struct fsdp_model *model) {
    json_decref(model->tree);
    free(model->units);
    free(model->parameters);
    free(model->names);
    *model = (struct fsdp_model){0};
}
