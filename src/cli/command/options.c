/* Python argparse's reading of a command line, for the fixed table of option_table.h; see options.h.
 *
 * The rules in short (argparse of Python 3.11, options and one positional followed by "the rest"):
 * - A word with a dash in front is an option if it is an option's name or a prefix of one, or if it has no blank. Any
 *   other word is a value. Negative numbers are values.
 * - The first value that no option takes is the script. Everything behind it is the script's.
 * - One rule is a later Python's: words behind the script are not looked at. (3.11 rejects those that are ambiguous
 *   prefixes.) */
#include "cli/command/options.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/command/suggest.h"

const struct option_spec option_specs[OPTION_COUNT] = {
#define OPTION_SPEC(name_id, its_kind, its_scope, its_group, its_letter, its_name, its_variable, its_fallback,         \
                    its_choices, its_value_name, its_help)                                                             \
    [OPTION_##name_id] = {.id = OPTION_##name_id,                                                                      \
                          .kind = (its_kind),                                                                          \
                          .scope = (its_scope),                                                                        \
                          .group = OPTION_GROUP_##its_group,                                                           \
                          .letter = (its_letter),                                                                      \
                          .name = (its_name),                                                                          \
                          .variable = (its_variable),                                                                  \
                          .fallback = (its_fallback),                                                                  \
                          .choices = (its_choices),                                                                    \
                          .value_name = (its_value_name),                                                              \
                          .help = (its_help)},
    OPTION_TABLE(OPTION_SPEC)
#undef OPTION_SPEC
};

const char *const option_group_titles[OPTION_GROUP_COUNT] = {
#define OPTION_GROUP_TITLE(id, title) [OPTION_GROUP_##id] = (title),
    OPTION_GROUP_TABLE(OPTION_GROUP_TITLE)
#undef OPTION_GROUP_TITLE
};

/* What one word of the command line is. */
enum word_kind { WORD_VALUE, WORD_DASHES, WORD_OPTION, WORD_UNKNOWN, WORD_AMBIGUOUS };

struct word {
    enum word_kind kind;
    const struct option_spec *spec; /* WORD_OPTION */
    const char *attached;           /* the value written in the same word, or NULL */
    bool is_short;
};

struct parser {
    int argc;
    char *const *argv;
    int next;
    struct options *out;
    const char *unknown; /* first word that looks like an option and is none */
};

bool option_takes_value(const struct option_spec *spec) {
    return spec->kind >= OPTION_KIND_TEXT;
}

bool option_may_be_bare(const struct option_spec *spec) {
    return spec->kind == OPTION_KIND_CHOICE_OR_BARE;
}

bool option_spelling(const struct option_spec *spec, bool underscores, char out[OPTION_SPELLING_MAX]) {
    bool fits = str_copy(out, OPTION_SPELLING_MAX, spec->name);
    assert(fits);
    if (!underscores) {
        return true;
    }
    bool differs = false;
    for (char *p = out + 2; *p != '\0'; p++) {
        if (*p == '-') {
            *p = '_';
            differs = true;
        }
    }
    return differs;
}

/* Numbers, as Python reads them. */

static const char *skip_blanks(const char *p) {
    while (isspace((unsigned char)*p)) {
        p++;
    }
    return p;
}

/* Skips digits with single underscores between them; NULL when there is none. */
static const char *skip_digits(const char *p, size_t *count) {
    bool was_digit = false;
    for (; isdigit((unsigned char)*p) || (*p == '_' && was_digit); p++) {
        was_digit = *p != '_';
        *count += was_digit;
    }
    return was_digit ? p : NULL;
}

bool options_parse_integer(const char *text, int64_t *out) {
    const char *p = skip_blanks(text);
    bool negative = *p == '-';
    size_t digits = 0;
    p = skip_digits(p + (*p == '-' || *p == '+'), &digits);
    if (p == NULL || digits > OPTIONS_DIGITS_MAX || *skip_blanks(p) != '\0') {
        return false;
    }
    if (!str_parse_i64(text, out)) {
        *out = negative ? INT64_MIN : INT64_MAX;
    }
    return true;
}

static const char *skip_float_word(const char *p) {
    static const char *const words[] = {"infinity", "inf", "nan"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strncasecmp(p, words[i], strlen(words[i])) == 0) {
            return p + strlen(words[i]);
        }
    }
    return NULL;
}

