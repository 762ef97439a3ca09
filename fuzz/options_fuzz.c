/* The option parser on arbitrary words and variables.
 *
 * Input: words ended by NUL bytes; those that begin with "PET_" or "MUSTER_" and hold "=" are variables. Checked beyond
 * memory errors: a refusal has a sentence, and an accepted line names a script and arguments that lie within it. */
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cli/command/options.h"

enum { WORDS_MAX = 64 };

struct words {
    char *list[WORDS_MAX];
    int count;
};

static const char *lookup(void *ctx, const char *name) {
    const struct words *variables = ctx;
    size_t n = strlen(name);
    for (int i = 0; i < variables->count; i++) {
        if (strncmp(variables->list[i], name, n) == 0 && variables->list[i][n] == '=') {
            return variables->list[i] + n + 1;
        }
    }
    return NULL;
}

static bool is_variable(const char *word) {
    return (strncmp(word, "PET_", 4) == 0 || strncmp(word, "MUSTER_", 7) == 0) && strchr(word, '=') != NULL;
}

static void check(const struct words *line, enum options_verdict verdict, const struct options *options) {
    if (verdict == OPTIONS_USAGE || verdict == OPTIONS_INVALID) {
        assert(muster_detail()[0] != '\0');
        return;
    }
    if (verdict != OPTIONS_OK) {
        return;
    }
    assert(options->script != NULL && options->script_args > line->list);
    assert(options->script_args + options->script_arg_count == line->list + line->count);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option_value *value = &options->values[i];
        assert(!option_takes_value(&option_specs[i]) || value->source == OPTION_FROM_DEFAULT || value->text != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    struct words line = {.count = 0}, variables = {.count = 0};
    if (text == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(text, data, size);
    }
    text[size] = '\0';
    for (size_t at = 0; at < size; at += strlen(text + at) + 1) {
        struct words *to = is_variable(text + at) ? &variables : &line;
        if (to->count < WORDS_MAX) {
            to->list[to->count++] = text + at;
        }
    }
    struct options options;
    status_clear();
    check(&line, options_parse(line.count, line.list, lookup, &variables, &options), &options);
    free(text);
    return 0;
}
