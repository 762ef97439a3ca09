/* The words of a verb; see ckpt.h. */
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

static bool take_value(const struct ckpt_grammar *grammar, int argc, char **argv, int *at, struct ckpt_words *out,
                       int *code) {
    for (size_t i = 0; i < CKPT_VALUES_MAX && grammar->values[i]; i++) {
        bool missing = false;
        const char *value = cli_option_value(argc, argv, at, grammar->values[i], &missing);
        if (value) {
            out->values[i] = value;
            *code =
                missing || value[0] == '\0' ? status_fail(MUSTER_EINVAL, "%s needs a value", grammar->values[i]) : 0;
            return true;
        }
    }
    return false;
}

static bool take_rename(int argc, char **argv, int *at, struct ckpt_words *out, int *code) {
    bool missing = false;
    const char *value = cli_option_value(argc, argv, at, "--rename", &missing);
    if (!value) {
        return false;
    }
    if (missing || out->rename_count == CKPT_NAMES_MAX) {
        *code = missing ? status_fail(MUSTER_EINVAL, "--rename needs OLD=NEW")
                        : status_fail(MUSTER_EINVAL, "--rename can be given %d times", CKPT_NAMES_MAX);
    } else {
        out->renames[out->rename_count++] = value;
    }
    return true;
}

static int take_word(const struct ckpt_grammar *grammar, const char *word, struct ckpt_words *out, bool *wants_help) {
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        *wants_help = true;
    } else if (grammar->has_json && strcmp(word, "--json") == 0) {
        out->wants_json = true;
    } else if (word[0] == '-' && word[1] != '\0') {
        return status_fail(MUSTER_EINVAL, "'%.100s' is not understood", word);
    } else if (out->path_count == grammar->path_count) {
        return status_fail(MUSTER_EINVAL, "'%.100s' is one too many", word);
    } else {
        out->paths[out->path_count++] = word;
    }
    return 0;
}

static int read_words(const struct ckpt_grammar *grammar, int argc, char **argv, struct ckpt_words *out,
                      bool *wants_help) {
    int code = 0;
    for (int i = 1; i < argc && code == 0 && !*wants_help; i++) {
        bool is_taken = (grammar->has_choice && ckpt_choice_option(&out->choice, argc, argv, &i, &code)) ||
                        (grammar->has_rename && take_rename(argc, argv, &i, out, &code));
        if (!is_taken && !take_value(grammar, argc, argv, &i, out, &code)) {
            code = take_word(grammar, argv[i], out, wants_help);
        }
    }
    return code || *wants_help || out->path_count == grammar->path_count
               ? code
               : status_fail(MUSTER_EINVAL, "%s", grammar->usage);
}

bool ckpt_words_read(const struct ckpt_grammar *grammar, int argc, char **argv, struct ckpt_words *out, int *out_exit) {
    bool wants_help = false;
    *out = (struct ckpt_words){.path_count = 0};
    if (read_words(grammar, argc, argv, out, &wants_help) != 0) {
        cli_error(grammar->program, true, muster_detail());
        *out_exit = CLI_EXIT_USAGE;
        return false;
    }
    if (wants_help) {
        *out_exit = cli_print(grammar->help);
    }
    return !wants_help;
}

int ckpt_words_number(const struct ckpt_grammar *grammar, const struct ckpt_words *words, size_t value, int64_t least,
                      int64_t *out) {
    const char *text = words->values[value];
    int64_t number = 0;
    if (!text) {
        return 0;
    }
    if (!str_parse_i64(text, &number) || number < least) {
        return status_fail(MUSTER_EINVAL, "%s %.100s: a number from %lld on is expected", grammar->values[value], text,
                           (long long)least);
    }
    *out = number;
    return 0;
}