/* The end of a decimal number in Python's grammar, or NULL. Hexadecimal, which strtod() takes, is not in it. */
static const char *skip_float(const char *p) {
    p += *p == '-' || *p == '+';
    const char *end = skip_float_word(p);
    if (end != NULL) {
        return end;
    }
    size_t digits = 0;
    if (isdigit((unsigned char)*p) && (p = skip_digits(p, &digits)) == NULL) {
        return NULL;
    }
    if (*p == '.') {
        p++;
        if (isdigit((unsigned char)*p) && (p = skip_digits(p, &digits)) == NULL) {
            return NULL;
        }
    }
    if (digits > 0 && (*p == 'e' || *p == 'E')) {
        p++;
        return skip_digits(p + (*p == '-' || *p == '+'), &digits);
    }
    return digits > 0 ? p : NULL;
}

bool options_parse_real(const char *text, double *out) {
    char plain[512];
    const char *start = skip_blanks(text);
    const char *end = skip_float(start);
    if (end == NULL || *skip_blanks(end) != '\0' || (size_t)(end - start) >= sizeof plain) {
        return false;
    }
    size_t n = 0;
    for (const char *p = start; p < end; p++) {
        if (*p != '_') {
            plain[n++] = *p;
        }
    }
    plain[n] = '\0';
    *out = strtod(plain, NULL);
    return true;
}

/* -5, -.5 and -1.5 are values (and may be scripts), unlike other words with a dash. */
static bool looks_like_negative_number(const char *word) {
    const char *p = word + 1;
    size_t before = strspn(p, "0123456789");
    p += before;
    if (*p == '.') {
        size_t behind = strspn(p + 1, "0123456789");
        p += behind > 0 ? 1 + behind : 0;
        before += behind;
    }
    return before > 0 && (*p == '\0' || strcmp(p, "\n") == 0);
}

/* Finding options. */

static const struct option_spec *find_letter(char letter) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (option_specs[i].letter != 0 && option_specs[i].letter == letter) {
            return &option_specs[i];
        }
    }
    return NULL;
}

struct matches {
    size_t count;
    const struct option_spec *first;
    char names[256]; /* for the message, cut when it is full */
};

static void matches_add(struct matches *found, const struct option_spec *spec, const char *spelling) {
    if (found->count++ == 0) {
        found->first = spec;
    }
    size_t used = strlen(found->names);
    (void)str_format(found->names + used, sizeof found->names - used, "%s%s", used > 0 ? ", " : "", spelling);
}

/* All spellings that begin with the `n` bytes of `text`, or the one that is equal to them. */
static void find_spellings(const char *text, size_t n, struct matches *found) {
    *found = (struct matches){0};
    for (size_t i = 0; i < 2 * (size_t)OPTION_COUNT; i++) {
        const struct option_spec *spec = &option_specs[i / 2];
        char spelling[OPTION_SPELLING_MAX];
        if (!option_spelling(spec, i % 2 == 1, spelling) || strncmp(spelling, text, n) != 0) {
            continue;
        }
        if (spelling[n] == '\0') {
            *found = (struct matches){.count = 1, .first = spec};
            return;
        }
        if (spec->scope == OPTION_SCOPE_TORCHRUN) {
            matches_add(found, spec, spelling);
        }
    }
}

static struct word word_without_option(const char *text) {
    bool value = looks_like_negative_number(text) || strchr(text, ' ') != NULL;
    return (struct word){.kind = value ? WORD_VALUE : WORD_UNKNOWN};
}

static struct word classify_long(const char *text, struct matches *found) {
    const char *equals = strchr(text, '=');
    find_spellings(text, equals ? (size_t)(equals - text) : strlen(text), found);
    if (found->count == 0) {
        return word_without_option(text);
    }
    return (struct word){
        .kind = found->count == 1 ? WORD_OPTION : WORD_AMBIGUOUS,
        .spec = found->first,
        .attached = equals ? equals + 1 : NULL,
    };
}

static struct word classify_short(const char *text) {
    const struct option_spec *spec = find_letter(text[1]);
    if (spec == NULL) {
        return word_without_option(text);
    }
    const char *attached = text[2] == '\0' ? NULL : text[2] == '=' ? text + 3 : text + 2;
    return (struct word){.kind = WORD_OPTION, .spec = spec, .attached = attached, .is_short = true};
}

static struct word classify(const char *text, struct matches *found) {
    if (text[0] != '-' || text[1] == '\0') {
        return (struct word){.kind = WORD_VALUE};
    }
    if (strcmp(text, "--") == 0) {
        return (struct word){.kind = WORD_DASHES};
    }
    return text[1] == '-' ? classify_long(text, found) : classify_short(text);
}

int options_count_words(int argc, char *const *argv, int at) {
    struct matches found;
    struct word word = classify(argv[at], &found);
    if (word.kind == WORD_VALUE || word.kind == WORD_DASHES) {
        return 0;
    }
    bool wants_next = word.kind == WORD_OPTION && option_takes_value(word.spec) && word.attached == NULL &&
                      !option_may_be_bare(word.spec);
    return wants_next && at + 1 < argc && classify(argv[at + 1], &found).kind == WORD_VALUE ? 2 : 1;
}

/* Messages. They begin with the words that torchrun's users and scripts know. */

static enum options_verdict fail_ambiguous(const char *text, const struct matches *found) {
    int length = (int)strcspn(text, "=");
    status_fail(MUSTER_EINVAL, "ambiguous option: %.*s could match %s; write one of them in full", length, text,
                found->names);
    return OPTIONS_USAGE;
}

static bool nearest_spelling(const char *typed, char out[OPTION_SPELLING_MAX]) {
    unsigned distance = suggest_limit(typed) + 1;
    bool found = false;
    for (size_t i = 0; i < 2 * (size_t)OPTION_COUNT; i++) {
        char spelling[OPTION_SPELLING_MAX];
        if (option_spelling(&option_specs[i / 2], i % 2 == 1, spelling) &&
            suggest_better(typed, spelling + 2, &distance)) {
            memcpy(out, spelling, sizeof spelling);
            found = true;
        }
    }
    return found;
}

/* The option with the longest beginning in common, when that is at least a word long: --nprocs. */
static bool similar_spelling(const char *typed, char out[OPTION_SPELLING_MAX]) {
    size_t best = 3;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const char *name = option_specs[i].name + 2;
        size_t n = 0;
        while (name[n] != '\0' && name[n] == typed[n]) {
            n++;
        }
        if (n > best) {
            best = n;
            (void)option_spelling(&option_specs[i], false, out);
        }
    }
    return best > 3;
}

static enum options_verdict fail_unknown(const char *text) {
    char typed[OPTION_SPELLING_MAX] = "";
    char nearest[OPTION_SPELLING_MAX];
    const char *start = text + strspn(text, "-");
    size_t n = strcspn(start, "=");
    if (n < sizeof typed) {
        memcpy(typed, start, n);
        typed[n] = '\0';
    }
    if (typed[0] != '\0' && (nearest_spelling(typed, nearest) || similar_spelling(typed, nearest))) {
        status_fail(MUSTER_EINVAL, "unrecognized arguments: %.200s; did you mean %s?", text, nearest);
    } else {
        status_fail(
            MUSTER_EINVAL,
            "unrecognized arguments: %.200s; options of the script go after its name, those of muster before it", text);
    }
    return OPTIONS_USAGE;
}

static enum options_verdict fail_no_value(const struct parser *parser, const struct option_spec *spec) {
    const char *wanted = spec->choices ? spec->choices : spec->value_name;
    if (parser->next < parser->argc) {
        status_fail(MUSTER_EINVAL,
                    "argument %s: expected one argument (%s), but the next word is the option '%.100s'; a value that "
                    "begins with a dash is written as %s=VALUE",
                    spec->name, wanted, parser->argv[parser->next], spec->name);
    } else {
        status_fail(MUSTER_EINVAL, "argument %s: expected one argument (%s), but the command line ends here",
                    spec->name, wanted);
    }
    return OPTIONS_USAGE;
}

static enum options_verdict fail_script_missing(void) {
    status_fail(MUSTER_EINVAL, "the following arguments are required: training_script (the Python file to run, a "
                               "module with -m, or any program with --no-python), training_script_args (its own)");
    return OPTIONS_USAGE;
}

static enum options_verdict fail_number(const struct option_spec *spec, const char *text, const char *where) {
    bool whole = spec->kind == OPTION_KIND_INTEGER;
    status_fail(MUSTER_EINVAL, "argument %s: invalid %s value: '%.100s'%s; a %s is expected, such as %s", spec->name,
                whole ? "int" : "float", text, where, whole ? "whole number" : "number",
                spec->fallback ? spec->fallback : "30");
    return OPTIONS_USAGE;
}

/* Choices are one string, "a b c". */
static const char *next_choice(const char *choices, char out[OPTION_SPELLING_MAX]) {
    size_t n = strcspn(choices, " ");
    assert(n < OPTION_SPELLING_MAX);
    memcpy(out, choices, n);
    out[n] = '\0';
    return choices + n + (choices[n] == ' ');
}

static bool choice_known(const struct option_spec *spec, const char *text) {
    char choice[OPTION_SPELLING_MAX];
    for (const char *rest = spec->choices; *rest != '\0';) {
        rest = next_choice(rest, choice);
        if (strcmp(choice, text) == 0) {
            return true;
        }
    }
    return false;
}

static enum options_verdict fail_choice(const struct option_spec *spec, const char *text) {
    char list[128] = "", choice[OPTION_SPELLING_MAX], nearest[OPTION_SPELLING_MAX] = "";
    unsigned distance = suggest_limit(text) + 1;
    for (const char *rest = spec->choices; *rest != '\0';) {
        rest = next_choice(rest, choice);
        size_t used = strlen(list);
        (void)str_format(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", choice);
        if (suggest_better(text, choice, &distance)) {
            memcpy(nearest, choice, sizeof choice);
        }
    }
    bool known = nearest[0] != '\0';
    status_fail(MUSTER_EINVAL, "argument %s: invalid choice: '%.100s' (choose from %s)%s%s%s", spec->name, text, list,
                known ? "; did you mean " : "", nearest, known ? "?" : "");
    return OPTIONS_USAGE;
}

/* Storing values. */

static enum options_verdict store_number(const struct option_spec *spec, const char *where,
                                         struct option_value *value) {
    bool fine = spec->kind == OPTION_KIND_INTEGER ? options_parse_integer(value->text, &value->integer)
                : spec->kind == OPTION_KIND_REAL  ? options_parse_real(value->text, &value->real)
                                                  : true;
    return fine ? OPTIONS_OK : fail_number(spec, value->text, where);
}

static enum options_verdict store(struct parser *parser, const struct option_spec *spec, const char *text) {
    struct option_value *value = &parser->out->values[spec->id];
    *value = (struct option_value){.source = OPTION_FROM_COMMAND_LINE, .text = text, .on = true};
    if (text && spec->choices && !choice_known(spec, text)) {
        return fail_choice(spec, text);
    }
    return spec->kind == OPTION_KIND_COMPLETION ? OPTIONS_COMPLETION : store_number(spec, "", value);
}

/* The value in the same word, or the next word when that is one. */
static enum options_verdict take_value(struct parser *parser, const struct option_spec *spec, const char *attached) {
    if (attached != NULL) {
        return store(parser, spec, attached);
    }
    if (option_may_be_bare(spec)) {
        parser->out->values[spec->id] =
            (struct option_value){.source = OPTION_FROM_COMMAND_LINE, .text = "", .on = true};
        return OPTIONS_OK;
    }
    struct matches found;
    if (parser->next < parser->argc && classify(parser->argv[parser->next], &found).kind == WORD_VALUE) {
        return store(parser, spec, parser->argv[parser->next++]);
    }
    return fail_no_value(parser, spec);
}

static enum options_verdict take_flag(struct parser *parser, const struct option_spec *spec) {
    if (spec->kind == OPTION_KIND_HELP) {
        return OPTIONS_HELP;
    }
    if (spec->kind == OPTION_KIND_VERSION) {
        return OPTIONS_VERSION;
    }
    return store(parser, spec, NULL);
}

/* One word that is an option: itself, or letters run together as in -mr3. Nothing of a word takes effect when a
 * later letter of it is wrong, so a help letter is remembered until the end. */
static enum options_verdict take_option(struct parser *parser, const struct word *word) {
    const struct option_spec *spec = word->spec;
    const char *attached = word->attached;
    enum options_verdict after = OPTIONS_OK;
    while (!option_takes_value(spec) && attached != NULL) {
        const struct option_spec *next = word->is_short && *attached != '\0' ? find_letter(*attached) : NULL;
        if (next == NULL) {
            status_fail(MUSTER_EINVAL, "argument %s: ignored explicit argument '%.100s'; this option takes no value",
                        spec->name, attached);
            return OPTIONS_USAGE;
        }
        enum options_verdict verdict = take_flag(parser, spec);
        after = after == OPTIONS_OK ? verdict : after;
        spec = next;
        attached = attached[1] != '\0' ? attached + 1 : NULL;
    }
    enum options_verdict verdict =
        option_takes_value(spec) ? take_value(parser, spec, attached) : take_flag(parser, spec);
    return verdict == OPTIONS_USAGE || after == OPTIONS_OK ? verdict : after;
}

static void take_script(struct parser *parser) {
    struct options *out = parser->out;
    out->script = parser->argv[parser->next++];
    out->script_args = parser->argv + parser->next;
    out->script_arg_count = (size_t)(parser->argc - parser->next);
}

/* Up to the script. */
static enum options_verdict parse_words(struct parser *parser) {
    while (parser->next < parser->argc) {
        const char *text = parser->argv[parser->next];
        struct matches found;
        struct word word = classify(text, &found);
        enum options_verdict verdict = OPTIONS_OK;
        switch (word.kind) {
        case WORD_VALUE:
            take_script(parser);
            /* argparse drops the first "--" of a line, also right behind the script. */
            if (parser->out->script_arg_count > 0 && strcmp(parser->out->script_args[0], "--") == 0) {
                parser->out->script_args++;
                parser->out->script_arg_count--;
            }
            return OPTIONS_OK;
        case WORD_DASHES:
            if (++parser->next < parser->argc) {
                take_script(parser);
            }
            return OPTIONS_OK;
        case WORD_OPTION:
            parser->next++;
            verdict = take_option(parser, &word);
            break;
        case WORD_UNKNOWN:
            parser->next++;
            parser->unknown = parser->unknown ? parser->unknown : text;
            break;
        case WORD_AMBIGUOUS:
            return fail_ambiguous(text, &found);
        }
        if (verdict != OPTIONS_OK) {
            return verdict;
        }
    }
    return OPTIONS_OK;
}

/* Flags' variables are numbers, and read before the command line. */
static enum options_verdict set_flag_default(const struct option_spec *spec, const char *text,
                                             struct option_value *value) {
    int64_t number = 0;
    if (text != NULL && !options_parse_integer(text, &number)) {
        status_fail(MUSTER_EINVAL,
                    "environment variable %s is '%.100s', which is not a number; it stands for %s: use 1 for on, 0 "
                    "for off, or unset it",
                    spec->variable, text, spec->name);
        return OPTIONS_INVALID;
    }
    value->on = number != 0;
    return OPTIONS_OK;
}

static enum options_verdict set_defaults(options_lookup *lookup, void *ctx, struct options *out) {
    *out = (struct options){0};
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option_spec *spec = &option_specs[i];
        struct option_value *value = &out->values[i];
        const char *text = spec->variable ? lookup(ctx, spec->variable) : NULL;
        if (text && spec->id == OPTION_MASTER_PORT && str_is_service_link(text)) {
            text = NULL; /* of a service called "pet-master" */
        }
        value->source = text ? OPTION_FROM_ENVIRONMENT : OPTION_FROM_DEFAULT;
        if (option_takes_value(spec)) {
            value->text = text ? text : spec->fallback;
        } else if (set_flag_default(spec, text, value) != OPTIONS_OK) {
            return OPTIONS_INVALID;
        }
    }
    return OPTIONS_OK;
}

/* Defaults and variables of options that were not typed are converted last: a bad one that is overridden is no error.
 * Choices are checked on the command line only, as argparse has it. */
static enum options_verdict convert_defaults(struct options *out) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        struct option_value *value = &out->values[i];
        if (value->source == OPTION_FROM_COMMAND_LINE || value->text == NULL) {
            continue;
        }
        char where[OPTION_SPELLING_MAX + 32] = "";
        if (value->source == OPTION_FROM_ENVIRONMENT) {
            (void)str_format(where, sizeof where, " in the environment variable %s", option_specs[i].variable);
        }
        enum options_verdict verdict = store_number(&option_specs[i], where, value);
        if (verdict != OPTIONS_OK) {
            return verdict;
        }
    }
    return OPTIONS_OK;
}

enum options_verdict options_parse(int argc, char *const *argv, options_lookup *lookup, void *ctx,
                                   struct options *out) {
    struct parser parser = {.argc = argc, .argv = argv, .out = out};
    enum options_verdict verdict = set_defaults(lookup, ctx, out);
    if (verdict == OPTIONS_OK) {
        verdict = parse_words(&parser);
    }
    if (verdict == OPTIONS_OK && parser.unknown != NULL) {
        verdict = fail_unknown(parser.unknown);
    }
    if (verdict == OPTIONS_OK && out->script == NULL) {
        verdict = fail_script_missing();
    }
    return verdict == OPTIONS_OK ? convert_defaults(out) : verdict;
}
